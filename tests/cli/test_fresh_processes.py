"""What one process shares, others use: run, personalize and predict, each in its own process."""

import csv
import io
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedgram.federation.method import names

STORED = Path(__file__).parents[1] / "stored"
DATA, OWN = STORED / "data.npz", STORED / "north.npz"
SHORT = ("rounds=1", "epochs=1", "rate=0.1", "blocks=1", "width=8", "exchanges=2")
# Of different families: what they share is of other types. Every other method is marked wide.
FAMILIES = ("auto", "fedavg")
SHARES_NOTHING = {"local"}
# What they share is a network without a head: heads are the clients' own.
SHARES_NO_PREDICTOR = {"fedas", "fedpcl", "fedrep", "local"}


def process(*words):
    """Run a command in a process that has imported nothing yet."""
    command = [sys.executable, "-m", "fedgram.cli", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def fedgram(*words):
    done = process(*words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def run(out, *methods):
    """Run methods on the stored samples, with few rounds, blocks and exchanges."""
    settings = [f"data.source={DATA}", "data.partition=given", *(f"every.{s}" for s in SHORT)]
    words = [word for setting in settings for word in ("-s", setting)]
    fedgram("run", *(word for name in methods for word in ("-m", name)), *words, "--out", out)


def scores(model):
    """Return the scores that `fedgram predict` prints of each of a site's own samples."""
    rows = list(csv.reader(io.StringIO(fedgram("predict", model, OWN))))
    assert len(rows) == 1 + len(np.load(OWN)["y"])
    found = np.array([[float(cell) for cell in row[3:]] for row in rows[1:]])
    assert np.isfinite(found).all()
    assert [int(row[1]) for row in rows[1:]] == found.argmax(axis=1).tolist()
    return found


@pytest.fixture(scope="module")
def families(tmp_path_factory):
    """The folder of a run of one method of each family."""
    folder = tmp_path_factory.mktemp("families")
    run(folder, *FAMILIES)
    return folder


@pytest.mark.parametrize("name", FAMILIES)
def test_a_process_personalizes_and_another_predicts(families, tmp_path, name):
    require_used(families, name, tmp_path / "m.safetensors")


@pytest.mark.wide
@pytest.mark.parametrize("name", [name for name in names() if name not in FAMILIES])
def test_a_process_personalizes_and_another_predicts_with_every_method(tmp_path, name):
    run(tmp_path / "r", name)
    require_used(tmp_path / "r", name, tmp_path / "m.safetensors")


def require_used(folder, name, model):
    """Personalize what a method shares, and predict: with the model and with what is shared."""
    shared = folder / name / "shared.safetensors"
    assert shared.exists() == (name not in SHARES_NOTHING)
    if name in SHARES_NOTHING:
        return
    fedgram("personalize", shared, OWN, "-o", model)
    found = scores(model)
    if name == "auto":  # whose scores are probabilities
        np.testing.assert_allclose(found.sum(axis=1), 1, atol=1e-3)
    if name not in SHARES_NO_PREDICTOR:
        assert scores(shared).shape == found.shape


@pytest.mark.wide
@pytest.mark.parametrize("name", sorted(SHARES_NO_PREDICTOR - SHARES_NOTHING))
def test_what_is_no_predictor_is_refused_by_name(tmp_path, name):
    run(tmp_path / "r", name)
    done = process("predict", tmp_path / "r" / name / "shared.safetensors", OWN)
    assert done.returncode == 3
    assert "expected a model that predicts" in done.stderr


@pytest.mark.wide
def test_a_softmax_head_with_a_class_prior_is_personalized_and_predicts(tmp_path):
    shared, model = tmp_path / "r" / "logistic" / "shared.safetensors", tmp_path / "m.safetensors"
    source = ("-s", f"data.source={DATA}", "-s", "data.partition=given")
    prior = ("-s", "method.logistic.prior=true")
    fedgram("run", "-m", "logistic", *source, *prior, "--out", tmp_path / "r")
    fedgram("personalize", shared, OWN, "-o", model)
    scores(model)
