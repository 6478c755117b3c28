"""The grid: each sample on its own, scaled to unit size and rounded to public integers."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgram import Grid
from fedgram.errors import ConfigError, DataError
from fedgram.features import grid as module

BITS = range(2, 17)


def vectors(samples=50, features=30, seed=0):
    return np.random.default_rng(seed).normal(size=(samples, features))


def slow(row, bits, reach):
    """Scale and round one row with Python's own numbers, in the plainest way."""
    bound = 2 ** (bits - 1) - 1
    rms = math.sqrt(math.fsum(value * value for value in row) / len(row))
    steps = [value / rms / (reach / bound) for value in row]
    return [max(-bound, min(bound, round(step))) for step in steps]


@pytest.mark.parametrize("bits", [4, 8, 12])
def test_values_are_those_of_a_slow_reference_within_a_step(bits):
    grid, x = Grid(bits=bits), vectors()
    values = grid(x).values[:, :-1].astype(int)
    reference = np.array([slow(row, bits, grid.reach) for row in x.tolist()])
    assert np.abs(values - reference).max() <= 1
    assert (values == reference).mean() > 0.98


def test_known_values_at_eight_bits():
    rows = Grid(bits=8)(np.array([[3.0, 4.0], [-1.0, 1.0], [0.0, 2.0], [0.1, 0.0]]))
    assert rows.values.tolist() == [[18, 24, 21], [-21, 21, 21], [0, 30, 21], [30, 0, 21]]


def test_known_values_at_two_and_sixteen_bits():
    x = np.array([[1.0, -2.0, 0.25, 0.0]])
    assert Grid(bits=2)(x).values.tolist() == [[1, -1, 0, 0, 1]]
    assert Grid(bits=16)(x).values.tolist() == [[3641, -7282, 910, 0, 4096]]


@given(st.integers(-900, 900), st.integers(0, 99), st.sampled_from([2, 8, 16, "off"]))
def test_powers_of_two_change_nothing_at_all(power, seed, bits):
    x = vectors(5, 7, seed)
    assert np.array_equal(Grid(bits=bits)(np.ldexp(x, power)).values, Grid(bits=bits)(x).values)


@given(st.floats(1e-6, 1e6), st.integers(0, 99))
def test_other_factors_change_next_to_nothing(factor, seed):
    x = vectors(20, 30, seed)
    ours, theirs = (Grid(bits=8)(rows).values.astype(int) for rows in (x, factor * x))
    assert np.abs(ours - theirs).max() <= 1
    assert (ours != theirs).mean() < 0.02


def test_smallest_and_largest_floats_are_scaled_alike():
    tiny, huge = 5e-324, 1.7e308
    rows = Grid(bits=8)(np.array([[tiny, -tiny], [1.0, -1.0], [huge, -huge]]))
    assert rows.values.tolist() == [[21, -21, 21]] * 3


@pytest.mark.parametrize("bits", [2, 8, 16, "off"])
def test_a_zero_sample_stays_zero_plus_the_constant(bits):
    grid = Grid(bits=bits)
    values = grid(np.array([[0.0, 0.0, -0.0]])).values
    assert not values[0, :-1].any()
    assert values[0, -1] == module.bias(grid.step, grid.bound) >= 1


@pytest.mark.parametrize("bits", BITS)
def test_every_width_has_its_type_and_range(bits):
    grid = Grid(bits=bits)
    x = vectors(60, 200)
    x[:, 0] = 1e6  # at the clip
    x[::2] *= -1
    features = grid(x)
    bound = 2 ** (bits - 1) - 1
    assert features.values.dtype == (np.int8 if bits <= 8 else np.int16)
    assert (features.values.min(), features.values.max()) == (-bound, bound)
    assert (features.space.bound, features.space.width) == (bound, 201)
    assert features.space.unit == grid.step == grid.reach / bound


def test_off_keeps_float64_of_unit_size():
    features = Grid(bits="off")(vectors())
    assert features.values.dtype == np.float64
    assert (features.space.bound, features.space.unit) == (0, 1.0)
    assert not features.space.exact
    assert np.allclose((features.values[:, :-1] ** 2).mean(axis=1), 1, atol=1e-3)
    assert (features.values[:, -1] == 1).all()


@pytest.mark.parametrize(("bits", "tolerance"), [(6, 0.02), (8, 0.005), (12, 2e-4), (16, 2e-4)])
def test_samples_have_unit_size_after_the_grid(bits, tolerance):
    real = Grid(bits=bits)(vectors(50, 300)).real()[:, :-1]
    assert np.abs(np.sqrt((real**2).mean(axis=1)) - 1).max() < tolerance


@pytest.mark.parametrize("bits", BITS)
def test_the_constant_is_about_one(bits):
    features = Grid(bits=bits)(vectors(3))
    constant = features.real()[:, -1]
    assert len(set(constant)) == 1
    assert abs(constant[0] - 1) <= features.space.unit / 2


def test_the_clip_cuts_what_is_larger():
    x = np.zeros((1, 100))
    x[0, 0] = 1.0  # ten times the RMS
    assert Grid(bits=8)(x).values[0, 0] == 127
    assert Grid(bits=8, clip=20.0)(x).values[0, 0] == 64  # rint(10 / 20 x 127) = rint(63.5)
    assert Grid(bits=8, clip=2.0)(-x).values[0, 0] == -127


def test_the_clip_has_a_default_per_width():
    reaches = [Grid(bits=bits).reach for bits in BITS]
    assert reaches == sorted(reaches)
    assert (Grid(bits=8).reach, reaches[-1]) == (6.0, 8.0)


@given(st.integers(0, 2**32))
def test_a_row_does_not_depend_on_the_others(seed):
    rng = np.random.default_rng(seed)
    x, order = vectors(40), rng.permutation(40)
    whole = Grid(bits=8)(x).values
    x[order[20:]] *= 10.0 ** rng.integers(-320, 300, (20, 1))  # whatever the others are
    assert np.array_equal(Grid(bits=8)(x).values[order[:20]], whole[order[:20]])
    assert np.array_equal(Grid(bits=8)(x[order]).values, Grid(bits=8)(x).values[order])


def test_rows_do_not_depend_on_the_batch_they_come_in():
    x = vectors(3000, 200)  # more than is done at a time
    x[700] *= 1e-310
    whole = Grid(bits=8)(x).values
    for batch in (1, 7, 1024):
        some = slice(1400, 1400 + batch)
        assert np.array_equal(Grid(bits=8)(x[some]).values, whole[some])
    assert np.array_equal(Grid(bits=8)(x[700:701]).values, whole[700:701])
    assert np.array_equal(Grid(bits=8)(x[-3:]).values, whole[-3:])


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int8, np.int32, np.uint8])
def test_any_type_of_number_gives_the_same_integers(dtype):
    x = np.random.default_rng(3).integers(0, 100, (10, 8))
    assert np.array_equal(Grid()(x.astype(dtype)).values, Grid()(x.astype(np.float64)).values)


def test_the_memory_layout_of_the_input_changes_nothing():
    x = vectors()
    assert np.array_equal(Grid()(np.asfortranarray(x)).values, Grid()(x).values)


def test_the_input_is_left_as_it_was():
    x = vectors()
    Grid()(x, scale=2.0, offset=1.0)
    assert np.array_equal(x, vectors())


def test_stored_codes_are_scaled_in_float64():
    rng = np.random.default_rng(5)
    codes = rng.integers(-128, 127, (30, 10)).astype(np.int8)
    scale = rng.random(10).astype(np.float16)
    offset = rng.normal(size=10).astype(np.float32)
    real = codes.astype(np.float64) * scale.astype(np.float64) + offset.astype(np.float64)
    assert np.array_equal(
        Grid(bits=16)(codes, scale=scale, offset=offset).values, Grid(bits=16)(real).values
    )
    in_half = (codes * scale + offset.astype(np.float16)).astype(np.float64)
    assert not np.array_equal(Grid(bits=16)(in_half).values, Grid(bits=16)(real).values)


def test_stored_codes_do_not_overflow_their_own_type():
    codes = np.array([[100, -100, 50]], np.int8)
    assert np.array_equal(Grid()(codes, scale=1000).values, Grid()(codes).values)
    assert np.array_equal(
        Grid()(codes, offset=100).values, Grid()(codes.astype(float) + 100).values
    )


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("bits", [8, "off"])
def test_what_is_not_finite_is_refused_with_its_row(bad, bits):
    x = vectors()
    x[17, 3] = x[31, 0] = bad
    with pytest.raises(DataError, match=r"row 17: .* NaN or infinite; remove or correct"):
        Grid(bits=bits)(x)


def test_the_row_is_counted_from_the_first_of_all():
    x = vectors(3000, 200)
    x[2900] = np.nan
    with pytest.raises(DataError, match="row 2900"):
        Grid()(x)


def test_an_offset_that_is_not_a_number_is_refused():
    with pytest.raises(DataError, match="row 0"):
        Grid()(vectors(), offset=np.nan)


@pytest.mark.parametrize("shape", [(5,), (2, 3, 4), ()])
def test_other_shapes_are_refused(shape):
    with pytest.raises(DataError, match="samples by features"):
        Grid()(np.zeros(shape))


def test_no_samples_and_no_features_are_fine():
    assert Grid()(np.zeros((0, 5))).values.shape == (0, 6)
    assert Grid()(np.zeros((2, 0))).values.tolist() == [[21], [21]]


@pytest.mark.parametrize("bits", [1, 17, 0, -8, 8.0, "on", True, None])
def test_other_numbers_of_bits_are_refused(bits):
    with pytest.raises(ConfigError, match=r"grid\.bits"):
        Grid(bits=bits)


@pytest.mark.parametrize("clip", [0.0, -1.0, math.inf, math.nan])
def test_other_clips_are_refused(clip):
    with pytest.raises(ConfigError, match=r"grid\.clip"):
        Grid(clip=clip)


def test_the_space_tells_the_whole_story():
    space = Grid(bits=4, clip=3.0).space(9)
    assert space.steps == ("input(9 features)", "grid(4 bits, clip 3, constant 2)")
    assert Grid(bits="off").space(9).steps[1] == "grid(off, constant 1)"
