"""All ways of multiplying int8 matrices give the same integers; a wrong way is dropped."""

import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgram import Features, Labels, Space, Statistics
from fedgram.cli import main
from fedgram.core.exact import activated_matmul, exact_matmul, gram_matrix
from fedgram.core.kernels import choice, onnx_int8, vnni
from fedgram.core.kernels.blas import FloatBlas
from fedgram.core.kernels.choice import VARIABLE, WAYS, Verdict, chosen, tried
from fedgram.core.kernels.proof import flaw
from fedgram.core.kernels.torch_int8 import TorchInt8
from fedgram.core.kernels.way import MOST_TERMS, Way, WholeProducts, triangle_size
from fedgram.errors import ConfigError, ExactnessError
from fedgram.runtime import flops
from fedgram.runtime.threads import product_threads


class Plain(WholeProducts):
    """The slow way, which is right: float64, exact up to 2^53."""

    name = "plain"
    strip = 7

    def _whole(self, left, right):
        return (
            (left.astype(np.float64) @ right.astype(np.float64)).astype(np.int64).astype(np.int32)
        )


def usable():
    """The ways of this machine that need no long import, the library in one and two threads."""
    found = [FloatBlas()]
    if tried("vnni").way:
        found += [vnni.made(1), vnni.made(2)]
    if tried("onnxruntime").way:
        found.append(tried("onnxruntime").way)
    if "torch" in sys.modules and tried("torch").way:
        found.append(tried("torch").way)
    return found


EDGES = [0, 1, 3, 4, 5, 15, 16, 17, 47, 48, 49, 287, 288, 289, 511, 512, 513]


@st.composite
def matrices(draw):
    terms, columns = draw(st.sampled_from(EDGES)), draw(st.sampled_from([1, *EDGES[2:14]]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    kind = draw(st.sampled_from(["any", "signs", "largest", "smallest", "lowest"]))
    return {
        "any": rng.integers(-128, 128, (terms, columns)),
        "signs": 127 * rng.choice([-1, 1], (terms, columns)),
        "largest": np.full((terms, columns), 127),
        "smallest": np.full((terms, columns), -127),
        "lowest": np.full((terms, columns), -128),
    }[kind].astype(np.int8)


def gram(way, matrix):
    width = matrix.shape[1]
    total = np.arange(width * (width + 1) // 2)  # totals are added to, not overwritten
    way.gram(matrix, total)
    return total


@settings(max_examples=15)
@given(matrices(), st.booleans(), st.integers(1, 60))
def test_all_ways_give_the_same_integers(matrix, flip, others):
    matrix = matrix.T if flip else matrix
    if not matrix.shape[1]:
        return
    slow = Plain()
    few = np.ascontiguousarray(matrix[:, :others])
    table = np.arange(-100, 101).astype(np.int8)
    codes = np.arange(len(matrix)) % 5
    wanted = gram(slow, matrix), slow.product(few.T, matrix)
    looked_up, sums = np.empty(wanted[1].shape, np.int8), np.zeros((5, matrix.shape[1]), np.int64)
    slow.looked_up(few.T, matrix, table, looked_up)
    slow.class_sums(matrix, codes, sums)
    for way in usable():
        assert np.array_equal(gram(way, matrix), wanted[0]), way.name
        assert np.array_equal(way.product(few.T, matrix), wanted[1]), way.name
        found, totals = np.empty_like(looked_up), np.zeros_like(sums)
        way.looked_up(few.T, matrix, table, found)
        way.class_sums(matrix, codes, totals)
        assert np.array_equal(found, looked_up), way.name
        assert np.array_equal(totals, sums), way.name


@pytest.mark.parametrize("terms", [MOST_TERMS - 1, MOST_TERMS, MOST_TERMS + 1, 2 * MOST_TERMS + 1])
def test_sums_at_the_limit_of_32_bits_are_exact(terms):
    matrix = np.full((terms, 2), -128, np.int8)
    matrix[:, 1] = 127
    wanted = [terms * 2**14, -terms * 128 * 127, terms * 127**2]
    for way in usable():
        total = np.zeros(3, np.int64)
        way.gram(matrix, total)
        assert total.tolist() == wanted, way.name
        assert way.product(matrix.T, matrix).tolist() == [wanted[:2], wanted[1:]], way.name


def test_the_block_rule_is_sharp():
    assert MOST_TERMS * 128 * 128 < 2**31 <= (MOST_TERMS + 1) * 128 * 128


@pytest.mark.parametrize("width", [0, 1, 2, 31, 32, 33, 63, 64, 65, 130])
def test_a_triangle_unfolds_to_the_symmetric_matrix(width):
    rng = np.random.default_rng(width)
    packed = rng.integers(-(2**40), 2**40, triangle_size(width, width))
    matrix = np.zeros((width, width))
    matrix[np.triu_indices(width)] = packed
    wanted = np.triu(matrix) + np.triu(matrix, 1).T
    for way in usable():
        assert np.array_equal(way.unpack(packed, width), wanted), way.name
        assert np.array_equal(way.unpack(packed / 2, width), wanted / 2), way.name


# Ways that are wrong, as they are found in the world


class Saturating(Plain):
    """Adds pairs of products in 16 bits, as processors without the instructions do."""

    name = "saturating"

    def _whole(self, left, right):
        shifted, right = left.astype(np.int64) + 128, right.astype(np.int64)
        sums = np.zeros((len(left), right.shape[1]), np.int64)
        for k in range(0, left.shape[1], 2):
            sums += np.clip(shifted[:, k : k + 2] @ right[k : k + 2], -(2**15), 2**15 - 1)
        return (sums - 128 * right.sum(axis=0)).astype(np.int32)


class Unblocked(Plain):
    """Forgets the block rule: 32-bit sums of any length."""

    name = "unblocked"

    def gram(self, rows, total):
        wide = rows.astype(np.int64)
        total += (wide.T @ wide).astype(np.int32)[np.triu_indices(rows.shape[1])]

    def product(self, left, right):
        return self._whole(left, right)


class Uncorrected(Plain):
    """Shifts one operand and does not take the shift back."""

    name = "uncorrected"

    def _whole(self, left, right):
        return ((left.astype(np.int64) + 128) @ right.astype(np.int64)).astype(np.int32)


class Halved(Plain):
    """Multiplies one operand by one half, rounded."""

    name = "halved"

    def _whole(self, left, right):
        return (2 * ((left.astype(np.int64) // 2) @ right.astype(np.int64))).astype(np.int32)


class EdgeOfTiles(Plain):
    """Is wrong by one bit in one column beyond a cache tile."""

    name = "edge"

    def _whole(self, left, right):
        sums = super()._whole(left, right)
        sums[:, 288:289] ^= 1
        return sums


WRONG = [Saturating, Unblocked, Uncorrected, Halved, EdgeOfTiles]


@pytest.mark.parametrize("wrong", WRONG)
def test_the_self_test_notices(wrong):
    assert "wrong" in flaw(wrong())


def test_the_self_test_accepts_the_slow_way_and_is_nobodys_work():
    assert flaw(Plain()) == ""
    before = flops.total()
    choice.tried.__wrapped__("blas")
    assert flops.total() == before


@pytest.fixture
def planted(monkeypatch):
    """Make every way but BLAS the given one."""

    def plant(way):
        wrong = flaw(way)
        verdict = Verdict(reason=f"dropped: {wrong}") if wrong else Verdict(way=way)

        def trying(name):
            return Verdict(way=FloatBlas()) if name == "blas" else verdict

        monkeypatch.delenv(VARIABLE, raising=False)
        monkeypatch.setattr(choice, "tried", trying)

    return plant


def test_a_wrong_way_is_dropped_and_a_right_one_is_used(planted):
    planted(Uncorrected())
    assert chosen(10**18).name == "blas"
    planted(Plain())
    assert chosen(10**18).name == "plain"


def test_without_an_exact_way_nothing_is_multiplied(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(choice, "tried", lambda name: Verdict(reason="dropped: a bit"))
    with pytest.raises(ExactnessError, match="dropped: a bit"):
        chosen()


def test_a_way_can_be_forced_by_its_name(monkeypatch):
    monkeypatch.setenv(VARIABLE, "blas")
    assert chosen().name == "blas"
    monkeypatch.setenv(VARIABLE, "abacus")
    with pytest.raises(ConfigError, match="expected one of vnni"):
        chosen()


def test_a_forced_way_that_is_missing_is_an_error(monkeypatch, tmp_path):
    monkeypatch.setattr(vnni, "LIBRARY", tmp_path / "nowhere")
    monkeypatch.setattr(choice, "tried", choice.tried.__wrapped__)
    monkeypatch.setenv(VARIABLE, "vnni")
    with pytest.raises(ConfigError, match="no C compiler"):
        chosen()
    monkeypatch.delenv(VARIABLE)
    assert chosen().name in ("torch", "onnxruntime", "blas")


def test_statistics_have_the_same_bytes_by_all_ways(monkeypatch):
    rng = np.random.default_rng(0)
    rows = Features(rng.integers(-127, 128, (700, 60)).astype(np.int8), Space(width=60, bound=127))
    labels = Labels(rng.integers(0, 3, 700), ("a", "b", "c"))
    digests = set()
    for name in WAYS:
        if name != "torch" and tried(name).way:  # torch takes long to import
            monkeypatch.setenv(VARIABLE, name)
            digests.add(Statistics.of(rows, labels).digest())
    assert len(digests) == 1


def test_products_of_rows_and_tables_go_through_the_chosen_way(planted):
    values = np.arange(-6, 6).reshape(3, 4).astype(np.int8)
    signs, table = np.ones((4, 2), np.int8), np.arange(-50, 51).astype(np.int8)
    out = np.empty((3, 2), np.int8)

    class Counting(Plain):
        calls = 0

        def _whole(self, left, right):
            Counting.calls += 1
            return super()._whole(left, right)

    planted(Counting())
    before = Counting.calls
    activated_matmul(values, signs, 127, table, out)
    found = exact_matmul(values, signs, 127), gram_matrix(values.repeat(9000, axis=1).T)
    assert Counting.calls == before + 3
    assert np.array_equal(out, values.sum(axis=1)[:, None] * [1, 1])
    assert np.array_equal(found[0], out)
    wide = values.repeat(9000, axis=1).astype(float)  # a small product has no way of its own
    assert np.array_equal(found[1], wide @ wide.T)


def test_nothing_heavy_is_imported_for_a_small_problem():
    code = (
        "import sys, numpy as np; from fedgram.core.exact import gram_matrix;"
        "gram_matrix(np.ones((9, 9), np.int8));"
        "assert not {'torch', 'onnxruntime'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_number_of_threads_is_that_of_blas(monkeypatch):
    decided = product_threads.__wrapped__
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "3")
    assert decided() == 3
    monkeypatch.delenv("OPENBLAS_NUM_THREADS")
    assert decided() == 1


def test_info_names_every_way_and_why_it_is_not_used(monkeypatch):
    from fedgram.cli import info

    def trying(name):
        return Verdict(way=FloatBlas()) if name == "blas" else Verdict(reason="dropped: one bit")

    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(info, "tried", trying)
    monkeypatch.setattr(choice, "tried", trying)
    done = CliRunner().invoke(main, ["info"])
    assert done.exit_code == 0, done.output
    assert "vnni: dropped: one bit" in done.output
    assert "blas: exact, in use" in done.output
    assert "processor" in done.output


def test_the_stored_graph_is_the_one_that_is_meant():
    onnx = pytest.importorskip("onnx")
    helper, types = onnx.helper, onnx.TensorProto
    graph = helper.make_graph(
        [helper.make_node("MatMulInteger", ["left", "right", "shift"], ["sums"])],
        "product",
        [
            helper.make_tensor_value_info("left", types.UINT8, ["n", "k"]),
            helper.make_tensor_value_info("right", types.INT8, ["k", "m"]),
            helper.make_tensor_value_info("shift", types.UINT8, []),
        ],
        [helper.make_tensor_value_info("sums", types.INT32, ["n", "m"])],
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 10)], ir_version=7, producer_name=""
    )
    assert onnx.ModelProto.FromString(onnx_int8.GRAPH) == model


def test_a_packed_operand_is_kept_only_while_nobody_can_change_it():
    if not tried("vnni").way:
        pytest.skip("this machine has no AVX-512 VNNI, or no compiler")
    way, right = vnni.made(1), np.ones((4, 2), np.int8)
    left = np.ones((3, 4), np.int8)
    assert way.product(left, right)[0, 0] == 4
    right[:] = 2
    assert way.product(left, right)[0, 0] == 8
    right.flags.writeable = False
    assert way.product(left, right)[0, 0] == way.product(left, right)[0, 0] == 8
    assert len(way._kept) == 1
    del right
    assert not way._kept


def test_a_way_is_abstract():
    with pytest.raises(TypeError):
        Way()


@pytest.mark.parametrize("shape", [(1, 3), (3, 1), (1, 1)])
def test_torch_gets_matrices_by_rows(shape):
    """A dimension of length 1 has any stride in NumPy; torch's product goes wrong with some."""
    seen = []

    def product(first, second):
        seen.extend([first, second])
        return SimpleNamespace(numpy=lambda: first.astype(np.int32) @ second)

    torch = SimpleNamespace(
        from_numpy=lambda matrix: matrix,
        _int_mm=product,
        get_num_threads=lambda: 1,
        set_num_threads=lambda count: None,
    )
    matrix = np.arange(1, 1 + shape[0] * shape[1], dtype=np.int8).reshape(shape)
    assert np.array_equal(TorchInt8(torch)._whole(matrix.T, matrix), matrix.T.astype(int) @ matrix)
    assert all(each.strides == (each.shape[1], 1) for each in seen)
