"""A federation by letter gives what one in this process does."""

from __future__ import annotations

import json
import subprocess
import sys

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


@pytest.mark.parametrize("secure", [False, True])
def test_a_site_reads_requests_of_any_method_in_a_process_of_its_own(tmp_path, secure):
    """The kinds of values that a request holds are known before it is read."""
    seen = []

    def fault(node, request, answer):
        seen.append(request)
        return answer(request)

    short = {"rounds": 1, "epochs": 1, "rate": 0.1}
    tables = {"method": {"fedavg": short, "scaffold": short}, "engine": {"secure": secure}}
    served(tmp_path, "fedavg", "scaffold", fault=fault, **tables)
    (tmp_path / "requests").mkdir()
    for number, request in enumerate(seen):
        (tmp_path / "requests" / str(number)).write_bytes(request)
    script = f"""
from pathlib import Path
from fedgram import codec
from fedgram.engines.remote.messages import Refusal
from fedgram.federated.settings import read_federation
from fedgram.federated.site import simulated
folder = Path({str(tmp_path)!r})
config, _ = read_federation(folder / "server" / "federation.toml")
office = simulated(config, 0, folder / "other")
for path in sorted((folder / "requests").iterdir(), key=lambda path: int(path.name)):
    answer = codec.decode(office.answer(path.read_bytes()))
    damaged = isinstance(answer, Refusal) and "damaged or foreign" in answer.text
    assert not damaged, answer
"""
    subprocess.run([sys.executable, "-c", script], check=True)
