"""The runner: what is scored, counted and timed, whatever the method."""

import dataclasses
import json
import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np
import pytest

from fedgram.core import codec
from fedgram.core.samples import Labels, Samples
from fedgram.core.statistics import Statistics
from fedgram.data.plan import PartitionPlan
from fedgram.data.sources import load_dataset
from fedgram.engines.in_process import InProcess
from fedgram.errors import ConfigError
from fedgram.experiments.reader import read_runs
from fedgram.experiments.record import Record
from fedgram.experiments.runner import ScoringSchedule, run, run_on
from fedgram.experiments.scores import Scorer
from fedgram.features.grid import Grid
from fedgram.federation.client import Site
from fedgram.federation.federated_dataset import FederatedDataset, federate
from fedgram.federation.method import Method, create_method, find_method, names
from fedgram.federation.scoring import Metrics, SiteScore
from fedgram.models.linear import Linear


def dealt(grid=None, **plan):
    return federate(load_dataset("digits"), PartitionPlan(**{"clients": 25, **plan}), grid)


@pytest.fixture(scope="module")
def everybody():
    return dealt(clients=40, dirichlet=0.05)  # some of them without test samples


# Accuracies, against a slow count in fractions


def slow_accuracies(models, members, test):
    def right(model, samples):
        rows = [list(row) for row in model(samples.features)]
        guesses = [row.index(max(row)) for row in rows]
        return [guess == code for guess, code in zip(guesses, samples.labels.codes, strict=True)]

    hits = {site.id: right(models[site.id], site.test) for site in members if len(site.test)}
    shares = sorted(Fraction(sum(hit), len(hit)) for hit in hits.values())
    lowest = shares[: math.ceil(len(shares) / 10)]
    truth = {site.id: list(site.test.labels.codes) for site in members}
    by_class = {}
    for client, hit in hits.items():
        for code, good in zip(truth[client], hit, strict=True):
            by_class.setdefault(code, []).append(good)
    whole = [Fraction(sum(right(models[s.id], test)), len(test)) for s in members]
    total = [good for hit in hits.values() for good in hit]
    return {
        "client_mean": sum(shares) / len(shares),
        "sample_mean": Fraction(sum(total), len(total)),
        "worst_decile": sum(lowest) / len(lowest),
        "global_test": sum(whole) / len(whole),
        "balanced": sum(Fraction(sum(h), len(h)) for h in by_class.values()) / len(by_class),
    }


@pytest.mark.parametrize("name", names())
def test_accuracies_are_those_of_a_slow_count_and_each_round_is_scored_once(name, everybody):
    settings = {"effort": "low", "exchanges": 1} if name == "auto" else {}
    result = run(create_method(name, settings).shortened(), everybody)
    slow = slow_accuracies(result.predictors, everybody.members, everybody.test)
    assert result.accuracy == pytest.approx({k: float(v) for k, v in slow.items()}, abs=1e-10)
    phases = [ask.phase for ask in result.record.exchanges]
    assert phases.count("score") == result.rounds
    assert phases.count("deliver") == 1
    assert phases[-1] == "deliver"


def test_held_out_clients_are_scored_apart_and_tested_on_everybodys_samples():
    everybody = dealt(holdout_clients=6)
    result = run(create_method("fedhip"), everybody)
    assert len(everybody.test) == 450
    for scores, group in ((result.scores, everybody.members), (result.holdout, everybody.holdout)):
        slow = slow_accuracies(result.predictors, group, everybody.test)
        assert scores.accuracy == pytest.approx({k: float(v) for k, v in slow.items()}, abs=1e-10)
        assert scores.tally.clients == len(group)


def test_untested_clients_are_counted_and_left_out(everybody):
    result = run(create_method("afl"), everybody)
    untested = sum(not len(site.test) for site in everybody.members)
    assert untested > 0
    assert (result.scores.tally.clients, result.scores.tally.clients_without_test) == (40, untested)
    assert result.to_dict()["untested_clients"] == untested
    tested = [row for row in result.scores.rows if row.samples]
    assert len(tested) == 40 - untested
    mean = np.mean([row.correct / row.samples for row in tested])
    assert result.accuracy["client_mean"] == pytest.approx(mean, abs=1e-10)


@pytest.mark.parametrize("clients", [1, 9, 10, 11, 25])
def test_the_worst_decile_is_the_mean_of_the_lowest_tenth_rounded_up(clients):
    result = run(create_method("local"), dealt(clients=clients, partition="iid"))
    shares = sorted(row.correct / row.samples for row in result.scores.rows)
    lowest = shares[: math.ceil(clients / 10)]
    assert result.accuracy["worst_decile"] == pytest.approx(np.mean(lowest))


def test_a_private_federation_shows_no_rows_and_the_same_accuracies(everybody):
    openly, privately = (run(create_method("afl"), everybody, private=p) for p in (False, True))
    assert privately.scores.rows == []
    for key, value in openly.accuracy.items():
        within = 0.005 if key == "worst_decile" else 1e-12  # from a histogram of per cents
        assert privately.accuracy[key] == pytest.approx(value, abs=within)
    assert privately.model_digest == openly.model_digest


def test_rows_name_each_client_once_in_order(everybody):
    rows = run(create_method("apfl-linear"), everybody).scores.rows
    assert [row.client for row in rows] == sorted(site.id for site in everybody.members)
    assert [row.samples for row in rows] == [len(site.test) for site in everybody.members]


# Counting and digests


def test_the_bytes_of_a_run_are_those_of_its_messages():
    everybody = dealt(clients=4)
    result = run(create_method("afl"), everybody)
    uploads = [
        len(codec.encode(Statistics.of(site.train.features, site.train.labels)))
        for site in everybody.members
    ]
    assert result.to_dict()["bytes"] == {
        "up": round(sum(uploads) / 4),
        "down": len(codec.encode(result.shared)),
    }


class Slow(InProcess):
    """Scores in two exchanges: the second one brings nothing, and nobody answers it."""

    def evaluate(self, step, shared):
        yield from super().evaluate(step, shared)
        self._record("score again", "score", 0, 0, 0, 0.0)


class Summing(InProcess):
    """Shows one score, of all sites together."""

    def evaluate(self, step, shared):
        scores = [score.sums for _, score in super().evaluate(step, shared)]
        yield "", SiteScore(sums=sum(scores[1:], scores[0]))


def conducted(engine_type, everybody):
    record = Record()
    engine = engine_type(everybody.members, on_ask=record.ask)
    scorer = Scorer(create_method("afl"), None, Metrics(), kept_valid=False)
    return run_on(create_method("afl"), engine, scorer, record=record)


def test_delivery_is_counted_from_the_exchanges_of_the_scoring_whichever_is_the_last():
    everybody = dealt(clients=4)
    assert conducted(Slow, everybody).record.summary.bytes == (
        conducted(InProcess, everybody).record.summary.bytes
    )


def test_a_score_of_all_sites_together_is_of_no_single_client():
    everybody = dealt(clients=4)
    openly, summed = (conducted(kind, everybody).record for kind in (InProcess, Summing))
    assert summed.summary.accuracy["sample_mean"] == openly.summary.accuracy["sample_mean"]
    assert len(openly.chosen.clients) == 4
    assert summed.chosen.clients == ()
    assert summed.summary.model_digest is None


def test_nothing_shared_has_no_digest_and_costs_nothing(everybody):
    result = run(create_method("local"), everybody)
    assert result.shared_digest is None
    assert result.to_dict()["bytes"] == {"up": 0, "down": 0}


def test_other_parameters_give_another_shared_digest(everybody):
    found = {
        run(create_method("fedhip", settings), everybody).shared_digest
        for settings in (
            {},
            {"ridge": 99.0, "alpha": 10.0},
            {"ridge": 100.0, "alpha": 10.0},
            {"ridge": 99.0, "alpha": 29.0},
            {"lift": {"width": 8}},
        )
    }
    assert len(found) == 5


def test_another_grid_gives_another_shared_digest():
    found = {
        run(create_method("afl"), dealt(Grid(bits=b))).shared_digest for b in (4, 8, 16, "off")
    }
    assert len(found) == 4


@pytest.mark.parametrize("name", ["afl", "central"])
def test_without_a_grid_partitions_agree_but_for_rounding(name):
    whole, parts = (run(create_method(name), dealt(Grid(bits="off"), clients=k)) for k in (1, 9))
    np.testing.assert_allclose(parts.shared.weights, whole.shared.weights, rtol=0, atol=1e-10)


def test_a_result_is_plain_json(everybody):
    plain = run(create_method("afl"), everybody, name="mine").to_dict()
    assert json.loads(json.dumps(plain)) == plain
    assert (plain["method"], plain["rounds"]) == ("mine", 1)


def test_a_federation_without_any_test_samples_gives_json_that_every_parser_reads():
    result = run(create_method("afl"), dealt(clients=3, test_fraction=1e-4, holdout_clients=1))
    assert result.scores.tally.clients_without_test == 2
    json.dumps(result.to_dict(), allow_nan=False)


# Several rounds, none, and state

ROUNDS = '''
from dataclasses import dataclass

from fedgram import Linear, Method, Statistics, step


@dataclass(frozen=True, kw_only=True)
class Rounds(Method[Linear]):
    """More ridge in each round; every second ask counts a client twice."""

    rounds: int = 3

    @step
    def statistics(self, client, shared):
        client.state["asked"] = client.state.get("asked", 0) + 1
        own = Statistics.of(client.samples.features, client.samples.labels)
        return own if client.state["asked"] % 2 else own + own

    def fit(self, federation):
        shared = None
        for turn in range(1, self.rounds + 1):
            total = federation.sum(self.statistics, shared)
            shared = Linear.of(total, ridge=10.0 * turn)
            yield shared

    def personalize(self, client, shared):
        return shared
'''


@pytest.fixture
def rounds(tmp_path):
    path = tmp_path / "rounds.py"
    path.write_text(ROUNDS, encoding="utf-8")
    return find_method(str(path))


def test_every_round_is_scored_and_the_last_one_counts(rounds):
    result = run(rounds(rounds=3), dealt(clients=3))
    assert [ask.phase for ask in result.record.exchanges] == ["train", "score"] * 3 + ["deliver"]
    assert result.rounds == 3
    one = run(rounds(rounds=2), dealt(clients=3))
    assert result.shared_digest != one.shared_digest
    assert {codec.digest(model) for model in result.predictors.values()} == {
        codec.digest(result.shared)
    }


def test_broadcasts_of_later_rounds_are_counted(rounds):
    result = run(rounds(rounds=2), dealt(clients=3))
    size = len(codec.encode(result.shared))
    down = [ask.bytes_down for ask in result.record.exchanges if ask.phase == "train"]
    assert down[0] == 0
    assert down[1] == pytest.approx(3 * size, rel=0.01)


def test_a_method_that_shares_nothing_ever_is_refused(rounds):
    with pytest.raises(ConfigError, match="yielded nothing"):
        run(rounds(rounds=0), dealt(clients=3))


def test_a_run_starts_from_empty_state_whatever_ran_before(rounds):
    everybody = dealt(clients=3)
    first, again = (run(rounds(rounds=1), everybody) for _ in range(2))
    assert first.shared_digest == again.shared_digest


def test_progress_is_told_of_every_exchange():
    told = []
    run(
        create_method("afl"),
        dealt(clients=3),
        on_reply=lambda step, done, of: told.append((done, of)),
    )
    assert told == [(1, 3), (2, 3), (3, 3)] * 2


# The chosen round and the last

CLASSES = ("a", "b", "c")


@dataclass(frozen=True, kw_only=True)
class Guessing(Method[Any]):
    """In each round everybody guesses one class, whatever the features."""

    keeps_valid: ClassVar[bool] = True

    guesses: tuple[int, ...]

    def fit(self, federation):
        space = Grid().space(2)
        for guess in self.guesses:
            weights = np.zeros((space.width, len(CLASSES)))
            weights[-1, guess] = 1.0  # the constant's
            yield Linear(weights=weights, space=space, classes=CLASSES)

    def personalize(self, client, shared):
        return shared


@dataclass(frozen=True, kw_only=True)
class Solving(Guessing):
    """The same, but it needs no validation samples for choices."""

    keeps_valid: ClassVar[bool] = False


def labelled(codes):
    rng = np.random.default_rng(0)
    return Samples(Grid()(rng.normal(size=(len(codes), 2))), Labels(np.array(codes), CLASSES))


def two_sites(valid=((1, 1, 2), (2, 1, 0, 2)), *, reserve_valid=False):
    """Validation samples: once a, three times b and c. Test samples: twice a and b, once c."""
    parts = zip("xy", valid, ((0, 0, 1), (2, 1)), strict=True)
    members = [
        Site(
            id=name,
            train=labelled([0, 1]),
            valid=labelled(chosen) if chosen else labelled([0]).take([]),
            test=labelled(tested),
            reserve_valid=reserve_valid,
        )
        for name, chosen, tested in parts
    ]
    return FederatedDataset(members=members, holdout=[], test=labelled([0, 0, 1, 2, 1]))


def guess(model):
    return int(model.weights[-1].argmax())


def test_the_chosen_round_is_the_first_that_is_best_on_validation_samples():
    result = run(Guessing(guesses=(0, 1, 2, 1, 0)), two_sites())
    assert (result.chosen.round, result.last.round, result.rounds) == (2, 5, 5)
    assert (result.chosen.scores.validity, result.last.scores.validity) == (3 / 7, 1 / 7)
    assert {guess(model) for model in result.predictors.values()} == {1}
    assert guess(result.shared) == 1
    assert guess(result.last.shared) == 0
    assert result.accuracy["sample_mean"] == 2 / 5  # of the chosen round, on test samples
    assert result.last.scores.accuracy["sample_mean"] == 2 / 5
    plain = result.to_dict()
    assert (plain["chosen"], plain["rounds"], plain["valid"]) == (2, 5, 3 / 7)
    assert plain["last"]["valid"] == 1 / 7


def test_test_samples_choose_nothing():
    everybody = two_sites()
    other = dataclasses.replace(
        everybody,
        members=[dataclasses.replace(s, test=labelled([2] * 9)) for s in everybody.members],
    )
    method = Guessing(guesses=(0, 1, 2))
    assert run(method, everybody).chosen.round == run(method, other).chosen.round == 2
    assert run(method, other).accuracy["sample_mean"] == 0.0


@pytest.mark.parametrize(
    ("method", "everybody"),
    [
        (Guessing(guesses=(1, 0)), two_sites(valid=((), ()))),
        (Solving(guesses=(1, 0)), two_sites()),
    ],
    ids=["none there", "trained on"],
)
def test_without_validation_samples_for_choices_the_last_round_counts(method, everybody):
    result = run(method, everybody)
    assert result.chosen.round == result.last.round == 2
    assert result.scores.valid is None
    assert result.to_dict()["valid"] is None
    assert {guess(model) for model in result.predictors.values()} == {0}


def test_reserved_validation_samples_choose_for_every_method():
    result = run(Solving(guesses=(1, 0)), two_sites(reserve_valid=True))
    assert (result.chosen.round, result.scores.validity) == (1, 3 / 7)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("every", [1, 2, 3, 5, 9])
def test_every_so_many_rounds_are_scored_and_the_last(every, workers):
    result = run(
        Guessing(guesses=(1, 2, 0, 0, 1)),
        two_sites(),
        scoring=ScoringSchedule(every=every),
        workers=workers,
    )
    scored = [number for number in range(1, 6) if number % every == 0 or number == 5]
    assert [ask.phase for ask in result.record.exchanges].count("score") == len(scored)
    assert result.last.round == 5
    assert result.chosen.round == {1: 1, 2: 2, 3: 5, 5: 5, 9: 5}[every]


@pytest.mark.parametrize(("patience", "rounds"), [(0, 8), (1, 3), (2, 6), (3, 7), (4, 8), (9, 8)])
def test_patience_ends_a_run_that_gets_no_better(patience, rounds):
    told = []
    result = run(
        Guessing(guesses=(0, 1, 0, 2, 0, 0, 0, 0)),
        two_sites(valid=((1, 1, 2), (2, 2, 2, 0))),  # c is best, b second, a last
        scoring=ScoringSchedule(patience=patience),
        on_round=told.append,
    )
    assert told == list(range(1, rounds + 1))
    assert result.rounds == rounds
    assert result.chosen.round == (2 if rounds < 4 else 4)


def test_patience_counts_scored_rounds():
    result = run(
        Guessing(guesses=(1, 1, 0, 0, 0, 0, 0, 0)),
        two_sites(),
        scoring=ScoringSchedule(every=2, patience=2),
    )
    assert (result.chosen.round, result.rounds) == (2, 6)


def test_without_validation_samples_there_is_all_the_patience_in_the_world():
    method = Guessing(guesses=(0,) * 6)
    result = run(method, two_sites(valid=((), ())), scoring=ScoringSchedule(patience=1))
    assert result.rounds == 6


@pytest.mark.parametrize("wrong", [{"every": 0}, {"patience": -1}])
def test_scoring_that_cannot_be_is_refused_by_name(wrong):
    with pytest.raises(ConfigError, match=rf"scoring\.{next(iter(wrong))}"):
        ScoringSchedule(**wrong)


def test_the_whole_test_set_is_tried_for_the_chosen_and_the_last_round_only(tmp_path):
    record = Record(tmp_path / "one", {"method": "guessing"})
    result = run(Guessing(guesses=(1, 0, 2)), two_sites(), record=record)
    assert result.accuracy["global_test"] == 2 / 5
    assert result.last.scores.accuracy["global_test"] == 1 / 5
    text = (tmp_path / "one" / "scores.jsonl").read_text(encoding="utf-8")
    said = [json.loads(line) for line in text.splitlines()]
    found = [
        (line["round"], line["summary"]["accuracy"]["global_test"])
        for line in said
        if "summary" in line
    ]
    assert found == [(1, None), (2, None), (3, None), (1, 2 / 5), (3, 1 / 5)]


def test_the_whole_test_set_may_be_left_out():
    result = run(Guessing(guesses=(1, 0)), two_sites(), metrics=Metrics(global_test=False))
    assert math.isnan(result.accuracy["global_test"])
    assert result.to_dict()["accuracy"]["global_test"] is None


def test_how_often_rounds_are_scored_does_not_change_a_training():
    everybody = dealt(clients=4, valid_fraction=0.2)
    method = create_method("fedavg", {"rounds": 5, "epochs": 1, "rate": 0.1})
    often, seldom = (
        run(method, everybody, scoring=ScoringSchedule(every=every)).last for every in (1, 5)
    )
    assert often.shared.theta.tobytes() == seldom.shared.theta.tobytes()
    assert often.scores.model_digest == seldom.scores.model_digest


def unlearnable(everybody):
    """The same with other labels of the validation samples: the more is learned, the worse."""

    def turned(samples):
        codes = (samples.labels.codes + 1) % 10
        return Samples(samples.features, Labels(codes, samples.labels.classes))

    members = [dataclasses.replace(s, valid=turned(s.valid)) for s in everybody.members]
    return dataclasses.replace(everybody, members=members)


@pytest.mark.parametrize("name", ["fedavg", "ditto", "scaffold"])
def test_the_models_of_the_chosen_round_are_those_of_a_run_that_ends_there(name):
    everybody = unlearnable(dealt(clients=5, valid_fraction=0.3, dirichlet=0.3))
    settings = {"rate": 0.1, "epochs": 1}
    long = run(create_method(name, {"rounds": 6, **settings}), everybody)
    assert long.chosen.round < long.last.round
    cut = run(create_method(name, {"rounds": long.chosen.round, **settings}), everybody)
    assert {n: codec.digest(m) for n, m in long.predictors.items()} == {
        n: codec.digest(m) for n, m in cut.predictors.items()
    }
    assert long.scores.accuracy == cut.last.scores.accuracy


# Reserved validation samples


@pytest.mark.parametrize("name", ["afl", "fedhip", "apfl-linear", "fed3r", "fedcgs", "local"])
def test_reserved_validation_samples_are_not_learned_from(name):
    reserved = dealt(clients=5, valid_fraction=0.3, reserve_valid=True)
    without = dataclasses.replace(
        reserved,
        members=[dataclasses.replace(s, valid=s.valid.take([])) for s in reserved.members],
    )
    used = dataclasses.replace(
        reserved,
        members=[dataclasses.replace(s, reserve_valid=False) for s in reserved.members],
    )
    one, other, third = (
        run(create_method(name), everybody) for everybody in (reserved, without, used)
    )
    assert one.shared_digest == other.shared_digest
    assert one.model_digest == other.model_digest != third.model_digest
    assert one.scores.valid.samples == sum(len(site.valid) for site in reserved.members)
    assert other.scores.valid is third.scores.valid is None


def test_gradient_methods_never_train_on_validation_samples():
    everybody = dealt(clients=3, valid_fraction=0.3)
    spoiled = dataclasses.replace(
        everybody,
        members=[
            dataclasses.replace(site, valid=site.valid.take(slice(0, 1)))
            for site in everybody.members
        ],
    )
    method = create_method("fedavg", {"rounds": 2, "rate": 0.1})
    one, other = (run(method, some).last.scores.model_digest for some in (everybody, spoiled))
    assert one == other


# Work


def test_the_work_of_afl_is_that_of_one_gram_matrix_and_one_solve():
    everybody = dealt(clients=4)
    result = run(create_method("afl"), everybody)
    width, classes = 65, 10
    samples = sum(len(site.train) for site in everybody.members)
    sums = samples * (width * (width + 1) + 2 * width * classes)
    solve = width**3 // 3 + 2 * width**2 * classes
    assert result.scores.flops == result.to_dict()["flops"] == sums + solve


@pytest.mark.parametrize("hidden", [0, 8])
@pytest.mark.parametrize("workers", [1, 3])
def test_the_work_of_fedavg_is_that_of_its_products(hidden, workers):
    everybody = dealt(clients=2)  # with more samples than features
    method = create_method("fedavg", {"rounds": 3, "epochs": 2, "rate": 0.1, "hidden": hidden})
    result = run(method, everybody, workers=workers)
    width, classes = 65, 10
    samples = sum(len(site.train) for site in everybody.members)
    forward_and_back = 2 * 2 * width * classes
    if hidden:
        # up: features, head; down: head, its input, features
        forward_and_back = 2 * 2 * width * hidden + 2 * 3 * (hidden + 1) * classes
        forward_and_back -= 2 * classes  # the constant passes nothing down
    assert result.scores.flops == 3 * 2 * samples * forward_and_back
    assert (
        sum(ask.flops for ask in result.record.exchanges if ask.phase == "train")
        == result.scores.flops
    )


def test_the_work_of_pilots_counts():
    everybody = dealt(clients=4)
    settings = {"rounds": 1, "epochs": 1, "pilot": 1}
    searched, given = (
        run(create_method("fedavg", {**settings, **rate}), everybody).scores.flops
        for rate in ({}, {"rate": 0.1})
    )
    assert searched > 3 * given


# Records


@pytest.fixture
def recorded(tmp_path):
    everybody = dealt(clients=5, valid_fraction=0.3, dirichlet=0.3, holdout_clients=1)
    method = create_method("fedavg", {"rounds": 6, "rate": 3.0, "epochs": 1, "batch": 8})
    folder = tmp_path / "fedavg"
    record = Record(folder, {"method": "fedavg", "parameters": {}, "config": {}})
    return run(method, everybody, name="fedavg", record=record, dropout=0.3), folder


def test_a_record_tells_what_the_result_does(recorded):
    result, folder = recorded
    (found,) = read_runs([folder])
    assert 1 <= result.chosen.round < result.rounds == 6
    assert (found.chosen.round, found.last.round) == (result.chosen.round, result.rounds)
    assert found == replace(result.record, parameters={})  # which the fixture does not record
    assert found.finished


def test_a_curve_has_a_point_for_every_round(recorded):
    result, folder = recorded
    curve = read_runs([folder])[0].to_dict()["curve"]
    assert [point["round"] for point in curve] == [1, 2, 3, 4, 5, 6]
    assert max(point["valid"] for point in curve) == result.scores.validity
    for key in ("seconds", "flops"):
        values = [point[key] for point in curve]
        assert values == sorted(values)
    up = [point["bytes"]["up"] for point in curve]
    assert up == sorted(set(up))
    assert curve[-1]["accuracy"] == result.last.scores.accuracy["client_mean"]


@pytest.mark.parametrize("finished", [1, 2, 4])
def test_an_interrupted_record_reads_as_far_as_it_came(recorded, finished):
    result, folder = recorded
    path = folder / "scores.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    per_round = 1 + len(result.scores.rows)
    path.write_text("".join(lines[: finished * per_round + 2]), encoding="utf-8")
    (folder / "exchanges.jsonl").unlink()
    (found,) = read_runs([folder])
    assert (found.last.round, found.finished) == (finished, False)
    curve = {one.round: one.summary.valid for one in found.rounds}
    best = max(curve.values())
    assert found.chosen.round == min(number for number, valid in curve.items() if valid == best)


# Sites


def test_sites_hold_every_sample_once():
    everybody = dealt(clients=6, holdout_clients=2)
    data, grid = load_dataset("digits"), Grid()
    held = np.concatenate(
        [
            part.features.values
            for site in (*everybody.members, *everybody.holdout)
            for part in (site.train, site.valid, site.test)
        ]
    )
    expected = grid(data.x).values
    assert sorted(map(bytes, held)) == sorted(map(bytes, expected))


def test_the_whole_test_set_is_the_same_whatever_the_partition():
    one, other = dealt(clients=3).test, dealt(clients=17, partition="shards").test
    assert sorted(map(bytes, one.features.values)) == sorted(map(bytes, other.features.values))


def test_validation_samples_are_learned_from_by_closed_forms():
    rows, labels = Grid()(np.eye(4)), Labels(np.arange(4) % 2, ("a", "b"))
    whole = Samples(rows, labels)
    nothing = whole.take([])
    parts = [(whole, nothing), (whole.take([0, 1]), whole.take([2, 3]))]
    found = set()
    for train, valid in parts:
        alone = Site(id="a", train=train, valid=valid, test=whole)
        everybody = FederatedDataset(members=[alone], holdout=[], test=whole)
        found.add(run(create_method("afl"), everybody).model_digest)
    assert len(found) == 1
