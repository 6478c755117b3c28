"""Integer products by float BLAS: exact up to the limit, and the limit is where it has to be."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.linalg import blas

from fedgram import Features, Labels, Space, Statistics
from fedgram.core import exact
from fedgram.core.exact import Accumulator, exact_matmul
from fedgram.core.kernels import blas as floats
from fedgram.core.kernels.blas import EXACT_UP_TO, FLOAT32, FLOAT64, block_dtype, blocks
from fedgram.errors import ExactnessError, FedgramError
from fedgram.runtime import flops

BOUNDS = [1, 7, 127, 2047, 32767]


def upper(matrix):
    return matrix[np.triu_indices(len(matrix))]


def whole_numbers(values):
    """The Gram matrix in int64, which is exact for all data here."""
    return upper(values.astype(np.int64).T @ values.astype(np.int64))


@pytest.fixture(params=["", "blas"], ids=["best way", "blas"])
def way(request, monkeypatch):
    monkeypatch.setenv("FEDGRAM_KERNEL", request.param)


def accumulated(values, bound):
    total = Accumulator(values.shape[1], 1, bound)
    total.add(values, np.zeros(len(values), np.int64))
    return total.take()[0]


def naive(values):
    """One float32 product of all rows, however long."""
    rows = values.astype(np.float32)
    return upper(blas.ssyrk(1.0, rows.T, lower=0)).astype(np.int64)


def hard(kind, rows, bound, width=5):
    """Data whose sums are as large, or as odd, as they can be."""
    rng = np.random.default_rng(rows)
    values = {
        "largest": np.full((rows, width), bound),
        "smallest": np.full((rows, width), -bound),
        "signs": bound * rng.choice([-1, 1], (rows, width)),
        "odd": rng.choice([bound, bound - 2 * (bound > 2)], (rows, width)),
        "sparse": bound * (rng.random((rows, width)) < 0.02),
        "any": rng.integers(-bound, bound, (rows, width), endpoint=True),
    }[kind]
    return values.astype(np.int8 if bound < 128 else np.int16)


KINDS = ["largest", "smallest", "signs", "odd", "sparse", "any"]


@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize("kind", KINDS)
def test_gram_equals_int64_on_hard_data(way, kind, bound):
    values = hard(kind, 4321, bound)
    assert np.array_equal(accumulated(values, bound), whole_numbers(values))


@pytest.mark.parametrize("rows", [1, 1039, 1040, 1041, 2080, 2081])
def test_gram_equals_int64_at_the_limit_of_a_block(way, rows):
    values = hard("largest", rows, 127)
    assert 1040 * 127**2 <= 2**24 < 1041 * 127**2
    assert np.array_equal(accumulated(values, 127), whole_numbers(values))


def test_a_column_of_exactly_the_limit_is_one_exact_block(way):
    values = np.full((4096, 3), 64, np.int8)  # 4096 x 64 x 64 = 2^24
    values[:, 1] *= -1
    assert len(list(blocks(values, 64, FLOAT32))) == 1
    assert np.array_equal(accumulated(values, 64), whole_numbers(values))


@given(
    st.sampled_from(BOUNDS), st.sampled_from(KINDS), st.integers(0, 6000), st.sampled_from([1, 4])
)
def test_blocks_partition_the_rows_and_satisfy_the_rule(bound, kind, rows, width):
    values, dtype = hard(kind, rows, bound, width), block_dtype(bound)
    cut = list(blocks(values, bound, dtype))
    assert all(block.dtype == dtype and len(block) for block in cut)
    assert np.array_equal(np.concatenate([*cut, np.zeros((0, width))]), values)
    for block in cut:
        assert (block.astype(np.int64) ** 2).sum(axis=0).max() <= EXACT_UP_TO[dtype]


def test_blocks_are_long_where_data_are_small():
    small = hard("any", 60_000, 7)
    assert [len(b) for b in blocks(hard("largest", 2100, 127), 127, FLOAT32)] == [1040, 1040, 20]
    assert len(list(blocks(small, 127, FLOAT32))) == 1
    assert len(list(blocks(small, 7, FLOAT32))) == 1


def test_blocks_are_bounded_in_memory(monkeypatch):
    monkeypatch.setattr(floats, "MOST_BLOCK_ENTRIES", 300)
    values = hard("any", 1000, 1, width=3)
    cut = list(blocks(values, 1, FLOAT32))
    assert max(block.size for block in cut) <= 300
    assert np.array_equal(accumulated(values, 1), whole_numbers(values))
    real = list(blocks(np.ones((1000, 3)), 0, FLOAT64))
    assert max(block.size for block in real) <= 300


def test_small_features_use_float32_and_large_ones_float64():
    assert [block_dtype(bound) for bound in BOUNDS] == [FLOAT32] * 3 + [FLOAT64] * 2
    assert block_dtype(0) == FLOAT64


def test_the_rule_is_sharp():
    """Two per cent beyond the limit an odd sum has no float32, whatever the BLAS."""
    values = hard("largest", 1061, 127)
    assert 1.019 * 2**24 < 1061 * 127**2 < 1.021 * 2**24
    assert not np.array_equal(naive(values), whole_numbers(values))
    assert np.array_equal(naive(values[:1040]), whole_numbers(values[:1040]))


def test_a_looser_rule_would_be_noticed(monkeypatch):
    monkeypatch.setenv("FEDGRAM_KERNEL", "blas")
    monkeypatch.setitem(EXACT_UP_TO, FLOAT32, int(1.03 * 2**24))
    values = hard("largest", 1061, 127)
    assert not np.array_equal(accumulated(values, 127), whole_numbers(values))


def test_moments_are_class_sums(way):
    values = hard("signs", 3000, 127)
    codes = np.arange(3000) % 3
    total = Accumulator(5, 3, 127)
    total.add(values, codes)
    sums = [values[codes == c].astype(np.int64).sum(axis=0) for c in range(3)]
    assert np.array_equal(total.take()[1], np.transpose(sums))


def test_values_beyond_their_bound_are_refused_or_exact(way):
    values = np.full((1039, 1), -128, np.int8)  # one step beyond, in a block of an odd sum
    values[0] = -127
    try:
        rows = Features(values, Space(width=1, bound=127))
        total = Statistics.of(rows, Labels(np.zeros(1039, np.int64), ("a",)))
    except FedgramError:
        return
    assert np.array_equal(total.gram, whole_numbers(values))


def test_totals_go_on_in_int64_beyond_any_float():
    values = np.full((2**14, 1), 32767, np.int16)
    total = Accumulator(1, 1, 32767)
    for _ in range(600):
        total.add(values, np.zeros(len(values), np.int64))
    assert total.take()[0][0] == 600 * 2**14 * 32767**2 > 2**53


# The self-test.


def rounded(values, bits):
    """Round to so many significant bits, as a reduced-precision unit would."""
    mantissa, exponent = np.frexp(values.astype(np.float64))
    return np.ldexp(np.rint(np.ldexp(mantissa, bits)), exponent - bits)


def one_by_one(precision):
    def gram(rows):
        total = np.zeros((rows.shape[1],) * 2, precision)
        with np.errstate(over="ignore", invalid="ignore"):
            for row in rows.astype(precision):
                total += np.outer(row, row)
        return np.nan_to_num(total.astype(np.float64), posinf=0, neginf=0)

    return gram


REDUCED = {
    "inputs of six bits": lambda rows: rounded(rows, 6).T @ rounded(rows, 6),
    "sums of eight bits": lambda rows: rounded(rows.T @ rows, 8),
    "sums of eleven bits": lambda rows: rounded(rows.T @ rows, 11),
    "sums of one bit less": lambda rows: rounded(rows.astype(float).T @ rows, 23),
    "half accumulation": one_by_one(np.float16),
    "off by one": lambda rows: rows.astype(float).T @ rows + 1,
}


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64], ids=str)
@pytest.mark.parametrize("gram", REDUCED.values(), ids=REDUCED)
def test_the_self_test_refuses_reduced_precision(gram, dtype):
    with pytest.raises(ExactnessError, match="reduced-precision"):
        floats.check(gram, dtype)


def test_the_self_test_of_float64_refuses_float32():
    with pytest.raises(ExactnessError, match="float64"):
        floats.check(one_by_one(np.float32), FLOAT64)


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64], ids=str)
def test_the_self_test_accepts_this_machine_and_plain_loops(dtype):
    floats.self_test(dtype)
    floats.check(one_by_one(dtype), dtype)


def test_the_self_test_is_nobodys_work():
    floats.self_test.cache_clear()
    before = flops.total()
    floats.self_test(FLOAT32)
    assert flops.total() == before


@pytest.fixture
def tf32(monkeypatch):
    """A BLAS that rounds what it multiplies to eleven bits, as TF32 units do."""
    plain = floats.gemm
    monkeypatch.setattr(
        floats,
        "gemm",
        lambda a, b: plain(rounded(a, 11).astype(a.dtype), rounded(b, 11).astype(b.dtype)),
    )
    floats.self_test.cache_clear()
    yield
    floats.self_test.cache_clear()


def test_a_lift_of_wide_integers_is_exact_or_refused_under_tf32(tf32):
    values = np.array([[32767, 16383, 3, 1]], np.int16)
    try:
        projected = exact_matmul(values, np.ones((4, 1), np.float32), 32767)
    except ExactnessError:
        return
    assert projected[0, 0] == values.sum(dtype=np.int64)


# Products with signs.


@pytest.mark.parametrize(
    ("bound", "width", "dtype"),
    [
        (127, 600, FLOAT32),
        (127, 2**24 // 127, FLOAT32),
        (32767, 512, FLOAT32),
        (32767, 513, FLOAT64),
        (2**40, 2**13, FLOAT64),
    ],
)
def test_products_with_signs_are_exact(bound, width, dtype):
    rng = np.random.default_rng(width)
    values = rng.integers(-bound, bound, (6, width), endpoint=True)
    values[0], values[1] = bound, -bound
    signs = rng.choice([-1.0, 1.0], (width, 3)).astype(np.float32)
    signs[:, 0] = 1
    result = exact_matmul(values, signs, bound)
    assert result.dtype == dtype
    assert np.array_equal(result.astype(np.int64), values @ signs.astype(np.int64))


def test_products_that_could_not_be_exact_are_refused():
    values, signs = np.ones((1, 16), np.int64), np.ones((16, 1), np.float32)
    assert exact_matmul(values, signs, 2**49)[0, 0] == 16
    with pytest.raises(ExactnessError, match=r"fewer grid\.bits"):
        exact_matmul(values, signs, 2**49 + 1)


# Totals that might leave 64 bits.


@pytest.mark.parametrize("bound", [127, 32767])
def test_a_total_of_too_many_samples_is_refused_and_nothing_is_lost(bound):
    space = Space(width=1, bound=bound)
    one = Statistics.of(
        Features(np.array([[bound]], np.int16), space), Labels(np.array([0]), ("a",))
    )
    full = replace(one, count=space.most_samples, gram=one.gram * space.most_samples)
    assert int(full.gram[0]) == bound**2 * space.most_samples < 2**63
    before = full.digest()
    with pytest.raises(
        ExactnessError, match=rf"grid is {space.most_samples}; use fewer grid\.bits"
    ):
        _ = full + one
    with pytest.raises(ExactnessError):
        _ = -full - one
    assert full.digest() == before
    assert (full - one) + one == full


def test_one_sample_more_would_leave_64_bits():
    space = Space(width=1, bound=127)
    assert (space.most_samples + 1) * 127**2 > 2**63 - 1


def test_plain_floats_are_not_limited():
    assert Space(width=1).most_samples == 2**63 - 1


# Small matrices


@pytest.mark.parametrize("shape", [(0, 5), (3, 0), (1, 1), (9, 40), (40, 9)])
def test_small_gram_matrices_are_those_of_large_ones(monkeypatch, shape):
    rows = np.random.default_rng(0).integers(-127, 128, shape).astype(np.int8)
    rows[:, :1] = 0
    small = exact.gram_matrix(rows)
    monkeypatch.setattr(exact, "_TINY", -1)
    large = exact.gram_matrix(rows)
    assert small.tobytes() == large.tobytes()
    assert np.array_equal(small, rows.T.astype(int) @ rows.astype(int))
    assert np.array_equal(exact.gram_matrix(rows.T), rows.astype(int) @ rows.T.astype(int))
