"""Models: scores from features, alike however they are evaluated."""

from dataclasses import replace

import numpy as np
import pytest

from fedgram import Features, Grid, Labels, Lift, Linear, Samples, Space, Statistics, predict
from fedgram.core import codec
from fedgram.errors import MismatchError, SolveError
from fedgram.models import linear as module
from fedgram.models.adjusted import Blend
from fedgram.selection.normal_equations import NormalEquations

SPACE = Space(width=2, unit=0.5, bound=127)
CLASSES = ("a", "b", "c")


def features(*rows):
    return Features(np.array(rows, np.int8), SPACE)


def linear(*weights, **more):
    return Linear(weights=np.array(weights, float), space=SPACE, classes=CLASSES, **more)


def test_scores_are_real_features_times_weights():
    head = linear([1, 2, 3], [10, 20, 30])
    assert head(features([2, 4], [0, -2])).tolist() == [[21, 42, 63], [-10, -20, -30]]


def test_the_largest_score_wins_and_ties_go_to_the_first():
    head = linear([1, 1, 0], [0, 0, 1])
    assert predict(head, features([1, 0], [0, 1], [1, 1], [-1, -5])).tolist() == [0, 2, 0, 0]


def test_no_samples_have_no_scores():
    assert linear([1, 2, 3], [4, 5, 6])(features([1, 1]).take([])).shape == (0, 3)


def test_a_head_of_other_features_is_refused_with_the_difference():
    head = linear([1, 2, 3], [4, 5, 6])
    other = Features(np.ones((1, 2), np.int8), replace(SPACE, steps=("grid(4 bits)",)))
    with pytest.raises(MismatchError, match=r"made for other features: grid\(4 bits\)"):
        head(other)


def test_scores_do_not_depend_on_how_many_rows_are_done_at_a_time(gridded, monkeypatch):
    samples = gridded(100, 20, 4)
    head = Linear.of(Statistics.of(samples.features, samples.labels), ridge=1.0)
    whole = head(samples.features)
    monkeypatch.setattr(module, "_ROWS_AT_A_TIME", 7)
    assert np.allclose(head(samples.features), whole, rtol=1e-12)


def test_a_head_lifts_by_itself(gridded):
    lift = Lift(width=30, seed=3)
    samples = gridded(80, 10, 4)
    lifted = lift(samples.features)
    total = Statistics.of(lifted, samples.labels)
    head = Linear.of(total, ridge=1.0, lift=lift)
    assert np.array_equal(head(samples.features), lifted.real() @ head.weights)
    with pytest.raises(MismatchError):
        head(lifted)


def test_a_solved_head_is_the_ridge_solution_and_knows_its_origin(gridded):
    samples = gridded()
    total = Statistics.of(samples.features, samples.labels)
    head = Linear.of(total, ridge=2)
    assert np.array_equal(head.weights, total.solve(2.0))
    assert (head.space, head.classes, head.lift) == (total.space, total.classes, Lift())
    assert head.provenance() == head.origin
    assert head.provenance() == Linear.of(total, ridge=2.0).provenance()
    others = [Linear.of(total, ridge=3.0), Linear.of(total + total, ridge=2.0)]
    assert len({h.provenance() for h in [head, *others]}) == 3


def test_a_head_of_unknown_origin_is_its_own_provenance():
    head = linear([1, 2, 3], [4, 5, 6])
    assert head.provenance() == codec.digest(head)


@pytest.mark.parametrize("count", [3, 12, 13, 14, 60])
@pytest.mark.parametrize("lift", [Lift(), Lift(width=12, activation="tanh")], ids=["plain", "lift"])
def test_fitting_samples_is_solving_their_statistics(gridded, count, lift):
    samples = gridded(count, 12, 3)
    fitted = Linear.fitted(samples, samples.labels.onehot(), ridge=0.5, lift=lift)
    total = Statistics.of(lift(samples.features), samples.labels)
    solved = Linear.of(total, ridge=0.5, lift=lift)
    assert np.allclose(fitted.weights, solved.weights, rtol=1e-8, atol=1e-10)
    assert (fitted.space, fitted.classes) == (solved.space, solved.classes)


def test_any_targets_can_be_fitted(gridded):
    samples = gridded(50, 5, 3)
    wanted = np.random.default_rng(0).normal(size=(6, 3))
    targets = samples.features.real() @ wanted
    assert np.allclose(Linear.fitted(samples, targets, ridge=0.0).weights, wanted, atol=1e-10)


def test_a_blend_is_the_weighted_sum():
    first, second = linear([1, 0, 0], [0, 0, 0]), linear([0, 2, 0], [0, 0, 4])
    rows = features([2, 2], [4, -2])
    blend = Blend(first=first, second=second, balance=0.25)
    assert np.array_equal(blend(rows), first(rows) + 0.25 * second(rows))
    assert np.array_equal(replace(blend, balance=0.0)(rows), first(rows))


def test_models_come_back_from_bytes_and_score_alike(gridded):
    samples = gridded(60, 10, 4)
    lift = Lift(width=9, activation="sigmoid", seed=7)
    total = Statistics.of(samples.features, samples.labels)
    first = Linear.of(total, ridge=1.0)
    second = Linear.fitted(samples, samples.labels.onehot(), ridge=1.0, lift=lift)
    for model in (first, second, Blend(first=first, second=second, balance=0.3)):
        back = codec.decode(codec.encode(model))
        assert codec.digest(back) == codec.digest(model)
        assert back(samples.features).tobytes() == model(samples.features).tobytes()


def test_a_whole_has_the_head_of_its_total(gridded):
    samples = gridded()
    total = Statistics.of(samples.features, samples.labels)
    whole = NormalEquations(total=total, ridge=3.0)
    assert np.array_equal(whole.head / total.space.unit, total.solve(3.0))
    assert np.array_equal(whole.gram[np.triu_indices(13)], total.gram)
    assert whole.provenance() == Linear.of(total, ridge=3.0).provenance()
    back = codec.decode(codec.encode(whole))
    assert np.array_equal(back.head, whole.head)


def test_what_cannot_be_solved_is_refused_with_a_remedy():
    rows = features([1, 1], [2, 2])
    labels = Labels(np.array([0, 1]), CLASSES)
    with pytest.raises(SolveError, match="larger ridge"):
        Linear.of(Statistics.of(rows, labels), ridge=0.0)
    with pytest.raises(SolveError, match="larger ridge"):
        Linear.fitted(Samples(rows, labels), labels.onehot(), ridge=0.0)
    whole = NormalEquations(total=Statistics.of(rows, labels), ridge=0.0)
    with pytest.raises(SolveError, match="larger ridge"):
        _ = whole.head


def test_clusters_are_told_apart(gridded):
    samples = gridded(400, 40, 4)
    seen, unseen = samples.take(slice(0, 200)), samples.take(slice(200, 400))
    for lift in (Lift(), Lift(width=64, activation="gelu")):
        total = Statistics.of(lift(seen.features), seen.labels)
        head = Linear.of(total, ridge=10.0, lift=lift)
        assert (predict(head, unseen.features) == unseen.labels.codes).mean() > 0.9


def test_grids_of_other_bits_are_refused(gridded):
    samples = gridded()
    head = Linear.of(Statistics.of(samples.features, samples.labels), ridge=1.0)
    with pytest.raises(MismatchError, match=r"8 bits.*4 bits"):
        head(gridded(grid=Grid(bits=4)).features)
