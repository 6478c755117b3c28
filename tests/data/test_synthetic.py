"""Synthetic(alpha, beta): every draw is the definition's."""

import numpy as np
import pytest

from fedgram import PartitionPlan, create_method, federate, load_dataset, run
from fedgram.data.synthetic import CLASSES, FEATURES, Synthetic, read
from fedgram.errors import ConfigError, DataError


def by_client(data):
    return [data.x[data.client == name] for name in np.unique(data.client)]


def spread_of_means(data):
    """Mean over clients of the squared mean of a client's features, per feature."""
    return np.mean([np.mean(x.mean(axis=0)) ** 2 for x in by_client(data)])


def client_means(everybody):
    return [
        run(create_method(name), everybody).accuracy["client_mean"] for name in ("afl", "local")
    ]


def test_clients_are_named_and_of_at_least_fifty_samples():
    data = load_dataset("synthetic:0,0")
    names, sizes = np.unique(data.client, return_counts=True)
    assert names.tolist() == [f"c{k:02}" for k in range(30)]
    assert sizes.min() >= 50
    assert data.x.shape == (sizes.sum(), FEATURES)
    assert data.classes == tuple("0123456789")
    larger = load_dataset("synthetic:0,0,clients=30,times=5")
    assert np.array_equal(np.unique(larger.client, return_counts=True)[1], 5 * sizes)


def test_sizes_are_lognormal():
    data = Synthetic(clients=400).arrays()
    sizes = np.unique(data["client"], return_counts=True)[1] - 50
    logs = np.log(sizes[sizes > 0])
    assert abs(np.median(logs) - 4) < 0.3
    assert 1.4 < logs.std() < 2.1  # of whole numbers from 1 on


def test_variances_fall_with_the_number_of_the_feature():
    data = load_dataset("synthetic:0,0,clients=60")
    within = np.concatenate([x - x.mean(axis=0) for x in by_client(data)])
    assert np.allclose(within.var(axis=0), np.arange(1, FEATURES + 1) ** -1.2, rtol=0.1)


@pytest.mark.parametrize("beta", [0, 2, 5])
def test_beta_is_the_deviation_of_the_clients_means(beta):
    data = load_dataset(f"synthetic:0,{beta},clients=400")
    expected = beta**2 + 1 / FEATURES  # B_k, and the mean of sixty draws around it
    assert abs(spread_of_means(data) / expected - 1) < 0.25


def test_labels_are_those_of_one_linear_model_per_client():
    """A linear classifier that separates a client's samples exists, but not one for two."""
    from sklearn.linear_model import Perceptron

    data = load_dataset("synthetic:1,1,clients=4,seed=5")
    parts = [(data.x[data.client == k], data.y[data.client == k]) for k in np.unique(data.client)]
    x, y = max(parts, key=lambda part: len(part[1]))
    assert Perceptron(max_iter=5000, tol=None).fit(x, y).score(x, y) > 0.99
    weights = np.linalg.lstsq(data.x, np.eye(CLASSES)[data.y], rcond=None)[0]
    assert np.mean((data.x @ weights).argmax(axis=1) == data.y) < 0.95


def test_alpha_changes_no_label():
    """All entries of a model move together, so that no class gains on another."""
    drawn = [Synthetic(alpha=alpha, clients=1, seed=1).arrays() for alpha in (0.0, 3.0)]
    assert np.array_equal(drawn[0]["x"], drawn[1]["x"])
    assert np.array_equal(drawn[0]["y"], drawn[1]["y"])


def test_iid_clients_are_alike():
    data = load_dataset("synthetic:iid,clients=20,times=4")
    assert spread_of_means(data) < 1e-3
    shared, alone = client_means(federate(data, PartitionPlan(partition="given")))
    assert shared > alone


def test_the_same_seed_gives_the_same_bytes_and_a_client_its_samples_whoever_else_is_there():
    few, many = load_dataset("synthetic:1,1,clients=3"), load_dataset("synthetic:1,1,clients=5")
    assert np.array_equal(few.x, many.x[: len(few.x)])
    assert np.array_equal(few.x, load_dataset("synthetic:1,1,clients=3").x)
    assert not np.array_equal(few.x[:50], load_dataset("synthetic:1,1,clients=3,seed=1").x[:50])


def test_its_clients_are_its_partition():
    everybody = federate(
        load_dataset("synthetic:0,0,clients=12"),
        PartitionPlan(partition="given", test_fraction=0.2),
    )
    assert [site.id for site in everybody.members] == [f"c{k:02}" for k in range(12)]
    shared, alone = client_means(everybody)
    assert alone > shared


@pytest.mark.parametrize(
    "source",
    ["synthetic:", "synthetic:1", "synthetic:a,b", "synthetic:1,1,users=3", "synthetic:1,1,seed",
     "synthetic:1,1,clients=x", "synthetic:-1,1", "synthetic:1,1,clients=0", "synthetic:iid,1,1"],
)  # fmt: skip
def test_what_is_not_understood_is_answered_with_the_form(source):
    with pytest.raises(DataError, match="synthetic:ALPHA,BETA or synthetic:iid"):
        load_dataset(source)


def test_numbers_are_finite():
    with pytest.raises(ConfigError, match="expected a finite number"):
        read("synthetic:inf,0")
