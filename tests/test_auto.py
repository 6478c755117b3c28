"""The method that chooses: what it counts, what it takes, what it says."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

from fedgram import InProcess, Lift, Statistics, codec, make, run
from fedgram.ballot import Ballot
from fedgram.candidates import CANDIDATES, Candidates, family
from fedgram.checks import laws
from fedgram.checks.federations import dealt, federated, trainable
from fedgram.cli import main
from fedgram.errors import ConfigError
from fedgram.federation import settled
from fedgram.loo import Own
from fedgram.methods.auto import departure
from fedgram.priors import class_counts, repeated_statistics, repeats
from fedgram.whole import Whole

LIFTED = Lift(width=20, seed=3)
WAYS = {
    "plain": Candidates(lift=Lift(), refinement=Lift(), smoothing=1.0),
    "lifted": Candidates(lift=LIFTED, refinement=Lift(width=9, seed=1), smoothing=3.0),
}
OWN = {"few": slice(0, 7), "one": slice(0, 1), "copies": [5, 5, 5, 8], "many": slice(0, 80)}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("own", OWN.values(), ids=OWN)
def test_candidates_get_right_what_they_would_if_fitted_without(way, own):
    """One of every five candidates, each sample left out of everything by fitting again."""
    mine, others = trainable().take(own), trainable().take(slice(100, 160))

    def whole_of(samples):
        total = Statistics.of(way.lift(samples.features), samples.labels)
        rest = Statistics.of(way.lift(others.features), others.labels)
        return Whole(total=total + rest, ridge=20.0)

    hits = way.left_out(mine, whole_of(mine), counted=True)
    assert hits.shape == (len(mine), len(CANDIDATES))
    for i in range(0, len(mine), 1 + len(mine) // 8):
        rest = mine.take(np.flatnonzero(np.arange(len(mine)) != i))
        whole = whole_of(rest)
        counts = class_counts(whole.total)[0]
        for place in range(i % 5, len(CANDIDATES), 5):
            model = way.model(CANDIDATES[place], rest, whole, counts)
            won = model(mine.take([i]).features)[0].argmax() == mine.labels.codes[i]
            assert hits[i, place] == won, CANDIDATES[place]


def test_every_kind_of_model_is_a_candidate_once_and_the_simplest_come_first():
    assert len({json.dumps(setting) for setting in CANDIDATES}) == len(CANDIDATES)
    assert CANDIDATES[0] == {}
    assert len({family(setting) for setting in CANDIDATES}) == 8


def test_everybody_gets_the_winner_of_the_counts():
    everybody = dealt(clients=5)
    method = make("auto", {"judges": 0})
    engine = InProcess(everybody.members)
    (shared,) = method.fit(engine)
    assert [ask.step for ask in engine.asks] == ["statistics", "left_out"]
    replies = [reply for _, reply in engine.gather(method.left_out, [_whole(method, everybody)])]
    total = sum(replies[1:], replies[0])
    assert settled(shared).setting == CANDIDATES[total.winner]
    assert max(settled(shared).reasons.values()) == total.accuracy.max()
    result = run(method, everybody)
    for site in everybody.members:
        counts = np.bincount(
            np.concatenate([s.train.labels.codes for s in everybody.members]), minlength=10
        )
        model = method._candidates.model(
            settled(shared).setting, site.train, _whole(method, everybody), counts.astype(float)
        )
        assert codec.digest(model) == codec.digest(result.models[site.id])


def _whole(method, everybody):
    total = sum(Statistics.of(s.train.features, s.train.labels) for s in everybody.members)
    from fedgram.gcv import resolved

    return Whole(total=total, ridge=resolved(method.ridge, total))


def test_some_clients_judge_for_all():
    everybody = dealt(clients=8)
    samples = sum(len(site.train) for site in everybody.members)
    result = run(make("auto", {"judges": samples // 3}), everybody)
    asked = next(ask.clients for ask in result.asks if ask.step == "left_out")
    assert asked == 3
    all_of_them = run(make("auto", {"judges": samples}), everybody)
    assert next(a.clients for a in all_of_them.asks if a.step == "left_out") == 8


def test_it_is_at_least_as_good_as_what_it_chooses_from_on_samples_left_out():
    reasons = settled(run(make("auto"), dealt(clients=6)).shared).reasons
    assert list(reasons.values()) == sorted(reasons.values(), reverse=True)
    assert set(reasons) == {family(setting) for setting in CANDIDATES}


def test_skewed_labels_call_for_something_personal_and_equal_clients_for_nothing_much():
    skewed = settled(run(make("auto"), dealt(clients=6, dirichlet=0.1)).shared)
    assert skewed.setting
    alike = settled(run(make("auto"), dealt(clients=40, partition="iid")).shared)
    shared = alike.reasons["shared head"]
    assert max(alike.reasons.values()) - shared < 0.03


# Clients that depart from the common choice


def test_a_client_departs_only_where_its_samples_speak_clearly():
    hits = np.zeros((40, len(CANDIDATES)), bool)
    hits[:20, 0] = True
    assert departure(hits, 0) == 0
    hits[:, 1] = hits[:, 0]
    hits[20:23, 1] = True  # three to none: less than two standard errors
    assert departure(hits, 0) == 0
    hits[20:26, 1] = True  # six to none
    assert departure(hits, 0) == 1
    assert departure(hits[:0], 4) == 4


def test_a_client_does_not_depart_to_what_it_was_not_sent():
    weighs = next(k for k, setting in enumerate(CANDIDATES) if "alpha" in setting)
    hits = np.zeros((40, len(CANDIDATES)), bool)
    hits[:, weighs] = True
    assert departure(hits, 0) == 0


@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_clients_may_choose_for_themselves(dropout):
    everybody = dealt(clients=8)
    result = run(make("auto", {"by_client": True}), everybody, dropout=dropout)
    chosen = settled(result.shared)
    assert isinstance(chosen.setting["own_choice"], bool)
    assert "own choices, on other halves" in chosen.reasons
    assert result.accuracy["client_mean"] > 0.9


# What it says


def test_it_says_what_it_picked_and_why(tmp_path):
    run_it = CliRunner().invoke(
        main, ["run", "-m", "auto", "-s", "data.clients=4", "--out", str(tmp_path)]
    )
    assert run_it.exit_code == 0
    said = " ".join(run_it.output.split())
    assert "right on samples left out: " in said
    shown = CliRunner().invoke(main, ["compare", str(tmp_path), "--json"])
    (recorded,) = json.loads(shown.output)["runs"]
    assert f"auto chose {recorded['settled']['told']}; " in said
    made = CliRunner().invoke(main, ["report", str(tmp_path), "-o", str(tmp_path / "r.html")])
    assert made.exit_code == 0
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "Settings that chose themselves" in page
    assert recorded["settled"]["told"] in page


def test_a_site_gets_its_model_from_the_file(tmp_path):
    folder = tmp_path / "runs"
    CliRunner().invoke(main, ["run", "-m", "auto", "-s", "data.clients=4", "--out", str(folder)])
    rows = tmp_path / "rows.npz"
    np.savez(rows, x=np.arange(640.0).reshape(10, 64) % 17, y=np.arange(10))
    shared, model = folder / "auto" / "shared.safetensors", tmp_path / "model.safetensors"
    done = CliRunner().invoke(main, ["personalize", str(shared), str(rows), "-o", str(model)])
    assert done.exit_code == 0, done.output
    done = CliRunner().invoke(main, ["predict", str(model), str(rows)])
    assert done.output.count("\n") == 11


@pytest.mark.parametrize("settings", [{"smoothing": 0.0}, {"judges": -1}])
def test_settings_that_cannot_be_are_refused(settings):
    (field,) = settings
    with pytest.raises(ConfigError, match=field):
        make("auto", settings)


def test_late_clients_take_the_common_choice():
    parts = {name: trainable().take(slice(k, None, 4)) for k, name in enumerate("abcd")}
    result = run(make("auto"), federated(parts, holdout="d"))
    assert result.holdout.accuracy["client_mean"] > 0.9


# Classes that are to count alike


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_heads_in_which_classes_count_alike_are_left_out_exactly(way):
    mine, others = trainable().take(slice(0, 12)), trainable().take(slice(100, 160))

    def wholes(samples, times=None):
        plain = sum(Statistics.of(way.lift(s.features), s.labels) for s in (samples, others))
        often = repeats(class_counts(plain)[0]) if times is None else times
        more = sum(repeated_statistics(s, way.lift, often) for s in (samples, others))
        return Whole(total=plain, ridge=20.0), Whole(total=more, ridge=20.0), often

    whole, repeated, times = wholes(mine)
    assert times.max() > 1
    own = Own.of(mine, whole, way.lift, counted=True)
    weights = times[mine.labels.codes].astype(float)
    often = Own.of(mine, repeated, way.lift, counted=weights)
    for i in range(len(mine)):
        rest = mine.take(np.flatnonzero(np.arange(len(mine)) != i))
        plain, more, _ = wholes(rest, times)
        row = mine.take([i]).features
        close = {"rtol": 0, "atol": 1e-9}
        expected = plain.linear(way.lift).normalized()(row)[0]
        np.testing.assert_allclose(own.normalized(whole, way.lift)[i], expected, **close)
        np.testing.assert_allclose(often.shared()[i], more.linear(way.lift)(row)[0], **close)
        heavier = more.reweighed(rest, way.lift, 3.0)(row)[0]
        np.testing.assert_allclose(often.reweighed()(3.0)[i], heavier, **close)
        head = more.linear(way.lift)
        second = head.refined(rest, ridge=10.0, lift=way.refinement)(row)[0]
        features = way.refinement(mine.features)
        refined = often.refined(features.values.astype(float))(10.0 / features.space.unit**2)
        np.testing.assert_allclose(refined[i], second, **close)


def test_repeated_samples_are_samples_that_are_there_more_often():
    samples, times = trainable().take(slice(0, 30)), np.array([1, 3, 1, 1, 2, 1, 1, 1, 1, 5])
    often = samples.take(np.repeat(np.arange(30), times[samples.labels.codes]))
    assert repeated_statistics(samples, Lift(), times) == Statistics.of(
        often.features, often.labels
    )


def test_a_ballot_by_class_is_won_by_the_best_mean_over_classes():
    labels = trainable().labels.take(slice(0, 40))
    rare = labels.codes == labels.codes[0]
    hits = np.stack([~rare, rare], axis=1)
    assert Ballot.of(hits).winner == 0
    by_class = Ballot.of(hits, labels)
    shares = [
        np.mean([hits[labels.codes == c, k].mean() for c in set(labels.codes)]) for k in (0, 1)
    ]
    assert by_class.accuracy.tolist() == pytest.approx(shares)
    assert (by_class + by_class).accuracy.tolist() == pytest.approx(shares)


def rare_classes():
    """Return three alike clients with few samples of half of the classes."""
    everything = trainable()
    codes = everything.labels.codes
    rare = [np.flatnonzero(codes == c)[:6] for c in range(5)]
    kept = np.concatenate([*rare, np.flatnonzero(codes >= 5)])
    return {name: everything.take(kept[k::3]) for k, name in enumerate("abc")}


@pytest.mark.parametrize("private", [False, True])
def test_where_classes_count_alike_rare_ones_are_not_given_up(private):
    everybody = federated(rare_classes())
    usual, alike = (
        run(make("auto", {"classes_alike": alike}), everybody, private=private)
        for alike in (False, True)
    )
    kinds = {"columns of one length", "rare classes repeated"}
    assert kinds <= set(settled(alike.shared).reasons)
    assert not kinds & set(settled(usual.shared).reasons)
    assert alike.accuracy["balanced"] > usual.accuracy["balanced"] + 0.02
    assert [ask.step for ask in alike.asks][:3] == ["statistics", "repeated", "left_out"]


def test_classes_that_count_alike_keep_the_laws():
    for law in laws.LAWS:
        if law not in laws.SOLVED_LAWS:
            law(make("auto", {"classes_alike": True, "by_client": True}))
