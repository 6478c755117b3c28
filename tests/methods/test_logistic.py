"""Softmax regression by sums: scikit-learn's minimum, and one model for any federation."""

import itertools
import json
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from fedgram import (
    Grid,
    Labels,
    Lift,
    PartitionPlan,
    Samples,
    Site,
    Statistics,
    federate,
    load_dataset,
)
from fedgram.checks.federations import digits, federated, trainable
from fedgram.checks.federations import partitioned as digits_dealt
from fedgram.core import codec
from fedgram.core.shared import provenance
from fedgram.engines.in_process import InProcess
from fedgram.errors import ConfigError, SolveError
from fedgram.experiments.runner import run
from fedgram.methods.afl import AFL
from fedgram.methods.logistic import Logistic
from fedgram.selection.holdout import folds
from fedgram.softmax import fit
from fedgram.softmax.arithmetic import LN2, LOSS_BITS
from fedgram.softmax.fit import path_of
from fedgram.softmax.objective import between_classes
from fedgram.softmax.sums import ResidualSums, SoftmaxQuery

FINE = {"weight_bits": 30, "table_bits": 14, "residual_bits": 24}


def fitted(members, engine=InProcess, **settings):
    *_, shared = Logistic(**settings).fit(engine(members))
    return shared


def outcome(members, **settings):
    """All that must not depend on the way samples are spread."""
    shared = fitted(members, **settings)
    return provenance(shared), codec.digest(shared.shared.head.values), shared.setting["ridge"]


def loss_of(samples, values, grid=None):
    """The mean loss of integer weights in nats, from the same sums that clients send."""
    shape = (1, *values.shape)
    query = SoftmaxQuery(
        values=values.reshape(shape),
        grid=grid or Logistic()._grid(),
        space=samples.features.space,
        classes=samples.labels.classes,
        residuals=False,
    )
    return int(query.sums(samples).loss[0]) * LN2 / 2**LOSS_BITS / len(samples)


# (a) The minimum


def penalized_loss(rows, codes, weights, ridge, held):
    scores = rows @ weights
    scores -= scores.max(axis=1, keepdims=True)
    losses = np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(len(codes)), codes]
    return losses.sum() + ridge / 2 * np.sum(weights[:held] ** 2)


def reference(samples, ridge, constant):
    """The minimum by scikit-learn, as weights of all features in real units."""
    rows = samples.features.real()
    model = LogisticRegression(C=1 / ridge, fit_intercept=not constant, tol=1e-10, max_iter=10_000)
    model.fit(rows if constant else rows[:, :-1], samples.labels.codes)
    if constant:
        return model.coef_.T
    return np.vstack([model.coef_.T, model.intercept_ / rows[0, -1]])


def centred(weights):
    """Adding a column to all columns changes no probability."""
    return weights - weights.mean(axis=1, keepdims=True)


@pytest.mark.parametrize("constant", [True, False], ids=["held", "free"])
@pytest.mark.parametrize("name", ["clusters", pytest.param("digits", marks=pytest.mark.wide)])
def test_many_exchanges_reach_the_minimum_of_scikit_learn(gridded, dealt, name, constant):
    samples = digits() if name == "digits" else gridded(600, 30, 5)
    members = dealt(samples, np.arange(len(samples)) % 3)
    shared = fitted(members, exchanges=80, ridge=1.0, constant=constant, **FINE)
    found, best = shared.shared.head.linear().weights, reference(samples, 1.0, constant)
    rows, codes = samples.features.real(), samples.labels.codes
    held = rows.shape[1] - (not constant)
    least, reached = (penalized_loss(rows, codes, w, 1.0, held) for w in (best, found))
    assert abs(reached / least - 1) < 1e-6
    off = np.linalg.norm(centred(found) - centred(best)) / np.linalg.norm(centred(best))
    assert off < 1e-3
    assert np.array_equal((rows @ found).argmax(axis=1), (rows @ best).argmax(axis=1))


def test_more_exchanges_come_nearer_to_the_minimum(gridded, dealt):
    samples = gridded(600, 30, 5)
    members, rows = dealt(samples, np.arange(600) % 3), samples.features.real()
    best = reference(samples, 1.0, constant=True)
    far = [
        penalized_loss(
            rows,
            samples.labels.codes,
            fitted(members, exchanges=k, ridge=1.0, constant=True, **FINE)
            .shared.head.linear()
            .weights,
            1.0,
            31,
        )
        / penalized_loss(rows, samples.labels.codes, best, 1.0, 31)
        - 1
        for k in (1, 4, 10, 30)
    ]
    assert far == sorted(far, reverse=True)
    assert far[0] > 1e5 * far[3] >= 0


def test_the_default_grids_cost_little(dealt):
    members = dealt(digits(), np.arange(len(digits())) % 3)
    coarse, fine = (
        fitted(members, exchanges=20, ridge=1.0, **bits).shared.head.linear() for bits in ({}, FINE)
    )
    rows = digits().features
    alike = coarse(rows).argmax(axis=1) == fine(rows).argmax(axis=1)
    assert alike.mean() > 0.998


# (b) Any federation


@pytest.mark.parametrize(
    "settings",
    [
        {},
        pytest.param({"ridge": 2.0}, marks=pytest.mark.wide),
        pytest.param({"exchanges": 2}, marks=pytest.mark.wide),
        {"ridge": 2.0, "lift": Lift(width=40)},
    ],
    ids=str,
)
def test_any_partition_gives_the_same_fit(settings):
    found = {
        outcome(digits_dealt(partition=partition, clients=clients).members, **settings)
        for partition, clients in [("iid", 1), ("dirichlet", 7), ("shards", 40), ("iid", 40)]
    }
    assert len(found) == 1


@pytest.fixture(scope="module")
def few():
    """Twenty digits, of which one class has one sample and two have none."""
    codes = digits().labels.codes
    some = [np.flatnonzero(codes == c)[:n] for c, n in enumerate([4, 3, 3, 1, 2, 2, 4, 1, 0, 0])]
    return digits().take(np.concatenate(some))


@pytest.mark.parametrize("settings", [{}, {"ridge": 1.0}, {"exchanges": 1}], ids=str)
def test_few_samples_and_absent_classes_give_the_same_fit(few, dealt, settings):
    assert len(few) == 20
    spreads = {
        "one client": np.zeros(20),
        "seven": np.arange(20) % 7,
        "one sample each": np.arange(20)[::-1],
        "one class each": few.labels.codes,
    }
    found = {outcome(dealt(few, owners), **settings) for owners in spreads.values()}
    assert len(found) == 1


def test_one_class_per_client_gives_the_same_fit(dealt):
    by_class = dealt(trainable(), trainable().labels.codes)
    assert outcome(by_class) == outcome(dealt(trainable(), np.zeros(len(trainable()))))


def test_one_sample_per_client_gives_the_same_fit(dealt):
    some = digits().take(slice(0, 150))
    assert outcome(dealt(some, np.arange(150))) == outcome(dealt(some, np.zeros(150)))


def test_other_samples_give_another_fit(dealt):
    one, other = digits().take(slice(0, 300)), digits().take(slice(1, 301))
    assert outcome(dealt(one, np.zeros(300))) != outcome(dealt(other, np.zeros(300)))


def test_one_class_and_one_sample_in_all_give_a_head(dealt):
    for which in ([3], np.flatnonzero(digits().labels.codes == 3)[:30]):
        some = digits().take(which)
        shared = fitted(dealt(some, np.arange(len(some))), ridge=1.0)
        scores = shared.shared.head.linear()(some.features)
        assert (scores.argmax(axis=1) == 3).all()


# (c) Any machine

KERNELS = ["Haswell", "SkylakeX", "Nehalem"]
FIT = """
import json, sys
import numpy as np
from threadpoolctl import threadpool_info
from fedgram import Grid, Labels, Samples, Site
from fedgram.core import codec
from fedgram.checks.federations import digits
from fedgram.engines.in_process import InProcess
from fedgram.core.shared import provenance
from fedgram.methods.logistic import Logistic

rng = np.random.default_rng(0)
y = rng.integers(30, size=2100)  # so many samples and weights that a tenth is held out
x = rng.normal(size=(30, 700))[y] + 2 * rng.normal(size=(2100, 700))
wide = Samples(Grid()(x), Labels(y, tuple(map(str, range(30)))))
fine = {"ridge": 1.0, "weight_bits": 30, "table_bits": 14, "residual_bits": 24}
found = {"kernels": [each["architecture"] for each in threadpool_info()]}
every = [("digits", digits()), ("wide", wide)]
for name, samples in every if "wide" in sys.argv else every[:1]:
    for settings in ({}, {"exchanges": 3}, fine):
        site = Site(id="a", train=samples, valid=samples.take([]), test=samples.take([]))
        *_, shared = Logistic(**settings).fit(InProcess([site]))
        found[f"{name} {settings}"] = {
            "fit": [codec.digest(shared.shared.head.values), provenance(shared)],
            "ties": shared.notes["near_ties"],
        }
json.dump(found, sys.stdout)
"""


def fitted_with(kernel, size):
    """Fit in a process of its own; None where this machine cannot run the kernel."""
    done = subprocess.run(
        [sys.executable, "-c", FIT, size],
        env={**os.environ, "OPENBLAS_CORETYPE": kernel, "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        assert done.returncode < 0, done.stderr  # killed for an unknown instruction
        return None
    found = json.loads(done.stdout)
    return found if set(found.pop("kernels")) == {kernel} else None


@pytest.mark.parametrize("size", ["narrow", pytest.param("wide", marks=pytest.mark.wide)])
def test_other_kernels_give_the_same_integers_or_count_a_near_tie(size):
    fits = [found for kernel in KERNELS if (found := fitted_with(kernel, size))]
    if len(fits) < 2:
        pytest.skip("this machine runs fewer than two of the kernels")
    for name in fits[0]:
        if len({tuple(each[name]["fit"]) for each in fits}) > 1:
            assert max(each[name]["ties"] for each in fits) > 0, name


# (d) No exchange at all


def test_without_exchanges_it_is_the_ridge_head_up_to_the_grid():
    members = digits_dealt(clients=5).members
    for settings in ({}, {"ridge": 7.0}, {"weight_bits": 30}, {"lift": Lift(width=40)}):
        shared = fitted(members, exchanges=0, **settings)
        head, ridge = shared.shared.head, shared.setting["ridge"]
        *_, linear = AFL(ridge=ridge, lift=head.lift).fit(InProcess(members))
        off = np.abs(head.linear().weights - linear.weights).max()
        assert off <= 0.5001 * head.grid.step(head.space)
        assert head.origin == linear.origin
        assert shared.notes["residual_sums"] == 0


# (e) Clients that drop out


class Recorded:
    """A federation that is listened to, and whose answers may be changed on the way."""

    def __init__(self, engine, change=None):
        self._engine, self._change = engine, change or (lambda query, sums: sums)
        self.queries = []

    def __getattr__(self, name):
        return getattr(self._engine, name)

    def sum(self, step, broadcast=None, *, clients=None):
        clients = self.present() if isinstance(broadcast, SoftmaxQuery) else clients
        total = self._engine.sum(step, broadcast, clients=clients)
        if not isinstance(broadcast, SoftmaxQuery):
            return total
        self.queries.append(broadcast)
        return self._change(broadcast, total)

    def present(self):
        return None


class Changing(Recorded):
    """Another client stays away from each exchange for which its number is given."""

    def __init__(self, engine, absent):
        super().__init__(engine)
        self._absent = absent

    def present(self):
        away = self._absent.get(len(self.queries))
        return [name for k, name in enumerate(self.clients) if k != away]


@pytest.mark.parametrize("settings", [{}, {"ridge": 3.0}, {"exchanges": 20, "ridge": 0.5}], ids=str)
@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.wide) for seed in range(2, 6))]
)
def test_with_clients_that_drop_out_the_loss_still_falls(settings, seed):
    everybody = digits_dealt(clients=12)
    result = run(Logistic(**settings), everybody, dropout=0.3, seed=seed)
    notes = result.shared.notes
    assert notes["restarts"] > 0
    samples = trained(everybody)
    values = result.shared.shared.head.values
    assert loss_of(samples, values) < loss_of(samples, np.zeros_like(values))
    if "ridge" in settings:
        assert result.accuracy["sample_mean"] > 0.8


def trained(everybody):
    parts = [site.train for site in everybody.members]
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def test_a_change_of_roster_asks_for_both_losses_at_once():
    engine = InProcess(digits_dealt(clients=6).members)
    away = {3: 2, 4: 2}  # one client misses an exchange and its repetition, and then is back
    changing = Changing(engine, away)
    *_, shared = Logistic(ridge=2.0, exchanges=5).fit(changing)
    queries = changing.queries
    bases = [k for k, query in enumerate(queries) if query.base.size]
    # The third step is asked for again; and so is the next, for which the client is back.
    assert bases == [4, 6]
    for k in bases:
        assert np.array_equal(queries[k].values, queries[k - 1].values)
    assert np.array_equal(queries[4].base, queries[2].values)  # what was accepted before
    assert shared.notes["restarts"] == 2


def test_who_never_changes_is_never_asked_for_a_base():
    recorded = Recorded(InProcess(digits_dealt(clients=6).members))
    *_, shared = Logistic(exchanges=5).fit(recorded)
    assert not any(query.base.size for query in recorded.queries)
    assert shared.notes["restarts"] == 0


def test_two_losses_that_are_compared_come_from_one_roster(monkeypatch):
    compared = []
    plain = fit.SoftmaxDescent._compared

    def listening(descent, values, *, residuals):
        sums, losses = plain(descent, values, residuals=residuals)
        compared.append((sums, losses, descent.values, descent.searches[0].point))
        return sums, losses

    monkeypatch.setattr(fit.SoftmaxDescent, "_compared", listening)
    members = digits_dealt(clients=6).members
    rng = np.random.default_rng(0)
    absent = {k: int(rng.integers(0, 9)) for k in range(1, 40)}
    *_, _ = Logistic(ridge=2.0, exchanges=10).fit(Changing(InProcess(members), absent))
    parts = [site.train for site in sorted(members, key=lambda site: site.id)]
    rosters = {}
    for away in range(9):
        some = [part for k, part in enumerate(parts) if k != away]
        whole = some[0]
        for part in some[1:]:
            whole = whole + part
        query = SoftmaxQuery(
            values=np.zeros((1, 65, 10), np.int64),
            grid=Logistic()._grid(),
            space=whole.features.space,
            classes=whole.labels.classes,
            residuals=False,
        )
        rosters[int(query.sums(whole).fingerprint[0])] = whole, query
    assert len(compared) > 8
    for sums, losses, values, _ in compared:
        whole, query = rosters[int(sums.fingerprint[0])]
        assert replace(query, values=values).sums(whole).loss.tolist() == list(losses)


def test_a_search_forgets_what_other_samples_taught_it(monkeypatch):
    seen = []
    plain = fit.SoftmaxDescent.step

    def listening(descent, ridge):
        sums = plain(descent, ridge)
        seen.append((int(sums.fingerprint[0]), len(descent.searches[0].pairs)))
        return sums

    monkeypatch.setattr(fit.SoftmaxDescent, "step", listening)
    # Five steps of everybody, then one client is gone for good.
    away = dict.fromkeys(range(6, 40), 2)
    changing = Changing(InProcess(digits_dealt(clients=6).members), away)
    *_, shared = Logistic(ridge=2.0, exchanges=8).fit(changing)
    assert [pairs for _, pairs in seen] == [1, 2, 3, 4, 5, 0, 1, 2]
    assert shared.notes["restarts"] == 1


# (f) Steps that raise the loss


def raised(wanted):
    """Report a higher loss in the exchanges for which `wanted` is true."""

    def change(query, sums):
        return replace(sums, loss=sums.loss + 2**50) if wanted(query) else sums

    return change


def test_a_last_step_that_raises_the_loss_is_not_taken():
    members = digits_dealt(clients=4).members
    recorded = Recorded(InProcess(members), raised(lambda query: not query.residuals))
    *_, shared = Logistic(ridge=2.0, exchanges=4).fit(recorded)
    last = [query.values[0] for query in recorded.queries if not query.residuals]
    accepted = [query.values[0] for query in recorded.queries if query.residuals]
    found = shared.shared.head.values
    assert len(last) == 2  # tried twice, the second time shorter
    assert not any(np.array_equal(found, each) for each in last)
    assert np.array_equal(found, accepted[-1])


def test_steps_that_raise_the_loss_get_shorter_and_never_reach_the_model():
    members = digits_dealt(clients=4).members
    recorded = Recorded(InProcess(members), raised(lambda query: query.values.any()))
    *_, shared = Logistic(ridge=2.0, exchanges=6).fit(recorded)
    assert not shared.shared.head.values.any()
    sizes = [np.abs(q.values).max() for q in recorded.queries if q.values.any()]
    assert all(after < before for before, after in itertools.pairwise(sizes))


def test_a_step_that_raises_the_loss_once_is_made_up_for():
    members, seen = digits_dealt(clients=4).members, []

    def third(query):
        seen.append(query)
        return len(seen) == 3

    recorded = Recorded(InProcess(members), raised(third))
    *_, shared = Logistic(ridge=2.0, exchanges=8).fit(recorded)
    samples = trained(digits_dealt(clients=4))
    plain = fitted(members, ridge=2.0, exchanges=8)
    ours, theirs = (
        loss_of(samples, each.shared.head.values) for each in (shared, plain)
    )  # fmt: skip
    assert abs(ours - theirs) < 0.05 * theirs


def test_every_accepted_step_lowers_the_penalized_loss(monkeypatch):
    values = []
    plain = fit.SoftmaxDescent.step

    def listening(descent, ridge):
        sums = plain(descent, ridge)
        (search,) = descent.searches
        values.append(search.objective.value(search.point, ridge))
        return sums

    monkeypatch.setattr(fit.SoftmaxDescent, "step", listening)
    fitted(digits_dealt(clients=3).members, ridge=0.05, exchanges=25)
    assert len(values) == 25
    assert all(after <= before for before, after in itertools.pairwise(values))
    assert values[-1] < 0.5 * values[0]


# (g) Late and tiny clients, and the class prior


@pytest.mark.parametrize("prior", [False, True])
def test_late_tiny_and_one_sided_clients_get_a_model(prior):
    everything, codes = trainable(), trainable().labels.codes
    parts = {
        "one-sample": everything.take([0]),
        "one-class": everything.take(np.flatnonzero(codes == 3)[:9]),
        "most": everything.take(np.flatnonzero(codes != 9)[10:]),
        "late": everything.take(slice(5, None, 40)),
        "late-sample": everything.take([7]),
    }
    result = run(Logistic(prior=prior), federated(parts, holdout=["late", "late-sample"]))
    for client in parts:
        scores = result.predictors[client](everything.features)
        assert scores.shape == (len(everything), 10)
        assert np.isfinite(scores).all()
    assert result.holdout.tally.clients == 2
    alone = [name for name in parts if not name.startswith("late")]
    without = run(Logistic(prior=prior), federated({name: parts[name] for name in alone}))
    assert result.shared_digest == without.shared_digest


def test_the_class_prior_helps_one_sided_clients():
    everybody = federate(
        load_dataset("digits"),
        PartitionPlan(clients=10, partition="shards", split="within-client", minimum=10),
    )
    plain, personal = (run(Logistic(prior=prior), everybody) for prior in (False, True))
    assert personal.accuracy["sample_mean"] >= plain.accuracy["sample_mean"]
    assert personal.shared.shared.pseudo_count < 100
    assert not personal.shared.invariant


# (h) Settings


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"exchanges": -1}, r"exchanges: expected 0 or more, got -1"),
        ({"ridge": 0.0}, r"ridge: expected a number > 0 or 'auto', got 0\.0"),
        ({"ridge": -1.0}, r"ridge: expected a number > 0 or 'auto', got -1\.0"),
        ({"ridge": float("nan")}, r"ridge: expected .*, got nan"),
        ({"ridge": float("inf")}, r"ridge: expected .*, got inf"),
        ({"prior": True, "exchanges": 0}, r"prior: .* expected exchanges of 1 or more, got 0"),
        ({"weight_bits": 7}, r"weights: expected 8 to 40 bits, got 7"),
        ({"table_bits": 15}, r"table: expected 4 to 14 bits, got 15"),
        ({"residual_bits": 31}, r"residuals: expected 4 to 30 bits, got 31"),
    ],
)
def test_bad_settings_are_refused(settings, words):
    with pytest.raises(ConfigError, match=words):
        Logistic(**settings)


def test_where_nothing_is_left_out_no_ridge_is_chosen():
    with pytest.raises(SolveError, match="set ridge to a number"):
        fit._left_out(None, 1.0, ResidualSums.zero())


def many_classes(samples=1000, width=40, classes=50, seed=0):
    """Return samples of overlapping classes."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(classes, size=samples)
    rows = rng.normal(size=(classes, width))[codes] + 2 * rng.normal(size=(samples, width))
    return Samples(Grid()(rows), Labels(codes, tuple(map(str, range(classes)))))


def asked_at_zero(samples, held_out):
    """Return a fit with a total, and the sums at zero weights without held-out samples."""
    total = Statistics.of(held_out.features, held_out.labels)
    method = Logistic()
    search = fit.SoftmaxFit.of(
        InProcess([Site(id="a", train=samples, valid=samples.take([]), test=samples.take([]))]),
        method.residuals,
        total,
        grid=method._grid(),
        exchanges=1,
        lift=Lift(),
    )
    query = replace(search.query, folds=1)
    return search, query.sums(samples)


def test_the_metric_does_not_know_the_classes_of_held_out_samples():
    samples = many_classes()
    out = np.flatnonzero(folds(samples, 1) == 0)
    changed = samples.labels.codes.copy()
    changed[out] = changed[np.roll(out, 1)]
    others = replace(samples, labels=replace(samples.labels, codes=changed))
    found = [
        search._between(1, sums)
        for search, sums in map(asked_at_zero, [samples] * 2, [samples, others])
    ]
    assert np.array_equal(*found)
    fitted = samples.take(np.flatnonzero(folds(samples, 1) < 0))
    onehot = fitted.labels.onehot()
    expected = between_classes(fitted.features.real().T @ onehot, onehot.sum(axis=0))
    assert np.abs(found[0] - expected).max() < 0.03 * np.abs(expected).max()


@pytest.mark.parametrize(
    ("settings", "number", "expected"),
    [({"exchanges": 3}, 1, [True, False, False, False]), ({"exchanges": 2}, 5, [True] * 2),
     ({"exchanges": 2, "ridge": 1.0}, 1, [True] * 2)],
    ids=["a tenth", "folds", "ridge given"],
)  # fmt: skip
def test_which_steps_leave_the_between_class_part_out(monkeypatch, settings, number, expected):
    samples, seen, kept = many_classes(samples=200, classes=5), [], fit.SoftmaxFit.metric
    monkeypatch.setattr(fit, "folds_for", lambda *_: number)

    def recorded(self, objective, share, ridge, *, first):
        seen.append(first or objective.between is None)
        return kept(self, objective, share, ridge, first=first)

    monkeypatch.setattr(fit.SoftmaxFit, "metric", recorded)
    nothing = samples.take([])
    fitted([Site(id="a", train=samples, valid=nothing, test=nothing)], **settings)
    assert seen[: len(expected)] == expected


@pytest.mark.parametrize("exchanges", range(1, 40))
def test_the_path_has_one_ridge_for_each_exchange_from_large_to_small(exchanges):
    path = path_of(exchanges)
    assert len(path) == exchanges
    assert path == sorted(path, reverse=True)


# (i) Grids and secure sums


@pytest.mark.parametrize("bits", ["off", 4, 16])
def test_other_grids_of_features_are_about_as_accurate(bits):
    plan = PartitionPlan(clients=6)
    usual, other = (
        run(Logistic(), federate(load_dataset("digits"), plan, Grid(bits=b))).accuracy[
            "sample_mean"
        ]
        for b in (8, bits)
    )
    assert usual > 0.94
    assert abs(usual - other) < 0.03


def test_secure_sums_give_the_same_digest():
    pytest.importorskip("cryptography")
    everybody = digits_dealt(clients=6)
    for settings in ({"exchanges": 3}, {"exchanges": 2, "ridge": 1.0, "prior": True}):
        plain = run(Logistic(**settings), everybody)
        secure = run(Logistic(**settings), everybody, threshold=2 / 3)
        assert secure.shared_digest == plain.shared_digest
        heads = [codec.digest(each.shared.shared.head) for each in (plain, secure)]
        assert heads[0] == heads[1]
