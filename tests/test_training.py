"""Rounds of training: settings, whom to ask, and the climb to a rate on validation samples."""

import dataclasses
import itertools
from dataclasses import dataclass, field

import numpy as np
import pytest

from fedgram import Client, Features, InProcess, Labels, Samples, Site, Space, codec, training
from fedgram.checks.federations import dealt, poisoned
from fedgram.errors import ConfigError, DataError, SolveError
from fedgram.experiment.runner import run
from fedgram.methods.ditto import Ditto
from fedgram.methods.fedavg import FedAvg
from fedgram.stats import Tally
from fedgram.training import Model, grid_rate, keep, recalled

SHORT = {"rounds": 2, "epochs": 1, "batch": 0, "pilot": 2}


def fitted(method, sites, **engine):
    """The last shared model of a training from empty state, and the engine."""
    federation = InProcess([dataclasses.replace(site, state={}) for site in sites], **engine)
    *_, model = method.fit(federation)
    return model, federation


@pytest.fixture(scope="module")
def sites(gridded, dealt):
    """Four clients of 4, 8, 12 and 16 samples, without validation samples."""
    return dealt(gridded(40, 6, 3), np.repeat(np.arange(4), (4, 8, 12, 16)))


# Settings


@pytest.mark.parametrize(
    "wrong",
    [
        {"rounds": 0},
        {"epochs": 0},
        {"pilot": 0},
        {"batch": -1},
        {"hidden": -1},
        {"participation": 0.0},
        {"participation": 1.1},
        {"rate": 0.0},
        {"rate": -1.0},
        {"rate": float("nan")},
    ],
)
def test_settings_that_cannot_be_are_refused_by_name(wrong):
    with pytest.raises(ConfigError, match=rf"^{next(iter(wrong))} = "):
        FedAvg(**wrong)


def test_the_grid_of_rates_goes_up_by_about_three():
    rates = [grid_rate(place) for place in range(-8, 7)]
    assert rates[8] == 0.1
    assert all(2.99 < high / low < 3.34 for low, high in itertools.pairwise(rates))


def test_every_round_is_yielded_and_numbered(sites):
    federation = InProcess(sites)
    models = list(FedAvg(rate=0.1, **SHORT).fit(federation))
    assert [model.round for model in models] == [1, 2]
    assert [ask.step for ask in federation.asks] == ["opening", "update", "update"]


def test_a_client_without_training_samples_is_refused_by_name(sites):
    empty = dataclasses.replace(sites[2], train=sites[2].train.take([]))
    with pytest.raises(DataError, match="client client 002: there are no training samples"):
        fitted(FedAvg(rate=0.1, **SHORT), [*sites[:2], empty])


@pytest.mark.parametrize("precision", ["single", "double"])
@pytest.mark.parametrize("hidden", [0, 4])
def test_a_model_survives_the_journey_through_bytes(sites, precision, hidden):
    model, _ = fitted(FedAvg(rate=0.1, precision=precision, hidden=hidden, **SHORT), sites)
    again = codec.decode(codec.encode(model))
    assert isinstance(again, Model)
    assert codec.digest(again) == codec.digest(model)
    assert again.theta.dtype == {"single": np.float32, "double": np.float64}[precision]


# Whom to ask


def asked(method, sites, seed, rounds=6):
    federation = InProcess(sites, seed=seed)
    found = []
    for _ in range(rounds):
        found.append(tuple(method.asked(federation) or federation.clients))
        list(federation.gather(lambda client, _: client.id, clients=found[-1]))
    assert [ask.clients for ask in federation.asks] == [len(some) for some in found]
    return found


@pytest.mark.parametrize(("share", "count"), [(1.0, 4), (0.5, 2), (0.3, 1), (0.01, 1), (0.9, 4)])
def test_a_share_of_the_clients_is_asked_and_at_least_one(sites, share, count):
    for some in asked(FedAvg(participation=share), sites, seed=0):
        assert len(some) == len(set(some)) == count
        assert list(some) == sorted(some)


def test_who_is_asked_changes_from_round_to_round_and_comes_from_the_seed(sites):
    method = FedAvg(participation=0.5)
    first = asked(method, sites, seed=1)
    assert len(set(first)) > 1
    assert first == asked(method, sites, seed=1)
    assert first != asked(method, sites, seed=2)


def test_only_those_who_are_asked_are_trained(sites):
    model, federation = fitted(FedAvg(participation=0.5, rate=0.1, **SHORT), sites, seed=3)
    assert [ask.clients for ask in federation.asks] == [4, 2, 2]
    assert np.any(model.theta)


# The climb to a rate, on planted scores


@dataclass(frozen=True, kw_only=True)
class Planted(FedAvg):
    """Trains nothing: the score of a rate is given, None where it diverges."""

    scores: dict = field(default_factory=dict)
    tried: list = field(default_factory=list)

    def train(self, federation, model, rounds):
        if model.pilot:
            self.tried.append(model)
            if self.scores[model.rate] is None:
                raise SolveError("diverged")
        yield model

    def judge(self, client, model):
        right = round(1000 * self.scores[model.rate])
        truth = Labels(np.zeros(1000, np.int64), ("only",))
        return Tally.of(np.arange(1000) >= right, truth)


def climbed(scores, sites):
    method = Planted(scores=dict(zip(map(grid_rate, range(-7, 8)), scores, strict=True)))
    model, _ = fitted(method, sites)
    assert [pilot.attempt for pilot in method.tried] == list(range(len(method.tried)))
    assert model.attempt == len(method.tried) <= training.MOST_PILOTS
    assert not model.pilot
    return model.rate, len(method.tried)


def hill(top, *, floor=0.1):
    return [max(floor, 0.9 - 0.1 * abs(place - top)) for place in range(-7, 8)]


@pytest.mark.parametrize("top", range(-5, 6))
def test_the_top_of_a_hill_is_found(sites, top):
    assert climbed(hill(top), sites)[0] == grid_rate(top)


def test_of_equal_rates_the_first_is_kept(sites):
    assert climbed([0.5] * 15, sites) == (0.1, 3)


def test_a_rate_that_diverges_is_left_behind(sites):
    assert climbed([0.5] * 9 + [None] * 6, sites)[0] == 0.1  # from 0.3 on
    assert climbed([0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8] + [None] * 8, sites)[0] == 0.03


@pytest.mark.parametrize("first", range(1, 6))
def test_where_the_first_rates_diverge_the_climb_goes_down_to_one_that_does_not(sites, first):
    """Also where several in a row do, which are all equally bad."""
    scores = [0.5] * (8 - first) + [None] * (7 + first)
    assert climbed(scores, sites)[0] == grid_rate(-first)


# The climb, on real samples


def two_signals(told_by):
    """Two clients whose labels show strongly in one feature and weakly in another.

    In training the strong one is wrong now and then. In validation only one of the two tells the
    label and the other says the opposite, so loudly that the one is believed by more and more
    samples the more, or the less, training has learned of the weak signal.
    """
    space = Space(width=3, unit=1 / 16, bound=127)

    def drawn(strong, weak):
        codes = np.arange(len(strong)) % 2
        values = np.stack([strong, weak, np.full(len(strong), 16.0)], axis=1)
        values[:, :2] *= (2 * codes - 1)[:, None]
        features = Features(np.rint(values).astype(np.int8), space)
        return Samples(features, Labels(codes, ("no", "yes")))

    train = drawn(np.tile([32, 32, 32, 32, -32], 16), np.full(80, 4.0))
    loud = np.repeat(np.geomspace(1, 64, 20), 2)
    valid = drawn(8 * np.ones(40), -loud) if told_by == "strong" else drawn(-loud, 8 * np.ones(40))
    return [
        Site(
            id=f"c{half}",
            train=train.take(slice(40 * half, 40 * half + 40)),
            valid=valid.take(slice(half, None, 2)),
            test=valid.take([]),
        )
        for half in (0, 1)
    ]


def accuracy_at(rate, sites, rounds):
    model, _ = fitted(FedAvg(rate=rate, rounds=rounds, epochs=1, batch=0), sites)
    right = [
        (model.network(site.valid.features).argmax(axis=1) == site.valid.labels.codes).sum()
        for site in sites
    ]
    return sum(right) / sum(len(site.valid) for site in sites)


@pytest.mark.parametrize("told_by", ["strong", "weak"])
def test_the_rate_is_the_best_on_validation_samples(told_by):
    sites, pilot = two_signals(told_by), 12
    model, _ = fitted(FedAvg(rounds=1, epochs=1, batch=0, pilot=pilot), sites)
    scores = {place: accuracy_at(grid_rate(place), sites, pilot) for place in range(-4, 6)}
    chosen = next(place for place in scores if grid_rate(place) == model.rate)
    assert scores[chosen] >= max(scores[chosen - 1], scores[chosen + 1])
    # The strong signal is learned at once; the weak one only by large steps.
    if told_by == "strong":
        assert chosen < 0 < scores[chosen] - scores[0]
    else:
        assert chosen > 0 < scores[chosen] - scores[0]


def test_test_samples_have_no_say_in_the_rate():
    honest = dealt(clients=4, valid_fraction=0.2)
    method = FedAvg(rounds=1, epochs=1, pilot=1)
    one, other = (run(method, everybody) for everybody in (honest, poisoned(honest)))
    assert one.shared.rate == other.shared.rate
    assert one.model_digest == other.model_digest


@dataclass(frozen=True, kw_only=True)
class Watched(FedAvg):
    """Notes which samples were trained on and judged by."""

    seen: list = field(default_factory=list)

    def update(self, client, model):
        rows = self.rows(client, model)
        self.seen.append((model.pilot, client.id, "train", {row.tobytes() for row in rows.values}))
        return super().update(client, model)

    def judge(self, client, model):
        _, samples = training._parts(client, model)
        values = samples.features.values.astype(np.float32)
        self.seen.append((model.pilot, client.id, "judge", {row.tobytes() for row in values}))
        return super().judge(client, model)


def watched(sites):
    method = Watched(rounds=1, epochs=1, pilot=1)
    fitted(method, sites)
    for site in sites:
        own = [(pilot, what, rows) for pilot, name, what, rows in method.seen if name == site.id]
        whole = {row.tobytes() for row in site.train.features.values.astype(np.float32)}
        yield site, whole, own


def test_without_validation_samples_a_tenth_of_the_training_samples_judges_and_then_trains(sites):
    for site, whole, seen in watched(sites):
        judged = {frozenset(rows) for pilot, what, rows in seen if what == "judge"}
        tried = {frozenset(rows) for pilot, what, rows in seen if what == "train" and pilot}
        ((tenth,), (rest,)) = judged, tried  # the same in every pilot
        assert len(tenth) == round(0.1 * len(site.train))
        assert not tenth & rest
        assert tenth | rest == whole
        (last,) = (rows for pilot, what, rows in seen if not pilot)
        assert last == whole


def test_with_validation_samples_pilots_train_on_all_training_samples():
    sites = two_signals("strong")
    for site, whole, seen in watched(sites):
        valid = {row.tobytes() for row in site.valid.features.values.astype(np.float32)}
        for _, what, rows in seen:
            assert rows == (whole if what == "train" else valid)


def test_a_client_of_one_sample_trains_on_it_in_pilots_too(sites):
    lone = dataclasses.replace(sites[0], train=sites[0].train.take([0]))
    model, _ = fitted(FedAvg(**SHORT), [lone])
    assert np.any(model.theta)
    assert model.rate == 0.1  # nothing to judge by


# Divergence


def test_a_rate_that_is_too_large_is_an_error_that_says_what_to_do(sites):
    with pytest.raises(SolveError, match=r"diverged at 4 clients; use a smaller rate"):
        fitted(FedAvg(rate=1e6, hidden=4, **SHORT), sites)


def test_a_personal_model_that_diverges_is_an_error_though_the_shared_one_does_not(sites):
    settings = {"rate": 1.0, "rounds": 60, "epochs": 1, "batch": 0}
    fitted(FedAvg(**settings), sites)
    with pytest.raises(SolveError, match="diverged at 4 clients"):
        fitted(Ditto(strength=3.0, **settings), sites)


def test_pilots_survive_rates_that_diverge(sites, monkeypatch):
    """On a grid that begins far too high, the climb goes down to where training works."""
    monkeypatch.setattr(training, "grid_rate", lambda place: 1e6 * 10.0**place)
    model, _ = fitted(FedAvg(hidden=4, **SHORT), sites)
    assert model.rate < 1e5
    assert model.attempt > 3


def test_where_every_rate_diverges_the_training_says_so(sites, monkeypatch):
    monkeypatch.setattr(training, "grid_rate", lambda place: 1e30)
    with pytest.raises(SolveError, match="diverged"):
        fitted(FedAvg(hidden=4, **SHORT), sites)


# State


def test_what_is_kept_is_recalled_in_the_same_training_only(sites):
    model, _ = fitted(FedAvg(rate=0.1, **SHORT), sites)
    client = Client(id="a", train=sites[0].train, valid=sites[0].valid)
    assert recalled(client, model) == {}
    keep(client, model, mine=1)
    assert recalled(client, model)["mine"] == 1
    later = dataclasses.replace(model, attempt=model.attempt + 1)
    assert recalled(client, later) == {}
    keep(client, later, other=2)
    assert "mine" not in client.state


@pytest.mark.parametrize("strength", [0.0, 0.5])
def test_pilots_leave_nothing_behind(sites, strength):
    """With whole batches chance does not matter: a training after pilots is one without."""
    settings = {"strength": strength, "precision": "double", **SHORT}
    searched, engine = fitted(Ditto(**settings), sites)
    given, other = fitted(Ditto(rate=searched.rate, **settings), sites)
    assert searched.attempt > given.attempt == 0
    np.testing.assert_allclose(searched.theta, given.theta, rtol=0, atol=1e-12)

    def state(_, client, shared):
        return dict(client.state)

    for (_, one), (_, two) in zip(
        engine.evaluate(state, None), other.evaluate(state, None), strict=True
    ):
        assert one.pop("attempt") == searched.attempt
        assert two.pop("attempt") == 0
        assert set(one) == set(two) == {"personal"}
        np.testing.assert_allclose(one["personal"], two["personal"], rtol=0, atol=1e-12)


def test_scoring_changes_nothing_in_training(sites):
    """However often models are scored in between, the same randomness is drawn."""
    method = FedAvg(rate=0.1, rounds=3, epochs=1, batch=3)
    expected, _ = fitted(method, sites)
    federation = InProcess([dataclasses.replace(site, state={}) for site in sites])
    for model in method.fit(federation):
        for _ in range(2):
            list(federation.evaluate(lambda site, client, part: client.rng.random(), model))
    assert model.theta.tobytes() == expected.theta.tobytes()
