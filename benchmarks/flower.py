"""Federations of sites: the server's memory however many sites, and what Flower carries.

python -m benchmarks flower [--json] [--quick]

The server runs in a process of its own, behind a pipe to the sites; its peak memory above what it
has after all imports is in units of width^2 words. Then the same federation runs in this process
and in a Flower simulation, and a real one of three sites, whose ServerApp is measured from outside.
*messages per second* are requests and answers of a simulation whose sites send back what they get:
Flower's message store, its engine and Ray. Needs the extra [simulation].
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from fedgram.deploy.settings import read_federation
from fedgram.deploy.site import simulated
from fedgram.federation.method import find_method
from fedgram.runtime.toml import written

METHOD = "afl"
CLASSES = 10


BY_KERNELS = False


def measured(given: argparse.Namespace) -> dict[str, Any]:
    width, sizes = (256, (3, 10)) if given.quick else (2048, (3, 10, 50))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        return {
            "features": width,
            "server": [server_memory(folder, width, sites) for sites in sizes],
            "simulation": simulation(folder, width, sizes[-1]),
            "serverapp": serverapp(folder, width),
            "messages": messages(20 if given.quick else 200, 3),
        }


def lines(found: Mapping[str, Any]) -> Iterator[str]:
    width = found["features"]
    for row in found["server"]:
        yield (
            f"{row['sites']:3} sites, {width} features: the server's peak is {row['words']:.1f} "
            "width^2 words above that after imports"
        )
    one = found["simulation"]
    yield f"{one['sites']} sites, Flower simulation over one process: {one['ratio']:.1f} (wall)"
    row = found["serverapp"]
    yield f"3 real sites: the ServerApp takes {row['words']:.1f} width^2 words more than with few"
    for name, rate in found["messages"].items():
        yield f"messages of {name} per second: {rate:.0f}"


def regressions(found: Mapping[str, Any]) -> Iterator[str]:
    for row in found["server"]:
        if found["features"] > 2000 and row["words"] > 5:
            yield f"{row['sites']} sites: the server takes {row['words']:.1f} width^2 words"


def features(folder: Path, width: int, sites: int) -> Path:
    """Write features of so many columns, the constant one included, for so many sites."""
    path = folder / f"features-{width}-{sites}.npz"
    if not path.is_file():
        rng = np.random.default_rng(0)
        rows = 40 * sites
        x = rng.integers(-100, 100, size=(rows, width - 1), dtype=np.int8)
        np.savez(path, x=x, y=np.arange(rows) % CLASSES)
    return path


def settings(folder: Path, width: int, sites: int) -> dict[str, object]:
    return {
        "methods": [METHOD],
        "data": {
            "source": str(features(folder, width, sites)),
            "clients": sites,
            "partition": "iid",
        },
        "metrics": {"global_test": False},
        "federation": {"minimum": sites},
    }


def server_memory(folder: Path, width: int, sites: int) -> dict[str, Any]:
    server = folder / f"server-{width}-{sites}"
    server.mkdir()
    (server / "federation.toml").write_text(written(settings(folder, width, sites)))
    config, _ = read_federation(server / "federation.toml")
    ours, theirs = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=serve_at, args=(theirs, server, sites))
    process.start()
    offices = {k: simulated(config, k, folder / f"sites-{width}-{sites}") for k in range(sites)}
    while (asked := json.loads(ours.recv_bytes())) is not None:
        ours.send_bytes(offices[asked["node"]].answer(ours.recv_bytes()))
    baseline, peak = json.loads(ours.recv_bytes())
    process.join()
    return {"sites": sites, "words": round((peak - baseline) / 8 / width**2, 2)}


class PipeCarrier:
    """Reaches the sites through a pipe, one at a time."""

    def __init__(self, pipe: Connection, sites: int) -> None:
        self._pipe, self._sites = pipe, sites
        self._asked: dict[str, tuple[int, bytes]] = {}
        self._count = 0

    def nodes(self) -> Collection[int]:
        return range(self._sites)

    def send(self, node: int, request: bytes, *, patience: float) -> str:
        self._count += 1
        self._asked[str(self._count)] = node, request
        return str(self._count)

    def receive(self, tickets: Collection[str]) -> Iterator[tuple[str, bytes | str]]:
        for ticket in tickets:
            node, request = self._asked.pop(ticket)
            self._pipe.send_bytes(json.dumps({"node": node}).encode())
            self._pipe.send_bytes(request)
            yield ticket, self._pipe.recv_bytes()

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)

    def now(self) -> float:
        return time.monotonic()


def serve_at(pipe: Connection, folder: Path, sites: int) -> None:
    """Be the server, and say how much memory that took."""
    from fedgram.deploy.server import run_federation

    find_method(METHOD)  # as every run imports it
    baseline = _memory("VmRSS")
    run_federation(PipeCarrier(pipe, sites), folder, lambda _: None)
    pipe.send_bytes(json.dumps(None).encode())
    pipe.send_bytes(json.dumps([baseline, _memory("VmHWM")]).encode())


def _memory(field: str, process: int | str = "self") -> int:
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise OSError(f"this system does not tell {field}")


def simulation(folder: Path, width: int, sites: int) -> dict[str, Any]:
    project, here = folder / "project", folder / "here"
    table = settings(folder, width, sites)
    changes = [
        f"{name}.{key}={value}"
        for name in ("data", "metrics")
        for key, value in table[name].items()  # type: ignore[attr-defined]
    ]
    changes = [option for change in changes for option in ("-s", change.replace("False", "false"))]
    start = time.perf_counter()
    _fedgram("run", "-m", METHOD, "-o", str(here), *changes)
    alone = time.perf_counter() - start
    names = [option for k in range(sites) for option in ("--site", f"c{k}")]
    _fedgram("federation", "init", str(project), "-m", METHOD, *names, *changes)
    start = time.perf_counter()
    _fedgram("federation", "simulate", str(project))
    carried = time.perf_counter() - start
    return {"sites": sites, "ratio": round(carried / alone, 2)}


def messages(rounds: int, sites: int) -> dict[str, float]:
    """Return messages per second, of short ones and of a megabyte."""
    found = {}
    for name, size in (("100 bytes", 100), ("1 MB", 10**6)):
        command = [
            sys.executable,
            "-m",
            "benchmarks.flower_echo",
            str(rounds),
            str(sites),
            str(size),
        ]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        found[name] = round(float(done.stdout.split()[-1]), 1)
    return found


def serverapp(folder: Path, width: int) -> dict[str, Any]:
    """Compare the peaks of the ServerApps of two federations: one of few features, one of many."""
    few, many = (serverapp_peak(folder / f"real-{wide}", wide) for wide in (0, width - 1))
    return {"sites": 3, "words": round((many - few) / 8 / width**2, 2)}


def serverapp_peak(folder: Path, lift: int) -> int:
    """Run a real federation of three sites, and watch how large its ServerApp grows."""
    command = [sys.executable, "-m", "fedgram.cli", "federation", "demo", str(folder), "-m", METHOD]
    demo = subprocess.Popen([*command, "-s", f"method.{METHOD}.lift.width={lift}"])
    peak = 0
    while demo.poll() is None:
        for status in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):  # it may have ended
                if b"flwr-serverapp" in status.read_bytes() and str(folder).encode() in (
                    status.with_name("environ").read_bytes()
                ):
                    peak = max(peak, _memory("VmHWM", status.parent.name))
        time.sleep(0.05)
    if demo.returncode or not peak:
        raise SystemExit("the federation did not run to its end")
    return peak


def _fedgram(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "fedgram.cli", *arguments], check=True)
