"""Every formula that leaves a sample out, against refitting without that sample."""

from dataclasses import replace

import numpy as np
import pytest

from fedgram import InProcess, Labels, Lift, Samples, Statistics, create_method, run
from fedgram.checks import laws
from fedgram.checks.federations import federated, trainable
from fedgram.checks.federations import partitioned as digits_dealt
from fedgram.errors import SolveError
from fedgram.experiments.scores import Metrics
from fedgram.federation.shared import tuned_settings
from fedgram.selection import leave_one_out
from fedgram.selection.correct_counts import CorrectCounts
from fedgram.selection.leave_one_out import (
    ALPHAS,
    BALANCES,
    STRENGTHS,
    HatMatrix,
    LeaveOneOut,
    at_once,
    correct,
)
from fedgram.selection.normal_equations import NormalEquations

NONE, LIFT = Lift(), Lift(width=9, activation="tanh", seed=2)
PAIRS = {"plain": (NONE, NONE), "two lifts": (LIFT, Lift(width=30, seed=4)), "one": (NONE, LIFT)}
RIDGE = 2.0
CLIENTS = ["few samples", "many samples", "one sample", "one class", "copies"]


def statistics(samples, lift=NONE):
    return Statistics.of(lift(samples.features), samples.labels)


def without(samples, i):
    return samples.take(np.flatnonzero(np.arange(len(samples)) != i))


@pytest.fixture(params=CLIENTS)
def parts(request, gridded):
    """Return a client's samples and everybody else's: 14 features, 5 classes."""
    everything = gridded(160, 13, 5)
    codes = everything.labels.codes
    own = {
        "few samples": np.arange(6),
        "many samples": np.arange(40),
        "one sample": np.arange(1),
        "one class": np.flatnonzero(codes == 2)[:8],
        "copies": np.array([3, 3, 3, 4, 4, 5]),
    }[request.param]
    return everything.take(own), everything.take(np.arange(100, 160))


def own_of(mine, others, lift, ridge=RIDGE):
    total = statistics(mine, lift) + statistics(others, lift)
    whole = NormalEquations(total=total, ridge=ridge)
    return LeaveOneOut.of(mine, whole, lift, in_total=True), whole


def refitted(mine, others, model):
    """Return the scores of each sample by a model of the others' and the rest of one's own."""
    rows = []
    for i in range(len(mine)):
        rows.append(model(without(mine, i), others)(mine.take([i]).features)[0])
    return np.array(rows)


def close(ours, theirs):
    return np.abs(ours - theirs).max() <= 1e-9


# FedHiP


@pytest.mark.parametrize("lift", [NONE, LIFT], ids=["plain", "lifted"])
@pytest.mark.parametrize("alpha", [0.0, 1.0, 30.0, 1000.0])
def test_own_samples_that_weigh_more(parts, alpha, lift):
    def model(rest, others):
        whole = NormalEquations(
            total=statistics(rest, lift) + statistics(others, lift), ridge=RIDGE
        )
        return whole.with_extra_weight(rest, lift, alpha)

    own, _ = own_of(*parts, lift)
    assert close(own.with_extra_weight()(alpha), refitted(*parts, model))


# The shared head, APFL


def test_the_shared_head(parts):
    def model(rest, others):
        return NormalEquations(total=statistics(rest) + statistics(others), ridge=RIDGE).linear(
            NONE
        )

    own, _ = own_of(*parts, NONE)
    assert close(own.shared(), refitted(*parts, model))


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
@pytest.mark.parametrize("strength", [0.1, 10.0, 3000.0])
@pytest.mark.parametrize("balance", [0.3, 1.0])
def test_two_streams(parts, pair, strength, balance):
    first, second = pair
    apfl = create_method("apfl-linear", {"refinement_ridge": strength, "balance": balance})

    def model(rest, others):
        total = statistics(rest, first) + statistics(others, first)
        head = NormalEquations(total=total, ridge=RIDGE).linear(first)
        own = head.fit_residual(rest, ridge=strength, lift=second)
        return lambda rows: head(rows) + apfl.balance * own(rows)

    own, _ = own_of(*parts, first)
    features = second(parts[0].features)
    stored = strength / features.space.unit**2
    refined = own.fit_residual(features.values.astype(float))(stored)
    assert close(own.shared() + balance * refined, refitted(*parts, model))


def test_a_client_outside_the_sum_is_out_of_sample_already(parts):
    mine, others = parts
    whole = NormalEquations(total=statistics(others), ridge=RIDGE)
    own = LeaveOneOut.of(mine, whole, NONE, in_total=False)
    assert close(own.shared(), whole.linear(NONE)(mine.features))
    second = mine.features.values.astype(float)

    def model(rest, others):
        head = NormalEquations(total=statistics(others), ridge=RIDGE).linear(NONE)
        own = head.fit_residual(rest, ridge=10.0, lift=NONE)
        return lambda rows: head(rows) + own(rows)

    refined = own.fit_residual(second)(10.0 / mine.features.space.unit**2)
    assert close(own.shared() + refined, refitted(mine, others, model))
    heavier = refitted(mine, others, lambda rest, _: whole.with_extra_weight(rest, NONE, 30.0))
    assert close(own.with_extra_weight()(30.0), heavier)


def test_wide_rows_are_whitened_in_single_precision(monkeypatch):
    mine, others = trainable().take(slice(0, 40)), trainable().take(slice(40, 1000))
    lift = Lift(width=200, seed=3)
    exact, _ = own_of(mine, others, lift, ridge=30.0)
    assert exact.whitened.dtype == np.float64
    monkeypatch.setattr(leave_one_out, "_WIDE", 200)
    narrow, whole = own_of(mine, others, lift, ridge=30.0)
    assert narrow.whitened.dtype == np.float32
    assert narrow.leverage.dtype == narrow.hat.dtype == np.float64
    rows = mine.features.values
    for ours, theirs in (
        (narrow.shared(), exact.shared()),
        (narrow.fit_residual(rows)(100.0), exact.fit_residual(rows)(100.0)),
        (narrow.with_extra_weight()(30.0), exact.with_extra_weight()(30.0)),
        (narrow.normalized(whole), exact.normalized(whole)),
    ):
        assert 0 < np.abs(ours - theirs).max() <= 1e-4 * np.abs(theirs).max()


def test_a_sample_of_large_leverage_is_whitened_in_double_precision(monkeypatch):
    monkeypatch.setattr(leave_one_out, "_WIDE", 200)
    samples = trainable().take(slice(0, 1000))
    values = samples.features.values.copy()
    values[0, :60] = 127 * (-1) ** np.arange(60)  # like no other sample
    lift = Lift(width=200, activation="identity", seed=3)
    odd = replace(samples, features=replace(samples.features, values=values))
    own, _ = own_of(odd.take(slice(0, 5)), odd.take(slice(5, 1000)), lift, ridge=1e-2)
    assert own.leverage.max() > 0.9
    assert own.whitened.dtype == np.float64
    few, _ = own_of(samples.take(slice(5, 9)), samples.take(slice(9, 700)), lift)
    assert few.whitened.dtype == np.float64  # too few samples for each feature


def test_a_sample_that_alone_decides_counts_as_wrong():
    """With next to no ridge a direction that one sample has to itself says nothing without it."""
    space_of = trainable().features.space
    values = np.zeros((3, space_of.width), np.int8)
    values[0, 0] = values[1, 1] = values[2, 1] = 100
    mine = Samples(
        type(trainable().features)(values, space_of),
        Labels(np.array([0, 1, 1]), trainable().labels.classes),
    )
    own, _ = own_of(mine, mine.take([1]), NONE, ridge=1e-10)
    hits = correct(own.shared(), own.codes)
    assert not hits[0]
    assert hits[1]
    assert hits[2]


def test_the_hat_is_the_hat_of_every_ridge(gridded):
    for count in (3, 14, 50):
        rows = gridded(count, 13, 4).features.real()
        targets = np.random.default_rng(0).normal(size=(count, 3))
        hat = HatMatrix.of(rows)
        for ridge in (0.1, 10.0):
            full = rows @ np.linalg.solve(rows.T @ rows + ridge * np.eye(14), rows.T)
            assert close(hat.leverage(ridge), np.diagonal(full))
            assert close(hat.fitting(targets)(ridge), full @ targets)


# Ballots


def test_ballots_choose_the_first_of_equals():
    ballot = CorrectCounts.of(np.array([[0, 1, 1], [1, 1, 1]], bool)) + CorrectCounts.of(
        np.zeros((2, 3), bool)
    )
    assert (ballot.winner, ballot.samples, ballot.correct.tolist()) == (1, 4, [[1, 2, 2]])
    assert ballot.accuracy.tolist() == [0.25, 0.5, 0.5]
    assert CorrectCounts.zero() + ballot == ballot
    with pytest.raises(SolveError, match="no setting was evaluated"):
        _ = CorrectCounts.zero().winner


AUTO = {
    "fedhip": {"alpha": "auto", "ridge": 100.0},
    "apfl": {"ridge": 100.0, "primary": {"width": 24}, "refinement": {"width": 24}},
    "apfl-linear": {"refinement_ridge": "auto", "balance": "auto"},
}
STREAM_GRID = [
    {"refinement_ridge": ridge, "balance": balance} for ridge in STRENGTHS for balance in BALANCES
]
GRIDS = {
    "fedhip": [{"alpha": alpha, "ridge": 100.0} for alpha in ALPHAS],
    "apfl": STREAM_GRID,
    "apfl-linear": STREAM_GRID,
}


@pytest.mark.parametrize("name", AUTO)
def test_counts_are_those_of_refitting_the_whole_method(name):
    everything = trainable().take(slice(0, 60))
    parts = {"a": everything.take(slice(0, 6)), "b": everything.take(slice(6, 60))}
    method, engine = create_method(name, AUTO[name]), InProcess(federated(parts).members)
    total = sum(own for _, own in engine.gather(method.statistics))
    whole = NormalEquations(total=total, ridge=method.ridge)
    ballot = dict(engine.gather(method.left_out, whole))["a"]
    for place in range(0, len(GRIDS[name]), 3 if name == "fedhip" else 25):
        fixed, hits = create_method(name, {**AUTO[name], **GRIDS[name][place]}), 0
        for i, code in enumerate(parts["a"].labels.codes):
            some = federated({**parts, "a": without(parts["a"], i)})
            model = run(fixed, some, metrics=Metrics(global_test=False)).models["a"]
            hits += model(parts["a"].take([i]).features)[0].argmax() == code
        assert ballot.correct[0, place] == hits


@pytest.mark.parametrize("regularized", [False, True])
def test_fedhip_selects_ridge_and_alpha_together(regularized):
    """The counts of every pair are those of refitting with the pair given."""
    everything = trainable().take(slice(0, 60))
    parts = {"a": everything.take(slice(0, 6)), "b": everything.take(slice(6, 60))}
    method = create_method("fedhip", {"regularized": regularized})
    engine = InProcess(federated(parts).members)
    whole = NormalEquations(total=engine.sum(method.statistics), ridge=5.0)
    ballot = dict(engine.gather(method.left_out, whole))["a"]
    tried = method._tried(5.0)
    assert len({setting["ridge"] for setting in tried if setting["alpha"] == 1.0}) == 4
    for place in range(0, len(tried), 7):
        fixed = create_method("fedhip", {**tried[place], "regularized": regularized})
        hits = 0
        for i, code in enumerate(parts["a"].labels.codes):
            some = federated({**parts, "a": without(parts["a"], i)})
            model = run(fixed, some, metrics=Metrics(global_test=False)).models["a"]
            hits += model(parts["a"].take([i]).features)[0].argmax() == code
        assert ballot.correct[0, place] == hits


@pytest.mark.parametrize("solver", ["server", "client"])
@pytest.mark.parametrize("regularized", [False, True])
def test_the_selected_pair_given_makes_the_same_models(solver, regularized):
    """Only the shared head differs: it keeps the ridge that suits it."""
    everybody = digits_dealt(clients=5)
    settings = {"solver": solver, "regularized": regularized}
    chosen = run(create_method("fedhip", settings), everybody)
    pair = tuned_settings(chosen.shared).setting
    assert set(pair) == {"alpha", "ridge"}
    given = run(create_method("fedhip", {**settings, **pair}), everybody)
    rows = everybody.test.features
    for name, model in given.models.items():
        np.testing.assert_allclose(model(rows), chosen.models[name](rows), rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", AUTO)
def test_what_is_chosen_is_what_was_counted_best(name):
    everybody = digits_dealt(clients=5)
    result = run(create_method(name, AUTO[name]), everybody)
    chosen = tuned_settings(result.shared)
    assert chosen.setting in GRIDS[name]
    assert max(chosen.left_out_accuracy.values()) <= 1
    fixed = run(create_method(name, {**AUTO[name], **chosen.setting}), everybody)
    assert fixed.model_digest == result.model_digest


def test_apfl_can_do_without_the_total():
    everybody = digits_dealt(clients=5)
    exact, rough = (
        run(create_method("apfl-linear", {"balance": "auto", "corrected": corrected}), everybody)
        for corrected in (True, False)
    )
    down = [
        next(a for a in r.record.exchanges if a.step == "left_out").bytes_down
        for r in (exact, rough)
    ]
    assert down[1] < down[0]
    assert tuned_settings(rough.shared).setting["refinement_ridge"] == 300.0


@pytest.mark.parametrize("name", AUTO)
@pytest.mark.parametrize(
    "law", [law for law in laws.LAWS if law not in laws.SOLVED_LAWS], ids=lambda law: law.__name__
)
def test_methods_that_choose_keep_the_laws(name, law):
    law(create_method(name, AUTO[name]))


@pytest.mark.parametrize("name", AUTO)
def test_sums_are_enough_to_choose(name):
    everybody = digits_dealt(clients=5)
    openly, privately = (
        run(create_method(name, AUTO[name]), everybody, private=private)
        for private in (False, True)
    )
    assert openly.shared_digest == privately.shared_digest
    securely = run(create_method(name, AUTO[name]), everybody, threshold=0.6)
    assert securely.model_digest == privately.model_digest
    assert not laws.stands_on_totals(create_method(name, AUTO[name]))
    assert laws.stands_on_totals(create_method(name, GRIDS[name][-1]))


def test_a_client_that_missed_the_sum_counts_as_out_of_it():
    result = run(
        create_method("apfl-linear", AUTO["apfl-linear"]), digits_dealt(clients=8), dropout=0.5
    )
    assert tuned_settings(result.shared)


@pytest.mark.parametrize("samples", [1, 2, 12, 40])
def test_several_settings_at_once_give_the_same_as_one_after_the_other(monkeypatch, samples):
    mine = trainable().take(slice(0, samples))
    others = trainable().take(slice(100, 200))
    total = sum(Statistics.of(s.features, s.labels) for s in (mine, others))
    own = LeaveOneOut.of(mine, NormalEquations(total=total, ridge=9.0), NONE, in_total=True)
    hat = HatMatrix.of(mine.features.values)
    curves = [own.with_extra_weight(), own.fit_residual_with(hat), own.alone(hat)]
    settings = [1000.0, 3.0, 20.0]
    for curve in curves:
        alone = [curve(setting) for setting in settings]
        assert np.array_equal(curve(np.array(settings)), alone, equal_nan=True)
        for entries in (1, 2 * mine.labels.onehot().size, 2**16):
            monkeypatch.setattr(leave_one_out, "_SCORES_AT_ONCE", entries)
            some = at_once(curve, settings, mine.labels.onehot())
            for setting, wanted in zip(settings, alone, strict=True):
                assert np.array_equal(some(setting), wanted, equal_nan=True)
                assert some(setting) is some(setting)


@pytest.mark.parametrize("samples", [0, 1, 2, 12, 70])
@pytest.mark.parametrize("wide", [False, True])
def test_predictions_of_a_client_do_not_depend_on_the_others_of_a_stack(monkeypatch, samples, wide):
    """Also where some are whitened in single precision and others, of influence, in double."""
    if wide:
        monkeypatch.setattr(leave_one_out, "_WIDE", 2)
        monkeypatch.setattr(leave_one_out, "_MANY", 0)
        monkeypatch.setattr(leave_one_out, "_INFLUENTIAL", 0.35)
    parts = [trainable().take(slice(k * samples, (k + 1) * samples)) for k in range(4)]
    total = sum(Statistics.of(s.features, s.labels) for s in [*parts[1:], trainable()])
    equations, in_total = NormalEquations(total=total, ridge=9.0), [True, False, True, True]

    def all_of(own, hat):
        settings = np.array([100.0, 3.0, 20.0])
        if own.truth.ndim == 3:
            settings = settings[:, None]
        curves = own.with_extra_weight(), own.fit_residual_with(hat), own.alone(hat)
        single = [own.shared(), own.leverage, own.hat]
        return single, [curve(settings) for curve in curves]

    found = {}
    for order in ([0, 1, 2, 3], [3, 1, 0]):
        some = [parts[k] for k in order]
        heard = [in_total[k] for k in order]
        for places, own in LeaveOneOut.stacks(some, equations, NONE, in_total=heard):
            hat = HatMatrix.of(np.stack([some[place].features.values for place in places]))
            single, curves = all_of(own, hat)
            for row, place in enumerate(places):
                mine = [each[row] for each in single] + [each[:, row] for each in curves]
                found.setdefault(order[place], []).append(mine)
    for k, part in enumerate(parts):
        own = LeaveOneOut.of(part, equations, NONE, in_total=in_total[k])
        single, curves = all_of(own, HatMatrix.of(part.features.values))
        for mine in found[k]:
            for one, other in zip(mine, [*single, *curves], strict=True):
                assert np.array_equal(one, other, equal_nan=True)
