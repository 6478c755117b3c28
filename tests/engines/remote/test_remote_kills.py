"""A server that is killed at any moment and started again finishes the same model, bytewise."""

import json
import os
import subprocess
import sys
from pathlib import Path

import kill_support
import numpy as np
import pytest
from remote_support import federation

from fedgram.deploy.membership import Membership
from fedgram.errors import FedgramError
from fedgram.experiments.record import read_lines

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="kills need fork"),
    pytest.mark.xdist_group("kills"),
]
SHORT = {"rounds": 2, "epochs": 1, "rate": 0.1}
CASES = {
    "apfl-linear": {},
    "fedhip": {},
    "fedavg": {"method": {"fedavg": SHORT}},
    "ditto": {"method": {"ditto": SHORT}},
    "logistic": {"method": {"logistic": {"exchanges": 2}}},
    "auto": {"method": {"auto": {"exchanges": 1, "effort": "low"}}},
    "afl": {"engine": {"secure": True}},
}
USUAL = ("apfl-linear", "fedavg", "logistic", "auto", "afl")  # one of each way to go on
SOME = [n if n in ("afl", "fedavg") else pytest.param(n, marks=pytest.mark.wide) for n in USUAL]
MANY = 20  # kills of each, where faults are asked for


class Servers:
    """Starts servers of federations alike, to be killed at will."""

    def __init__(self, folder, *options):
        rng = np.random.default_rng(0)
        x, y = rng.normal(size=(120, 6)), rng.integers(3, size=120)
        np.savez(folder / "data.npz", x=x, y=y)
        self._folder, self._made = folder, 0
        paths = [str(Path(kill_support.__file__).parent), *sys.path]
        self._process = subprocess.Popen(
            [sys.executable, kill_support.__file__, *options],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OPENBLAS_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL if options else None,
            text=True,
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def new(self, name):
        """Make a federation that has not begun; return its folder."""
        self._made += 1
        folder = self._folder / str(self._made)
        folder.mkdir()
        data = {"source": str(self._folder / "data.npz"), "clients": 3, "valid_fraction": 0.1}
        federation(folder, name, clients=3, data=data, **CASES[name])
        return folder

    def serve(self, folder, end=0):
        """Serve until the event of this number; return how it ended, and how many there were."""
        self._process.stdin.write(f"{end} {folder}\n")
        self._process.stdin.flush()
        how, events = self._process.stdout.readline().split()
        return how, int(events)


def result(folder, name):
    """Return all that must not depend on kills."""
    out = max((folder / "server" / "runs").glob("*"))  # one that it was killed in making is empty
    models = sorted((folder / "sites").glob("*/models/*.safetensors"))
    assert len(models) == 6
    assert not (out / f"{name}.journal").exists()
    return {
        "shared": (out / name / "shared.safetensors").read_bytes(),
        "done": timeless(json.loads((out / f"{name}.done").read_text())),
        "asks": [timeless(ask) for ask in read_lines(out / name / "exchanges.jsonl")],
        "models": [path.read_bytes() for path in models],
        "ledgers": list(Membership(folder=folder / "server").verify().values()),
    }


def timeless(plain):
    """Return plain values without time and work: what a site has done before a kill is known.

    Bytes go with them, for times are told in digits; and bytes as sent, for how far a message can
    be compressed depends on the random name of the run.
    """
    if isinstance(plain, list):
        return [timeless(value) for value in plain]
    if not isinstance(plain, dict):
        return plain
    spent = {"seconds", "flops", "bytes", "bytes_up", "sent_up", "sent_down"}
    return {key: timeless(value) for key, value in plain.items() if key not in spent}


def survives(servers, name, kills):
    rng = np.random.default_rng([len(name), kills])
    whole = servers.new(name)
    how, events = servers.serve(whole)
    assert how == "done"
    assert events > 50
    expected = result(whole, name)
    for _ in range(kills):
        folder = servers.new(name)
        how, _ = servers.serve(folder, int(rng.integers(1, events)))
        assert how == "killed"
        if rng.random() < 0.5:  # and once more, which may hit what the first has left
            how, _ = servers.serve(folder, int(rng.integers(1, events)))
        while how != "done":
            assert how == "killed"
            how, _ = servers.serve(folder)
        assert result(folder, name) == expected


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    with Servers(tmp_path_factory.mktemp("servers")) as servers:
        yield servers


@pytest.mark.parametrize("name", SOME)
def test_a_server_that_is_killed_finishes_the_same_model(servers, name):
    survives(servers, name, 1)


@pytest.mark.faults
@pytest.mark.parametrize("name", CASES)
def test_a_hundred_kills_of_the_server_lose_nothing(servers, name):
    survives(servers, name, MANY)


@pytest.mark.faults
def test_files_that_are_written_in_parts_are_seen_to_do_harm(tmp_path):
    with (
        Servers(tmp_path, "careless") as servers,
        pytest.raises((AssertionError, FedgramError, OSError)),
    ):
        survives(servers, "fedavg", MANY)
