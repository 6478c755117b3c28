"""Kernels, adapted projections, and any method on top of mapped features."""

import dataclasses

import numpy as np
import pytest
import scipy.linalg
from threadpoolctl import threadpool_limits

from fedgram import InProcess, Labels, Statistics, create_method
from fedgram.checks import laws
from fedgram.checks.federations import digits, federated, partitioned, trainable
from fedgram.core import codec
from fedgram.core.gcv import best_ridge
from fedgram.core.kernels.choice import VARIABLE, tried
from fedgram.core.samples import Features, Samples
from fedgram.errors import ConfigError, LawError, MismatchError
from fedgram.experiments.runner import run
from fedgram.features.chain import Chain
from fedgram.features.grid import Grid
from fedgram.features.lift import Lift
from fedgram.federation.step import step
from fedgram.methods import _held_out, kernel, projected
from fedgram.methods._held_out import judgement
from fedgram.methods._stacked import StackedModel, Top
from fedgram.methods.afl import AFL
from fedgram.methods.kernel import Kernel
from fedgram.methods.projected import Projected
from fedgram.selection.generated_points import FEWEST, generated_points
from fedgram.selection.holdout import folds
from fedgram.selection.pool import LikelihoodSums
from fedgram.selection.whitening import within_class_whitening


def fitted(method, everybody):
    *_, shared = method.fit(InProcess(everybody.members))
    return shared


def whole_of(everybody):
    return everybody.members[0].train


# Choice on held-out samples


CHOOSE = [Kernel(width=24), Kernel(width=24, features="landmarks"), Projected(lift=Lift(width=24))]


@pytest.mark.parametrize("method", CHOOSE, ids=["fourier", "landmarks", "projected"])
def test_what_is_chosen_does_not_depend_on_the_partition(method):
    found = set()
    for partition, clients in (("iid", 1), ("dirichlet", 9)):
        result = run(method, partitioned(partition=partition, clients=clients))
        found.add((result.shared_digest, result.model_digest))
    assert len(found) == 1


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        (Kernel(width=40), kernel.SCALES),
        (Projected(lift=Lift(width=40)), projected.STRENGTHS),
    ],
    ids=["kernel", "projected"],
)
def test_the_likeliest_map_of_a_plain_implementation_is_chosen(method, settings):
    """In one place: learn, fit and score each map without the held-out samples, with numpy."""
    samples = whole_of(everybody := partitioned(clients=1))
    out = folds(samples, 1) == 0
    rest, left = samples.take(np.flatnonzero(~out)), samples.take(np.flatnonzero(out))
    learned = Statistics.of(rest.features, rest.labels)
    losses = []
    for setting in settings:
        if isinstance(method, Kernel):
            chain = method._chain(samples.features.space, setting, None, 40)
        else:
            chain = method._chain(samples.features.space, learned, setting)
        x, y = chain(rest.features).real(), rest.labels.onehot()
        ridge = best_ridge(Statistics.of(chain(rest.features), rest.labels))
        head = np.linalg.solve(x.T @ x + ridge * np.eye(x.shape[1]), x.T @ y)
        scores = chain(left.features).real() @ head
        own = []
        for scale in _held_out.SCALES:
            odds = np.exp(scale * scores)
            shares = odds / odds.sum(axis=1, keepdims=True)
            own.append(-np.log(shares[np.arange(len(left)), left.labels.codes]).mean())
        losses.append(min(own))
    tuned = fitted(method, everybody)
    assert list(tuned.setting.values()) == [settings[int(np.argmin(losses))]]
    assert np.allclose(list(tuned.notes["held_out_loss"].values()), losses, atol=1e-5)


def test_held_out_samples_are_not_learned_from():
    """Other held-out samples change the losses, but nothing that the maps and heads learned."""
    everybody = partitioned(clients=3)
    method, engine = Projected(), InProcess(everybody.members)
    chain = Chain(inputs=whole_of(everybody).features.space)
    kept, every = (engine.sum(s, chain) for s in (method.kept_statistics, method.all_statistics))
    held = sum(int((folds(site.train + site.valid, 1) == 0).sum()) for site in everybody.members)
    assert 0 < held < every.count / 5
    assert kept.count == every.count - held


def test_of_equally_likely_maps_the_first_is_chosen():
    loss = np.repeat(np.array([500, 400, 400, 401]) * 2**20, 7)
    sums = LikelihoodSums(weight=1000, loss=loss, correct=np.zeros(28, np.int64))
    assert judgement(sums).best == 1
    nearly = dataclasses.replace(sums, loss=np.where(np.arange(28) // 7 == 2, loss - 5, loss))
    assert judgement(nearly).best == 1
    better = dataclasses.replace(sums, loss=np.where(np.arange(28) // 7 == 2, loss - 2**20, loss))
    assert judgement(better).best == 2


def test_a_given_setting_needs_no_choice():
    everybody = partitioned(clients=3)
    steps = [
        [ask.step for ask in run(method, everybody).record.exchanges if ask.phase == "train"]
        for method in (Kernel(width=8, scale=0.5), Kernel(width=8))
    ]
    assert steps[0] == ["opening", "above"]
    assert steps[1] == ["opening", *["kept_statistics"] * 5, "held_out", "above"]


class FirstTenth(Kernel):
    """Planted: holds out the first tenth of each client, which another partition changes."""

    @step
    def kept_statistics(self, client, chain):
        samples = client.samples
        rest = samples.take(slice(len(samples) // 10, None))
        return Statistics.of(chain(rest.features), rest.labels)


class Anew(Projected):
    """Planted: each client projects with a map of its own samples."""

    @step
    def above(self, client, ask):
        own = Statistics.of(client.samples.features, client.samples.labels)
        chain = self._chain(ask.below.inputs, own, 3.0)
        return super().above(client, dataclasses.replace(ask, below=chain))


def losses(method, **partition):
    return fitted(method, partitioned(**partition)).notes["held_out_loss"]


def test_a_choice_on_other_samples_for_another_partition_is_noticed():
    for method, alike in ((Kernel(width=24), True), (FirstTenth(width=24), False)):
        one, other = losses(method, clients=1), losses(method, partition="dirichlet", clients=9)
        assert (one == other) == alike


def test_a_map_of_each_clients_own_is_noticed():
    with pytest.raises((LawError, MismatchError)):
        laws.any_partition_gives_the_same_totals(Anew(strength=3.0))


@pytest.mark.parametrize("way", ["blas", "vnni"])
@pytest.mark.parametrize("method", CHOOSE, ids=["fourier", "landmarks", "projected"])
def test_other_ways_of_products_and_threads_give_the_same_choice_and_sums(method, way, monkeypatch):
    if tried(way).way is None:
        pytest.skip(f"{way} is not usable here")
    expected = run(method, partitioned(clients=3)).shared_digest
    monkeypatch.setenv(VARIABLE, way)
    with threadpool_limits(2, user_api="blas"):
        assert run(method, partitioned(clients=3)).shared_digest == expected


# Kernels


def test_a_fourier_kernel_is_afl_with_that_lift():
    everybody = partitioned(clients=4)
    stacked = fitted(
        Kernel(width=50, scale=0.7, seed=3, top=Top(settings={"ridge": 5.0})), everybody
    )
    lift = Lift(width=50, activation="fourier", scale=0.7, seed=3)
    (head,) = AFL(ridge=5.0, lift=lift).fit(InProcess(everybody.members))
    rows = digits().features
    assert np.allclose(stacked.shared(rows), head(rows), rtol=0, atol=1e-12)


def test_many_fourier_features_are_kernel_ridge_regression():
    """Against the dual form with the exact kernel, which no feature map approximates."""
    samples, others = digits().take(slice(100)), digits().take(slice(100, 200))
    width, ridge, scale = 2000, 200.0, 1.0
    method = Kernel(width=width, scale=scale, top=Top(settings={"ridge": ridge}))
    model = fitted(method, federated({"only": samples})).shared
    x, z = samples.features.real(), others.features.real()

    def products(a, b):
        squares = ((a[:, None] - b) ** 2).sum(axis=2)
        return width * np.exp(-(scale**2) * squares / (2 * x.shape[1])) + 1  # and the constant

    dual = np.linalg.solve(products(x, x) + ridge * np.eye(100), samples.labels.onehot())
    expected, found = products(z, x) @ dual, model(others.features)
    assert np.abs(found - expected).max() < 0.12
    assert np.abs(found - expected).mean() < 0.02
    assert (found.argmax(axis=1) == expected.argmax(axis=1)).mean() > 0.9


@pytest.mark.parametrize("features", ["fourier", "landmarks"])
def test_a_kernel_helps_on_digits(features):
    everybody = partitioned()
    better = run(Kernel(width=200, scale=1.0, features=features), everybody)
    plain = run(AFL(ridge="auto"), everybody)
    assert better.accuracy["global_test"] > plain.accuracy["global_test"] + 0.02


def labelled(codes):
    x = np.random.default_rng(0).normal(size=(len(codes), 5)) + 3 * np.eye(5)[codes]
    rows = Grid(bits=8)(x)
    return Samples(rows, Labels(codes, tuple("abcde")))


def test_points_come_from_sums_and_no_small_class_is_a_center():
    codes = np.repeat([0, 1, 2], [60, 60, FEWEST - 1])
    samples = labelled(codes)
    total = Statistics.of(samples.features, samples.labels)
    points = generated_points(total, 200, seed=1)
    x = samples.features.values[:, :-1]
    assert points.dtype == np.int8
    assert (
        np.sqrt(np.mean((points * total.space.unit) ** 2, axis=1)).round(1).tolist() == [1.0] * 200
    )
    means = np.stack([x[codes == c].mean(axis=0) for c in range(3)])
    nearest = ((points[:, None] - means) ** 2).sum(axis=2).argmin(axis=1)
    assert (nearest == 2).mean() < 0.05
    again = Statistics.of(
        samples.features.take(np.arange(len(x))[::-1]), samples.labels.take(np.arange(len(x))[::-1])
    )
    assert np.array_equal(generated_points(again, 200, seed=1), points)
    enough = labelled(np.repeat([0, 1, 2], [60, 60, 60]))
    points = generated_points(Statistics.of(enough.features, enough.labels), 200, seed=1)
    nearest = ((points[:, None] - means) ** 2).sum(axis=2).argmin(axis=1)
    assert (nearest == 2).mean() > 0.2


def test_no_point_is_a_clients_sample():
    everybody = partitioned(clients=4)
    shared = fitted(Kernel(width=300, scale=1.0, features="landmarks"), everybody)
    points = shared.shared.below.maps[0].points
    samples = {
        row.tobytes() for site in everybody.members for row in site.train.features.values[:, :-1]
    }
    assert not samples & {point.tobytes() for point in points}


# Adapted projections


def test_a_projection_whitens_within_classes():
    """Against the definition, by numpy on the samples: for any strength, and for a rank."""
    samples = whole_of(partitioned(clients=1))
    total = Statistics.of(samples.features, samples.labels)
    x, codes = samples.features.real()[:, :-1], samples.labels.codes
    means = np.stack([x[codes == c].mean(axis=0) for c in range(10)])
    inside = np.cov((x - means[codes]).T, bias=True)
    typical = np.trace(inside) / len(inside)
    for strength in (0.0, 2.0, 100.0):
        matrix = within_class_whitening(total, strength)
        z = samples.features.real() @ matrix
        assert np.allclose(z.mean(axis=0), 0, atol=1e-9)
        assert np.isclose((z**2).mean(), 1)
        values, vectors = np.linalg.eigh(np.eye(len(inside)) + strength * inside / typical)
        plain = (x - x.mean(axis=0)) @ (vectors / np.sqrt(values)) @ vectors.T
        plain *= 1 / np.sqrt((plain**2).mean())
        assert np.allclose(z, plain, rtol=1e-6, atol=1e-6)
    # With a rank: the directions of linear discriminant analysis, as a generalized eigenproblem.
    narrow = samples.features.real() @ within_class_whitening(total, 1e4, rank=9)
    shares = np.bincount(codes) / len(codes)
    between = ((means - x.mean(axis=0)).T * shares) @ (means - x.mean(axis=0))
    shrunk = inside + 1e-4 * typical * np.eye(len(inside))
    _, directions = scipy.linalg.eigh(between, shrunk)
    theirs = (x - x.mean(axis=0)) @ directions[:, -9:]
    bases = (np.linalg.qr(each)[0] for each in (narrow, theirs))
    assert np.allclose(np.linalg.svd(next(bases).T @ next(bases))[1], 1, atol=1e-6)


def test_strength_zero_is_the_method_on_top_alone():
    everybody = partitioned(clients=4)
    shared = fitted(Projected(strength=0.0, top=Top(settings={"ridge": 3.0})), everybody)
    (head,) = AFL(ridge=3.0).fit(InProcess(everybody.members))
    assert shared.shared.below.maps == ()
    assert np.array_equal(shared.shared.model.weights, head.weights)


def test_a_projection_is_found_where_classes_differ_in_quiet_directions():
    """Planted: loud noise in most directions, classes in two quiet ones; kernels need the map."""
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 4, 1500)
    quiet = np.stack([codes // 2, codes % 2], axis=1) - 0.5 + 0.2 * rng.normal(size=(1500, 2))
    x = np.hstack([quiet, 4 * rng.normal(size=(1500, 10))])
    rows = Grid(bits=12)(x)
    # A kernel with a small bandwidth sees the loud directions only.
    lift = Lift(width=200, activation="fourier", scale=2.0)
    parts = {
        str(k): Samples(rows, Labels(codes, tuple("abcd"))).take(slice(k, None, 3))
        for k in range(3)
    }
    everybody = federated(parts)
    shared = fitted(Projected(lift=lift), everybody)
    assert shared.setting["strength"] >= 3.0
    share = shared.left_out_accuracy
    assert share[f"strength {shared.setting['strength']:g}"] > share["strength 0"] + 0.05


# Any method on top


PERSONAL = (
    ("afl", {}),
    ("apfl", {"refinement_ridge": 100.0, "balance": 0.5, "refinement": {"width": 16}}),
    ("apfl-linear", {"balance": 0.5}),
    ("closed-ditto", {"strength": 30.0}),
    ("closed-maml", {}),
    ("closed-pfedme", {"strength": 30.0}),
    ("fed3r", {"only_local_labels": True}),
    ("fedcgs", {}),
    ("fedhip", {"alpha": 3.0, "ridge": 100.0}),
    ("fedncm", {}),
    ("intercept", {"strength": 3.0}),
    ("lda", {}),
    ("local", {}),
    ("logistic", {"exchanges": 1}),
    ("prior", {}),
    ("auto", {"exchanges": 1}),
)
FEW = ("apfl-linear", "fedhip", "lda")  # on every map by default; the rest is marked wide


def stacks():
    """Each method on each map."""
    for base in ("deepafl-top", "kernel", "projected"):
        for name, settings in PERSONAL:
            usual = name in FEW or (base == "deepafl-top" and name not in ("auto", "apfl"))
            marks = [] if usual else [pytest.mark.wide]
            yield pytest.param(base, name, settings, id=f"{base}-{name}", marks=marks)


def alone_on(features, top, everybody):
    """The method on top alone, in a federation whose features were mapped beforehand."""
    members = [
        dataclasses.replace(
            site,
            train=Samples(features(site.train.features), site.train.labels),
            valid=Samples(features(site.valid.features), site.valid.labels),
            state={},
        )
        for site in everybody.members
    ]
    engine = InProcess(members)
    *_, shared = top.fit(engine)
    return dict(engine.evaluate(lambda _, client, part: top.personalize(client, part), shared))


@pytest.mark.parametrize(("base", "name", "settings"), list(stacks()))
def test_what_is_on_top_is_what_it_would_be_on_mapped_features(base, name, settings):
    """To the byte; for each method, so that none needs the backbone's own features."""
    own = {
        "deepafl-top": {"blocks": 1, "width": 12},
        "kernel": {"width": 24, "scale": 1.0},
        "projected": {"strength": 3.0, "rank": 8},
    }
    everybody = partitioned(clients=3)
    method = create_method(base, {**own[base], "top": {"method": name, "settings": settings}})
    result = run(method, everybody)
    shared = result.shared
    for _ in range(3):  # what is chosen, the parts of clients, the map
        shared = getattr(shared, "shared", getattr(shared, "common", shared))
    expected = alone_on(shared.below, method.inner, everybody)
    for client, model in expected.items():
        assert isinstance(result.predictors[client], StackedModel)
        assert codec.digest(result.predictors[client].model) == codec.digest(model)


def test_what_the_method_on_top_chose_is_told():
    result = run(Kernel(width=24, top=Top(method="fedhip")), partitioned(clients=3))
    tuned = fitted(Kernel(width=24, top=Top(method="fedhip")), partitioned(clients=3)).tuned
    assert "held-out samples; alpha" in tuned.description
    assert not tuned.invariant
    assert result.shared.tuned.description == tuned.description


@pytest.mark.parametrize(
    ("kind", "wrong", "words"),
    [
        (Kernel, {"width": 0}, "width = 0"),
        (Kernel, {"scale": -1.0}, "scale = -1"),
        (Kernel, {"seed": -1}, "seed -1"),
        (Projected, {"strength": -1.0}, "strength = -1"),
        (Projected, {"rank": -1}, "rank = -1"),
    ],
)
def test_wrong_settings_are_refused(kind, wrong, words):
    with pytest.raises(ConfigError, match=words):
        kind(**wrong)


@pytest.mark.parametrize("method", CHOOSE, ids=["fourier", "landmarks", "projected"])
def test_secure_sums_give_the_same_bytes(method):
    pytest.importorskip("cryptography")
    everybody = partitioned(clients=4)
    secure, private = run(method, everybody, threshold=0.6), run(method, everybody, private=True)
    assert secure.shared_digest == private.shared_digest
    assert secure.model_digest == private.model_digest


@pytest.mark.parametrize("method", [Kernel(width=8, features="landmarks"), Projected()])
def test_a_federation_of_few_samples_works(method):
    """Of three samples none may be held out: the first setting is taken."""
    few = trainable().take(slice(3))
    result = run(method, federated({"only": few}))
    assert np.isfinite(result.predictors["only"](digits().features)).all()
    assert isinstance(digits().features, Features)
