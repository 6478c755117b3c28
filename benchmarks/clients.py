"""What a client costs: the same samples over 10 to 100,000 clients, and a million of one sample.

python -m benchmarks.clients [--quick] [--json FILE]
python -m benchmarks.clients --render docs/scale.md [--from FILE]

Times are seconds of the processor with one thread of BLAS. All numbers of clients take turns, so
that a slow moment of the machine hits all of them; ratios are of medians. Memory is what Python and
NumPy allocate, in a process of its own, beyond what the same samples take with ten clients.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.scale import page
from fedgram import Dataset, InProcess, PartitionPlan, create_method, federate, run
from fedgram.core import codec
from fedgram.core.samples import Features, Labels, Space
from fedgram.core.statistics import Statistics
from fedgram.experiments import runner
from fedgram.experiments.record import versions
from fedgram.federation.federated_dataset import FederatedDataset
from fedgram.federation.scoring import Metrics

RESULTS = Path(__file__).parent / "results" / "clients.json"
CLASSES = tuple(str(c) for c in range(10))
FEW = 10
CLIENTS = (FEW, 100, 1_000, 10_000, 100_000)
METHODS = ("afl", "local", "prior", "lda", "fed3r", "fedhip", "apfl-linear", "auto")
# Features with the constant, classes and samples of one contribution.
SHAPES = {"phone": (129, 10, 50), "hospital": (1281, 100, 10_000), "wide": (4097, 100, 10_000)}


class OneByOne(InProcess):
    """The engine without unions: one client after the other."""

    def _sum_of_union(self, step: Any, names: Any) -> None:
        return None

    def _evaluate_together(self, task: Any, shared: Any) -> None:
        return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, to try the script")
    parser.add_argument("--json", type=Path, help="where the results are written")
    parser.add_argument("--render", type=Path, help="write the page of stored results instead")
    parser.add_argument("--from", dest="source", type=Path, default=RESULTS)
    parser.add_argument("--memory", nargs=3, type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.render:
        stored = json.loads(arguments.source.read_text(encoding="utf-8"))
        arguments.render.write_text(page(stored), encoding="utf-8")
    elif arguments.memory:
        print(json.dumps(allocated(*arguments.memory)))
    else:
        with threadpool_limits(1):
            results = measured(quick=arguments.quick)
        text = json.dumps(results, indent=1) + "\n"
        if arguments.json:
            arguments.json.write_text(text, encoding="utf-8")
        print(text)


def measured(*, quick: bool) -> dict[str, Any]:
    """Return all results; goals of ratios are stated on the page, not checked here."""
    samples = 14_000 if quick else 140_000  # three quarters of them for training
    clients = tuple(n for n in CLIENTS if n * 1.3 < samples)
    many = 10_000 if quick else 1_000_000
    return {
        "about": {
            "machine": platform.machine(),
            "cpu": cpu(),
            "blas": versions()["blas"],
            "coretype": os.environ.get("OPENBLAS_CORETYPE", ""),
            "quick": quick,
        },
        "samples": samples * 3 // 4,
        "features": 128,
        "clients": by_clients(samples, clients, repeats=3 if quick else 7),
        "one_by_one": one_by_one(samples, 100 if quick else 10_000),
        "methods": by_method(200 if quick else 1_000),
        "million": million(many),
        "memory": memory(many),
        "constants": constants(quick=quick),
    }


def by_clients(samples: int, clients: tuple[int, ...], repeats: int) -> list[dict[str, Any]]:
    """Fit, and run with scores, the same samples with each number of clients in turn."""
    data = drawn(samples, 128)
    dealt = {n: dealt_iid(data, n) for n in clients}
    fits: dict[int, list[float]] = {n: [] for n in clients}
    runs: dict[int, list[float]] = {n: [] for n in clients}
    digests = set()
    for turn in range(repeats + 1):  # the first turn warms up
        for n in clients:
            engine = InProcess(dealt[n].members)
            fit = cpu_seconds(lambda e=engine: list(create_method("afl").fit(e)))
            result: list[Any] = []
            whole = cpu_seconds(lambda d=dealt[n], r=result: r.append(run(create_method("afl"), d)))
            digests.add(result[0].shared_digest)
            if turn:
                fits[n].append(fit)
                runs[n].append(whole)
    assert len(digests) == 1, "the shared digest depends on the number of clients"
    return [
        {
            "clients": n,
            "fit": spread(fits[n]),
            "run": spread(runs[n]),
            "fit_ratio": median(fits[n]) / median(fits[FEW]),
            "fit_microseconds": 1e6 * max(0.0, median(fits[n]) - median(fits[FEW])) / n,
            "run_microseconds": 1e6 * median(runs[n]) / n,
        }
        for n in clients
    ]


def one_by_one(samples: int, clients: int) -> dict[str, Any]:
    """Compare the union with the same clients one after the other."""
    dealt = dealt_iid(drawn(samples, 128), clients)
    seconds: dict[str, list[float]] = {"union": [], "one_by_one": []}
    for _ in range(3):
        for name, engine in (("union", InProcess), ("one_by_one", OneByOne)):
            runner.InProcess = engine  # type: ignore[misc]
            seconds[name].append(cpu_seconds(lambda: run(create_method("afl"), dealt)))
    runner.InProcess = InProcess  # type: ignore[misc]
    ratio = median(seconds["one_by_one"]) / median(seconds["union"])
    return {"clients": clients, "ratio": ratio, **{k: spread(v) for k, v in seconds.items()}}


def by_method(clients: int) -> list[dict[str, Any]]:
    """Run methods with personal models, without the test of each model on all test samples."""
    plan = PartitionPlan(clients=clients, partition="dirichlet", dirichlet=0.3, minimum=2)
    dealt = federate(drawn(20 * clients, 64), plan)
    found = []
    for name in METHODS:
        seconds = [
            cpu_seconds(
                lambda m=name: run(create_method(m), dealt, metrics=Metrics(global_test=False))
            )
            for _ in range(1 if name == "auto" else 3)
        ]
        found.append({"method": name, "microseconds": 1e6 * median(seconds) / clients})
    return found


def million(clients: int) -> dict[str, Any]:
    """Deal one training sample to each of many clients, and run."""
    data = drawn(clients * 134 // 100, 32)
    held: list[FederatedDataset] = []
    few = cpu_seconds(lambda: dealt_iid(data, FEW))
    dealing = cpu_seconds(lambda: held.append(dealt_iid(data, clients)))
    results: list[Any] = []
    whole = cpu_seconds(lambda: results.append(run(create_method("afl"), held[0])))
    record = results[0].record
    return {
        "clients": record.summary.clients,
        "features": 32,
        "partition_seconds": dealing,
        "run_seconds": whole,
        "partition_microseconds": 1e6 * (dealing - few) / clients,
        "run_microseconds": 1e6 * whole / clients,
        "bytes_up": record.exchanges[0].bytes_up,
    }


def memory(clients: int) -> dict[str, Any]:
    """Return bytes for each client beyond those of ten clients with the same samples."""
    few, many = (elsewhere(n, clients * 134 // 100, 16) for n in (FEW, clients))
    beyond = {key: (many[key] - few[key]) / clients for key in many}
    return {"clients": clients, "bytes_per_client": beyond}


def elsewhere(*numbers: int) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.clients", "--memory", *map(str, numbers)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def allocated(clients: int, samples: int, width: int) -> dict[str, float]:
    """Return bytes that are kept after a run, and at the peaks of the partition and of the run."""
    data = drawn(samples, width)
    run(create_method("afl"), dealt_iid(drawn(100, 2), 2))  # imports
    tracemalloc.start()
    dealt = dealt_iid(data, clients)
    deal_peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.reset_peak()
    result = run(create_method("afl"), dealt)
    kept, run_peak = tracemalloc.get_traced_memory()
    assert result.record.summary.clients == clients
    return {"kept": kept, "peak of the partition": deal_peak, "peak of the run": run_peak}


def constants(*, quick: bool) -> dict[str, dict[str, float]]:
    """Measure what the server does with one contribution, for some shapes."""
    found = {}
    for name, (width, classes, samples) in SHAPES.items():
        if quick and name != "phone":
            continue
        space = Space(width=width, inputs=width - 1, bound=127, unit=6 / 127, steps=("grid",))
        rng = np.random.default_rng(0)
        values = np.clip(np.rint(21 * rng.normal(size=(samples, width))), -127, 127)
        values[:, -1] = 21
        rows = Features(values.astype(np.int8), space)
        labels = Labels(rng.integers(0, classes, samples), tuple(map(str, range(classes))))
        one = Statistics.of(rows, labels)
        message = codec.encode(one)
        repeats = 200 if width < 1000 else 5 if width < 4000 else 3
        found[name] = {
            "width": width,
            "classes": classes,
            "samples": samples,
            "bytes": len(message),
            "make": each(lambda r=rows, t=labels: Statistics.of(r, t), min(repeats, 20)),
            "decode": each(lambda m=message: codec.decode(m), repeats),
            "validate": each(one.validate, min(repeats, 20)),
            "add": each(lambda s=one: s + s, repeats),
        }
    return found


def drawn(samples: int, width: int) -> Dataset:
    rng = np.random.default_rng(0)
    codes = rng.integers(0, len(CLASSES), samples)
    x = rng.normal(0, 21, (samples, width)).astype(np.float32)
    x[np.arange(samples), codes % width] += 60
    x = np.clip(np.rint(x), -127, 127).astype(np.int8)
    return Dataset(x=x, y=codes, classes=CLASSES, grid=(8, 6.0))


def dealt_iid(data: Dataset, clients: int) -> FederatedDataset:
    return federate(data, PartitionPlan(clients=clients, partition="iid"))


def each(work: Callable[[], Any], repeats: int) -> float:
    work()
    return median([cpu_seconds(work) for _ in range(repeats)])


def cpu_seconds(work: Callable[[], Any]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def median(seconds: list[float]) -> float:
    return statistics.median(seconds)


def spread(seconds: list[float]) -> dict[str, float]:
    return {"median": median(seconds), "least": min(seconds), "most": max(seconds)}


def cpu() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in text.splitlines() if "model name" in line]
    return names[0] if names else platform.processor()


if __name__ == "__main__":
    main()
