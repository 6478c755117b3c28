"""Rounds of training: settings, whom to ask, and the search for a rate by validation loss."""

import dataclasses
import itertools
import json
from dataclasses import dataclass, field

import numpy as np
import pytest

from fedgram import Client, Features, InProcess, Labels, Samples, Site, Space
from fedgram.checks.federations import partitioned, with_random_test_data
from fedgram.core import codec
from fedgram.errors import ConfigError, DataError, SolveError
from fedgram.experiments.runner import run
from fedgram.methods.ditto import Ditto
from fedgram.methods.fedavg import FedAvg
from fedgram.methods.scaffold import Scaffold
from fedgram.training import loop, pilots
from fedgram.training.loop import RoundModel, load_state, save_state
from fedgram.training.pilots import Loss, Pilot, rate_at

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
    rates = [rate_at(place) for place in range(-8, 7)]
    assert rates[8] == 0.1
    assert all(2.99 < high / low < 3.34 for low, high in itertools.pairwise(rates))


def test_every_round_is_yielded_and_numbered(sites):
    federation = InProcess(sites)
    models = list(FedAvg(rate=0.1, **SHORT).fit(federation))
    assert [model.round for model in models] == [1, 2]
    assert [ask.step for ask in federation.asks] == ["opening", "update", "update"]


@pytest.mark.parametrize(("precision", "each"), [("single", 4), ("double", 8)])
@pytest.mark.parametrize("method", [FedAvg, Scaffold])
def test_bytes_are_those_of_the_floats_that_are_averaged(gridded, dealt, method, precision, each):
    """Also of large clients, whose integers take more. SCAFFOLD sends two vectors."""
    vectors = {FedAvg: 1, Scaffold: 2}[method]
    sites = dealt(gridded(3000, 400, 5), np.repeat(np.arange(2), 1500))
    model, federation = fitted(method(rate=0.1, precision=precision, **SHORT), sites)
    asks = [ask for ask in federation.asks if ask.step != "opening"]
    assert len(asks) == 2
    for ask in asks:
        needed = each * model.shape.size * vectors * len(sites)
        assert needed <= ask.bytes_up < needed + 1500 * len(sites)


def test_a_client_without_training_samples_is_refused_by_name(sites):
    empty = dataclasses.replace(sites[2], train=sites[2].train.take([]))
    with pytest.raises(DataError, match="client client 002: no training samples"):
        fitted(FedAvg(rate=0.1, **SHORT), [*sites[:2], empty])


@pytest.mark.parametrize("precision", ["single", "double"])
@pytest.mark.parametrize("hidden", [0, 4])
def test_a_model_survives_the_journey_through_bytes(sites, precision, hidden):
    model, _ = fitted(FedAvg(rate=0.1, precision=precision, hidden=hidden, **SHORT), sites)
    again = codec.decode(codec.encode(model))
    assert isinstance(again, RoundModel)
    assert codec.digest(again) == codec.digest(model)
    assert again.theta.dtype == {"single": np.float32, "double": np.float64}[precision]


# Whom to ask


def asked(method, sites, seed, rounds=6):
    federation = InProcess(sites, seed=seed)
    found = []
    for _ in range(rounds):
        found.append(tuple(method.participants(federation) or federation.clients))
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


# The search for a rate, on planted losses


@dataclass(frozen=True, kw_only=True)
class Planted(FedAvg):
    """Trains nothing: the losses at a rate are given, None where it diverges."""

    losses: dict = field(default_factory=dict)
    tried: list = field(default_factory=list)

    def train(self, federation, model, rounds):
        if model.pilot:
            self.tried.append(model)
            if self.losses[model.rate] is None:
                raise SolveError("diverged")
        for number in range(1, rounds + 1):
            yield dataclasses.replace(model, round=number)

    def judge(self, client, model):
        mean = self.losses[model.rate][model.round - self.pilot - 1]
        # Two halves of samples, above and below the mean; over four clients the error is 0.01.
        losses = np.repeat([mean - 0.2, mean + 0.2], 50)
        sums = [round(float(np.sum(losses**k)) * pilots.FIXED_POINT_ONE) for k in (1, 2)]
        return Loss(samples=100, total=sums[0], squares=sums[1])


def searched(curves, sites):
    """The rate chosen among losses at places -7 to 7, and the places tried in order."""
    whole = [[c] * 10 if isinstance(c, float) else c and [1.0] * (10 - len(c)) + c for c in curves]
    method = Planted(losses=dict(zip(map(rate_at, range(-7, 8)), whole, strict=True)))
    model, _ = fitted(method, sites)
    assert [pilot.trial for pilot in method.tried] == list(range(len(method.tried)))
    assert model.trial == len(method.tried) <= pilots.MOST_PILOTS
    assert not model.pilot
    assert model.rate == model.search.to_dict()["rate"]
    places = {rate_at(place): place for place in range(-7, 8)}
    return places[model.rate], [places[pilot.rate] for pilot in method.tried]


def valley(bottom, *, slope=0.1):
    return [0.5 + slope * abs(place - bottom) for place in range(-7, 8)]


@pytest.mark.parametrize("bottom", range(-5, 6))
def test_the_bottom_of_a_valley_is_found(sites, bottom):
    chosen, tried = searched(valley(bottom), sites)
    assert chosen == bottom
    assert {bottom - 1, bottom + 1} <= set(tried)  # both directions


def test_of_rates_that_are_equal_within_noise_the_smaller_is_chosen(sites):
    """The standard error is 0.01: a step of 0.004 down the valley is noise, one of 0.1 is not."""
    losses = valley(1)
    losses[7] = losses[8] + 0.004
    assert searched(losses, sites)[0] == 0
    losses[6] = losses[8] + 0.009
    assert searched(losses, sites)[0] == -1
    losses[7] = losses[8] + 0.03
    losses[6] = losses[8] + 0.05
    assert searched(losses, sites)[0] == 1


def test_a_search_without_differences_ends(sites):
    assert len(searched([0.5] * 15, sites)[1]) == pilots.MOST_PILOTS


@pytest.mark.parametrize(
    "unstable",
    [
        [0.30, 0.30, 0.31, 0.32, 0.33],  # rises
        [0.30, 0.36, 0.30, 0.36, 0.30],  # oscillates
        [0.36, 0.30, 0.30, 0.30, 0.33],  # breaks out at last
    ],
)
def test_a_rate_whose_loss_rises_is_refused_if_there_is_a_stable_one(sites, unstable):
    """Though it is far better than all others."""
    losses = valley(0)
    assert searched([*losses[:8], unstable, *losses[9:]], sites)[0] == 0
    assert searched([*losses[:7], unstable, *losses[8:]], sites)[0] in (-1, 1)
    falling = sorted(unstable, reverse=True)
    assert searched([*losses[:8], falling, *losses[9:]], sites)[0] == 1  # the same, but stable


def test_these_losses_find_rules_that_are_missing(sites, monkeypatch):
    """Planted faults: a search that refuses nothing, and one that knows no noise."""
    losses = valley(0)
    losses[8] = [0.30, 0.36, 0.30, 0.36, 0.30]
    assert searched(losses, sites)[0] == 0
    with monkeypatch.context() as fault:
        fault.setattr(Pilot, "stable", True)
        assert searched(losses, sites)[0] == 1
    losses = valley(1)
    losses[7] = losses[8] + 0.004
    assert searched(losses, sites)[0] == 0
    monkeypatch.setattr(Loss, "error", 0.0)
    assert searched(losses, sites)[0] == 1


def test_where_no_rate_is_stable_the_lowest_loss_is_chosen(sites):
    rising = [[0.0 + x, 0.1 + x, 0.2 + x, 0.3 + x, 0.4 + x] for x in valley(-3)]
    chosen, tried = searched(rising, sites)
    assert chosen == -3
    assert tried == list(range(0, -8, -1))


def test_several_rounds_count_not_only_the_last(sites):
    losses = valley(0)
    lucky = [0.9, 0.9, 0.9, 0.9, 0.2]  # the mean of the last three is 0.667
    assert searched([*losses[:8], lucky, *losses[9:]], sites)[0] == 0


def test_a_rate_that_diverges_is_left_behind(sites):
    assert searched(valley(0)[:8] + [None] * 7, sites)[0] == 0
    assert searched(valley(4)[:7] + [None] * 8, sites)[0] == -1


@pytest.mark.parametrize("first", range(1, 6))
def test_where_the_first_rates_diverge_the_search_goes_down_to_one_that_does_not(sites, first):
    """Also where several in a row do, which are all equally bad."""
    losses = valley(0)[: 8 - first] + [None] * (7 + first)
    assert searched(losses, sites)[0] == -first


def test_the_record_says_what_was_tried_and_why(sites):
    curves = {rate: [loss] * 10 for rate, loss in ((0.03, 0.6), (0.1, 0.5), (1.0, 0.9))}
    curves[0.3] = None
    model, _ = fitted(Planted(losses=curves), sites)
    plain = model.search.to_dict()
    assert plain["rate"] == 0.1
    assert plain["reason"] == "lowest validation loss of the stable rates"
    assert [p["outcome"] for p in plain["pilots"]] == ["0.600", "0.500", "diverged"]
    assert [len(p["losses"]) for p in plain["pilots"]] == [5, 5, 0]
    json.dumps(plain, allow_nan=False)
    # It stays at the server.
    assert codec.size(model) == codec.size(dataclasses.replace(model, search=None))


# Validation loss


def test_the_loss_is_the_negative_log_likelihood_of_the_softmax():
    rng = np.random.default_rng(0)
    scores, codes = rng.normal(0, 3, (50, 4)), rng.integers(0, 4, 50)
    shares = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    expected = -np.log(shares[np.arange(50), codes])
    loss = Loss.of(scores, Labels(codes, tuple("abcd")))
    assert loss.mean == pytest.approx(expected.mean(), abs=1e-6)
    assert loss.error == pytest.approx(expected.std() / np.sqrt(50), abs=1e-5)
    assert all(type(value) is int for value in (loss.samples, loss.total, loss.squares))


@pytest.mark.parametrize("score", [np.nan, np.inf, -np.inf, 1e30])
def test_no_score_breaks_the_loss(score):
    scores = np.array([[0.0, score], [score, 0.0], [score, score]])
    loss = Loss.of(scores, Labels(np.array([0, 0, 0]), ("no", "yes")))
    assert 0 <= loss.total <= 3 * pilots.MOST_LOSS * pilots.FIXED_POINT_ONE


def test_without_samples_there_is_no_loss():
    nobody = Loss.of(np.zeros((0, 2)), Labels(np.zeros(0, np.int64), ("no", "yes")))
    assert nobody == Loss.zero()
    assert np.isnan(nobody.mean)


# The search, on real samples


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


def loss_at(rate, sites, rounds):
    """The mean loss over the last three rounds, and its standard error."""
    federation = InProcess([dataclasses.replace(site, state={}) for site in sites])
    found = [
        sum(Loss.of(model.network(s.valid.features), s.valid.labels) for s in sites)
        for model in FedAvg(rate=rate, rounds=rounds, epochs=1, batch=0).fit(federation)
    ]
    return np.mean([loss.mean for loss in found[-3:]]), found[-1].error


@pytest.mark.parametrize("told_by", ["strong", "weak"])
def test_the_rate_is_the_best_on_validation_samples(told_by):
    sites, pilot = two_signals(told_by), 12
    model, _ = fitted(FedAvg(rounds=1, epochs=1, batch=0, pilot=pilot), sites)
    for done in model.search.pilots.values():
        loss, error = loss_at(done.rate, sites, pilot)
        assert (done.loss, done.error) == pytest.approx((loss, error), abs=1e-6)
    stable = [done for done in model.search.pilots.values() if done.stable]
    best = min(stable, key=lambda done: done.loss)
    within = [done.rate for done in stable if done.loss <= best.loss + best.error]
    assert model.rate == min(within)


def test_the_search_is_the_same_for_any_order_of_clients_and_number_of_workers():
    everybody, method = partitioned(clients=6).members, Ditto(rounds=1, epochs=1, pilot=3)
    expected = fitted(method, everybody)[0].search.to_dict()
    for workers in (1, 3):
        assert fitted(method, everybody[::-1], workers=workers)[0].search.to_dict() == expected


def test_the_search_works_with_secure_sums():
    pytest.importorskip("cryptography")
    everybody, method = partitioned(clients=6), Ditto(rounds=1, epochs=1, pilot=3)
    openly, securely = (run(method, everybody, threshold=t) for t in (None, 0.5))
    found = openly.to_dict()["rate_search"]
    assert len(found["pilots"]) > 1
    assert securely.to_dict()["rate_search"] == found
    assert securely.shared_digest == openly.shared_digest


def large(samples):
    """One client with features of large norm, and a fifth of its labels by chance."""
    rng = np.random.default_rng(0)
    space = Space(width=201, unit=1 / 16, bound=127)
    codes = np.arange(samples) % 2
    values = rng.normal(0, 16, (samples, 201)) + 3 * (2 * codes - 1)[:, None]
    features = Features(np.rint(values).clip(-127, 127).astype(np.int8), space)
    codes = np.where(rng.random(samples) < 0.2, rng.integers(0, 2, samples), codes)
    whole = Samples(features, Labels(codes, ("no", "yes")))
    return [Site(id="a", train=whole, valid=whole.take([]), test=whole.take([]))]


def test_a_pilot_ends_its_epochs_with_a_batch_as_small_as_in_training():
    sites = large(16 * 40 + 1)
    method, client = FedAvg(batch=40), Client(id="a", train=sites[0].train, valid=sites[0].valid)
    model, _ = fitted(FedAvg(rate=0.1, **SHORT), sites)
    train, left_out = method._train_and_valid(client, dataclasses.replace(model, pilot=True))
    assert len(train) % 40 == len(client.train) % 40 == 1
    assert len(left_out) == 80
    assert len(method._train_and_valid(client, model)[0]) == len(client.train)


def test_a_rate_with_too_large_steps_is_refused():
    """Epochs end with a batch of one sample, which moves all scores."""
    model, _ = fitted(FedAvg(rounds=1, batch=40), large(16 * 40 + 1))
    tried = {done.rate: done for done in model.search.pilots.values()}
    assert not tried[0.3].stable
    assert model.rate <= 0.01
    assert tried[model.rate].stable


def test_test_samples_have_no_say_in_the_rate():
    honest = partitioned(clients=4, valid_fraction=0.2)
    method = FedAvg(rounds=1, epochs=1, pilot=1)
    one, other = (run(method, everybody) for everybody in (honest, with_random_test_data(honest)))
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
        _, samples = self._train_and_valid(client, model)
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
    assert model.search.to_dict()["reason"] == "no held-out samples"
    json.dumps(model.search.to_dict(), allow_nan=False)


def test_a_client_of_one_sample_has_no_say_in_the_rate(sites):
    lone = dataclasses.replace(sites[0], train=sites[0].train.take([0]))
    model, _ = fitted(FedAvg(**SHORT), [lone, *sites[1:]])
    assert all(done.judged for done in model.search.pilots.values())
    client = Client(id=lone.id, train=lone.train, valid=lone.valid)
    assert FedAvg().judge(client, dataclasses.replace(model, pilot=True)) == Loss.zero()


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
    """On a grid that begins far too high, the search goes down to where training works."""
    monkeypatch.setattr(loop, "rate_at", lambda place: 1e6 * 10.0**place)
    model, _ = fitted(FedAvg(hidden=4, **SHORT), sites)
    assert model.rate < 1e5
    assert model.trial > 3


def test_where_every_rate_diverges_the_training_says_so(sites, monkeypatch):
    monkeypatch.setattr(loop, "rate_at", lambda place: 1e30)
    with pytest.raises(SolveError, match="diverged"):
        fitted(FedAvg(hidden=4, **SHORT), sites)


# State


def test_what_is_kept_is_recalled_in_the_same_training_only(sites):
    model, _ = fitted(FedAvg(rate=0.1, **SHORT), sites)
    client = Client(id="a", train=sites[0].train, valid=sites[0].valid)
    assert load_state(client, model) == {}
    save_state(client, model, mine=1)
    assert load_state(client, model)["mine"] == 1
    later = dataclasses.replace(model, trial=model.trial + 1)
    assert load_state(client, later) == {}
    save_state(client, later, other=2)
    assert "mine" not in client.state


@pytest.mark.parametrize("strength", [0.0, 0.5])
def test_pilots_leave_nothing_behind(sites, strength):
    """With whole batches chance does not matter: a training after pilots is one without."""
    settings = {"strength": strength, "precision": "double", **SHORT}
    searched, engine = fitted(Ditto(**settings), sites)
    given, other = fitted(Ditto(rate=searched.rate, **settings), sites)
    assert searched.trial > given.trial == 0
    np.testing.assert_allclose(searched.theta, given.theta, rtol=0, atol=1e-12)

    def state(_, client, shared):
        return dict(client.state)

    for (_, one), (_, two) in zip(
        engine.evaluate(state, None), other.evaluate(state, None), strict=True
    ):
        assert one.pop("trial") == searched.trial
        assert two.pop("trial") == 0
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
