"""Ray workers against one process: one digest, and the time of a fit as a ratio in one run.

Fits of AFL in one process and on 1, 2 and 4 Ray workers of this machine take turns; ratios are
medians over the turns. "processor" is the processor time of this process and of all workers; "path"
that of this process and of the busiest worker, which is the time of a fit with enough free cores;
"wall" is the time that passed, which depends on the cores and on other programs.

python -m benchmarks ray [--json] [--quick]
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np
import psutil

from fedgram import Features, Labels, Samples, Site, Space
from fedgram.engines.in_process import InProcess
from fedgram.engines.ray.cluster import Cluster
from fedgram.engines.ray.federation import RayFederation
from fedgram.federation.method import shared_digest
from fedgram.methods.afl import AFL

WORKERS = (1, 2, 4)
Seconds = dict[str, float]


BY_KERNELS = False


def measured(given: argparse.Namespace) -> dict[str, Any]:
    quick = given.quick
    samples, width, clients, turns = (2_000, 64, 20, 3) if quick else (40_000, 1_024, 200, 7)
    sites, method = _sites(samples, width, clients), AFL()
    digests = set()
    with ExitStack() as stack:
        stack.enter_context(Cluster("local", cpus=max(WORKERS)))
        engines: dict[int, Any] = {0: InProcess(sites)}
        processes: dict[int, list[psutil.Process]] = {0: []}
        for workers in WORKERS:
            before = set(_workers())
            engines[workers] = stack.enter_context(
                RayFederation(sites, method=method, workers=workers)
            )
            engines[workers].sum(method.statistics)  # waits until the workers have their samples
            processes[workers] = [psutil.Process(pid) for pid in set(_workers()) - before]
        times: dict[int, list[Seconds]] = {key: [] for key in engines}
        for _ in range(turns):
            for key, engine in engines.items():
                digest, seconds = _timed(partial(_digest, engine, method), processes[key])
                digests.add(digest)
                times[key].append(seconds)
        os.kill(processes[4][0].pid, signal.SIGKILL)
        digests.add(_digest(engines[4], method))
        losses, tasks = engines[4].losses, tasks_per_second(200 if quick else 2_000)
    return {
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "samples": samples,
        "features": width,
        "clients": clients,
        "turns": turns,
        "workers": [
            {"workers": workers, **_ratios(times[workers], times[0])} for workers in WORKERS
        ],
        "killed_workers": losses,
        "one_digest": len(digests) == 1 and losses == 1,
        "tasks_per_second": round(tasks),
    }


def lines(found: Mapping[str, Any]) -> Iterator[str]:
    yield (
        f"AFL, {found['samples']} samples of {found['features']} features, {found['clients']} "
        f"clients, {found['cores']} cores; time of a fit as a share of one process"
    )
    for row in found["workers"]:
        yield (
            f"  {row['workers']} Ray workers: processor {row['processor']:.2f}, path "
            f"{row['path']:.2f}, wall {row['wall']:.2f}"
        )
    yield f"  one digest for all, and after a killed worker: {found['one_digest']}"
    yield f"  empty tasks of Ray per second: {found['tasks_per_second']}"


def regressions(found: Mapping[str, Any]) -> Iterator[str]:
    if not found["one_digest"]:
        yield "the digest depends on the workers"


def tasks_per_second(tasks: int) -> float:
    """Return how many empty tasks Ray carries out per second, for the page on scale."""
    import ray

    empty = ray.remote(num_cpus=0)(lambda: None)
    ray.get([empty.remote() for _ in range(20)])  # workers are there
    start = time.perf_counter()
    ray.get([empty.remote() for _ in range(tasks)])
    return tasks / (time.perf_counter() - start)


def _sites(samples: int, width: int, clients: int) -> list[Site]:
    rng = np.random.default_rng(0)
    values = np.clip(np.rint(rng.normal(0, 21, (samples, width))), -127, 127).astype(np.int8)
    labels = Labels(rng.integers(0, 10, samples), tuple(str(c) for c in range(10)))
    everything = Samples(Features(values, Space(width=width, bound=127, unit=6 / 127)), labels)
    nothing = everything.take([])
    return [
        Site(
            id=f"c{number:04}",
            train=everything.take(np.arange(number, samples, clients)),
            valid=nothing,
            test=nothing,
        )
        for number in range(clients)
    ]


def _digest(engine: Any, method: AFL) -> str | None:
    return shared_digest(method, next(iter(method.fit(engine))))


def _timed(
    work: Callable[[], str | None], processes: list[psutil.Process]
) -> tuple[str | None, Seconds]:
    wall, before = time.perf_counter(), _used(processes)
    result = work()
    wall = time.perf_counter() - wall
    own, *others = (end - start for start, end in zip(before, _used(processes), strict=True))
    return result, {
        "wall": wall,
        "processor": own + sum(others),
        "path": own + max(others, default=0.0),
    }


def _used(processes: list[psutil.Process]) -> list[float]:
    """Return the processor seconds of this process and of the others."""
    others = (process.cpu_times() for process in processes)
    return [time.process_time(), *(used.user + used.system for used in others)]


def _ratios(ours: list[Seconds], alone: list[Seconds]) -> dict[str, Any]:
    """Return the median of each ratio over the turns, and its smallest and largest value."""
    found: dict[str, Any] = {}
    for kind in ("wall", "processor", "path"):
        ratios = [a[kind] / b[kind] for a, b in zip(ours, alone, strict=True)]
        found[kind] = round(statistics.median(ratios), 3)
        found[f"{kind}_spread"] = [round(min(ratios), 3), round(max(ratios), 3)]
    return found


def _workers() -> list[int]:
    from ray._private.state import actors

    return [actor["Pid"] for actor in actors().values() if actor["State"] == "ALIVE"]
