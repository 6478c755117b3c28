"""A federation by letter: where its time goes, and the server's memory, however many sites.

python -m benchmarks.federation [--quick] [--flower]

The first part runs the server in a process of its own, behind a pipe to the sites, and measures its
peak memory above what it has after all imports, in units of width^2 words. The second (--flower,
which needs the extra [simulation]) runs the same federation in this process and in a Flower
simulation, and a real one of three sites, whose ServerApp is measured from outside.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from fedgram.deploy.settings import read_federation
from fedgram.deploy.site import simulated
from fedgram.federation.method import find_method
from fedgram.runtime.toml import written

METHOD = "afl"
CLASSES = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, to try the script")
    parser.add_argument("--flower", action="store_true", help="a Flower simulation, too")
    options = parser.parse_args()
    width, sizes = (256, (3, 10)) if options.quick else (2048, (3, 10, 50))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for sites in sizes:
            print(memory_line(folder, width, sites), flush=True)
        if options.flower:
            for line in flower_lines(folder, width, sizes[-1]):
                print(line, flush=True)
            print(serverapp_line(folder, width), flush=True)


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


def memory_line(folder: Path, width: int, sites: int) -> str:
    server = folder / f"server-{width}-{sites}"
    server.mkdir()
    (server / "federation.toml").write_text(written(settings(folder, width, sites)))
    config, _ = read_federation(server / "federation.toml")
    ours, theirs = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=serve_at, args=(theirs, server, sites))
    start = time.perf_counter()
    process.start()
    offices = {k: simulated(config, k, folder / f"sites-{width}-{sites}") for k in range(sites)}
    while (asked := json.loads(ours.recv_bytes())) is not None:
        ours.send_bytes(offices[asked["node"]].answer(ours.recv_bytes()))
    baseline, peak = json.loads(ours.recv_bytes())
    process.join()
    words = (peak - baseline) / 8 / width**2
    return (
        f"{sites:3} sites, {width} features: the server's peak is {words:.1f} width^2 words above "
        f"its {baseline / 1e6:.0f} MB after imports ({time.perf_counter() - start:.1f} s in all)"
    )


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


def flower_lines(folder: Path, width: int, sites: int) -> Iterator[str]:
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
    yield f"{sites} sites in this process: {alone:.1f} s; Flower simulation: {carried:.1f} s"
    (record,) = project.glob(f"simulations/*/server/runs/*/{METHOD}")
    asks = [json.loads(line) for line in (record / "exchanges.jsonl").read_text().splitlines()]
    for ask in asks:
        yield (
            f"  {ask['step']}: {ask['seconds']:.1f} s, {ask['bytes_up'] / 1e6:.0f} MB up, "
            f"{ask['bytes_down'] / 1e6:.0f} MB down"
        )
    rest = carried - sum(ask["seconds"] for ask in asks)
    yield f"  starting, greeting, solving, stopping: {rest:.1f} s"


def serverapp_line(folder: Path, width: int) -> str:
    """Compare the peaks of the ServerApps of two federations: one of few features, one of many."""
    few, many = (serverapp_peak(folder / f"real-{wide}", wide) for wide in (0, width - 1))
    words = (many - few) / 8 / width**2
    return (
        f"3 real sites, {width} features: the ServerApp's peak is {words:.1f} width^2 words above "
        f"its {few / 1e6:.0f} MB with 65 features"
    )


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


if __name__ == "__main__":
    main()
