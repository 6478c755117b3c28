"""LCFed: an embedding for all clients, and a head for each cluster."""

import dataclasses

import numpy as np
import pytest

from fedgram import InProcess, Samples
from fedgram.checks.federations import partitioned
from fedgram.core import codec
from fedgram.core.samples import Labels
from fedgram.errors import ConfigError, PrivacyError
from fedgram.experiments.runner import run
from fedgram.methods.fedavg import FedAvg
from fedgram.methods.fedprox import FedProx
from fedgram.methods.lcfed import LCFed
from fedgram.models.mlp import MLP, TrainingRows, gradient

SETTINGS = {"rate": 0.2, "rounds": 3, "epochs": 2, "batch": 5, "precision": "double"}
WHOLE = {**SETTINGS, "epochs": 1, "batch": 0}
SIZES = (7, 12, 18, 23)
hidden = pytest.mark.parametrize("hidden", [0, 4], ids=["linear", "hidden"])


@pytest.fixture(scope="module")
def samples(gridded):
    return gridded(sum(SIZES), 5, 3)


@pytest.fixture(scope="module")
def sites(samples, dealt):
    return dealt(samples, np.repeat(np.arange(4), SIZES))


def fitted(method, sites, **engine):
    """The last shared model, and everybody's own parameters."""
    federation = InProcess([dataclasses.replace(site, state={}) for site in sites], **engine)
    *_, shared = method.fit(federation)
    own = federation.evaluate(lambda _, client, part: method.personalize(client, part), shared)
    return shared, {name: model.theta for name, model in own}


@hidden
def test_one_cluster_is_fedprox_to_the_bit(sites, hidden):
    same = {"hidden": hidden, "strength": 0.7, **SETTINGS}
    ours, own = fitted(LCFed(clusters=1, **same), sites, seed=3)
    theirs, _ = fitted(FedProx(**same), sites, seed=3)
    assert ours.theta.tobytes() == theirs.theta.tobytes()
    assert {theta.tobytes() for theta in own.values()} == {theirs.theta.tobytes()}


def test_one_cluster_without_a_pull_is_fedavg_to_the_bit(sites):
    ours, _ = fitted(LCFed(clusters=1, strength=0.0, **SETTINGS), sites)
    theirs, _ = fitted(FedAvg(**SETTINGS), sites)
    assert ours.theta.tobytes() == theirs.theta.tobytes()


def rows_of(site):
    return TrainingRows(
        values=site.train.features.values.astype(np.float64),
        codes=site.train.labels.codes,
        unit=site.train.features.space.unit,
    )


@hidden
def test_as_many_clusters_as_clients_are_personal_heads_on_a_shared_embedding(sites, hidden):
    """The slow version: everybody trains its own head, and embeddings are averaged."""
    method = LCFed(clusters=4, strength=0.5, hidden=hidden, **WHOLE)
    shared, own = fitted(method, sites)
    assert sorted(shared.groups.values()) == [0, 1, 2, 3]
    shape = MLP(width=6, hidden=hidden, classes=3)
    start = shape.start(np.float64)
    models = {site.id: start for site in sites}
    for _ in range(3):
        for site in sites:  # at its start the pull of one step is zero
            theta = models[site.id]
            models[site.id] = theta - 0.2 * gradient(shape, theta, rows_of(site))
        shares = [len(site.train) / sum(SIZES) for site in sites]
        base = sum(w * models[s.id][: shape.base] for w, s in zip(shares, sites, strict=True))
        models = {
            name: np.concatenate([base, theta[shape.base :]]) for name, theta in models.items()
        }
    for name, theta in models.items():
        np.testing.assert_allclose(own[name], theta, rtol=0, atol=1e-12)


# Clients of two kinds


@pytest.fixture(scope="module")
def two_kinds(gridded, dealt):
    """Six clients; for three of them the names of the classes are exchanged."""
    samples = gridded(300, 5, 3)
    sites = dealt(samples, np.arange(300) % 6)
    made = []
    for number, site in enumerate(sites):
        codes = site.train.labels.codes
        labels = Labels((codes + number % 2) % 3, site.train.labels.classes)
        train = Samples(site.train.features, labels)
        made.append(dataclasses.replace(site, train=train, test=train))
    return made


def test_clients_that_name_the_classes_alike_are_a_cluster_and_learn(two_kinds):
    method = LCFed(clusters=2, rounds=10, rate=0.3, epochs=2)
    shared, own = fitted(method, two_kinds)
    groups = [shared.groups[site.id] for site in two_kinds]
    assert groups in ([0, 1] * 3, [1, 0] * 3)
    assert len({theta.tobytes() for theta in own.values()}) == 2
    _, together = fitted(dataclasses.replace(method, clusters=1), two_kinds)
    assert accuracy(two_kinds, own) > accuracy(two_kinds, together) + 0.2


def accuracy(sites, own):
    hits = []
    for site in sites:
        scores = site.train.features.real() @ own[site.id].reshape(6, 3)
        hits.extend(scores.argmax(axis=1) == site.train.labels.codes)
    return np.mean(hits)


def test_a_client_that_comes_late_chooses_the_cluster_of_its_kind(two_kinds):
    method = LCFed(clusters=2, rounds=10, rate=0.3, epochs=2)
    shared, _ = fitted(method, two_kinds[:4])
    for site in two_kinds[4:]:
        alike = two_kinds[0 if site is two_kinds[4] else 1]
        part = shared.part_for(site.id)
        assert part is shared
        model = method.personalize(site.client(np.random.default_rng(0)), part)
        expected = shared.part_for(alike.id).theta
        assert model.theta.tobytes() == expected.tobytes()


def test_what_is_sent_names_no_other_client(two_kinds):
    shared, _ = fitted(LCFed(clusters=2, **SETTINGS), two_kinds)
    assert set(shared.groups) == {site.id for site in two_kinds}
    for message in (shared, shared.part_for(two_kinds[0].id)):
        sent = codec.encode(message)
        assert not any(site.id.encode() in sent for site in two_kinds)
    part = codec.decode(codec.encode(shared.part_for(two_kinds[0].id)))
    assert len(part.heads) == 0


def test_a_federation_that_allows_sums_only_refuses():
    with pytest.raises(PrivacyError, match="allows sums only"):
        run(LCFed(rounds=1, rate=0.1), partitioned(clients=5), private=True)


@pytest.mark.parametrize("wrong", [{"clusters": 0}, {"rank": 0}, {"rounds": 0}])
def test_wrong_settings_are_refused(wrong):
    with pytest.raises(ConfigError):
        LCFed(**wrong)
