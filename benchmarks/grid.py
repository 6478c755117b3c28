"""What the integer grid costs: test accuracy of one central ridge regression by number of bits.

FEDGRAM_DATA=... python -m benchmarks.grid [--ridge 30]

The default clips were chosen on validation parts of the training samples of three of these sets.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import numpy as np

from benchmarks import lab
from fedgram import (
    Dataset,
    FedgramError,
    Grid,
    Labels,
    Lift,
    Linear,
    PartitionPlan,
    Statistics,
    load_dataset,
    predict,
)
from fedgram.data.dataset import TEST
from fedgram.data.partition import fixed_split

SOURCES = (
    "digits",
    "banking77_minilm_l6.npz",
    "pacs_efficientnet_lite0.npz",
    "cifar100_efficientnet_lite0.npz",
)
BITS = ("off", 16, 8, 6, 4, 3, 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ridge", type=float, default=30.0)
    parser.add_argument("--lift", type=int, default=0, help="width of a ReLU lift; 0 for none")
    lab.add_store(parser)
    given = parser.parse_args()
    lab.report(rows(given.ridge, given.lift), given.store)


def rows(ridge: float, width: int) -> Iterator[lab.Row]:
    lift = Lift(width=width)
    for source in SOURCES:
        try:
            data = load_dataset(source)
        except FedgramError as error:
            print(f"{source}: skipped, {error}")
            continue
        found = {bits: 100 * accuracy(data, Grid(bits=bits), lift, ridge) for bits in BITS}
        shown = {"float64" if bits == "off" else f"{bits} bits": found[bits] for bits in BITS}
        yield {"data": data.name, **shown}


def accuracy(data: Dataset, grid: Grid, lift: Lift, ridge: float) -> float:
    features = lift(grid(data.x, scale=data.scale, offset=data.offset))
    labels = Labels(data.y, data.classes)
    tested = fixed_split(data, PartitionPlan()) == TEST
    train, test = np.flatnonzero(~tested), np.flatnonzero(tested)
    head = Linear.of(Statistics.of(features.take(train), labels.take(train)), ridge=ridge)
    return float(np.mean(predict(head, features.take(test)) == data.y[test]))


if __name__ == "__main__":
    main()
