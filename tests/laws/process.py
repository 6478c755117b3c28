"""Print a digest: run as a module in other processes, which must find the same one."""

import sys

import numpy as np

from fedgram import Grid, Labels, Lift, Samples, load_dataset

from .planted import of_batches


def fixed(bits: int, width: int) -> Samples:
    return _digits(bits, Lift(width=width, activation="tanh", seed=3))


def hash_seeded(bits: int, width: int) -> Samples:
    """A mistake: Python's hash of a text is another in every process."""
    return _digits(bits, Lift(width=width, activation="tanh", seed=hash("projection") % 2**32))


def _digits(bits: int, lift: Lift) -> Samples:
    data = load_dataset("digits")
    some = slice(0, 1300)
    return Samples(lift(Grid(bits=bits)(data.x[some])), Labels(data.y[some], data.classes))


IMPLEMENTATIONS = {"fixed": fixed, "hash_seeded": hash_seeded}


def digest(name: str, bits: int, width: int) -> str:
    samples = IMPLEMENTATIONS[name](bits, width)
    halves = np.array_split(np.arange(len(samples)), 2)
    return sum(of_batches([samples.take(half)]) for half in halves).digest()


if __name__ == "__main__":
    sys.stdout.write(digest(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
