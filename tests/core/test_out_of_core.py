"""A Gram matrix in a file: the same bytes as in memory, and the same weights up to rounding."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgram.core import out_of_core
from fedgram.core.out_of_core import DiskStatistics
from fedgram.core.samples import Features, Labels, Space
from fedgram.core.statistics import Statistics
from fedgram.core.targets import Output, Targets
from fedgram.errors import ConfigError, DataError, MismatchError, SolveError

CLASSES = ("a", "b", "c")


def drawn(count, width, seed=0, bound=127):
    rng = np.random.default_rng(seed)
    space = Space(width=width, bound=bound, unit=6 / 127)
    values = rng.integers(-bound, bound + 1, (count, width)).astype(np.int8)
    return Features(values, space), Labels(rng.integers(0, 3, count), CLASSES)


def batches(features, labels, rows):
    parts = [slice(start, start + rows) for start in range(0, len(features), rows)]
    return lambda: [(features.take(part), labels.take(part)) for part in parts]


@given(
    count=st.integers(1, 40),
    width=st.integers(1, 33),
    rows=st.integers(1, 50),
    strips=st.integers(1, 9),
    seed=st.integers(0, 9),
)
def test_strips_and_batches_change_no_byte(count, width, rows, strips, seed, tmp_path_factory):
    features, labels = drawn(count, width, seed)
    path, few = tmp_path_factory.mktemp("wide") / "gram", 12 * width * -(-width // strips)
    total = DiskStatistics.over(batches(features, labels, rows), path, most=few)
    whole = Statistics.of(features, labels)
    assert path.read_bytes() == whole.gram.tobytes()
    np.testing.assert_array_equal(total.moment, whole.moment)
    assert (total.count, total.classes) == (count, CLASSES)
    for ridge in (1.0, 100.0):
        found, wanted = total.solve(ridge, most=few * 4 // 3), whole.solve(ridge)
        np.testing.assert_allclose(found, wanted, atol=1e-9 * np.abs(wanted).max(initial=0))


def test_memory_is_two_strips(tmp_path, monkeypatch):
    features, labels = drawn(60, 40)
    made = []
    real = out_of_core._strips
    monkeypatch.setattr(out_of_core, "_strips", lambda *a: made.append(real(*a)) or made[-1])
    total = DiskStatistics.over(batches(features, labels, 7), tmp_path / "gram", most=12 * 40 * 5)
    total.solve(1.0, most=16 * 40 * 5)
    assert [len(each) for each in made] == [8, 8]
    assert all(stop - start == 5 for strips in made for start, stop in strips)


def test_what_cannot_be_summed_or_solved(tmp_path):
    features, labels = drawn(9, 4)
    path = tmp_path / "gram"
    with pytest.raises(DataError, match="no batches"):
        DiskStatistics.over(list, path)
    wide = Features(features.values.astype(np.int16), Space(width=4, bound=2047))
    with pytest.raises(ConfigError, match="at most 8 bits"):
        DiskStatistics.over(lambda: [(wide, labels)], path)
    doses = Targets.of(np.ones((9, 1)), (Output(name="dose", low=0.0, high=9.0),))
    with pytest.raises(ConfigError, match="expected classes, got numbers of a regression"):
        DiskStatistics.over(lambda: [(features, doses)], path)
    once = iter([(features, labels)] * 3)
    with pytest.raises(DataError, match="the batches changed"):
        DiskStatistics.over(lambda: [next(once)] if made_of(once) else [], path, most=24)
    others = Features(features.values, Space(width=4, bound=127, unit=0.5))
    with pytest.raises(MismatchError, match="batches differ"):
        DiskStatistics.over(lambda: [(features, labels), (others, labels)], path)
    nothing = DiskStatistics.over(lambda: [(features.take([]), labels.take([]))], path)
    with pytest.raises(SolveError, match="holds 0 samples"):
        nothing.solve(1.0)
    zeros = Features(np.zeros((9, 4), np.int8), features.space)
    with pytest.raises(SolveError, match="larger ridge"):
        DiskStatistics.over(lambda: [(zeros, labels)], path).solve(0.0)


def made_of(rest):
    """Return whether an iterator has more."""
    return rest.__length_hint__() > 0
