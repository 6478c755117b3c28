"""The runner: what is scored, counted and timed, whatever the method."""

import json
import math
from fractions import Fraction

import numpy as np
import pytest

from fedgram import codec
from fedgram.checks.laws import shortened
from fedgram.client import Site
from fedgram.data.plan import Plan
from fedgram.data.sources import load
from fedgram.errors import ConfigError
from fedgram.experiment.runner import run
from fedgram.experiment.sites import Sites, sites
from fedgram.features.grid import Grid
from fedgram.method import find, make, names
from fedgram.samples import Labels, Samples
from fedgram.stats import Statistics


def dealt(grid=None, **plan):
    return sites(load("digits"), Plan(**{"clients": 25, **plan}), grid)


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
        "global": sum(whole) / len(whole),
        "balanced": sum(Fraction(sum(h), len(h)) for h in by_class.values()) / len(by_class),
    }


@pytest.mark.parametrize("name", names())
def test_accuracies_are_those_of_a_slow_count(name, everybody):
    result = run(shortened(make(name)), everybody)
    slow = slow_accuracies(result.models, everybody.members, everybody.test)
    assert result.accuracy == pytest.approx({k: float(v) for k, v in slow.items()}, abs=1e-10)


def test_held_out_clients_are_scored_apart_and_tested_on_everybodys_samples():
    everybody = dealt(holdout_clients=6)
    result = run(make("fedhip"), everybody)
    assert len(everybody.test) == 450
    for scores, group in ((result.scores, everybody.members), (result.holdout, everybody.holdout)):
        slow = slow_accuracies(result.models, group, everybody.test)
        assert scores.accuracy == pytest.approx({k: float(v) for k, v in slow.items()}, abs=1e-10)
        assert scores.tally.clients == len(group)


def test_untested_clients_are_counted_and_left_out(everybody):
    result = run(make("afl"), everybody)
    untested = sum(not len(site.test) for site in everybody.members)
    assert untested > 0
    assert (result.scores.tally.clients, result.scores.tally.untested) == (40, untested)
    assert result.plain()["untested_clients"] == untested
    tested = [row for row in result.scores.rows if row.samples]
    assert len(tested) == 40 - untested
    mean = np.mean([row.correct / row.samples for row in tested])
    assert result.accuracy["client_mean"] == pytest.approx(mean, abs=1e-10)


@pytest.mark.parametrize("clients", [1, 9, 10, 11, 25])
def test_the_worst_decile_is_the_mean_of_the_lowest_tenth_rounded_up(clients):
    result = run(make("local"), dealt(clients=clients, partition="iid"))
    shares = sorted(row.correct / row.samples for row in result.scores.rows)
    lowest = shares[: math.ceil(clients / 10)]
    assert result.accuracy["worst_decile"] == pytest.approx(np.mean(lowest))


def test_a_private_federation_shows_no_rows_and_the_same_accuracies(everybody):
    openly, privately = (run(make("afl"), everybody, private=p) for p in (False, True))
    assert privately.scores.rows == []
    for key, value in openly.accuracy.items():
        within = 0.005 if key == "worst_decile" else 1e-12  # from a histogram of per cents
        assert privately.accuracy[key] == pytest.approx(value, abs=within)
    assert privately.model_digest == openly.model_digest


def test_rows_name_each_client_once_in_order(everybody):
    rows = run(make("apfl"), everybody).scores.rows
    assert [row.client for row in rows] == sorted(site.id for site in everybody.members)
    assert [row.samples for row in rows] == [len(site.test) for site in everybody.members]


# Counting and digests


@pytest.mark.parametrize("name", names())
def test_there_is_one_scoring_a_round_and_one_delivery_at_the_end(name, everybody):
    result = run(shortened(make(name)), everybody)
    phases = [ask.phase for ask in result.asks]
    assert phases.count("score") == result.rounds
    assert phases.count("deliver") == 1
    assert phases[-1] == "deliver"


def test_the_bytes_of_a_run_are_those_of_its_messages():
    everybody = dealt(clients=4)
    result = run(make("afl"), everybody)
    uploads = [
        len(codec.encode(Statistics.of(site.train.features, site.train.labels)))
        for site in everybody.members
    ]
    assert result.plain()["bytes"] == {
        "up": round(sum(uploads) / 4),
        "down": len(codec.encode(result.shared)),
    }


def test_nothing_shared_has_no_digest_and_costs_nothing(everybody):
    result = run(make("local"), everybody)
    assert result.shared_digest is None
    assert result.plain()["bytes"] == {"up": 0, "down": 0}


def test_other_parameters_give_another_shared_digest(everybody):
    found = {
        run(make("fedhip", settings), everybody).shared_digest
        for settings in ({}, {"ridge": 99.0}, {"alpha": 29.0}, {"lift": {"width": 8}})
    }
    assert len(found) == 4


def test_another_grid_gives_another_shared_digest():
    found = {run(make("afl"), dealt(Grid(bits=b))).shared_digest for b in (4, 8, 16, "off")}
    assert len(found) == 4


@pytest.mark.parametrize("name", ["afl", "central"])
def test_without_a_grid_partitions_agree_but_for_rounding(name):
    whole, parts = (run(make(name), dealt(Grid(bits="off"), clients=k)) for k in (1, 9))
    np.testing.assert_allclose(parts.shared.weights, whole.shared.weights, rtol=0, atol=1e-10)


def test_a_result_is_plain_json(everybody):
    plain = run(make("afl"), everybody, name="mine").plain()
    assert json.loads(json.dumps(plain)) == plain
    assert (plain["method"], plain["rounds"]) == ("mine", 1)


def test_a_federation_without_any_test_samples_gives_json_that_every_parser_reads():
    result = run(make("afl"), dealt(clients=3, test_fraction=1e-4, holdout_clients=1))
    assert result.scores.tally.untested == 2
    json.dumps(result.plain(), allow_nan=False)


# Several rounds, none, and state

ROUNDS = '''
from dataclasses import dataclass

from fedgram.heads import Linear
from fedgram.stats import Statistics


@dataclass(frozen=True, kw_only=True)
class Rounds:
    """More ridge in each round; every second ask counts a client twice."""

    rounds: int = 3

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
    return find(str(path))


def test_every_round_is_scored_and_the_last_one_counts(rounds):
    result = run(rounds(rounds=3), dealt(clients=3))
    assert [ask.phase for ask in result.asks] == ["train", "score"] * 3 + ["deliver"]
    assert result.rounds == 3
    one = run(rounds(rounds=2), dealt(clients=3))
    assert result.shared_digest != one.shared_digest
    assert {codec.digest(model) for model in result.models.values()} == {
        codec.digest(result.shared)
    }


def test_broadcasts_of_later_rounds_are_counted(rounds):
    result = run(rounds(rounds=2), dealt(clients=3))
    size = len(codec.encode(result.shared))
    down = [ask.bytes_down for ask in result.asks if ask.phase == "train"]
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
    run(make("afl"), dealt(clients=3), on_reply=lambda step, done, of: told.append((done, of)))
    assert told == [(1, 3), (2, 3), (3, 3)] * 2


# Sites


def test_sites_hold_every_sample_once():
    everybody = dealt(clients=6, holdout_clients=2)
    data, grid = load("digits"), Grid()
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
        everybody = Sites(members=[alone], holdout=[], test=whole)
        found.add(run(make("afl"), everybody).model_digest)
    assert len(found) == 1
