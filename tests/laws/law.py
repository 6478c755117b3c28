"""The laws, as functions of the implementation they are to hold for.

Each raises AssertionError where the implementation breaks it, which the tests show on planted
broken ones.
"""

import dataclasses
import itertools
import operator
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load as unpacked
from threadpoolctl import threadpool_limits

from fedgram import Samples
from fedgram.core import codec
from fedgram.errors import DataError, MismatchError

from . import process

# No shrinking: what is drawn is small, and planted failures would be shrunk at every run.
EXAMPLES = settings(
    phases=(Phase.explicit, Phase.generate),
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

Law = Callable[..., None]
Triples = st.SearchStrategy[tuple[Any, Any, Any]]


# Values that add and subtract. `triples` draws three values that may be added; `zero` is neutral.


def commutative(triples: Triples, zero: Any) -> None:
    @EXAMPLES
    @given(triples)
    def law(values: tuple[Any, Any, Any]) -> None:
        a, b, _ = values
        assert a + b == b + a

    law()


def associative(triples: Triples, zero: Any) -> None:
    @EXAMPLES
    @given(triples)
    def law(values: tuple[Any, Any, Any]) -> None:
        a, b, c = values
        assert (a + b) + c == a + (b + c)

    law()


def neutral(triples: Triples, zero: Any) -> None:
    """Zero changes nothing and takes over what the other side has agreed on."""

    @EXAMPLES
    @given(triples)
    def law(values: tuple[Any, Any, Any]) -> None:
        a, b, _ = values
        assert a + zero == a
        assert zero + a == a
        assert a - zero == a
        assert zero - a == -a
        assert zero + zero == zero
        assert (a - a) + b == b

    law()


def invertible(triples: Triples, zero: Any) -> None:
    @EXAMPLES
    @given(triples)
    def law(values: tuple[Any, Any, Any]) -> None:
        a, b, c = values
        assert a + b - b == a
        assert a - b == a + (-b)
        assert zero - (-a) == a
        assert a + b + c - b - a == c

    law()


def summable(triples: Triples, zero: Any) -> None:
    @EXAMPLES
    @given(triples)
    def law(values: tuple[Any, Any, Any]) -> None:
        a, b, c = values
        assert sum(values) == a + b + c
        assert sum([c, a, b], zero) == a + b + c

    law()


def pure(triples: Triples, zero: Any) -> None:
    """Neither addition nor subtraction changes what it works on."""

    @EXAMPLES
    @given(triples)
    def law(values: tuple[Any, Any, Any]) -> None:
        a, b, _ = values
        before = codec.digest([_fields(a), _fields(b)])
        for operation in (operator.add, operator.sub):
            operation(a, b)
        _ = -a
        assert codec.digest([_fields(a), _fields(b)]) == before

    law()


GROUP: dict[str, Law] = {
    law.__name__: law for law in (commutative, associative, neutral, invertible, summable, pure)
}


def refuses(ours: Any, theirs: Any, *words: str) -> None:
    """Two values that must not be added are refused with an error that says why."""
    for operation in (operator.add, operator.sub):
        for left, right in ((ours, theirs), (theirs, ours)):
            try:
                operation(left, right)
            except MismatchError as error:
                reason = str(error)
            else:
                raise AssertionError(f"{operation.__name__} was not refused")
            assert all(word in reason for word in words), reason


# Values that become bytes and come back. `kind` has encode, decode and digest.


def returns(kind: Any, values: st.SearchStrategy[Any]) -> None:
    """What is decoded is what was encoded, to the type of every number."""

    @EXAMPLES
    @given(values)
    def law(value: Any) -> None:
        assert same(kind.decode(kind.encode(value)), value)

    law()


def repeats(kind: Any, values: st.SearchStrategy[Any]) -> None:
    """The same value always gives the same bytes and the same digest."""

    @EXAMPLES
    @given(values)
    def law(value: Any) -> None:
        assert kind.encode(value) == kind.encode(value)
        again = kind.decode(kind.encode(value))
        assert kind.encode(again) == kind.encode(value)
        assert kind.digest(again) == kind.digest(value)

    law()


def narrows(kind: Any, values: st.SearchStrategy[Any]) -> None:
    """Integers travel in the smallest width that holds them, and only just."""

    @EXAMPLES
    @given(st.sampled_from([7, 15, 31, 63]), st.integers(-2, 1), st.booleans())
    def law(power: int, beside: int, negative: bool) -> None:
        extreme = (-(2**power) if negative else 2**power - 1) + beside
        extreme = int(np.clip(extreme, -(2**63), 2**63 - 1))
        smallest = next(
            width
            for width in (np.int8, np.int16, np.int32, np.int64)
            if np.iinfo(width).min <= extreme <= np.iinfo(width).max
        )
        value = {"numbers": np.array([0, extreme, 1])}
        (sent,) = unpacked(kind.encode(value)).values()
        assert sent.dtype == smallest
        assert same(kind.decode(kind.encode(value)), value)

    law()


def guards(kind: Any, values: st.SearchStrategy[Any]) -> None:
    """Bytes that were cut short, or that are somebody else's, are refused as such."""

    @EXAMPLES
    @given(values, st.floats(0, 1, exclude_max=True), st.binary(max_size=64))
    def law(value: Any, share: float, foreign: bytes) -> None:
        whole = kind.encode(value)
        for bad in (whole[: int(share * len(whole))], foreign, whole + b"0"):
            try:
                kind.decode(bad)
            except DataError as error:
                reason = str(error)
            else:
                raise AssertionError(f"{len(bad)} bad bytes were decoded")
            assert reason.startswith("message: ")

    law()


def digests(kind: Any, values: st.SearchStrategy[Any]) -> None:
    """A digest counts numbers in full width: it knows nothing of how a message was narrowed."""

    @EXAMPLES
    @given(values)
    def law(value: Any) -> None:
        with mock.patch.object(codec, "_narrowed", np.ascontiguousarray):
            wide = kind.digest(value)
        assert kind.digest(value) == wide

    law()
    rows = np.arange(-6, 6).reshape(3, 4)
    same_content = [rows, np.asfortranarray(rows), rows.astype(">i8"), rows[:, :]]
    assert len({kind.digest(array) for array in same_content}) == 1
    other_content = [rows, rows.astype(np.int8), rows.reshape(4, 3), -rows, rows.astype(float)]
    assert len({kind.digest(array) for array in other_content}) == len(other_content)


CODEC: dict[str, Law] = {law.__name__: law for law in (returns, repeats, narrows, guards, digests)}


# Statistics of samples. `statistics` makes them of a sequence of batches.

Implementation = Callable[[Sequence[Samples]], Any]


def split_exactly(statistics: Implementation, samples: Samples) -> None:
    """Any split over any number of parts, in any order and batch size, has the same digest."""
    whole = statistics([samples]).digest()

    @EXAMPLES
    @given(st.integers(0, 2**32), st.integers(1, 6), st.integers(1, len(samples)))
    def law(seed: int, parts: int, batch: int) -> None:
        total = _total(statistics, samples, seed, parts, max(batch, len(samples) // 40))
        assert total.digest() == whole

    law()


def split_closely(statistics: Implementation, samples: Samples) -> None:
    """Any split gives the same sums up to 1e-10 of their size: the law of plain floats."""
    whole = statistics([samples])

    @EXAMPLES
    @given(st.integers(0, 2**32), st.integers(1, 6), st.integers(1, len(samples)))
    def law(seed: int, parts: int, batch: int) -> None:
        total = _total(statistics, samples, seed, parts, max(batch, len(samples) // 40))
        assert total.count == whole.count
        for ours, theirs in ((total.gram, whole.gram), (total.moment, whole.moment)):
            assert ours.dtype == np.float64
            assert np.abs(ours - theirs).max() <= 1e-10 * np.abs(theirs).max()

    law()


def threads_agree(statistics: Implementation, samples: Samples) -> None:
    """The number of BLAS threads changes nothing."""
    seen = set()
    for threads in (1, 2):
        with threadpool_limits(limits=threads, user_api="blas"):
            seen.add(statistics([samples]).digest())
    assert len(seen) == 1


def processes_agree(implementation: str, bits: int, width: int) -> None:
    """Other processes, with other hash seeds and thread counts, find the same digest."""
    seen = {process.digest(implementation, bits, width)}
    for hash_seed, threads in (("1", "1"), ("2", "2")):
        done = subprocess.run(
            [sys.executable, "-m", "laws.process", implementation, str(bits), str(width)],
            cwd=Path(__file__).parents[1],
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "OPENBLAS_NUM_THREADS": threads},
            capture_output=True,
            text=True,
            check=True,
        )
        seen.add(done.stdout.strip())
    assert len(seen) == 1


def _total(statistics: Implementation, samples: Samples, seed: int, parts: int, batch: int) -> Any:
    rng = np.random.default_rng(seed)
    shuffled = samples.take(rng.permutation(len(samples)))
    cuts = [0, *sorted(rng.integers(0, len(samples) + 1, parts - 1)), len(samples)]
    shares = [shuffled.take(slice(*ends)) for ends in itertools.pairwise(cuts)]
    streams = [
        [share.take(slice(start, start + batch)) for start in range(0, len(share), batch)]
        for share in shares
    ]
    return sum(statistics(streams[i]) for i in rng.permutation(len(streams)))


def same(a: Any, b: Any) -> bool:
    """Whether two values are alike in content and type, all the way down."""
    if type(a) is not type(b):
        return False
    if isinstance(a, np.ndarray):
        return (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if dataclasses.is_dataclass(a):
        return same(_fields(a), _fields(b))
    if isinstance(a, float):
        return a.hex() == b.hex()
    return bool(a == b)


def _fields(value: Any) -> dict[str, Any]:
    return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
