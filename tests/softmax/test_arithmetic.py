"""Softmax in integers: tables against decimal arithmetic, and rows that add up exactly."""

from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedgram import Space
from fedgram.errors import ConfigError, ExactnessError
from fedgram.softmax.arithmetic import (
    LN2,
    LOSS_BITS,
    SoftmaxGrid,
    _exponentials,
    _log2,
    _logarithms,
    exact_logits,
    softmax_residuals,
)

OCTAVES = 24
LN2_DIGITS = Decimal("0.693147180559945309417232121458176568075500134360255254120680009")
GRIDS = [
    SoftmaxGrid(),
    SoftmaxGrid(weights=8, table=4, residuals=4),
    SoftmaxGrid(weights=40, table=14, residuals=30),
    SoftmaxGrid(weights=10, table=14, residuals=20),  # the table is finer than the logits
]


def halves(exponent):
    """2^-exponent of a fraction, to 50 digits."""
    with localcontext(prec=60):
        power = Decimal(exponent.numerator) / Decimal(exponent.denominator)
        return (-power * LN2_DIGITS).exp()


def log2(number):
    with localcontext(prec=60):
        return Decimal(number).ln() / LN2_DIGITS


# Tables


@pytest.mark.parametrize("bits", [4, 5, 12, 14])
def test_the_table_holds_the_nearest_integers_to_exponentials(bits):
    table = _exponentials(bits)
    last = OCTAVES << bits
    assert len(table) == last + 1
    some = range(last + 1) if bits < 6 else [0, 1, 2, last - 1, last, *range(7, last, 997)]
    for i in some:
        exact = halves(Fraction(i, 1 << bits)) * 2**30
        assert abs(Decimal(int(table[i])) - exact) <= Decimal("0.5"), i
    assert (table == np.rint(table)).all()


@pytest.mark.parametrize("bits", [4, 9, 14])
def test_the_table_falls_and_coarse_tables_are_parts_of_fine_ones(bits):
    table = _exponentials(bits)
    assert table[0] == 2**30
    assert table[1 << bits] == 2**29
    assert table[-1] == 2**6
    assert (np.diff(table) <= 0).all()
    assert np.array_equal(table[:: 1 << (bits - 4)], _exponentials(4))


def test_nobody_can_write_to_the_table():
    with pytest.raises(ValueError, match="read-only"):
        _exponentials(4)[0] = 0


def test_the_table_of_logarithms_holds_the_nearest_integers():
    table = _logarithms()
    for i in [0, 1, 2, 4094, 4095, 4096, *range(5, 4096, 61)]:
        with localcontext(prec=60):
            exact = log2(Decimal(4096 + i) / 4096) * 2**40
            assert abs(Decimal(int(table[i])) - exact) <= Decimal("0.5"), i


@given(st.integers(0, 52), st.integers(0, 2**52 - 1))
def test_logarithms_are_within_one_step(power, rest):
    number = 2**power + rest % 2**power
    (found,) = _log2(np.array([number]))
    assert abs(Decimal(int(found)) - log2(number) * 2**LOSS_BITS) <= 1


@pytest.mark.parametrize("power", range(53))
def test_logarithms_of_powers_of_two_are_exact_and_grow(power):
    beside = np.array([max(1, 2**power - 1), 2**power, min(2**power + 1, 2**53 - 1)])
    found = _log2(beside)
    assert found[1] == power << LOSS_BITS
    assert (np.diff(found) >= 0).all()


# Residuals


def logits(grid):
    """Draw integer logits of a few samples, from equal to far apart."""

    def rows(number):
        reach = st.sampled_from([0, 1, 2**grid.weights, 2 ** (grid.weights + 3), 2**50])
        return reach.flatmap(
            lambda most: hnp.arrays(
                np.float64, (5, number), elements=st.integers(-most, most).map(float)
            )
        )

    return st.integers(1, 12).flatmap(rows)


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_residuals_of_every_sample_add_up_to_zero(grid):
    @given(logits(grid), st.integers(0, 2**32))
    def law(rows, seed):
        codes = np.random.default_rng(seed).integers(rows.shape[1], size=len(rows))
        residuals, losses = softmax_residuals(rows.copy(), codes, grid)
        one, own = 2.0**grid.residuals, np.arange(len(rows))
        assert (residuals == np.rint(residuals)).all()
        assert (residuals.sum(axis=1) == 0).all()
        assert (np.abs(residuals) <= one).all()
        assert (residuals[own, codes] >= 0).all()
        assert (losses >= 0).all()
        assert losses.dtype == np.int64

    law()


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_a_sample_counts_the_same_alone_and_when_all_its_logits_are_shifted(grid):
    @given(logits(grid), st.integers(-(2**50), 2**50))
    def law(rows, shift):
        codes = np.arange(len(rows)) % rows.shape[1]
        together = softmax_residuals(rows, codes, grid)
        moved = softmax_residuals(rows + shift, codes, grid)
        fortran = softmax_residuals(np.asfortranarray(rows), codes, grid)
        for i in range(len(rows)):
            one = slice(i, i + 1)
            alone = softmax_residuals(rows[one], codes[one], grid)
            for each in (together, moved, fortran):
                assert np.array_equal(alone[0], each[0][one])
                assert np.array_equal(alone[1], each[1][one])

    law()


def softmax(natural):
    powers = np.exp(natural - natural.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


@pytest.mark.parametrize(
    ("table", "bits"),
    [(8, 8), (12, 12), (14, 12), (14, 24), (10, 28)],
)
@pytest.mark.parametrize("classes", [2, 10, 100])
def test_probabilities_are_those_of_numpy(table, bits, classes):
    grid, rng = SoftmaxGrid(weights=30, table=table, residuals=bits), np.random.default_rng(1)
    # On the steps of the table, so that the one rounding left is that of the probability.
    rows = rng.integers(-6 << table, 6 << table, (200, classes)) * 2.0 ** (30 - table)
    codes = rng.integers(classes, size=200)
    residuals, losses = softmax_residuals(rows, codes, grid)
    expected = softmax(rows * (LN2 / 2**30))
    found = (np.eye(classes)[codes] * 2.0**bits - residuals) / 2.0**bits
    off = np.abs(found - expected)
    each = np.arange(200)
    # Two roundings of half a step each, and those of the table's integers.
    assert off.max() <= 2.0**-bits + classes * 2.0**-31
    nats = losses * LN2 / 2**LOSS_BITS
    np.testing.assert_allclose(nats, -np.log(expected[each, codes]), rtol=0, atol=3e-6)


def test_between_the_steps_of_the_table_probabilities_are_off_by_half_a_step_of_it():
    grid, rng = SoftmaxGrid(weights=30, table=12, residuals=28), np.random.default_rng(2)
    rows = np.rint(rng.normal(size=(500, 8)) * 2.0**31)
    codes = np.zeros(500, np.int64)
    residuals, _ = softmax_residuals(rows, codes, grid)
    found = (np.eye(8)[codes] * 2.0**28 - residuals) / 2.0**28
    off = np.abs(found - softmax(rows * (LN2 / 2**30))).max()
    assert 2.0**-20 < off <= LN2 * 2.0**-13


def test_equal_logits_share_as_evenly_as_steps_allow():
    grid = SoftmaxGrid(residuals=4)
    residuals, losses = softmax_residuals(np.full((1, 3), 7.0), np.array([2]), grid)
    assert residuals.tolist() == [[-5, -6, 11]]
    assert losses.tolist() == [round(float(log2(3)) * 2**LOSS_BITS)]
    both, _ = softmax_residuals(np.array([[1.0, 5.0, 5.0]]), np.array([0]), SoftmaxGrid(weights=8))
    assert abs(both[0, 1] - both[0, 2]) <= 1


def test_a_lone_class_is_certain():
    residuals, losses = softmax_residuals(
        np.array([[3.0], [-(2.0**52)]]), np.zeros(2, int), GRIDS[0]
    )
    assert not residuals.any()
    assert not losses.any()


def test_no_samples_give_no_residuals():
    residuals, losses = softmax_residuals(np.zeros((0, 3)), np.zeros(0, np.int64), GRIDS[0])
    assert residuals.shape == (0, 3)
    assert losses.shape == (0,)


def test_extreme_logits_are_certain_and_the_loss_still_tells_them_apart():
    grid = SoftmaxGrid(weights=16, residuals=14)
    far, further = 2.0**30, 2.0**52
    rows = np.array([[far, -far], [further, -further + 1], [0.0, -further]])
    residuals, losses = softmax_residuals(rows, np.array([1, 1, 0]), grid)
    assert residuals.tolist() == [[-(2**14), 2**14], [-(2**14), 2**14], [0, 0]]
    assert losses[0] == int(2 * far) << (LOSS_BITS - 16)
    assert losses[1] == int(2 * further - 1) << (LOSS_BITS - 16)
    assert losses[2] == 0


def test_the_loss_of_a_zero_head_is_that_of_equal_chances():
    for classes in (1, 2, 10, 1000):
        _, losses = softmax_residuals(np.zeros((3, classes)), np.zeros(3, np.int64), SoftmaxGrid())
        assert abs(losses[0] / 2**LOSS_BITS - np.log2(classes)) <= 2.0**-LOSS_BITS
        assert len(set(losses.tolist())) == 1


# Logits


def test_logits_are_those_of_python_up_to_the_limit():
    space = Space(width=4, bound=127)
    rng = np.random.default_rng(3)
    most = 2**53 // 127 // 4
    values = rng.integers(-most, most, (4, 3), endpoint=True)
    values[:, 0] = most
    rows = rng.choice([-127, 127], (50, 4)).astype(np.float64)
    rows[0] = 127
    found = exact_logits(rows, values, space)
    wanted = [
        [sum(int(a) * int(b) for a, b in zip(row, column, strict=True)) for column in values.T]
        for row in rows
    ]
    assert found.astype(object).astype(int).tolist() == wanted


def test_logits_beyond_the_limit_are_refused():
    space = Space(width=4, bound=127)
    values = np.full((4, 2), 2**53 // 127 // 4 + 1)
    with pytest.raises(
        ExactnessError, match=r"may not be exact: .* use fewer bits .* larger ridge"
    ):
        exact_logits(np.ones((1, 4)), values, space)
    cancelling = values * np.array([[1], [-1], [1], [-1]])  # partial sums count, not the sum
    with pytest.raises(ExactnessError):
        exact_logits(np.ones((1, 4)), cancelling, space)


def test_logits_of_zero_weights_are_zero_whatever_the_rows():
    found = exact_logits(np.full((2, 4), 1e300), np.zeros((4, 3), np.int64), Space(width=4))
    assert not found.any()
    assert found.shape == (2, 3)


# The grid


@pytest.mark.parametrize(
    ("name", "bad", "words"),
    [
        ("weights", 7, "weights: expected 8 to 40 bits, got 7"),
        ("weights", 41, "weights: expected 8 to 40 bits, got 41"),
        ("table", 3, "table: expected 4 to 14 bits, got 3"),
        ("table", 15, "table: expected 4 to 14 bits, got 15"),
        ("residuals", 3, "residuals: expected 4 to 30 bits, got 3"),
        ("residuals", 31, "residuals: expected 4 to 30 bits, got 31"),
    ],
)
def test_a_grid_out_of_range_is_refused(name, bad, words):
    with pytest.raises(ConfigError) as error:
        SoftmaxGrid(**{name: bad})
    assert str(error.value) == words


def test_a_step_is_a_change_of_a_logit_by_so_many_binary_places():
    grid, space = SoftmaxGrid(weights=10), Space(width=1, unit=0.25, bound=7)
    assert grid.step(space) * space.unit * 2**10 == pytest.approx(np.log(2), rel=1e-15)
