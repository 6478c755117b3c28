"""Ridge regression: answers known by construction, and the same bytes whatever runs around it."""

import threading

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from fedgram import Features, Grid, Labels, Space, Statistics
from fedgram.core.solve import Factor, Factors, least_squares, ridge_solve, unpack_symmetric
from fedgram.errors import SolveError
from fedgram.models.linear import Linear
from fedgram.runtime.threads import THREADS, single_threaded_blas

RIDGES = [1e-3, 1.0, 50.0]


def near(a, b, tolerance=1e-10):
    return np.abs(a - b).max() <= tolerance * np.abs(b).max()


def built(rows, width, seed=0):
    """Return F and Y with the ridge solution as a function: F is built from its own SVD."""
    rng = np.random.default_rng(seed)
    rank = min(rows, width)
    left, _ = np.linalg.qr(rng.normal(size=(rows, rank)))
    right, _ = np.linalg.qr(rng.normal(size=(width, rank)))
    stretch = np.geomspace(0.1, 30, rank)
    targets = rng.normal(size=(rows, 3))

    def answer(ridge):
        return right @ (stretch / (stretch**2 + ridge) * (left.T @ targets).T).T

    return (left * stretch) @ right.T, targets, answer


def statistics(samples):
    return Statistics.of(samples.features, samples.labels)


def in_pieces(samples, pieces):
    shares = np.array_split(np.random.default_rng(pieces).permutation(len(samples)), pieces)
    return sum(statistics(samples.take(share)) for share in shares)


@pytest.mark.parametrize("ridge", RIDGES)
@pytest.mark.parametrize("shape", [(80, 30), (30, 30), (29, 30), (5, 30)])
def test_the_answer_is_the_one_known_by_construction(shape, ridge):
    rows, targets, answer = built(*shape)
    assert near(least_squares(rows, targets, ridge), answer(ridge), 1e-9)
    assert near(ridge_solve(rows.T @ rows, rows.T @ targets, ridge), answer(ridge), 1e-9)


def test_plain_least_squares_is_known_by_construction():
    rows, targets, answer = built(80, 30)
    assert near(least_squares(rows, targets, 0.0), answer(0.0), 1e-9)


@pytest.mark.parametrize("ridge", RIDGES)
@pytest.mark.parametrize("count", [1, 12, 39, 40, 41, 90])
def test_primal_and_dual_form_agree(count, ridge):
    rng = np.random.default_rng(count)
    rows, targets = rng.normal(size=(count, 40)), rng.normal(size=(count, 2))
    primal = np.linalg.solve(rows.T @ rows + ridge * np.eye(40), rows.T @ targets)
    dual = rows.T @ np.linalg.solve(rows @ rows.T + ridge * np.eye(count), targets)
    assert near(least_squares(rows, targets, ridge), primal, 1e-8)
    assert near(least_squares(rows, targets, ridge), dual, 1e-8)


def test_no_samples_give_no_weights():
    assert not least_squares(np.zeros((0, 3)), np.zeros((0, 2)), 1.0).any()


@pytest.mark.parametrize("weight", [1e-3, 1.0, 30.0, 1e6])
@pytest.mark.parametrize("count", [1, 10, 60])
def test_an_update_is_the_direct_solution(count, weight):
    rng = np.random.default_rng(count)
    base, rows, residual = (rng.normal(size=s) for s in [(90, 40), (count, 40), (count, 3)])
    gram = base.T @ base
    direct = np.linalg.solve(
        gram + 2.0 * np.eye(40) + weight * rows.T @ rows, weight * rows.T @ residual
    )
    assert near(Factor.of(gram, 2.0).update(rows, residual, weight), direct, 1e-9)


def test_an_update_of_no_weight_is_nothing():
    step = Factor.of(np.eye(4), 1.0).update(np.ones((2, 4)), np.ones((2, 3)), 0.0)
    assert step.shape == (4, 3)
    assert not step.any()


def test_a_factor_reads_the_upper_triangle_and_leaves_the_matrix_alone():
    rng = np.random.default_rng(0)
    rows, rhs = rng.normal(size=(30, 8)), rng.normal(size=(8, 2))
    gram = rows.T @ rows
    upper = np.triu(gram)
    before = upper.copy()
    solved = Factor.of(upper, 1.0).solve(rhs)
    assert np.array_equal(upper, before)
    assert near(solved, np.linalg.solve(gram + np.eye(8), rhs))


def test_square_unpacks_the_upper_triangle():
    matrix = unpack_symmetric(np.array([1, 2, 3, 4, 5, 6]), 3)
    assert matrix.tolist() == [[1, 2, 3], [2, 4, 5], [3, 5, 6]]
    assert matrix.dtype == np.float64


# From statistics.


@pytest.mark.parametrize("bits", [4, 8, 16, "off"])
def test_statistics_solve_in_real_units(gridded, bits):
    samples = gridded(300, 15, 4, grid=Grid(bits=bits))
    real, targets = samples.features.real(), samples.labels.onehot()
    weights = statistics(samples).solve(3.0)
    reference = np.linalg.solve(real.T @ real + 3.0 * np.eye(16), real.T @ targets)
    assert near(weights, reference)


def test_the_ridge_does_not_depend_on_the_bits(gridded):
    """In real units 8 and 16 bits find about the same weights; in stored ones they could not."""
    for ridge in (1.0, 100.0):
        coarse, fine = (
            statistics(gridded(400, 30, 5, grid=Grid(bits=bits))).solve(ridge) for bits in (8, 16)
        )
        assert near(coarse, fine, 0.02)
    wrong = statistics(gridded(400, 30, 5, grid=Grid(bits=16))).solve(100.0 * 200)
    assert not near(wrong, fine, 0.5)


def test_the_ridge_does_not_depend_on_the_number_of_clients(gridded):
    samples = gridded(200, 15, 4)
    weights = {in_pieces(samples, pieces).solve(10.0).tobytes() for pieces in (1, 2, 5, 100)}
    assert len(weights) == 1


def test_a_path_is_its_solutions(gridded):
    total = statistics(gridded())
    path = list(total.path(RIDGES))
    assert [w.tobytes() for w in path] == [total.solve(ridge).tobytes() for ridge in RIDGES]
    norms = [np.linalg.norm(weights) for weights in path]
    assert norms == sorted(norms, reverse=True)


def test_a_pull_is_the_minimum_of_its_objective(gridded):
    samples = gridded()
    real, targets = samples.features.real(), samples.labels.onehot()
    prior = np.random.default_rng(2).normal(size=(13, 4))
    weights = statistics(samples).solve(7.0, towards=prior)
    slope = real.T @ (real @ weights - targets) + 7.0 * (weights - prior)
    assert np.abs(slope).max() < 1e-9 * np.abs(real.T @ targets).max()


def test_a_pull_to_the_optimum_stays_there(gridded):
    total = statistics(gridded())
    best = total.solve(0.0)
    for ridge in RIDGES:
        assert near(total.solve(ridge, towards=best), best, 1e-9)


def test_a_strong_pull_gets_there_and_a_pull_to_zero_is_none(gridded):
    total = statistics(gridded())
    prior = np.random.default_rng(2).normal(size=(13, 4))
    assert near(total.solve(1e12, towards=prior), prior, 1e-6)
    assert np.array_equal(total.solve(5.0, towards=0 * prior), total.solve(5.0))
    paths = zip(total.path(RIDGES, towards=prior), RIDGES, strict=True)
    assert all(np.array_equal(w, total.solve(r, towards=prior)) for w, r in paths)


@pytest.mark.parametrize("bits", [8, 16, "off"])
def test_the_error_from_statistics_is_the_sum_over_the_samples(gridded, bits):
    samples = gridded(grid=Grid(bits=bits))
    total = statistics(samples)
    for weights in (total.solve(2.0), np.random.default_rng(1).normal(size=(13, 4))):
        residual = samples.labels.onehot() - samples.features.real() @ weights
        assert total.error(weights) == pytest.approx((residual**2).sum(), rel=1e-9)
    assert total.error(np.zeros((13, 4))) == len(samples)


# What has no solution.


def repeated():
    """Two features that are always alike."""
    rows = np.array([[1, 1], [2, 2], [3, 3]], np.int8)
    return Statistics.of(
        Features(rows, Space(width=2, bound=127)), Labels(np.array([0, 1, 1]), ("no", "yes"))
    )


def test_a_singular_gram_without_ridge_is_refused_with_a_remedy():
    with pytest.raises(SolveError, match=r"3 samples, 2 features, ridge = 0.*larger ridge"):
        repeated().solve(0.0)
    assert np.isfinite(repeated().solve(1e-3)).all()


def test_fewer_samples_than_features_without_ridge_are_refused(gridded):
    samples = gridded(10, 30, 3)
    with pytest.raises(SolveError, match="10 samples, 31 features"):
        statistics(samples).solve(0.0)
    assert np.isfinite(statistics(samples).solve(1.0)).all()


@pytest.mark.parametrize("matrix", [np.zeros((3, 3)), np.diag([1.0, 1e-18]), np.diag([1.0, -1.0])])
def test_singular_and_indefinite_matrices_are_refused(matrix):
    with pytest.raises(SolveError, match="singular"):
        Factor.of(matrix, 0.0)


@pytest.mark.parametrize("ridge", [-1.0, -1e-300, np.nan, np.inf, -np.inf])
def test_what_is_no_weight_is_refused(ridge):
    rows, targets, _ = built(9, 4)
    for solve in (
        repeated().solve,
        lambda r: least_squares(rows, targets, r),
        lambda r: Factor.of(np.eye(2), r),
        lambda r: list(repeated().path([1.0, r])),
    ):
        with pytest.raises(SolveError, match="expected a finite number"):
            solve(ridge)


def test_nothing_and_less_than_nothing_are_refused():
    for total in (Statistics.zero(), repeated() - repeated(), -repeated()):
        with pytest.raises(SolveError, match=rf"holds {total.count} samples"):
            total.solve(1.0)


# Threads.


def threads():
    return {
        library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"
    }


@pytest.fixture
def two_threads():
    with threadpool_limits(limits=2, user_api="blas"):
        yield


def test_steady_nests_and_restores(two_threads):
    assert threads() == {2} != {THREADS}
    with single_threaded_blas():
        assert threads() == {THREADS}
        with single_threaded_blas():
            assert threads() == {THREADS}
        assert threads() == {THREADS}
    assert threads() == {2}


def test_steady_restores_after_an_error(two_threads):
    with pytest.raises(ZeroDivisionError), single_threaded_blas(), single_threaded_blas():
        _ = 1 / 0
    with pytest.raises(SolveError):
        Factor.of(np.zeros((2, 2)), 0.0)
    assert threads() == {2}


def test_steady_holds_until_the_last_python_thread_leaves(two_threads):
    inside, leave = threading.Event(), threading.Event()
    seen = []

    def other():
        with single_threaded_blas():
            inside.set()
            leave.wait(60)
            seen.append(threads())

    thread = threading.Thread(target=other)
    with single_threaded_blas():
        thread.start()
        assert inside.wait(60)
    assert threads() == {THREADS}  # the first to come has left, the other is still inside
    leave.set()
    thread.join(60)
    assert seen == [{THREADS}]
    assert threads() == {2}


def test_steady_survives_many_python_threads(two_threads):
    start, seen = threading.Barrier(8), []

    def work():
        start.wait(60)
        for _ in range(20):
            with single_threaded_blas():
                seen.append(threads())

    workers = [threading.Thread(target=work) for _ in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert seen == [{THREADS}] * 160
    assert threads() == {2}


@pytest.fixture(scope="module")
def wide(gridded):
    """Statistics and rows wide enough for LAPACK to share the work among threads."""
    samples = gridded(900, 599, 6)
    few = samples.take(slice(0, 200))
    return samples, statistics(samples), few.features.real(), few.labels.onehot()


SOLVES = {
    "statistics": lambda _, total, rows, targets: total.solve(1.0),
    "primal": lambda samples, total, rows, targets: least_squares(
        samples.features.real(), samples.labels.onehot(), 1.0
    ),
    "dual": lambda _, total, rows, targets: least_squares(rows, targets, 1.0),
    "update": lambda _, total, rows, targets: Factor.of(
        unpack_symmetric(total.gram, total.space.width), 1.0
    ).update(rows, targets, 3.0),
    "scores": lambda samples, total, rows, targets: Linear.of(total, ridge=1.0)(samples.features),
}


@pytest.mark.parametrize("solve", SOLVES.values(), ids=SOLVES)
def test_solved_bytes_do_not_depend_on_the_threads_outside(wide, solve):
    assert wide[1].space.width == 600
    seen = set()
    for outside in (1, 2):
        with threadpool_limits(limits=outside, user_api="blas"):
            seen.add(solve(*wide).tobytes())
    assert len(seen) == 1


def test_fitted_heads_solve_in_real_units(gridded):
    samples = gridded(8, 20, 3)
    real, targets = samples.features.real(), samples.labels.onehot()
    reference = np.linalg.solve(real.T @ real + 2.0 * np.eye(21), real.T @ targets)
    assert near(Linear.fitted(samples, targets, ridge=2.0).weights, reference)


# Stacks of small matrices


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("width", [1, 2, 9, 40])
def test_factors_of_a_stack_are_those_of_each_matrix(dtype, width):
    rng = np.random.default_rng(width)
    rows = rng.normal(size=(5, width + 3, width)).astype(dtype)
    grams, ridges = rows.swapaxes(1, 2) @ rows, [0.3, 7.0]
    rhs = rng.normal(size=(5, 2, width, 4)).astype(dtype)
    found = Factors.of(grams, ridges).solve(rhs)
    assert found.dtype == dtype
    for k, gram in enumerate(grams):
        for place, ridge in enumerate(ridges):
            alone = Factor.of(gram, ridge, narrow=dtype == np.float32)
            assert np.array_equal(found[k, place], alone.solve(rhs[k, place]))
            whole = gram.astype(np.float64) + ridge * np.eye(width)
            assert near(found[k, place], np.linalg.solve(whole, rhs[k, place]), 1e-3)


def test_a_singular_matrix_of_a_stack_is_refused():
    with pytest.raises(SolveError, match="singular"):
        Factors.of(np.array([np.eye(2), np.ones((2, 2))]), [0.0])
