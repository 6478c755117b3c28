"""The server's steps: exact products, directions that go down, and near ties that are counted."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedgram import Statistics
from fedgram.checks.federations import digits
from fedgram.errors import SolveError
from fedgram.softmax.arithmetic import LN2, SoftmaxGrid
from fedgram.softmax.objective import (
    Anchor,
    Metric,
    Objective,
    Point,
    between_classes,
    curvature,
    exact_product,
)
from fedgram.softmax.quasi_newton import MEMORY, CurvaturePair, QuasiNewton
from fedgram.softmax.sums import SoftmaxQuery

FINE = SoftmaxGrid(weights=30, table=14, residuals=24)


def integers(most):
    return hnp.arrays(np.int64, (3, 4), elements=st.integers(-most, most))


class Problem:
    """All samples at one place: what a federation would answer."""

    def __init__(self, samples, grid=FINE, **settings):
        self.samples, self.grid = samples, grid
        self.total = Statistics.of(samples.features, samples.labels)
        self.objective = Objective.of(self.total, grid, **settings)

    @property
    def shape(self):
        return self.total.moment.shape

    def at(self, values):
        query = SoftmaxQuery(
            values=values[None],
            grid=self.grid,
            space=self.total.space,
            classes=self.total.classes,
        )
        return Point.of(values, query.sums(self.samples))

    def start(self, seed=None):
        if seed is None:
            return self.at(np.zeros(self.shape, np.int64))
        weights = np.random.default_rng(seed).normal(size=self.shape) * 0.3
        return self.at(np.rint(weights / self.objective.step).astype(np.int64))

    def descended(self, ridge, steps, search=None):
        """Go so many steps, each shortened until the loss falls."""
        search = search or QuasiNewton(objective=self.objective, point=self.start())
        metric, values = self.objective.metric(ridge), []
        for _ in range(steps):
            direction, before = search.direction(ridge, metric), self.value(search, ridge)
            for shorter in range(12):
                found, ties = search.candidate(direction, 0.4**shorter)
                after = self.at(found)
                if self.objective.value(after, ridge) <= before:
                    search = search.accepted(after, ridge, ties)
                    break
            values.append(self.value(search, ridge))
        return search, values

    def value(self, search, ridge):
        return self.objective.value(search.point, ridge)


@pytest.fixture(scope="module")
def problem(gridded):
    return Problem(gridded(400, 10, 4), constant=True)


# Products


@given(integers(2**52), integers(2**61))
def test_products_are_those_of_python_rounded_once(left, right):
    exact = sum(int(a) * int(b) for a, b in zip(left.ravel(), right.ravel(), strict=True))
    assert exact_product(left, right) == float(exact)
    assert exact_product(right, left) == float(exact)


@given(integers(2**61), st.randoms(use_true_random=False))
def test_products_do_not_depend_on_the_order(values, random):
    order = list(range(values.size))
    random.shuffle(order)
    turned = values.ravel()[order]
    assert exact_product(values, values) == exact_product(turned, turned)


def a_small_rest_survives(product):
    """Large parts that cancel leave what a float sum would have lost."""
    left = np.array([2**40 + 1, -(2**40), 2**30, 7])
    right = np.array([2**40, 2**40 + 1, 2**30, 1])
    assert product(left, right) == float(2**60 + 7)
    left, right = np.array([2**50, 1, -(2**50)]), np.array([2**50, 3, 2**50])
    assert product(left, right) == 3.0
    assert product(np.array([2**40]), np.array([2**40])) == 2.0**80


def test_a_small_rest_survives():
    a_small_rest_survives(exact_product)


@pytest.mark.parametrize(
    "broken",
    [
        lambda a, b: float(np.sum(a * b.astype(np.float64))),
        lambda a, b: float(np.sum(a * b)),  # wraps
        lambda a, b: float(a.astype(np.float32) @ b.astype(np.float32)),
    ],
    ids=["floats", "64 bits", "single"],
)
def test_float_and_wrapping_products_lose_the_rest(broken):
    with pytest.raises(AssertionError):
        a_small_rest_survives(broken)


def test_products_of_nothing_are_zero():
    empty = np.zeros((0, 3), np.int64)
    assert exact_product(empty, empty) == 0.0
    assert exact_product(np.zeros(3, np.int64), np.array([1, 2, 3])) == 0.0


def test_products_of_floats_are_floats():
    assert exact_product(np.array([0.5, 2.0]), np.array([4, 1])) == 4.0


# The objective


def test_the_gradient_is_the_slope_of_the_loss(problem):
    ridge, point, rng = 2.0, problem.start(seed=1), np.random.default_rng(2)
    gradient = problem.objective.gradient(point, ridge)
    for _ in range(5):
        way = np.rint(rng.normal(size=problem.shape) * 2e-3 / problem.objective.step)
        way = way.astype(np.int64)
        ahead, behind = problem.at(point.values + way), problem.at(point.values - way)
        rise = problem.objective.value(ahead, ridge) - problem.objective.value(behind, ridge)
        slope = 2 * problem.objective.step * np.sum(way * gradient)
        assert rise == pytest.approx(slope, rel=2e-3, abs=1e-4)


def test_the_loss_is_in_nats_and_the_ridge_holds_real_weights(problem):
    zero = problem.start()
    assert problem.objective.value(zero, 5.0) == pytest.approx(400 * np.log(4), rel=1e-6)
    point = problem.start(seed=3)
    real = point.values * problem.objective.step
    held = problem.objective.value(point, 5.0) - problem.objective.value(point, 3.0)
    assert held == pytest.approx(np.sum(real**2), rel=1e-9)


def test_the_constant_is_held_only_where_it_is_said(gridded):
    free, held = (Problem(gridded(60, 5, 3), constant=constant) for constant in (False, True))
    values = np.zeros(free.shape, np.int64)
    values[-1] = 2**20
    ours, theirs = (
        p.objective.value(p.at(values), 4.0) - p.objective.value(p.at(values), 2.0)
        for p in (free, held)
    )
    assert ours == 0 < theirs
    pull = held.objective.gradient(held.at(values), 4.0) - free.objective.gradient(
        free.at(values), 4.0
    )
    assert not pull[:-1].any()
    assert (pull[-1] > 0).all()


def test_nothing_to_solve_is_refused(gridded):
    nothing = gridded(10, 3, 2).take([])
    with pytest.raises(SolveError, match="holds 0 samples"):
        Objective.of(Statistics.of(nothing.features, nothing.labels), FINE)


# The metric


def test_refinement_lowers_the_residual():
    rng = np.random.default_rng(0)
    turn = np.linalg.qr(rng.normal(size=(60, 60)))[0]
    gram = (turn * np.geomspace(1e-9, 1e3, 60)) @ turn.T
    gram = (gram + gram.T) / 2
    metric = Metric.of(gram, 1e-6, np.ones(60), 100)
    rhs = rng.normal(size=(60, 5))
    # A factor of a matrix next to it, as of a solver that loses digits.
    near = Metric.of(gram * (1 + 1e-6), 1e-6, np.ones(60), 100)
    clumsy = replace(metric, factor=near.factor)
    plain, refined = clumsy.factor.solve(rhs), clumsy.solve(rhs)

    def left(solution):
        return np.abs(rhs - metric.matrix @ solution).max()

    assert left(refined) < 0.1 * left(plain)
    exact = metric.solve(rhs)
    assert np.abs(refined - exact).max() < 1e-6 * np.abs(exact).max()


def test_the_metric_is_a_share_of_the_gram_matrix_and_the_ridge(problem):
    metric = problem.objective.metric(3.0)
    rows = problem.samples.features.real()
    expected = curvature(problem.shape[1]) * rows.T @ rows + 3.0 * np.eye(len(metric.matrix))
    np.testing.assert_allclose(metric.matrix, expected, rtol=1e-12)
    rhs = np.random.default_rng(0).normal(size=(len(expected), 3))
    np.testing.assert_allclose(metric.matrix @ metric.solve(rhs), rhs, atol=1e-10)


def class_sums(samples):
    rows, onehot = samples.features.real(), samples.labels.onehot()
    return rows.T @ onehot, onehot.sum(axis=0)


def test_the_between_class_part_is_the_gram_matrix_of_class_means(problem):
    rows, codes = problem.samples.features.real(), problem.samples.labels.codes
    means = np.stack([rows[codes == code].mean(axis=0) for code in range(problem.shape[1])])
    expected = means[codes].T @ means[codes]
    found = between_classes(*class_sums(problem.samples))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())


@given(st.randoms(use_true_random=False))
def test_the_between_class_part_is_exact_in_any_order_of_classes(problem, random):
    sums, counts = class_sums(problem.samples)
    order = list(range(len(counts)))
    random.shuffle(order)
    assert np.array_equal(
        between_classes(sums, counts), between_classes(sums[:, order], counts[order])
    )


def test_a_class_without_samples_adds_nothing(problem):
    sums, counts = class_sums(problem.samples)
    more = np.hstack([sums, np.zeros((len(sums), 1))])
    assert np.allclose(between_classes(more, np.append(counts, 0)), between_classes(sums, counts))
    assert not between_classes(0 * sums, 0 * counts).any()


@pytest.mark.parametrize(("samples", "classes"), [(400, 4), (12, 12), (30, 2)])
def test_without_most_of_the_between_class_part_the_metric_can_be_factorized(
    gridded, samples, classes
):
    chosen = gridded(samples, 40, classes)
    problem = Problem(chosen, constant=True, between=between_classes(*class_sums(chosen)))
    metric, whole = (problem.objective.metric(1e-3, first=first) for first in (False, True))
    assert np.linalg.eigvalsh(metric.matrix).min() > 0
    gap = whole.matrix - metric.matrix
    assert np.linalg.eigvalsh(gap).min() > -1e-6 * np.linalg.eigvalsh(gap).max()
    expected = 0.9 * curvature(problem.shape[1]) * problem.objective.between
    np.testing.assert_allclose(gap, expected, rtol=1e-6, atol=1e-9 * np.abs(expected).max())


@pytest.mark.parametrize("classes", [2, 3, 10, 40])
def test_a_first_step_of_full_length_lowers_the_loss(gridded, classes):
    problem = Problem(gridded(400, 10, classes))
    search = QuasiNewton(objective=problem.objective, point=problem.start())
    direction = search.direction(1.0, problem.objective.metric(1.0, first=True))
    after = problem.at(search.candidate(direction, 1.0)[0])
    assert problem.objective.value(after, 1.0) < problem.value(search, 1.0)


def test_the_gram_matrix_is_left_as_it_was(problem):
    before = problem.objective.gram.copy()
    problem.objective.metric(3.0)
    assert np.array_equal(problem.objective.gram, before)


def test_a_ridge_that_is_no_weight_is_refused(problem):
    for ridge in (-1.0, np.nan, np.inf):
        with pytest.raises(SolveError, match="expected a finite number"):
            problem.objective.metric(ridge)


# Steps


@pytest.mark.parametrize("ridge", [0.05, 1.0, 30.0])
@pytest.mark.parametrize("steps", [0, 1, 3, 15])
def test_directions_go_down(problem, ridge, steps):
    search, _ = problem.descended(ridge, steps)
    metric = problem.objective.metric(ridge)
    gradient = problem.objective.gradient(search.point, ridge)
    if np.abs(gradient).max() < 1e-3:
        return  # at the minimum, up to the grids
    assert np.sum(search.direction(ridge, metric) * gradient) > 0


def test_the_first_direction_is_that_of_the_metric(problem):
    search = QuasiNewton(objective=problem.objective, point=problem.start())
    metric = problem.objective.metric(2.0)
    gradient = problem.objective.gradient(search.point, 2.0)
    expected = metric.solve(gradient)  # whose classes add up to zero as the gradient's do
    np.testing.assert_allclose(search.direction(2.0, metric), expected, atol=1e-12)


@pytest.mark.parametrize("constant", [False, True])
def test_steps_converge(gridded, constant):
    problem = Problem(gridded(400, 10, 4), constant=constant)
    search, values = problem.descended(1.0, 40)
    first = np.linalg.norm(problem.objective.gradient(problem.start(), 1.0))
    last = np.linalg.norm(problem.objective.gradient(search.point, 1.0))
    assert last < 1e-3 * first  # about where the steps of the table of exponentials show
    assert values == sorted(values, reverse=True)


def test_so_many_pairs_are_remembered_and_no_more(problem):
    search, _ = problem.descended(0.05, MEMORY + 6)
    assert len(search.pairs) == MEMORY
    last = search.pairs[-1]
    assert last.step.dtype == last.change.dtype == np.int64


def test_a_pair_without_curvature_is_not_remembered(problem):
    search = QuasiNewton(objective=problem.objective, point=problem.start(seed=1))
    same = replace(search.point, loss=search.point.loss - 1)
    assert search.accepted(same, 1.0, 0).pairs == ()


def test_a_restart_forgets_pairs_but_not_near_ties(problem):
    search, _ = problem.descended(1.0, 4)
    search = replace(search, near_ties=3)
    again = search.restarted(problem.start(), 2)
    assert again.pairs == ()
    assert again.near_ties == 5
    assert not again.point.values.any()


def test_a_pair_is_the_way_between_two_points(problem):
    one, other = problem.start(), problem.start(seed=1)
    pair = CurvaturePair.between(one, other)
    assert np.array_equal(pair.step, other.values)
    assert np.array_equal(pair.change, one.products - other.products)
    search = QuasiNewton(objective=problem.objective, point=one)
    bend = search._along(pair, pair, 2.0)
    slopes = [problem.objective.gradient(point, 2.0) for point in (one, other)]
    step = problem.objective.step * pair.step
    assert bend == pytest.approx(np.sum(step * (slopes[1] - slopes[0])), rel=1e-9)
    assert bend > 0


# Near ties


@pytest.mark.parametrize(
    ("off", "ties"),
    [
        (0.0, 0),
        (0.25, 0),
        (0.5, 1),
        (0.5 - 2.0**-17, 1),
        (0.5 + 2.0**-17, 1),
        (-0.5, 1),
        (0.5 - 2.0**-15, 0),
        (0.5 + 2.0**-15, 0),
    ],
)
def test_entries_on_the_edge_of_two_steps_are_counted(problem, off, ties):
    search = QuasiNewton(objective=problem.objective, point=problem.start(seed=1))
    direction = np.zeros(problem.shape)
    direction[2, 1] = -(100 + off) * problem.objective.step
    values, found = search.candidate(direction, 1.0)
    assert found == ties
    moved = values - search.point.values
    assert abs(moved[2, 1] - (100 + off)) <= 0.5001
    assert np.count_nonzero(moved) == 1


def test_near_ties_add_up_along_the_way(problem):
    search = QuasiNewton(objective=problem.objective, point=problem.start())
    for ties in (1, 0, 4):
        search = search.accepted(problem.start(seed=ties), 1.0, ties)
    assert search.near_ties == 5


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e30])
def test_a_direction_out_of_range_is_refused(problem, bad):
    search = QuasiNewton(objective=problem.objective, point=problem.start())
    direction = np.zeros(problem.shape)
    direction[0, 0] = bad
    with pytest.raises(SolveError, match="diverged; use a larger ridge"):
        search.candidate(direction, 1.0)


# The anchor


@pytest.fixture(scope="module")
def anchored(problem):
    chosen = problem.start(seed=4)
    anchor = Anchor(values=chosen.values, products=chosen.products)
    return chosen, replace(problem.objective, anchor=anchor)


def test_at_its_anchor_with_its_own_samples_a_fit_stays(problem, anchored):
    chosen, objective = anchored
    for ridge in (0.0, 1.0, 50.0):
        assert not objective.gradient(chosen, ridge).any()
    search = QuasiNewton(objective=objective, point=chosen)
    direction = search.direction(1.0, objective.metric(1.0))
    assert not direction.any()
    values, ties = search.candidate(direction, 1.0)
    assert np.array_equal(values, chosen.values)
    assert ties == 0


def test_an_anchored_loss_is_least_at_the_anchor(problem, anchored):
    chosen, objective = anchored
    least = objective.value(chosen, 1.0)
    for seed in range(5):
        way = np.random.default_rng(seed).normal(size=problem.shape) * 0.05 / objective.step
        beside = problem.at(chosen.values + np.rint(way).astype(np.int64))
        assert objective.value(beside, 1.0) > least


def test_an_anchored_gradient_is_the_slope_of_the_anchored_loss(problem, anchored):
    _, objective = anchored
    point, rng = problem.start(seed=7), np.random.default_rng(1)
    way = np.rint(rng.normal(size=problem.shape) * 2e-3 / objective.step).astype(np.int64)
    ahead, behind = problem.at(point.values + way), problem.at(point.values - way)
    rise = objective.value(ahead, 2.0) - objective.value(behind, 2.0)
    slope = 2 * objective.step * np.sum(way * objective.gradient(point, 2.0))
    assert rise == pytest.approx(slope, rel=2e-3, abs=1e-4)


def test_more_samples_move_a_fit_from_its_anchor(gridded):
    samples = gridded(400, 10, 4)
    part, whole = Problem(samples.take(slice(0, 360))), Problem(samples)
    chosen = part.start(seed=4)
    scaled = np.rint(chosen.products * (400 / 360)).astype(np.int64)
    objective = replace(whole.objective, anchor=Anchor(values=chosen.values, products=scaled))
    gradient = objective.gradient(whole.at(chosen.values), 1.0)
    plain = whole.objective.gradient(whole.at(chosen.values), 1.0)
    assert 0 < np.linalg.norm(gradient) < 0.3 * np.linalg.norm(plain)


# On real data


def test_steps_are_the_same_with_the_default_grids_within_their_steps():
    problem = Problem(digits(), SoftmaxGrid())
    fine = Problem(digits(), FINE)
    for ridge in (1.0, 10.0):
        coarse_step, fine_step = (
            QuasiNewton(objective=each.objective, point=each.start()).direction(
                ridge, each.objective.metric(ridge)
            )
            for each in (problem, fine)
        )
        np.testing.assert_allclose(coarse_step, fine_step, atol=2e-3 * np.abs(fine_step).max())
    assert problem.objective.step == LN2 / (2**16 * problem.total.space.unit)
