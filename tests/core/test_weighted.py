"""Weighted sums of parameters: a group to the bit, and a mean as good as its steps."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from laws.law import GROUP, refuses, same

from fedgram.core import codec
from fedgram.core.weighted import DOUBLE, MOST_WEIGHT, REACH, SINGLE, Weighted
from fedgram.errors import ExactnessError, SolveError

ANY_INTEGERS = st.integers(-(2**63), 2**63 - 1)
PRECISIONS = pytest.mark.parametrize(
    ("places", "dtype"), [(SINGLE, np.float32), (DOUBLE, np.float64)], ids=["single", "double"]
)


def integers(size):
    return hnp.arrays(np.int64, size, elements=ANY_INTEGERS)


def weighted(entries=1):
    """Any values of the group, also those that no training gives."""
    return st.builds(
        Weighted,
        weight=integers(entries),
        total=integers(3),
        fine=integers(3),
        diverged=st.integers(-9, 9),
        places=st.just(DOUBLE),
    )


@pytest.mark.parametrize("law", GROUP.values(), ids=GROUP)
def test_weighted_sums_are_a_commutative_group(law):
    law(st.tuples(*[weighted()] * 3), Weighted.zero())


def test_other_precisions_and_sizes_are_refused():
    one = Weighted.of(np.ones(2), 1, places=SINGLE)
    refuses(one, Weighted.of(np.ones(2), 1, places=DOUBLE), "places differs", "24", "54")
    refuses(one, Weighted.of(np.ones(3), 1), "total differs in shape")
    refuses(one, Weighted.of(np.ones(2), np.ones(2, int)), "weight differs in shape")


# The mean


@st.composite
def clients(draw):
    """Some clients' parameters and weights, as they come from training."""
    count, size = draw(st.integers(1, 6)), draw(st.integers(1, 4))
    reach = draw(st.sampled_from([2.0**-30, 1.0, float(REACH)]))
    elements = st.floats(-reach, reach, width=32)
    values = [draw(hnp.arrays(np.float64, size, elements=elements)) for _ in range(count)]
    weights = draw(st.lists(st.integers(1, 10**6), min_size=count, max_size=count))
    return values, weights


def exact_mean(values, weights):
    size = len(values[0])
    sums = [
        sum(Fraction(float(v[j])) * w for v, w in zip(values, weights, strict=True))
        for j in range(size)
    ]
    return [total / sum(weights) for total in sums]


@PRECISIONS
@given(parts=clients())
def test_the_mean_is_exact_to_half_a_step(places, dtype, parts):
    values, weights = parts
    total = sum(Weighted.of(v.astype(dtype), w, places=places) for v, w in zip(*parts, strict=True))
    largest = max(float(np.abs(v).max()) for v in values)
    rounding = 4 * 2.0**-53 * largest  # of float64 itself
    for ours, truth in zip(total.mean(), exact_mean(values, weights), strict=True):
        assert abs(Fraction(float(ours)) - truth) <= 2.0 ** -(places + 1) + rounding


@PRECISIONS
@given(parts=clients(), seed=st.integers(0, 99))
def test_the_order_of_clients_changes_no_bit(places, dtype, parts, seed):
    all_of_them = [
        Weighted.of(v.astype(dtype), w, places=places) for v, w in zip(*parts, strict=True)
    ]
    order = np.random.default_rng(seed).permutation(len(all_of_them))
    one, other = sum(all_of_them), sum(all_of_them[i] for i in order)
    assert one == other
    assert one.mean().tobytes() == other.mean().tobytes()


@PRECISIONS
def test_what_one_client_sends_comes_back(places, dtype):
    values = np.random.default_rng(0).normal(size=50).astype(dtype)
    back = Weighted.of(values, 1, places=places).mean()
    np.testing.assert_allclose(back, values, rtol=2.0**-53, atol=2.0 ** -(places + 1))


def test_whoever_leaves_leaves_nothing_behind():
    rng = np.random.default_rng(0)
    a, b = (Weighted.of(rng.normal(size=5), n, places=DOUBLE) for n in (3, 8))
    assert (a + b - a).mean().tobytes() == b.mean().tobytes()


def test_each_entry_may_have_a_weight_of_its_own():
    one = Weighted.of(np.array([1.0, 2.0, 3.0]), np.array([1, 0, 0]))
    two = Weighted.of(np.array([5.0, 6.0, 7.0]), np.array([3, 2, 0]))
    mean = (one + two).mean(otherwise=np.array([0.0, 0.0, 9.0]))
    np.testing.assert_array_equal(mean, [4.0, 6.0, 9.0])


def test_a_mean_that_nobody_has_a_say_in_is_refused():
    nobody = Weighted.of(np.ones(2), np.array([1, 0]))
    with pytest.raises(SolveError, match="the mean is undefined"):
        nobody.mean()
    np.testing.assert_array_equal(nobody.mean(otherwise=np.zeros(2)), [1.0, 0.0])


# Too much


@PRECISIONS
def test_the_largest_weights_do_not_overflow_and_larger_ones_are_refused(places, dtype):
    extreme = np.array([REACH, -REACH, 1.0], dtype)
    most = Weighted.of(extreme, MOST_WEIGHT, places=places)
    np.testing.assert_array_equal(most.mean(), extreme)
    with pytest.raises(ExactnessError, match=f"sum of weights is {MOST_WEIGHT + 1}"):
        Weighted.of(extreme, MOST_WEIGHT + 1, places=places)
    half = Weighted.of(extreme, MOST_WEIGHT // 2 + 1, places=places)
    with pytest.raises(ExactnessError, match="overflow"):
        (half + half).mean()


def test_one_weight_of_many_that_is_too_large_is_refused():
    with pytest.raises(ExactnessError, match="overflow"):
        Weighted.of(np.zeros(2), np.array([1, MOST_WEIGHT + 1]))


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf, REACH * 1.001, -1e300])
@pytest.mark.parametrize("places", [SINGLE, DOUBLE])
def test_whoever_diverged_is_counted_and_adds_nothing_else(wrong, places):
    good = Weighted.of(np.array([1.0, 2.0]), 4, places=places)
    bad = Weighted.of(np.array([1.0, wrong]), 3, places=places)
    total = good + bad + bad
    assert (total.diverged, total.weight[0]) == (2, 4)
    np.testing.assert_array_equal(total.total, good.total)
    with pytest.raises(SolveError, match="diverged at 2 clients; use a smaller rate"):
        total.mean()
    assert (total - bad - bad) == good


def test_what_a_client_keeps_beside_it_counts_too():
    fine, broken = np.ones(3), np.array([np.nan])
    assert Weighted.of(np.ones(2), 1, beside=(fine,)).diverged == 0
    assert Weighted.of(np.ones(2), 1, beside=(fine, broken)).diverged == 1


@given(
    values=hnp.arrays(np.float64, st.integers(0, 5), elements=st.floats(-REACH, REACH)),
    weight=st.one_of(st.integers(0, 2**17 + 1), st.integers(0, MOST_WEIGHT)),
)
def test_a_part_is_the_nearest_whole_number_of_steps(values, weight):
    """However large the weight; a half goes to the even neighbour."""
    steps = [Fraction(float(v * (weight * np.float64(2**SINGLE)))) for v in values]
    before = values.copy()
    assert Weighted.of(values, weight).total.tolist() == [round(step) for step in steps]
    np.testing.assert_array_equal(values, before)
    fine = Weighted.of(values, weight, places=DOUBLE).fine.tolist()
    assert fine == [round((step - round(step)) * 2**30) for step in steps]


# Bytes


@given(st.one_of(weighted(1), weighted(3)))
def test_it_survives_the_journey_through_bytes(value):
    assert same(codec.decode(codec.encode(value)), value)
    assert codec.size(value) == len(codec.encode(value))


def test_small_clients_send_four_bytes_a_parameter():
    """In single precision a client of a hundred samples needs no more than floats would."""
    values = np.random.default_rng(0).uniform(-1, 1, 10_000).astype(np.float32)
    assert codec.size(Weighted.of(values, 100)) < 4 * len(values) + 1000


@pytest.mark.parametrize(("places", "each"), [(SINGLE, 4), (DOUBLE, 8)])
def test_a_simulation_counts_the_floats_that_a_method_needs(places, each):
    """Whatever the integers take: fewer bytes at a small client, more at a large one."""
    values = np.random.default_rng(0).uniform(-1, 1, 10_000)
    for weight in (1, 10**6):
        part = Weighted.of(values, weight, places=places)
        for value in (part, [part], {"a": (part,)}):
            assert 0 <= codec.counted(value) - each * len(values) < 1000
        assert codec.size(part) == len(codec.encode(part))
