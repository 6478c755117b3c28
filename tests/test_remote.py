"""A federation by letter gives what one in this process does."""

from __future__ import annotations

import json

import pytest
from remote_support import in_process, served

CLOSED = ["afl", "fedhip", "apfl", "fed3r", "fedcgs", "local"]


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
