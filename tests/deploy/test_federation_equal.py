"""In this process, in a Flower simulation, between real processes and under masks: one result."""

import json
import stat

import numpy as np
import pytest

pytest.importorskip("flwr")
pytest.importorskip("ray")

from federation_support import project, served

from fedgram.core import codec
from fedgram.data.sources import load_dataset
from fedgram.deploy.operator import simulate, start_site
from fedgram.deploy.processes import Processes
from fedgram.deploy.settings import read_federation
from fedgram.experiments.record import Record
from fedgram.federation.federated_dataset import federate

pytestmark = [pytest.mark.flower, pytest.mark.xdist_group("flower equal")]
EXACT = ("afl", "fedhip", "apfl-linear", "logistic")
TRAINED = ("fedavg", "ditto")
# Between real processes every request starts a program: one method of each kind.
DEPLOYED = ("apfl-linear", "logistic", "fedavg")
MASKED = ("apfl-linear",)  # many sums would take minutes under masks
SHORT = ("every.rounds=1", "every.epochs=1", "every.rate=0.1", "method.logistic.exchanges=2")


def study(folder, *overrides, methods=(*EXACT, *TRAINED)):
    return project(folder, *SHORT, *overrides, sites=("c0", "c1", "c2"), methods=methods)


def deployed(made):
    with served(made) as (operator, processes):
        for site in made.sites:
            start_site(site, processes)
        operator.run(print)
    return made.server / "runs" / "0001"


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """What a run in this process gives, by method: its digest, and what it shares."""
    made = study(tmp_path_factory.mktemp("here") / "study")
    config, _ = read_federation(made.settings)
    everybody = federate(load_dataset("digits"), config.data, config.grid)
    return {name: config.run(name, everybody, record=Record()) for name in config.methods}


def require_equal(folder, expected, methods=(*EXACT, *TRAINED)):
    for name in methods:
        done = json.loads((folder / f"{name}.done").read_text())
        if name in EXACT:
            assert done["shared_digest"] == expected[name].shared_digest, name
            continue
        theirs = codec.load(folder / name / "shared.safetensors").shared
        np.testing.assert_allclose(theirs.theta, expected[name].shared.theta, atol=1e-6)


def test_a_simulation(tmp_path, expected):
    made = study(tmp_path / "study")
    with Processes(made.logs) as processes:
        folder = simulate(made, processes, print)
    require_equal(folder / "runs" / "0001", expected)


def test_three_real_sites(tmp_path, expected):
    require_equal(deployed(study(tmp_path / "study", methods=DEPLOYED)), expected, DEPLOYED)


def test_three_real_sites_under_masks(tmp_path, expected):
    made = study(tmp_path / "study", "engine.secure=true", methods=MASKED)
    require_equal(deployed(made), expected, MASKED)
    for site in made.sites:  # what a site and Flower's programs write there is for its owner only
        for path in (site.folder / name for name in ("cache", "models", ".flwr")):
            written = [path, *path.rglob("*")]
            modes = {(each.is_dir(), stat.S_IMODE(each.stat().st_mode)) for each in written}
            assert modes == {(True, 0o700), (False, 0o600)}, path
