"""A remote federation gives the same results as one in this process."""

from __future__ import annotations

import subprocess
import sys

import pytest
from remote_support import done, require_same, served

from fedgram.federation.method import create_method, names

LAYERS = {"image": [8, 8, 1], "layers": "conv 4 3x3 max 2, dense 8"}
BLOCKS = {"blocks": 2, "width": 16}
CLOSED = {
    "afl": {},
    "fedhip": {},
    "apfl": {"primary": {"width": 24}, "refinement": {"width": 24}},
    "apfl-linear": {},
    "fed3r": {},
    "fedcgs": {},
    "fedcof": {},
    "fedncm": {},
    "local": {},
    "auto": {"exchanges": 2, "classes_alike": True},
    "logistic": {"exchanges": 2},
    "prior": {},
    "lda": {},
    "intercept": {"strength": "auto"},
    "closed-ditto": {},
    "closed-pfedme": {"strength": "auto"},
    "closed-maml": {},
    "fedacnnl": LAYERS,
    "pfedacnnl": {**LAYERS, "groups": 2, "strength": "auto"},
    "deepafl": BLOCKS,
    "deepafl-apfl": BLOCKS,
    "deepafl-fedhip": BLOCKS,
    "deepafl-top": {**BLOCKS, "top": {"method": "prior"}},
    "kernel": {"width": 32, "top": {"method": "afl"}},
    "projected": {"top": {"method": "afl"}},
    "ensemble": {"lift": {"width": 32}},
}
LITTLE = {"clients": 3, "dirichlet": 1.0, "valid_fraction": 0.1, "test_fraction": 0.7}


def test_all_closed_form_methods_are_here():
    grown = {name for name in names() if hasattr(create_method(name), "rounds")}
    assert set(names()) - grown == {*CLOSED, "central"}  # which asks for samples


@pytest.mark.parametrize("name", CLOSED)
def test_closed_form_methods_are_the_same_to_the_bit(tmp_path, name):
    out, config, _, _ = served(tmp_path, name, clients=3, data=LITTLE, method={name: CLOSED[name]})
    require_same(out, config, name)


@pytest.mark.parametrize("filters", ["shared", "position", "backward"])
def test_codes_of_classes_are_not_taken_for_classes(tmp_path, filters):
    """In a layer of one channel every sample has one number of size one, as with classes."""
    layers = {"layers": "dense 1", "filters": filters}
    out, config, _, _ = served(
        tmp_path, "fedacnnl", clients=3, data=LITTLE, method={"fedacnnl": layers}
    )
    require_same(out, config, "fedacnnl")


@pytest.mark.parametrize("name", ["fedavg", "ditto", "scaffold", "fedpcl", "fedala"])
def test_gradient_methods_are_the_same(tmp_path, name):
    short = {"rounds": 3, "epochs": 1, "rate": 0.1}
    out, config, _, _ = served(tmp_path, name, method={name: short})
    require_same(out, config, name)


def test_the_search_for_a_rate_is_the_same(tmp_path):
    out, config, _, _ = served(
        tmp_path, "ditto", method={"ditto": {"rounds": 1, "epochs": 1, "pilot": 2}}
    )
    require_same(out, config, "ditto")
    assert len(done(out, "ditto")["rate_search"]["pilots"]) > 1


@pytest.mark.parametrize(
    "name",
    [
        "afl",
        "fedhip",
        "apfl-linear",
        "fedacnnl",
        "fedavg",
        pytest.param("auto", marks=pytest.mark.wide),
    ],
)
def test_secure_sums_are_the_same_too(tmp_path, name):
    short = {"fedavg": {"rounds": 2, "epochs": 1, "rate": 0.1}, "fedacnnl": LAYERS}
    out, config, _, _ = served(tmp_path, name, engine={"secure": True}, method=short)
    require_same(out, config, name, personal=False)
    assert done(out, name)["model_digest"] is None


@pytest.mark.parametrize("secure", [pytest.param(False, marks=pytest.mark.wide), True])
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
from fedgram.core import codec
from fedgram.engines.remote.messages import Refusal
from fedgram.deploy.settings import read_federation
from fedgram.deploy.site import simulated
folder = Path({str(tmp_path)!r})
config, _ = read_federation(folder / "server" / "federation.toml")
office = simulated(config, 0, folder / "other")
for path in sorted((folder / "requests").iterdir(), key=lambda path: int(path.name)):
    answer = codec.decode(office.answer(path.read_bytes()))
    damaged = isinstance(answer, Refusal) and "damaged or foreign" in answer.text
    assert not damaged, answer
"""
    subprocess.run([sys.executable, "-c", script], check=True)
