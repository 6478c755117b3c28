"""Federations whose clients differ as much as they can."""

import numpy as np
import pytest

from fedgram import InProcess
from fedgram.core.shared import part_for

FEDERATIONS = [
    (1, "chance"),
    (2, "classes"),
    (2, "sizes"),
    (5, "chance"),
    (5, "classes"),
    (17, "classes"),
    (17, "sizes"),
]


def _owners(codes, clients, partition):
    """Return the owner of each sample; every client has at least one."""
    rng = np.random.default_rng(clients)
    if partition == "chance":
        return rng.permutation(len(codes)) % clients
    if partition == "classes":  # one class each, as far as there are classes
        return np.argsort(np.argsort(codes, kind="stable")) * clients // len(codes)
    sizes = np.ones(clients, int)  # one sample each, and the rest to the last
    sizes[: clients // 2] = 20
    sizes[-1] += len(codes) - sizes.sum()
    return rng.permutation(np.repeat(np.arange(clients), sizes))


@pytest.fixture(params=FEDERATIONS, ids=lambda p: f"{p[0]} clients by {p[1]}")
def sites(request, gridded, dealt):
    """Deal 500 samples of 14 features."""
    samples = gridded(500, 13, 5)
    return dealt(samples, _owners(samples.labels.codes, *request.param))


@pytest.fixture
def fitted():
    """Return a function that fits a method in this process."""

    def fit(method, sites, **engine):
        (shared,) = method.fit(InProcess(sites, **engine))
        return shared

    return fit


@pytest.fixture
def personalized(fitted):
    """Return a function that fits a method and makes each client's model."""

    def models(method, sites, **engine):
        shared = fitted(method, sites, **engine)
        return {
            site.id: method.personalize(
                site.client(np.random.default_rng(0)), part_for(shared, site.id)
            )
            for site in sites
        }

    return models


@pytest.fixture
def close():
    def within(ours, theirs, tolerance=1e-8):
        return np.linalg.norm(ours - theirs) <= tolerance * np.linalg.norm(theirs)

    return within


@pytest.fixture
def pairs():
    """Return a function from sites to the plain arrays that the papers' formulas take."""

    def plain(sites, lift=None):
        samples = [site.train for site in sites]
        return [
            ((lift(s.features) if lift else s.features).real(), s.labels.onehot()) for s in samples
        ]

    return plain
