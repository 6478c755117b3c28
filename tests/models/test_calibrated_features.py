"""Probabilities on features of real data: of predictions with 80 %, about 80 % are correct."""

import os
from pathlib import Path

import numpy as np
import pytest

import fedgram as fg

BANKING, CIFAR = "banking77_minilm_l6.npz", "cifar100_efficientnet_lite0.npz"
BINS, BOUND = 15, 0.08
SAMPLES = 4000


def calibration_error(probabilities, correct):
    """Return the expected calibration error: the mean distance of confidence and accuracy."""
    sure = probabilities.max(axis=1)
    place = np.minimum((sure * BINS).astype(int), BINS - 1)
    return sum(
        np.mean(place == k) * abs(sure[place == k].mean() - correct[place == k].mean())
        for k in np.unique(place)
    )


def softmax(scores):
    shares = np.exp(scores - scores.max(axis=1, keepdims=True))
    return shares / shares.sum(axis=1, keepdims=True)


def federation(name):
    path = Path(os.environ.get("FEDGRAM_DATA", "")) / name
    if not path.is_file():
        pytest.skip(f"FEDGRAM_DATA does not hold {name}")
    data = fg.load_dataset(str(path))
    some = np.sort(np.random.default_rng(0).permutation(len(data))[:SAMPLES])
    small = fg.Dataset(
        data.x[some],
        data.y[some],
        classes=data.classes,
        scale=data.scale,
        offset=data.offset,
        backbone=data.backbone,
        grid=data.grid,
    )
    return fg.federate(small, clients=8, alpha=0.3)


@pytest.mark.wide
@pytest.mark.data
@pytest.mark.parametrize("name", [BANKING, CIFAR])
@pytest.mark.parametrize("method", ["auto", "logistic", "apfl", "fedhip"])
def test_probabilities_are_calibrated_on_test_samples(name, method, record_property):
    federated = federation(name)
    result = fg.run(method, federated)
    tested = [site for site in federated.members if len(site.test)]
    models = [(result.models[site.id], site.test) for site in tested]
    found = np.concatenate([model.predict_proba(test) for model, test in models])
    scores = np.concatenate([model.decision_function(test) for model, test in models])
    truth = np.concatenate([test.labels.codes for _, test in models])
    correct = found.argmax(axis=1) == truth
    error = calibration_error(found, correct)
    record_property("expected calibration error", round(error, 4))
    assert error < BOUND
    # What the bound is for. The scores of auto are calibrated: with half of its weights they are
    # not. Those of logistic are nearly so on texts.
    without = softmax(scores / 2 if method == "auto" else scores)
    if (method, name) != ("logistic", BANKING):
        assert calibration_error(without, correct) > BOUND
