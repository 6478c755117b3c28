"""The default: what it asks, what it pools with which weights, what it says."""

import functools
import itertools
import json
import os
import subprocess
import sys

import numpy as np
import pytest
from click.testing import CliRunner

from fedgram import Dataset, Grid, Labels, Lift, Statistics, create_method, federate, run
from fedgram.checks import laws
from fedgram.checks.federations import federated, partitioned, trainable
from fedgram.cli import main
from fedgram.core import codec
from fedgram.core.gcv import resolved
from fedgram.errors import ConfigError
from fedgram.federation.client import Client
from fedgram.federation.shared import tuned_settings
from fedgram.methods import auto
from fedgram.methods._pooling import SOFT_SCALES, STRENGTHS, Question
from fedgram.methods.auto import _lift_beside
from fedgram.selection.candidates import SCALES, settings_for
from fedgram.selection.class_prior import class_counts, counts_of, left_out_log_odds
from fedgram.selection.holdout import folds
from fedgram.selection.lift_gain import MOST, RIDGES, gains, left_out_alone
from fedgram.selection.normal_equations import NormalEquations
from fedgram.selection.pool import LikelihoodSums, LogLinear, log_losses
from fedgram.softmax.arithmetic import SoftmaxGrid
from fedgram.softmax.personal import OwnRows
from fedgram.softmax.sums import IntegerHead

LOW = {"effort": "low", "exchanges": 2}  # for what does not depend on how much is tried


@functools.cache
def fitted(clients=5, partition="dirichlet", dirichlet=0.3, **settings):
    """Return a run, each only once."""
    everybody = partitioned(clients=clients, partition=partition, dirichlet=dirichlet)
    return run(create_method("auto", settings), everybody)


def steps(result):
    return [ask.step for ask in result.record.exchanges]


def families(result):
    return [part["family"] for part in tuned_settings(result.shared).setting["parts"]]


def mean_loss(scores, codes):
    return float(log_losses(scores.copy(), codes).mean()) / 2**20


# What clients are asked, and what they answer


def test_one_sum_then_residuals_then_the_pool():
    names = steps(fitted())
    assert names[:3] == ["statistics", "lifted_statistics", "pseudo_counts"]
    judged = names.index("left_out")
    assert set(names[3:judged]) == {"residuals"}
    assert names[judged + 1] == "pool"
    assert names.count("statistics") == names.count("left_out") == 1


@pytest.mark.parametrize("exchanges", [0, 2, 8])
def test_exchanges_are_residual_sums_of_the_path(exchanges):
    result = fitted(effort="low", exchanges=exchanges)
    names, known = steps(result), tuned_settings(result.shared)
    before = names[: names.index("left_out")]
    # One at zero weights, one for each step; the path may end earlier, where it leads nowhere.
    assert before.count("residuals") <= (exchanges + 1 if exchanges else 0)
    assert (before.count("residuals") > 0) == (exchanges > 0)
    assert any("softmax" in words for words in known.left_out_accuracy) == (exchanges > 0)
    assert known.notes["residual_sums"] <= exchanges + 1
    assert result.accuracy["client_mean"] > 0.95


@pytest.mark.parametrize(
    ("effort", "inputs", "width"),
    [
        ("low", 64, 0),
        ("standard", 2, 1024),
        ("standard", 64, 1024),
        ("standard", 200, 1600),
        ("standard", 384, 2048),
        ("standard", 1024, 2048),
        ("high", 64, 4096),
        ("high", 1280, 4096),
    ],
)
def test_effort_is_the_width_of_a_second_lift(effort, inputs, width):
    rows = np.random.default_rng(0).normal(size=(2, inputs))
    labels = Labels(np.array([0, 1]), ("a", "b"))
    total = Statistics.of(Grid()(rows), labels)
    assert create_method("auto", {"effort": effort})._beside(None, total) == width
    method = create_method("auto", {"effort": effort, "lift": {"width": 16}})
    lifted = Statistics.of(method.lift(Grid()(rows)), labels)
    assert method._beside(None, lifted) == 0


def spirals(samples, seed=0):
    """Two classes that wind around each other in two columns."""
    rng = np.random.default_rng(seed)
    length, y = rng.uniform(0.5, 3.0, samples), rng.integers(2, size=samples)
    angle = 2.5 * length + np.pi * y
    x = length[:, None] * np.c_[np.cos(angle), np.sin(angle)] + 0.05 * rng.normal(size=(samples, 2))
    return x, np.where(y == 1, "in", "out")


@pytest.mark.parametrize(("bent", "asked"), [(True, 1), (False, 0)])
def test_many_features_are_lifted_where_clients_heads_gain_by_it(bent, asked):
    rng = np.random.default_rng(1)
    if bent:  # in some directions of many columns, as pixels are
        x, y = spirals(1200)
        wide = np.hstack([x, x**2 / 3]) @ rng.normal(size=(4, 1100))
    else:
        y = rng.choice(["a", "b", "c"], 1200)
        centers = {name: rng.normal(size=1100) / 4 for name in "abc"}
        wide = rng.normal(size=(1200, 1100)) + np.stack([centers[name] for name in y])
    everybody = federate(Dataset(wide, y, clients=rng.choice(["north", "south"], 1200)))
    result = run("auto", everybody, exchanges=0)
    assert steps(result).count("lift_gain") == 1
    assert steps(result).count("lifted_statistics") == asked
    assert "lift_gain" not in steps(run("auto", everybody, exchanges=0, effort="low"))


def test_the_gain_of_a_lift_does_not_depend_on_the_order_of_samples():
    x, y = spirals(600)
    site = federate(Dataset(x, y, standardize=True, clients=np.full(600, "a"))).members[0].train
    assert len(site) > MOST
    lift = Lift(width=64, copies=8)
    one, other = (
        left_out_alone(each, lift)
        for each in (site, site.take(np.random.default_rng(0).permutation(len(site))))
    )
    assert codec.digest(one) == codec.digest(other)
    assert gains(one)
    assert not gains(left_out_alone(site, Lift(width=64, activation="identity", copies=8)))


def test_predictions_of_a_lift_gain_are_those_of_heads_without_the_sample():
    x, y = spirals(40)
    site = federate(Dataset(x, y, standardize=True, clients=np.full(40, "a"))).members[0].train
    rows, truth = site.features.values.astype(float), site.labels.onehot()
    length = (rows**2).sum() / len(rows)
    right = np.zeros(len(RIDGES), int)
    for k, share in enumerate(RIDGES):
        for i in range(len(rows)):
            rest = np.arange(len(rows)) != i
            gram = rows[rest].T @ rows[rest] + share * length * np.eye(rows.shape[1])
            head = np.linalg.solve(gram, rows[rest].T @ truth[rest])
            right[k] += (rows[i] @ head).argmax() == truth[i].argmax()
    counted = left_out_alone(site, Lift(width=8))
    assert counted.correct[0, : len(RIDGES)].tolist() == right.tolist()


def test_a_few_columns_are_lifted_wide_enough_for_classes_of_any_shape():
    """Two spirals: sums of three signs have eight directions only, which cannot separate them."""
    x, names = spirals(1200)
    ids = np.random.default_rng(0).choice(["a", "b", "c", "d"], 1200)
    everybody = federate(Dataset(x, names, clients=ids, standardize=True))
    assert run("auto", everybody).accuracy["client_mean"] > 0.98
    assert _lift_beside(2, 1024).copies == 8
    assert _lift_beside(64, 1024).copies == 1


@pytest.mark.parametrize("effort", ["low", "standard"])
def test_lifted_features_are_tried_where_effort_says_so(effort):
    result = fitted(effort=effort, exchanges=0)
    assert ("lifted_statistics" in steps(result)) == (effort == "standard")
    parts = tuned_settings(result.shared).setting["parts"]
    assert any("width" in part for part in parts) == (effort == "standard")


def test_a_lift_of_all_shared_heads():
    result = run(create_method("auto", {**LOW, "lift": {"width": 100}}), partitioned(clients=4))
    assert result.accuracy["client_mean"] > 0.95
    for head in tuned_settings(result.shared).shared.heads:
        space = head.total.space if isinstance(head, NormalEquations) else head.space
        assert space.width == 101


def question(parts, method, folds_=5):
    """Return the question to judges, with softmax weights that are made up."""
    total = sum(Statistics.of(s.features, s.labels) for s in parts)
    more = sum(Statistics.of(Lift(width=20)(s.features), s.labels) for s in parts)
    rng = np.random.default_rng(0)
    return Question(
        equations=tuple(NormalEquations(total=t, ridge=resolved("auto", t)) for t in (total, more)),
        soft=rng.integers(-9000, 9000, size=(folds_, total.space.width, 10)),
        folds=folds_,
        counts=class_counts(total)[0],
        pseudo_count=7.0,
    )


def answered(method, samples, asked, *, in_total=True):
    totals = frozenset({"statistics", "lifted_statistics"} if in_total else ())
    client = Client(id="a", train=samples, valid=samples.take([]), totals=totals)
    return client, method.left_out(client, asked)


@pytest.mark.parametrize("number", [1, 5])
def test_softmax_heads_are_tried_on_samples_that_neither_part_has_seen(number):
    """The shared part was fitted without the fold; the own part is fitted again here."""
    mine, others = trainable().take(slice(0, 40)), trainable().take(slice(100, 200))
    method = create_method("auto")
    asked = question([mine, others], method, number)
    client, judged = answered(method, mine, asked)
    fold = folds(mine, number)
    rows, targets, codes = mine.features.real(), mine.labels.onehot(), mine.labels.codes
    out = np.flatnonzero(fold >= 0)
    odds = left_out_log_odds(codes, counts_of(mine.labels), asked.counts, 7.0, in_total=True)
    kept = client.state["left_out"]
    assert np.array_equal(kept["codes"], codes[out])
    np.testing.assert_allclose(kept["odds"], odds[out])
    losses = []
    for place, strength in enumerate(STRENGTHS):
        scores = np.zeros((len(mine), 10))
        for i in out:
            rest = np.flatnonzero(fold != fold[i])
            head = IntegerHead(
                values=asked.soft[fold[i]],
                grid=SoftmaxGrid(),
                space=mine.features.space,
                classes=mine.labels.classes,
            ).linear()
            scores[i] = head(mine.take([i]).features)[0]
            if strength:
                added = OwnRows.of(rows[rest]).weights(
                    head(mine.take(rest).features), targets[rest], strength=strength * 65
                )
                scores[i] += rows[i] @ added
        np.testing.assert_allclose(kept["scores"][place], scores[out], atol=1e-4)
        losses += [
            mean_loss((scale * scores + prior * odds)[out], codes[out])
            for scale in SOFT_SCALES
            for prior in (0, 1)
        ]
    assert judged.soft.mean_loss == pytest.approx(losses, abs=1e-4)
    assert judged.soft.weight == len(out)
    assert judged.squared.weight == len(mine)


@pytest.mark.parametrize("in_total", [True, False])
def test_squared_models_are_judged_by_their_left_out_scores(in_total):
    mine, others = trainable().take(slice(0, 30)), trainable().take(slice(100, 200))
    method = create_method("auto")
    asked = question([mine, others] if in_total else [others], method)
    client, judged = answered(method, mine, asked, in_total=in_total)
    codes = mine.labels.codes
    odds = left_out_log_odds(codes, counts_of(mine.labels), asked.counts, 7.0, in_total=in_total)
    plain, _ = method._candidates(asked.equations)
    found = list(plain.left_out(mine, in_total=in_total))
    assert settings_for(64)[0] == {"family": "ridge"}
    ridge = [mean_loss(s * found[0] + p * odds, codes) for s in SCALES for p in (0, 1)]
    assert judged.squared.mean_loss[: len(ridge)] == pytest.approx(ridge, abs=1e-4)
    kept = client.state["left_out"]["scores"][len(STRENGTHS) :]
    for scores, ours in zip(found, kept, strict=False):  # the lifted ones come behind
        np.testing.assert_allclose(ours, scores, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("heard", "missed"), [("statistics", 1), ("lifted_statistics", 0)])
def test_who_missed_one_of_two_sums_is_taken_out_of_the_other_only(heard, missed):
    mine, others = trainable().take(slice(0, 10)), trainable().take(slice(100, 200))
    method = create_method("auto")
    asked = question([mine, others], method)
    client = Client(id="a", train=mine, valid=mine.take([]), totals=frozenset({heard}))
    method.left_out(client, asked)
    expected = []
    for place, each in enumerate(method._candidates(asked.equations)):
        expected += each.left_out(mine, in_total=place != missed)
    kept = client.state["left_out"]["scores"][len(STRENGTHS) :]
    for ours, theirs in zip(kept, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


def test_a_client_that_was_not_asked_adds_nothing_to_a_pool():
    method = create_method("auto")
    client = Client(id="a", train=trainable().take([1]), valid=trainable().take([]))
    sums = method.pool(client, {"weights": np.ones(3), "places": [0, 1]})
    assert (sums.weight, sums.loss, sums.slope.shape, sums.curvature.shape) == (0, 0, (3,), (3, 3))


def test_some_clients_judge_for_all():
    everybody = partitioned(clients=12)
    samples = sum(len(site.train) for site in everybody.members)
    result = run(create_method("auto", {**LOW, "judges": samples // 2}), everybody)
    asked = {ask.step: ask.clients for ask in result.record.exchanges}
    assert asked["left_out"] == asked["pool"] == 6
    assert asked["statistics"] == 12
    assert len(tuned_settings(result.shared).notes["judges"]) == 6
    few = run(create_method("auto", {**LOW, "judges": 1}), everybody)
    assert next(a.clients for a in few.record.exchanges if a.step == "left_out") == 4  # at least
    for judges in (0, samples):
        every = run(create_method("auto", {**LOW, "judges": judges}), everybody)
        assert next(a.clients for a in every.record.exchanges if a.step == "left_out") == 12
        assert tuned_settings(every.shared).notes["judges"] == "all"


# The pool


@pytest.mark.parametrize("dirichlet", [0.1, pytest.param(1.0, marks=pytest.mark.wide)])
def test_the_pool_is_no_worse_than_each_part_alone(monkeypatch, dirichlet):
    """In the log-loss of left-out samples, but for what a dropped term may cost."""
    seen = []

    def watched(ask, start, own):
        def noted(weights):
            sums = ask(weights)
            seen.append((weights, sums))
            return sums

        return kept(noted, start, own=own)

    kept, alone = auto.likeliest_weights, auto._alone
    parts = []
    monkeypatch.setattr(auto, "likeliest_weights", watched)
    monkeypatch.setattr(auto, "_alone", lambda *a: (parts.append(alone(*a)), parts[-1])[1])
    result = run(create_method("auto"), partitioned(clients=6, dirichlet=dirichlet))
    final = tuned_settings(result.shared).notes["log_loss"]
    count = seen[-1][1].weight
    assert len(parts) == 4
    for each in parts:
        assert final <= each.sums.mean_loss + 3 / count
    assert final == pytest.approx(seen[-1][1].mean_loss)
    assert all((weights >= 0).all() for weights, _ in seen)
    assert (
        max(tuned_settings(result.shared).left_out_accuracy.values()) <= seen[-1][1].accuracy + 0.01
    )


def test_weights_are_those_of_the_parts_in_use():
    known = tuned_settings(fitted().shared)
    parts = known.setting["parts"]
    assert len(parts) == len(known.shared.heads) >= 1
    assert all(part["weight"] > 0 for part in parts)
    assert known.setting["prior"] >= 0
    assert known.shared.pseudo_count > 0


def test_probabilities_are_calibrated_on_test_samples():
    """They add up to one, and no part alone makes the test samples likelier."""
    everybody = partitioned(clients=5, dirichlet=0.3)
    result, known = fitted(), tuned_settings(fitted().shared)
    method = create_method("auto")
    losses, alone = [], [[] for _ in known.setting["parts"]]
    sure, correct = [], []
    for site in everybody.members:
        model, codes = result.predictors[site.id], site.test.labels.codes
        assert isinstance(model, LogLinear)
        shares = model.probabilities(site.test.features)
        np.testing.assert_allclose(shares.sum(axis=1), 1, atol=1e-9)
        losses.append(-np.log(shares[np.arange(len(codes)), codes]))
        sure.append(shares.max(axis=1))
        correct.append(shares.argmax(axis=1) == codes)
        client = Client(id=site.id, train=site.train, valid=site.valid)
        for place, (part, head) in enumerate(
            zip(known.setting["parts"], known.shared.heads, strict=True)
        ):
            scores = method._personal(part, head, client.samples)(site.test.features)
            steps_ = SOFT_SCALES if part["family"] == "softmax" else (*SCALES, 0.25, 0.5)
            best = [log_losses(s * scores, codes) / 2**20 for s in steps_]
            alone[place].append(np.stack(best))
    found = np.concatenate(losses).mean()
    for each in alone:  # at its best scale, in hindsight
        assert found <= np.concatenate(each, axis=1).mean(axis=1).min() + 0.01
    assert np.mean(np.concatenate(sure)) == pytest.approx(np.concatenate(correct).mean(), abs=0.02)


def test_skewed_labels_call_for_the_class_prior():
    skewed = tuned_settings(
        run(create_method("auto", LOW), partitioned(clients=6, dirichlet=0.1)).shared
    )
    own = any(part["family"] == "local" for part in skewed.setting["parts"])
    # A head of own samples alone has learned the client's class mix too.
    assert skewed.setting["prior"] > (0.25 if own else 0.5)
    assert "class prior x" in skewed.description
    alike = tuned_settings(
        run(create_method("auto", LOW), partitioned(clients=6, partition="iid")).shared
    )
    assert alike.shared.pseudo_count >= 100 > skewed.shared.pseudo_count


def test_every_client_gets_what_the_shared_file_and_its_samples_give():
    everybody, result = partitioned(clients=5, dirichlet=0.3), fitted()
    shared = codec.decode(codec.encode(result.shared))
    for site in everybody.members:
        client = Client(id=site.id, train=site.train, valid=site.valid)
        model = create_method("auto").personalize(client, shared)
        assert codec.digest(model) == codec.digest(result.predictors[site.id])


def test_the_default_is_above_its_parts_as_methods():
    everybody = partitioned(clients=5, dirichlet=0.3)
    ours = fitted().accuracy["client_mean"]
    for name in ("afl", "lda", "prior"):
        assert ours >= run(create_method(name), everybody).accuracy["client_mean"] - 0.005


# What it says


def test_it_says_what_is_pooled_with_which_weights(tmp_path):
    run_it = CliRunner().invoke(
        main, ["run", "-m", "auto", "-s", "data.clients=4", "--out", str(tmp_path)]
    )
    assert run_it.exit_code == 0, run_it.output
    said = " ".join(run_it.output.split())
    shown = CliRunner().invoke(main, ["compare", str(tmp_path), "--json"])
    (recorded,) = json.loads(shown.output)["runs"]
    words = recorded["tuned"]["description"]
    assert words in said
    for part in recorded["tuned"]["settings"]["parts"]:
        assert f" x {part['weight']:.3g}" in words
    assert "left-out samples" in words
    assert "±" in words
    made = CliRunner().invoke(main, ["report", str(tmp_path), "-o", str(tmp_path / "r.html")])
    assert made.exit_code == 0, made.output
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "Chosen settings" in page
    assert words in page


# Settings, and clients that are not like others


@pytest.mark.parametrize(
    "settings",
    [
        {"judges": -1},
        {"exchanges": -1},
        {"effort": "utmost"},
        {"exchanges": 1.5},
        {"smoothing": 1.0},
        {"by_client": True},
        {"ridge": 3.0},
        {"refinement": {"width": 8}},
    ],
)
def test_settings_that_cannot_be_are_refused(settings):
    (field,) = settings
    with pytest.raises(ConfigError, match=field):
        create_method("auto", settings)


def test_late_clients_get_a_model():
    parts = {name: trainable().take(slice(k, None, 4)) for k, name in enumerate("abcd")}
    result = run(create_method("auto", LOW), federated(parts, holdout="d"))
    assert result.holdout.accuracy["client_mean"] > 0.9


def test_classes_that_count_alike_leave_own_heads_out():
    federated = partitioned(clients=6, dirichlet=0.1)
    for alike in (False, True):
        method = create_method("auto", {"classes_alike": alike, **LOW})
        tried = tuned_settings(run(method, federated).shared).left_out_accuracy
        assert any("own head" in words for words in tried) != alike


@pytest.mark.parametrize("alike", [False, True])
def test_clients_of_one_sample_or_class_and_absent_classes(alike):
    codes = trainable().labels.codes
    there = np.flatnonzero(codes != 9)  # nobody has a nine
    parts = {
        "one-sample": trainable().take(there[:1]),
        "one-class": trainable().take(np.flatnonzero(codes == 3)[:9]),
        "only-of-a-class": trainable().take(np.flatnonzero(codes == 8)[:1]),
        "rest": trainable().take(np.flatnonzero((codes != 9) & (codes != 8))[:300]),
    }
    result = run(create_method("auto", {"classes_alike": alike}), federated(parts))
    for model in result.predictors.values():
        scores = model(trainable().features)
        assert np.isfinite(scores).all()
        assert not (scores.argmax(axis=1) == 9).mean() > 0.2
    assert result.accuracy["client_mean"] > 0.5


@pytest.mark.parametrize("count", [1, 2])
def test_a_handful_of_samples_in_all(count):
    parts = {name: trainable().take([k]) for k, name in enumerate("ab"[:count])}
    result = run(create_method("auto", LOW), federated(parts))
    for model in result.predictors.values():
        assert np.isfinite(model(trainable().features)).all()


def test_two_classes():
    samples = trainable().take(np.flatnonzero(trainable().labels.codes < 2))
    parts = {name: samples.take(slice(k, None, 3)) for k, name in enumerate("abc")}
    result = run(create_method("auto"), federated(parts))
    test = samples.take(slice(0, 50))
    hits = result.predictors["a"](test.features).argmax(axis=1) == test.labels.codes
    assert hits.mean() > 0.95


# Others may answer, nobody may see single answers, any number of workers


@pytest.mark.parametrize("dropout", [0.6, pytest.param(0.3, marks=pytest.mark.wide)])
@pytest.mark.parametrize("settings", [{}, {"classes_alike": True, "exchanges": 0}])
def test_clients_that_drop_out_do_not_spoil_the_pool(dropout, settings):
    result = run(create_method("auto", settings), partitioned(clients=8), dropout=dropout)
    known = tuned_settings(result.shared)
    assert known.setting["parts"]
    assert np.isfinite(known.notes["log_loss"])
    assert result.accuracy["client_mean"] > 0.85


@pytest.mark.parametrize(
    "settings",
    [{"exchanges": 1}, pytest.param({"classes_alike": True, **LOW}, marks=pytest.mark.wide)],
)
def test_sums_are_enough(settings):
    everybody = partitioned(clients=5)
    openly = run(create_method("auto", settings), everybody)
    privately = run(create_method("auto", settings), everybody, private=True)
    securely = run(create_method("auto", settings), everybody, threshold=0.6)
    assert openly.shared_digest == privately.shared_digest == securely.shared_digest
    assert openly.model_digest == securely.model_digest


@pytest.mark.wide  # by default the laws try it on smaller data
def test_the_model_is_the_same_for_any_number_of_workers():
    found = {
        run(
            create_method("auto", {"exchanges": 1}), partitioned(clients=5), workers=workers
        ).model_digest
        for workers in (1, 2, 3)
    }
    assert len(found) == 1


@pytest.mark.wide  # by default the laws try it on smaller data
def test_the_order_of_clients_does_not_matter():
    everybody = partitioned(clients=5)
    everybody.members.reverse()
    turned = run(create_method("auto", LOW), everybody)
    assert (
        turned.model_digest == run(create_method("auto", LOW), partitioned(clients=5)).model_digest
    )


# Classes that are to count alike


def rare_classes():
    """Return three alike clients with few samples of half of the classes."""
    codes = trainable().labels.codes
    rare = [np.flatnonzero(codes == c)[:6] for c in range(5)]
    kept = np.concatenate([*rare, np.flatnonzero(codes >= 5)])
    return {name: trainable().take(kept[k::3]) for k, name in enumerate("abc")}


@pytest.mark.parametrize("settings", [{}, {"exchanges": 0, "effort": "low"}])
def test_where_classes_count_alike_rare_ones_are_not_given_up(settings):
    everybody = federated(rare_classes())
    usual, alike = (
        run(create_method("auto", {**settings, "classes_alike": alike}), everybody)
        for alike in (False, True)
    )
    assert alike.accuracy["balanced"] > usual.accuracy["balanced"] + 0.02
    assert alike.accuracy["balanced"] > 0.8


def test_where_classes_count_alike_every_sample_of_a_rare_one_is_judged_more():
    method = create_method("auto", {"classes_alike": True})
    mine, others = trainable().take(slice(0, 30)), trainable().take(slice(100, 200))
    asked = question([mine, others], method)
    client, judged = answered(method, mine, asked)
    often = method._sample_weights(mine.labels.codes, asked.counts)
    assert judged.squared.weight == often.sum() > len(mine)
    # What is added undoes the class frequencies of all samples; clients' own do not count.
    odds = client.state["left_out"]["odds"]
    assert np.ptp(odds, axis=0).max() == 0
    shares = np.maximum(asked.counts, 0.5) / asked.counts.sum()
    np.testing.assert_allclose(odds[0], -np.log(shares))
    plain, _ = method._candidates(asked.equations)
    first = next(iter(plain.left_out(mine, in_total=True)))
    expected = LikelihoodSums.of([SCALES[0] * first], mine.labels.codes, often)
    assert judged.squared.loss[0] == pytest.approx(int(expected.loss[0]), rel=1e-5)


@pytest.mark.wide
@pytest.mark.parametrize(
    "law", [law for law in laws.LAWS if law not in laws.SOLVED_LAWS], ids=lambda law: law.__name__
)
def test_classes_that_count_alike_keep_the_law(law):
    law(create_method("auto", {"classes_alike": True, "effort": "low", "exchanges": 1}))


# Any machine

FIT = """
import json
import os
import subprocess
import sys
import numpy as np
from threadpoolctl import threadpool_info
import fedgram as fg
rng = np.random.default_rng(0)
y = rng.integers(30, size=2100)  # own parts of clients with fewer samples than features
x = rng.normal(size=(30, 700))[y] + 2 * rng.normal(size=(2100, 700))
wide = fg.Dataset(x, np.char.mod("k%02d", y))
found = [sorted({each["architecture"] for each in threadpool_info()})]
for data in (fg.load_dataset("digits"), wide):
    federated = fg.federate(data, clients=8, partition="dirichlet", alpha=0.3)
    result = fg.run("auto", federated)
    found.append([result.shared_digest, result.chosen.shared.description])
print(json.dumps(found))
"""


@pytest.mark.wide
def test_other_kernels_give_the_same_shared_result():
    found = {}
    for kernel in ("Haswell", "SkylakeX", "Nehalem"):
        done = subprocess.run(
            [sys.executable, "-c", FIT],
            env={**os.environ, "OPENBLAS_CORETYPE": kernel, "OPENBLAS_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode <= 0, done.stderr  # killed for an unknown instruction
        used, *rest = json.loads(done.stdout or "[[]]")
        if used == [kernel]:
            found[kernel] = rest
    if len(found) < 2:
        pytest.skip("this machine runs fewer than two of the kernels")
    first, *others = found.values()
    assert all(other == first for other in others)


@pytest.mark.parametrize("number", [1, 5])
def test_a_client_answers_the_same_alone_and_among_others(number):
    """In stacks of any clients, in any order: replies, their bytes, and what is stored."""
    ends = [0, 30, 31, 61, 61, 64, 94, 164]  # clients of 30, 1, 30, 0, 3, 30 and 70 samples
    parts = [trainable().take(slice(a, b)) for a, b in itertools.pairwise(ends)]
    method = create_method("auto")
    asked = question(parts, method, number)
    weights = {"weights": np.array([0.7, 3.0, 0.0, 1.0]), "places": [0, 2, len(STRENGTHS)]}

    def answers(order, groups):
        totals = [frozenset({"statistics"} if k % 3 else ()) for k in range(len(parts))]
        clients = [
            Client(id=str(k), train=part, valid=part.take([]), totals=heard, state={})
            for k, (part, heard) in enumerate(zip(parts, totals, strict=True))
        ]
        found = {}
        for group in groups(order):
            some = [clients[k] for k in group]
            judged = method.left_out.stacked(some, asked)
            pooled = method.pool.stacked(some, weights)
            for k, *replies in zip(group, judged, pooled, strict=True):
                found[k] = codec.digest([*replies, clients[k].state["left_out"]])
        return [found[k] for k in sorted(found)]

    order = list(range(len(parts)))
    alone = answers(order, lambda order: [[k] for k in order])
    assert alone == answers(order, lambda order: [order])
    assert alone == answers(order[::-1], lambda order: [order[:3], order[3:]])
