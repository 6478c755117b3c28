"""Whole runs on CIFAR-100 features beside the calls that they cannot avoid, and beside FedAvg.

FEDGRAM_DATA=... python -m benchmarks limit [--json] [--before FOLDER] [--repeats N] [--tasks ...]

--before names the source tree (its folder `src`) of an earlier version, to compare with. Every task
runs in a process of its own, in turns; processor time is that of the task, without loading data.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import scipy.linalg

from benchmarks.measure import above, ratio, shown
from fedgram import PartitionPlan, create_method, federate, load_dataset, run
from fedgram.core.samples import Samples, concatenate
from fedgram.core.statistics import Statistics
from fedgram.experiments.runner import ScoringSchedule
from fedgram.features.lift import Lift
from fedgram.federation.method import names
from fedgram.federation.scoring import Metrics

WIDTH = 4096
ROUNDS, MEASURED_ROUNDS, TORCH_ROUNDS = 200, 20, 2
TASKS = (
    "lift and Gram",
    "apfl",
    "apfl, bare calls",
    "auto",
    "fedavg",
    "fedavg, half the rounds",
    "torch loop",
)
# A lift of the shared stream, and every setting: the defaults of other versions are others.
APFL = {
    "ridge": 100.0,
    "refinement_ridge": 300.0,
    "balance": 0.5,
    "primary": {"width": WIDTH},
    "refinement": {"width": 0},
}
COMPARED = ("lift and Gram", "apfl")  # with an earlier version, or without int8 products


BY_KERNELS = True


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--before", help="the folder `src` of an earlier version")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tasks", nargs="*", choices=TASKS, default=list(TASKS))
    parser.add_argument("--child", choices=TASKS, help=argparse.SUPPRESS)


def measured(given: argparse.Namespace) -> dict[str, Any] | None:
    if given.child:
        print(seconds_of(given.child))
        return None
    return compared(1 if given.quick else given.repeats, given.before, given.tasks)


def lines(found: Mapping[str, Any]) -> Iterator[str]:
    for name, each in found["ratios"].items():
        yield f"{name}: {shown(each)}"


def regressions(found: Mapping[str, Any]) -> Iterator[str]:
    yield from above(found["ratios"], "apfl, now / apfl, bare calls, now", 1.5)


def compared(repeats: int, before: str | None, tasks: list[str]) -> dict[str, Any]:
    kinds = ("before",) if before else ("blas",)
    plans = [(task, "now") for task in tasks]
    plans += [(task, kind) for kind in kinds for task in tasks if task in COMPARED]
    times: dict[str, list[float]] = {f"{task}, {kind}": [] for task, kind in plans}
    for _ in range(repeats):
        for task, kind in plans:
            times[f"{task}, {kind}"].append(child(task, kind, before))
            print(task, kind, round(times[f"{task}, {kind}"][-1], 2), flush=True)
    if {"fedavg", "fedavg, half the rounds"} <= set(tasks):
        # What is done once, the first round and scoring, is in both: rounds are the difference.
        times["fedavg, 200 rounds"] = [
            half + (whole - half) * (ROUNDS - MEASURED_ROUNDS / 2) / (MEASURED_ROUNDS / 2)
            for whole, half in zip(
                times["fedavg, now"], times["fedavg, half the rounds, now"], strict=True
            )
        ]
    if "torch loop" in tasks:
        times["torch loop, 200 rounds"] = [
            each * ROUNDS / TORCH_ROUNDS for each in times["torch loop, now"]
        ]
    pairs = [
        ("apfl, now", "apfl, bare calls, now"),
        ("auto, now", "fedavg, 200 rounds"),
        ("auto, now", "torch loop, 200 rounds"),
        *((f"{task}, now", f"{task}, {kind}") for kind in kinds for task in COMPARED),
    ]
    known = [pair for pair in pairs if set(pair) <= set(times)]
    return {
        "seconds": {name: [round(each, 2) for each in mine] for name, mine in times.items()},
        "ratios": {f"{name} / {base}": ratio(times, name, base) for name, base in known},
    }


def child(task: str, kind: str, before: str | None) -> float:
    environment = dict(os.environ, OPENBLAS_NUM_THREADS="1")
    if kind == "blas":
        environment["FEDGRAM_KERNEL"] = "blas"
    if kind == "before":
        environment["PYTHONPATH"] = str(before)
        command = [sys.executable, "-c", _BEFORE, task]
    else:
        command = [sys.executable, "-m", "benchmarks", "limit", "--child", task]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return float(done.stdout.split()[-1])


# An earlier version has no module `benchmarks.measure`; its machine is not asked for.
_BEFORE = (
    "import sys, types; sys.modules['benchmarks.measure'] = m = types.ModuleType('m');"
    "m.above = m.ratio = m.shown = None;"
    "from benchmarks.limit import seconds_of; print(seconds_of(sys.argv[1]))"
)


def members() -> Any:
    plan = PartitionPlan(
        split="within-client", seed=0, clients=100, partition="dirichlet", dirichlet=0.1
    )
    return federate(load_dataset("cifar100_efficientnet_lite0.npz"), plan)


def seconds_of(task: str) -> float:
    """Run one task and return its processor seconds."""
    federation = members()
    tasks: dict[str, Callable[[], Any]] = {
        "lift and Gram": lambda: Statistics.of(*_lifted(everything)),
        "apfl": lambda: _run(federation, "apfl", APFL),
        "apfl, bare calls": lambda: bare(federation),
        "auto": lambda: _run(federation, "auto", {"exchanges": 1, "effort": "high"}),
        "fedavg": lambda: _run(federation, "fedavg", {"rate": 0.1, "rounds": MEASURED_ROUNDS}),
        "fedavg, half the rounds": lambda: _run(
            federation, "fedavg", {"rate": 0.1, "rounds": MEASURED_ROUNDS // 2}
        ),
    }
    if task == "torch loop":
        tasks[task] = _torch_rounds(federation)
    everything = concatenate([site.train for site in federation.members])
    Statistics.of(everything.features.take(slice(0, 9)), everything.labels.take(slice(0, 9)))
    start = time.process_time()
    tasks[task]()
    return time.process_time() - start


def _apfl() -> str:
    """Return the name of APFL with linear streams; an earlier version has only one."""
    return "apfl-linear" if "apfl-linear" in names() else "apfl"


def _torch_rounds(federation: Any) -> Callable[[], Any]:
    """Return some rounds of a plain torch loop, with the settings of the FedAvg beside it."""
    import torch

    from benchmarks.gradients import Local, torch_loop

    torch.set_num_threads(1)
    method = create_method("fedavg")
    rounds = torch_loop(federation, Local(method.epochs, method.batch))
    return lambda: [next(rounds) for _ in range(TORCH_ROUNDS)]


def _lifted(samples: Samples) -> Any:
    return Lift(width=WIDTH)(samples.features), samples.labels


def _run(federation: Any, method: str, settings: dict[str, Any]) -> Any:
    return run(
        create_method(method, settings),
        federation,
        name=method,
        metrics=Metrics(global_test=False),
        scoring=ScoringSchedule(every=1000),
    )


def bare(federation: Any) -> None:
    """Do what APFL cannot avoid: lift, Gram, one Cholesky, dual solves, scores; no bookkeeping."""
    lift, parts = Lift(width=WIDTH), []
    everything = concatenate([site.train for site in federation.members])
    wide = lift(everything.features)
    total = Statistics.of(wide, everything.labels)
    unit = wide.space.unit
    from fedgram.core.exact import gram_matrix  # an earlier version has none
    from fedgram.core.solve import ridge_solve, unpack_symmetric

    head = ridge_solve(
        unpack_symmetric(total.gram, wide.space.width),
        total.moment.astype(np.float64),
        100.0 / unit**2,
    )
    start = 0
    for site in federation.members:
        own, stop = site.train, start + len(site.train)
        rows = own.features.values
        residual = own.labels.onehot() - wide.values[start:stop].astype(np.float64) @ head
        start = stop
        stored_ridge = 300.0 / own.features.space.unit**2
        if len(rows) < rows.shape[1]:
            kernel = gram_matrix(rows.T)
            kernel[np.diag_indices(len(kernel))] += stored_ridge
            factor = scipy.linalg.cho_factor(kernel, overwrite_a=True, check_finite=False)
            weights = rows.astype(np.float64).T @ scipy.linalg.cho_solve(factor, residual)
        else:
            kernel = gram_matrix(rows)
            kernel[np.diag_indices(len(kernel))] += stored_ridge
            factor = scipy.linalg.cho_factor(kernel, overwrite_a=True, check_finite=False)
            weights = scipy.linalg.cho_solve(factor, rows.astype(np.float64).T @ residual)
        tested = site.test.features
        scores = lift(tested).values.astype(np.float64) @ head
        parts.append((scores + 0.5 * (tested.values.astype(np.float64) @ weights)).argmax(axis=1))
