"""Scores beyond accuracy: ranking against scikit-learn, who gains against a slow count."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from sklearn.metrics import roc_auc_score

from fedgram.cli import main
from fedgram.data.plan import PartitionPlan
from fedgram.data.sources import load_dataset
from fedgram.experiments.gains import gains, who_gains
from fedgram.experiments.run_record import ClientScore, RoundRecord, RunRecord, ScoreSummary
from fedgram.experiments.runner import run
from fedgram.federation.federated_dataset import federate
from fedgram.federation.method import create_method, names
from fedgram.federation.scoring import Metrics, macro_auroc

CLASSES = 5
ALL_METRICS = ("-s", "metrics.auroc=true", "-s", "metrics.classes=true")
FEW_ROUNDS = tuple(
    word
    for setting in ("rounds=2", "pilot=1", "blocks=1", "width=16", "exchanges=1", "directions=1")
    for word in ("-s", f"every.{setting}")
)
FOUR = ("local", "afl", "fedhip", "apfl")


def cli(*arguments, columns=80):
    done = CliRunner().invoke(main, list(map(str, arguments)), env={"COLUMNS": str(columns)})
    assert done.exit_code == 0, done.output
    return done.stdout


def results(*arguments):
    return {run["method"]: run for run in json.loads(cli(*arguments, "--json"))["runs"]}


# Ranking


def slow_auroc(scores, codes):
    """Return scikit-learn's area of each class against the rest, averaged over those it has."""
    present = [code for code in np.unique(codes) if not (codes == code).all()]
    areas = [roc_auc_score(codes == code, scores[:, code]) for code in present]
    return np.mean(areas) if areas else None


def drawn(seed, *, samples=60, ties=False, missing=()):
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=(samples, CLASSES))
    kept = [code for code in range(CLASSES) if code not in missing]
    return np.round(scores) if ties else scores, rng.choice(kept, samples)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("ties", [False, True], ids=["no ties", "ties"])
@pytest.mark.parametrize("missing", [(), (0,), (1, 4), (0, 1, 2)], ids=str)
def test_auroc_is_that_of_scikit_learn(seed, ties, missing):
    scores, codes = drawn(seed, ties=ties, missing=missing)
    assert macro_auroc(scores, codes) == pytest.approx(slow_auroc(scores, codes), abs=1e-12)


def test_equal_scores_rank_like_a_coin():
    codes = np.arange(30) % CLASSES
    assert macro_auroc(np.zeros((30, CLASSES)), codes) == 0.5


def test_perfect_ranking_is_one_and_its_opposite_zero():
    codes = np.arange(30) % CLASSES
    scores = np.eye(CLASSES)[codes]
    assert (macro_auroc(scores, codes), macro_auroc(-scores, codes)) == (1.0, 0.0)


def test_ranking_does_not_ask_how_far_apart_scores_are():
    scores, codes = drawn(0)
    assert macro_auroc(scores, codes) == macro_auroc(np.exp(scores), codes)


@pytest.mark.parametrize("codes", [[], [2], [3, 3, 3]], ids=str)
def test_without_two_classes_there_is_no_auroc(codes):
    assert macro_auroc(np.zeros((len(codes), CLASSES)), np.array(codes, np.int64)) is None


# In a run


@pytest.fixture(scope="module")
def measured():
    """One run with everything, in this process; clients of one class are among its clients."""
    everybody = federate(load_dataset("digits"), PartitionPlan(clients=30))
    return everybody, run(
        create_method("apfl"), everybody, metrics=Metrics(auroc=True, classes=True)
    )


def test_the_auroc_of_a_run_is_the_mean_over_clients_that_have_one(measured):
    everybody, result = measured
    found = [
        slow_auroc(result.predictors[site.id](site.test.features), site.test.labels.codes)
        for site in everybody.members
    ]
    defined = [area for area in found if area is not None]
    assert 0 < len(defined) < len(found)
    assert result.scores.tally.auroc == pytest.approx(np.mean(defined), abs=1e-10)


def test_the_accuracy_within_a_class_is_that_of_a_slow_count(measured):
    everybody, result = measured
    right, seen = dict.fromkeys(range(10), 0), dict.fromkeys(range(10), 0)
    for site in everybody.members:
        winners = result.predictors[site.id](site.test.features).argmax(axis=1)
        for winner, code in zip(winners, site.test.labels.codes, strict=True):
            seen[int(code)] += 1
            right[int(code)] += winner == code
    shares = {
        name: right[code] / seen[code] for code, name in enumerate(everybody.test.labels.classes)
    }
    assert result.to_dict()["class_accuracy"] == pytest.approx(shares)
    assert result.accuracy["balanced"] == pytest.approx(np.mean(list(shares.values())))


def test_metrics_are_computed_where_they_are_asked_for():
    shown = results("run", "-m", "afl", "-s", "data.clients=4", *ALL_METRICS)["afl"]
    assert 0.9 < shown["auroc"] < 1
    assert list(shown["class_accuracy"]) == list(load_dataset("digits").classes)
    assert all(0 <= share <= 1 for share in shown["class_accuracy"].values())


@pytest.mark.parametrize(("auroc", "classes"), [(False, False), (True, False), (False, True)])
def test_metrics_that_nobody_asked_for_are_none(auroc, classes):
    asked = (
        "-s",
        f"metrics.auroc={str(auroc).lower()}",
        "-s",
        f"metrics.classes={str(classes).lower()}",
    )
    shown = results("run", "-m", "afl", "-s", "data.clients=4", *asked)["afl"]
    assert (shown["auroc"] is None, shown["class_accuracy"] is None) == (not auroc, not classes)


def test_metrics_change_no_model_and_no_other_score():
    plain, more = (
        results("run", "-m", "apfl", "-s", "data.clients=4", *asked)["apfl"]
        for asked in ((), ALL_METRICS)
    )
    for key in ("accuracy", "shared_digest", "model_digest", "bytes"):
        assert plain[key] == more[key]


def test_held_out_clients_are_measured_too():
    held = ("-s", "data.clients=5", "-s", "data.holdout_clients=2")
    shown = results("run", "-m", "afl", *held, *ALL_METRICS)["afl"]["holdout"]
    assert 0.9 < shown["auroc"] < 1
    assert len(shown["class_accuracy"]) == 10


def test_a_class_that_nobody_tests_has_no_accuracy(tmp_path):
    rng = np.random.default_rng(0)
    y = np.arange(80) % 3
    split = np.where((y != 2) & (np.arange(80) % 4 == 0), 2, 0)
    names = np.array(["ant", "bee", "cat"])
    np.savez(tmp_path / "a.npz", x=rng.normal(size=(80, 5)), y=y, split=split, classes=names)
    source = ("-s", f"data.source={tmp_path / 'a.npz'}", "-s", "data.clients=2")
    shown = results("run", "-m", "afl", *source, *ALL_METRICS)["afl"]["class_accuracy"]
    assert shown["cat"] is None
    assert None not in (shown["ant"], shown["bee"])


def test_metrics_of_a_private_run_are_those_of_an_open_one():
    openly, privately = (
        results("run", "-m", "afl", "-s", "data.clients=6", *ALL_METRICS, *private)["afl"]
        for private in ((), ("-s", "engine.private=true"))
    )
    for key in ("auroc", "class_accuracy"):
        assert openly[key] == privately[key]


# Who gains


def slow_gains(ours, theirs):
    both = sorted(set(ours) & set(theirs))
    if not both:
        return None
    better = worse = 0
    for client in both:
        if ours[client] > theirs[client]:
            better += 1
        elif ours[client] < theirs[client]:
            worse += 1
    return {"better": better / len(both), "worse": worse / len(both)}


def record(method, accuracies):
    """Return the record of a run whose clients, with 4 test samples each, reach these accuracies.

    One more client has no test samples.
    """
    scores = [
        ClientScore(client=client, samples=4, correct=int(4 * share))
        for client, share in accuracies.items()
    ]
    summary = ScoreSummary(accuracy={"client_mean": 0.5}, clients=len(scores))
    untested = ClientScore(client="untested", samples=0, correct=0)
    scored = RoundRecord(round=1, summary=summary, clients=(*scores, untested))
    settings = {"parameters": {}, "config": {}, "versions": {}}
    return RunRecord(folder=None, method=method, **settings, rounds=(scored,))


@pytest.mark.parametrize("seed", range(8))
def test_who_gains_is_who_a_slow_count_says(seed):
    rng = np.random.default_rng(seed)

    def accuracies():
        """Some clients have no test samples, so not all are in; many are even."""
        return {f"c{k}": int(rng.integers(4)) / 4 for k in range(12) if rng.random() < 0.8}

    found = {name: accuracies() for name in FOUR}
    assert gains(found["apfl"], found["afl"]) == slow_gains(found["apfl"], found["afl"])
    for name, told in zip(FOUR, who_gains([record(*pair) for pair in found.items()]), strict=True):
        alone = None if name == "local" else slow_gains(found[name], found["local"])
        shared = None if name == "afl" else slow_gains(found[name], found["afl"])
        assert told == {"over_alone": alone, "over_shared": shared}


def test_gains_and_losses_change_places_with_the_sides():
    ours, theirs = {"a": 0.9, "b": 0.5, "c": 0.1}, {"a": 0.8, "b": 0.5, "d": 0.3}
    one, other = gains(ours, theirs), gains(theirs, ours)
    assert (one["better"], one["worse"]) == (other["worse"], other["better"]) == (0.5, 0.0)


def test_there_are_no_gains_over_what_was_not_run():
    assert gains({"a": 1.0}, {}) is None
    assert gains({"a": 1.0}, {"b": 1.0}) is None
    assert who_gains([record("apfl", {"a": 1.0})]) == [{"over_alone": None, "over_shared": None}]


LONG = "runs/of-a-folder-with-a-rather-long-name"


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """A folder with a run of the default methods and all metrics, and what the run told."""
    base = tmp_path_factory.mktemp("told")
    return base, results("run", "--out", base / LONG, "-s", "data.clients=8", *ALL_METRICS)


def test_gains_of_a_run_are_those_of_its_clients(told):
    base, shown = told
    by_client = {name: {} for name in shown}
    for name, scores in by_client.items():
        for line in (base / LONG / name / "scores.jsonl").read_text("utf-8").splitlines():
            row = json.loads(line)
            if row.get("samples"):
                scores[row["client"]] = row["correct"] / row["samples"]
    for name, result in shown.items():
        over = {"over_alone": "local", "over_shared": "afl"}
        assert result["gains"] == {
            key: None if other == name else slow_gains(by_client[name], by_client[other])
            for key, other in over.items()
        }


def test_a_comparison_tells_the_gains_that_the_run_told(told):
    base, shown = told
    compared = results("compare", base / LONG)
    assert set(shown) == set(compared) == {*FOUR, "auto"}
    for name, result in shown.items():
        for key in ("gains", "auroc", "class_accuracy"):
            assert compared[name][key] == result[key]


def test_two_runs_of_one_method_side_by_side_keep_their_own_gains(tmp_path):
    told = {}
    for ridge in ("1", "1e6"):
        chosen = ("-m", "local", "-m", "apfl", "-s", f"method.apfl.ridge={ridge}")
        out = ("-s", "data.clients=8", "--out", tmp_path / "apart" / ridge)
        told[ridge] = results("run", *chosen, *out)["apfl"]["gains"]
        (tmp_path / "apart" / ridge / "apfl").rename(tmp_path / ridge)
    (tmp_path / "apart" / "1" / "local").rename(tmp_path / "local")
    compared = {
        Path(result["run"]).name: result["gains"]
        for result in json.loads(cli("compare", tmp_path, "--json"))["runs"]
    }
    assert told["1"] != told["1e6"]
    assert {ridge: compared[ridge] for ridge in told} == told


def test_a_private_run_does_not_say_who_gains():
    private = ("-s", "engine.private=true", "-s", "data.clients=4")
    shown = results("run", "-m", "local", "-m", "afl", *private)
    assert shown["afl"]["gains"] == {"over_alone": None, "over_shared": None}


# Tables


def columns_of(text):
    return max(map(len, text.splitlines()))


def test_tables_of_all_metrics_and_all_methods_fit_80_columns():
    every = [word for name in names() for word in ("-m", name)]
    few = ("-s", "data.clients=6", "-s", "data.holdout_clients=2", "-s", "method.auto.effort=low")
    shown = cli("run", *every, *ALL_METRICS, *FEW_ROUNDS, *few)
    assert columns_of(shown) <= 80
    for name in names():  # in each of the three tables
        assert len(re.findall(rf"\b{name}\b", shown)) >= 3
    assert "AUROC" in shown


def test_no_name_is_wrapped_where_messages_are_large(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    np.savez("a.npz", x=rng.normal(size=(300, 400)), y=np.arange(300) % 2)
    source = ("-s", "data.source=a.npz", "-s", "data.clients=3")
    shown = cli("run", "-m", "fedhip", "-m", "central", *source, *ALL_METRICS)
    assert columns_of(shown) <= 80
    for name in ("fedhip", "central"):
        assert re.search(rf"^ {name}( +[\d.]+){{6}} .*kB", shown, re.MULTILINE)


def test_a_comparison_of_all_metrics_fits_80_columns_and_names_every_class(told, monkeypatch):
    monkeypatch.chdir(told[0])
    shown = cli("compare", LONG)
    assert columns_of(shown) <= 80
    for name in load_dataset("digits").classes:
        assert re.search(rf"^ {name}( +\d+\.\d){{5}} *$", shown, re.MULTILINE)


def test_the_table_shows_the_auroc_of_the_json():
    asked = ("run", "-m", "afl", "-s", "data.clients=4", *ALL_METRICS)
    shown, told = cli(*asked), results(*asked)["afl"]
    row = next(line.split() for line in shown.splitlines() if line.split()[:1] == ["afl"])
    assert row[6] == f"{100 * told['auroc']:.1f}"
    for name, share in told["class_accuracy"].items():
        assert re.search(rf"^ {name} +{100 * share:.1f} *$", shown, re.MULTILINE)
