"""Statistics of any split of the same samples are the same bytes."""

import numpy as np
import pytest

from fedgram import Grid, Labels, Lift, Samples

from . import planted
from .law import processes_agree, split_closely, split_exactly, threads_agree
from .planted import of_batches

LIFTS = {"plain": Lift(), "lifted": Lift(width=24, activation="hardswish", seed=5)}


@pytest.fixture(scope="module")
def hard():
    """Samples with a column at the clip: an odd sum of squares beyond 2^24 at 8 bits."""
    rng = np.random.default_rng(4)
    x = rng.normal(size=(1201, 40))
    x[:, 0] = 60.0
    return Samples(Grid(bits=8)(x), Labels(rng.integers(3, size=1201), ("a", "b", "c")))


@pytest.mark.parametrize("lift", LIFTS.values(), ids=LIFTS)
@pytest.mark.parametrize("bits", [2, 4, 8, 12, 16])
def test_any_split_gives_the_same_digest(gridded, bits, lift):
    split_exactly(of_batches, gridded(120, 20, 4, grid=Grid(bits=bits), lift=lift))


def test_any_split_gives_the_same_digest_beyond_one_block(hard):
    assert (hard.features.values[:, 0] == 127).all()
    assert 127**2 * len(hard) > 2**24
    split_exactly(of_batches, hard)


@pytest.mark.parametrize(
    "broken",
    [
        planted.unblocked,
        planted.real_units,
        planted.half_precision,
        planted.centred,
        planted.rescaled,
        planted.mean_of_batches,
        planted.drops_last,
    ],
)
def test_the_split_law_fails_on_broken_statistics(hard, broken):
    with pytest.raises(AssertionError):
        split_exactly(broken, hard)


@pytest.mark.parametrize("lift", LIFTS.values(), ids=LIFTS)
def test_any_split_of_plain_floats_agrees_closely(gridded, lift):
    split_closely(of_batches, gridded(300, 20, 4, grid=Grid(bits="off"), lift=lift))


def test_the_close_law_fails_on_sums_in_single_precision(gridded):
    with pytest.raises(AssertionError):
        split_closely(planted.single_floats, gridded(300, 20, 4, grid=Grid(bits="off")))


@pytest.fixture(scope="module", params=[8, 16])
def wide(request, gridded):
    lift = Lift(width=560, activation="gelu", seed=2)
    return gridded(1100, 520, 5, grid=Grid(bits=request.param), lift=lift)


def test_threads_change_nothing_in_wide_statistics(wide):
    assert wide.features.space.width > 512
    threads_agree(of_batches, wide)


def test_order_and_parts_change_nothing_in_wide_statistics(wide):
    whole = of_batches([wide])
    order = np.random.default_rng(1).permutation(len(wide))
    parts = [of_batches([wide.take(part)]) for part in np.array_split(order, 7)]
    assert sum(reversed(parts)).digest() == whole.digest()
    assert whole - parts[3] == sum(parts[:3] + parts[4:])


def test_threads_change_nothing_in_a_wide_lift(gridded):
    unlifted = gridded(300, 600, 3)
    lift = Lift(width=700, seed=8)
    threads_agree(lambda s: of_batches([Samples(lift(s[0].features), s[0].labels)]), unlifted)


def test_the_thread_law_fails_on_sums_sliced_by_threads(wide):
    with pytest.raises(AssertionError):
        threads_agree(planted.by_threads, wide.take(slice(0, 200)))


@pytest.mark.parametrize(("bits", "width"), [(8, 0), pytest.param(12, 520, marks=pytest.mark.wide)])
def test_processes_find_the_same_digest(bits, width):
    processes_agree("fixed", bits, width)


def test_the_process_law_fails_on_a_lift_seeded_by_a_hash():
    with pytest.raises(AssertionError):
        processes_agree("hash_seeded", 4, 16)
