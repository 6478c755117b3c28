"""A federation by letter gives what one in this process does."""

from __future__ import annotations

import json

import pytest
from remote_support import StandIn, offices

from fedgram.data.sources import load
from fedgram.experiment.record import Record
from fedgram.experiment.sites import sites
from fedgram.experiment.toml import written
from fedgram.federated.serve import serve
from fedgram.federated.settings import read_federation

CLOSED = ["afl", "fedhip", "apfl", "fed3r", "fedcgs", "local"]


def federation(tmp_path, *methods, clients=4, federation=None, **tables):
    settings = {
        "methods": list(methods),
        "data": {"clients": clients, "valid_fraction": 0.1, "dirichlet": 1.0},
        **tables,
        "federation": {"minimum": clients, **(federation or {})},
    }
    folder = tmp_path / "server"
    folder.mkdir(exist_ok=True)
    (folder / "federation.toml").write_text(written(settings))
    config, _ = read_federation(folder / "federation.toml")
    return folder, config


def served(tmp_path, *methods, fault=None, **more):
    folder, config = federation(tmp_path, *methods, **more)
    carrier = StandIn(offices(config, tmp_path / "sites"), fault)
    said = []
    out = serve(carrier, folder, said.append)
    return out, config, carrier, said


def in_process(config, name):
    return config.run(name, sites(load("digits"), config.data, config.grid), record=Record())


@pytest.mark.parametrize("name", CLOSED)
def test_closed_form_methods_are_the_same_to_the_bit(tmp_path, name):
    out, config, _, _ = served(tmp_path, name)
    expected = in_process(config, name)
    done = json.loads((out / f"{name}.done").read_text())
    assert done["shared_digest"] == expected.shared_digest
    assert done["model_digest"] == expected.model_digest
    assert done["accuracy"]["client_mean"] == expected.accuracy["client_mean"]


@pytest.mark.parametrize("name", ["fedavg", "ditto", "scaffold", "fedpcl", "fedala"])
def test_gradient_methods_are_the_same(tmp_path, name):
    short = {"rounds": 3, "epochs": 1, "rate": 0.1}
    out, config, _, _ = served(tmp_path, name, method={name: short})
    expected = in_process(config, name)
    done = json.loads((out / f"{name}.done").read_text())
    assert done["shared_digest"] == expected.shared_digest
    assert done["model_digest"] == expected.model_digest


@pytest.mark.parametrize("name", ["afl", "fedhip", "apfl", "fedavg"])
def test_secure_sums_are_the_same_too(tmp_path, name):
    short = {"fedavg": {"rounds": 2, "epochs": 1, "rate": 0.1}}
    out, config, _, _ = served(tmp_path, name, engine={"secure": True}, method=short)
    expected = in_process(config, name)
    done = json.loads((out / f"{name}.done").read_text())
    assert done["shared_digest"] == expected.shared_digest
    assert done["accuracy"]["client_mean"] == expected.accuracy["client_mean"]
    assert done["model_digest"] is None
