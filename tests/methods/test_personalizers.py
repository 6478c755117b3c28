"""Solved personalizers: the optimum of what they claim to minimize, and samples left out."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from fedgram import Features, InProcess, Lift, Samples, Statistics, create_method, run
from fedgram.checks.federations import federated, trainable
from fedgram.checks.federations import partitioned as digits_dealt
from fedgram.core import codec
from fedgram.errors import ConfigError, MismatchError
from fedgram.experiments.scores import Metrics
from fedgram.federation.shared import tuned_settings
from fedgram.methods import closed_pfedme, intercept
from fedgram.selection.class_prior import TEMPERATURES, class_counts, left_out_log_odds, log_odds
from fedgram.selection.leave_one_out import STRENGTHS

RIDGE = 3.0
LIFTS = {"plain": Lift(), "lifted": Lift(width=9, activation="tanh", seed=2)}


@pytest.fixture
def sites(gridded, dealt):
    """Return six sites of 14 features and 5 classes: of one sample, of one class, of copies."""
    samples = gridded(160, 13, 5)
    codes = samples.labels.codes
    order = np.argsort(codes, kind="stable")
    owners = np.repeat(np.arange(5), [1, 9, 20, 50, 80])
    everybody = dealt(samples.take(order), owners)
    copies = samples.take([3, 3, 3, 4, 4])
    return [*everybody, replace(everybody[0], id="copies", train=copies)]


def fitted(method, sites):
    (shared,) = method.fit(InProcess(sites))
    return shared


def personal(method, sites, shared):
    return {
        site.id: method.personalize(site.client(np.random.default_rng(0)), shared) for site in sites
    }


def arrays(sites, lift=None):
    lift = lift or Lift()
    return [(lift(s.train.features).real(), s.train.labels.onehot()) for s in sites]


def close(ours, theirs, tolerance=1e-9):
    return np.abs(ours - theirs).max() <= tolerance * max(1.0, np.abs(theirs).max())


# Objectives


@pytest.mark.parametrize("lift", LIFTS.values(), ids=LIFTS)
@pytest.mark.parametrize("strength", [1.0, 300.0])
def test_closed_pfedme_is_the_joint_minimum(sites, strength, lift):
    """The shared head and all personal ones, solved as one system of equations."""
    method = create_method(
        "closed-pfedme", {"strength": strength, "ridge": RIDGE, "lift": vars(lift)}
    )
    shared = fitted(method, sites)
    data, width = arrays(sites, lift), lift.width + 1 if lift.width else 14
    size = len(data) + 1
    system, target = np.zeros((size * width,) * 2), np.zeros((size * width, 5))
    system[:width, :width] = (RIDGE + strength * len(data)) * np.eye(width)
    for k, (rows, labels) in enumerate(data, 1):
        block = slice(k * width, (k + 1) * width)
        system[block, block] = rows.T @ rows + strength * np.eye(width)
        system[block, :width] = system[:width, block] = -strength * np.eye(width)
        target[block] = rows.T @ labels
    solution = np.linalg.solve(system, target).reshape(size, width, 5)
    assert close(shared.weights, solution[0], 1e-8)
    for own, model in zip(solution[1:], personal(method, sites, shared).values(), strict=True):
        assert close(model.weights, own, 1e-8)


def test_closed_ditto_is_the_pulled_minimum(sites):
    method = create_method("closed-ditto", {"strength": 50.0, "ridge": RIDGE})
    shared = fitted(method, sites)
    rows, labels = map(np.concatenate, zip(*arrays(sites), strict=True))
    head = np.linalg.solve(rows.T @ rows + RIDGE * np.eye(14), rows.T @ labels)
    assert close(shared.weights, head)
    models = personal(method, sites, shared)
    for (rows, labels), model in zip(arrays(sites), models.values(), strict=True):
        own = np.linalg.solve(rows.T @ rows + 50 * np.eye(14), rows.T @ labels + 50 * head)
        assert close(model.weights, own)


def test_closed_ditto_is_apfl_without_lifts():
    everybody = digits_dealt(clients=4)
    ditto = run(create_method("closed-ditto", {"strength": 300.0, "ridge": 100.0}), everybody)
    apfl = run(create_method("apfl-linear", {"balance": 1.0}), everybody)
    rows = everybody.test.features
    for client, model in ditto.predictors.items():
        assert close(model(rows), apfl.predictors[client](rows))


@pytest.mark.parametrize("rate", [0.0, 0.5, 1.0])
def test_closed_maml_is_a_minimum_after_the_step(sites, rate):
    method = create_method("closed-maml", {"rate": rate, "ridge": RIDGE})
    head = fitted(method, sites).weights
    eta = rate / 14

    def loss(weights):
        total = RIDGE / 2 * np.sum(weights**2)
        for rows, labels in arrays(sites):
            slope = rows.T @ (rows @ weights - labels) / len(rows)
            total += np.sum((rows @ (weights - eta * slope) - labels) ** 2) / 2
        return total

    rng = np.random.default_rng(0)
    for _ in range(5):
        direction = rng.normal(size=head.shape)
        slope = (loss(head + 1e-4 * direction) - loss(head - 1e-4 * direction)) / 2e-4
        bend = (loss(head + direction) - 2 * loss(head) + loss(head - direction)) / 2
        assert abs(slope) <= 1e-6 * bend
    models = personal(method, sites, fitted(method, sites))
    rows, labels = arrays(sites)[3]
    stepped = head - eta * rows.T @ (rows @ head - labels) / len(rows)
    assert close(list(models.values())[3].weights, stepped)


def test_a_step_that_goes_too_far_is_refused():
    with pytest.raises(ConfigError, match="rate"):
        create_method("closed-maml", {"rate": -1.0})
    everybody = digits_dealt(clients=3)
    with pytest.raises(Exception, match="diverged"):
        run(create_method("closed-maml", {"rate": 1e4}), everybody)


@pytest.mark.parametrize("strength", [1.0, 30.0])
def test_intercepts_are_the_joint_minimum(sites, strength):
    method = create_method("intercept", {"strength": strength, "ridge": RIDGE})
    shared = fitted(method, sites)
    data = arrays(sites)
    rows = np.concatenate([rows for rows, _ in data])
    labels = np.concatenate([labels for _, labels in data])
    owners = np.repeat(np.arange(len(data)), [len(rows) for rows, _ in data])
    wide = np.hstack([rows, np.eye(len(data))[owners]])
    penalty = np.diag([RIDGE] * 14 + [strength] * len(data))
    solution = np.linalg.solve(wide.T @ wide + penalty, wide.T @ labels)
    assert close(shared.weights, solution[:14])
    for shift, model in zip(solution[14:], personal(method, sites, shared).values(), strict=True):
        assert close(model.shift, shift)


def test_lda_is_that_of_scikit_learn():
    everybody = digits_dealt(clients=4, partition="iid")
    rows, labels = (
        np.concatenate(parts)
        for parts in zip(
            *((s.train.features.real()[:, :-1], s.train.labels.codes) for s in everybody.members),
            strict=True,
        )
    )
    varied = rows.std(axis=0) > 0.05
    theirs = LinearDiscriminantAnalysis(solver="lsqr").fit(rows[:, varied], labels)
    shared = run(create_method("lda", {"shrinkage": 1e-6}), everybody).shared
    test = everybody.test.features
    agree = shared.head(test).argmax(axis=1) == theirs.predict(test.real()[:, :-1][:, varied])
    assert agree.mean() > 0.97


def test_lda_takes_the_clients_frequencies():
    everybody = digits_dealt(clients=4)
    result = run(create_method("lda"), everybody)
    for site in everybody.members:
        own = np.bincount(site.train.labels.codes, minlength=10)
        total = sum(np.bincount(s.train.labels.codes, minlength=10) for s in everybody.members)
        smoothed = (own + total / total.sum()) / (own.sum() + 1)
        expected = np.log(smoothed / (total / total.sum()))
        assert close(result.predictors[site.id].shift, expected)


# Frequencies


def test_a_client_like_everybody_is_left_alone():
    everybody = np.array([30.0, 10.0, 60.0, 0.0])
    assert close(log_odds(everybody / 10, everybody, 1.0)[:3], np.zeros(3))


def test_odds_are_finite_whatever_is_missing():
    nobody, one = np.zeros(3), np.array([0.0, 1.0, 0.0])
    for own in (nobody, one):
        for everybody in (nobody, one):
            assert np.isfinite(log_odds(own, everybody, 0.5)).all()


def test_odds_without_a_sample_are_those_never_counted():
    codes = np.array([0, 0, 2, 1])
    own, others = np.bincount(codes, minlength=4).astype(float), np.array([5.0, 0.0, 3.0, 1.0])
    rows = left_out_log_odds(codes, own, own + others, 1.0, in_total=True)
    for i in range(len(codes)):
        rest = np.bincount(np.delete(codes, i), minlength=4).astype(float)
        assert close(rows[i], log_odds(rest, rest + others, 1.0))
    rows = left_out_log_odds(codes, own, others, 1.0, in_total=False)
    assert close(rows[1], log_odds(own - [1, 0, 0, 0], others, 1.0))


def test_counts_are_read_off_the_constant():
    samples = trainable()
    counts, constant = class_counts(Statistics.of(samples.features, samples.labels))
    assert counts.tolist() == np.bincount(samples.labels.codes).tolist()
    assert constant == samples.features.real()[0, -1]
    other = samples.features.values.copy()
    other[:, -1] = np.arange(len(other)) % 5
    broken = Samples(Features(other, samples.features.space), samples.labels)
    with pytest.raises(MismatchError, match="expected a constant"):
        class_counts(Statistics.of(broken.features, broken.labels))


# Samples left out


AUTO = {
    "prior": ({"temperature": "auto", "ridge": 5.0}, "temperature", TEMPERATURES),
    "closed-ditto": ({"strength": "auto", "ridge": 5.0}, "strength", STRENGTHS),
    "closed-pfedme": ({"strength": "auto", "ridge": 5.0}, "strength", closed_pfedme.TRIED),
    "intercept": ({"strength": "auto", "ridge": 5.0}, "strength", intercept.TRIED),
}


def without(samples, i):
    return samples.take(np.flatnonzero(np.arange(len(samples)) != i))


class Listening(InProcess):
    """A federation that keeps what client a says of samples left out."""

    def __init__(self, parts):
        super().__init__(federated(parts).members)
        self.description = []

    def sum(self, step, broadcast=None, *, clients=None):
        total = None
        for client, reply in self.gather(step, broadcast, clients=clients):
            if step.__name__ == "left_out" and client == "a":
                self.description += reply.correct[0].tolist()
            total = reply if total is None else total + reply
        return total


PARTS = {
    "few samples": (slice(0, 7), slice(7, 60)),
    "many samples": (slice(0, 80), slice(80, 100)),
    "one sample": (slice(0, 1), slice(1, 60)),
    "copies": ([3, 3, 3, 9], slice(10, 60)),
}


@pytest.mark.parametrize("name", AUTO)
def test_counts_are_those_of_refitting_the_whole_method(name):
    settings, field, grid = AUTO[name]
    everything = trainable().take(slice(0, 60))
    parts = {"a": everything.take(slice(0, 6)), "b": everything.take(slice(6, 60))}
    engine = Listening(parts)
    (shared,) = create_method(name, settings).fit(engine)
    assert len(engine.description) == len(grid)
    assert tuned_settings(shared).setting[field] in grid
    for place in range(0, len(grid), 2):
        fixed, hits = create_method(name, {**settings, field: grid[place]}), 0
        for i, code in enumerate(parts["a"].labels.codes):
            some = federated({**parts, "a": without(parts["a"], i)})
            model = run(fixed, some, metrics=Metrics(global_test=False)).predictors["a"]
            hits += model(parts["a"].take([i]).features)[0].argmax() == code
        assert engine.description[place] == hits


@pytest.mark.parametrize("strength", [1.0, 100.0])
@pytest.mark.parametrize("which", PARTS)
@pytest.mark.parametrize(
    ("name", "step"), [("closed-pfedme", "envelope"), ("intercept", "centered")]
)
def test_scores_are_those_of_refitting(name, step, which, strength):
    everything = trainable()
    mine, others = (everything.take(part) for part in PARTS[which])
    method = create_method(name, {"strength": strength, "ridge": 5.0})

    def scored(own, rows):
        engine = InProcess(federated({"a": own, "b": others}).members)
        (head,) = method.fit(engine)
        sites = federated({"a": own}).members
        return method.personalize(sites[0].client(np.random.default_rng(0)), head)(rows)

    engine = InProcess(federated({"a": mine, "b": others}).members)
    total = engine.sum(getattr(method, step), strength)
    sent = {"strength": strength, "total": total}
    found = dict(engine.gather(lambda client, sent: method.scores_left_out(client, sent), sent))[
        "a"
    ]
    expected = [scored(without(mine, i), mine.take([i]).features)[0] for i in range(len(mine))]
    assert np.abs(found - expected).max() <= 1e-9
    # Outside the sum, the shared head is out of sample already.
    (late,) = InProcess(federated({"late": mine}).members).gather(method.scores_left_out, sent)
    (head,) = method.fit(engine)
    sites = federated({"a": without(mine, 0)}).members
    model = method.personalize(sites[0].client(np.random.default_rng(0)), head)
    assert np.abs(late[1][0] - model(mine.take([0]).features)[0]).max() <= 1e-9


@pytest.mark.parametrize("name", AUTO)
def test_what_is_chosen_is_what_is_used(name):
    everybody = digits_dealt(clients=4)
    settings = AUTO[name][0]
    result = run(create_method(name, settings), everybody)
    fixed = run(
        create_method(name, {**settings, **tuned_settings(result.shared).setting}), everybody
    )
    assert result.model_digest == fixed.model_digest
    privately = run(create_method(name, settings), everybody, private=True)
    assert privately.shared_digest == result.shared_digest


@pytest.mark.parametrize("name", ["closed-pfedme", "intercept", "closed-maml"])
def test_sums_of_objectives_are_exact_under_masks(name):
    everybody = digits_dealt(clients=4)
    openly = run(create_method(name), everybody)
    securely = run(create_method(name), everybody, threshold=0.6)
    assert codec.digest(openly.shared) == codec.digest(securely.shared)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("prior", {"temperature": 0.0}),
        ("prior", {"smoothing": 0.0}),
        ("lda", {"smoothing": -1.0}),
        ("closed-ditto", {"strength": -1.0}),
        ("closed-pfedme", {"strength": 0.0}),
        ("closed-pfedme", {"ridge": 0.0}),
        ("intercept", {"strength": 0.0}),
    ],
)
def test_weights_that_are_none_are_refused(name, settings):
    (field,) = settings
    with pytest.raises(ConfigError, match=field):
        create_method(name, settings)
