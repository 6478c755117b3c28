"""What a client costs: the same samples over 10 to 100,000 clients, and a million of one sample.

python -m benchmarks clients [--quick] [--json]

Times are seconds of the processor with one thread of BLAS. All numbers of clients take turns, so
that a slow moment of the machine hits all of them; ratios are of medians. Memory is what Python and
NumPy allocate, in a process of its own, beyond what the same samples take with ten clients.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import statistics
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.measure import cpu_seconds
from fedgram import Dataset, InProcess, PartitionPlan, create_method, federate, run
from fedgram.core import codec
from fedgram.core.samples import Features, Labels, Space
from fedgram.core.statistics import Statistics
from fedgram.experiments import runner
from fedgram.experiments.record import versions
from fedgram.federation.federated_dataset import FederatedDataset
from fedgram.federation.scoring import Metrics

BY_KERNELS = False
CLASSES = tuple(str(c) for c in range(10))
FEW = 10
CLIENTS = (FEW, 100, 1_000, 10_000, 100_000)
METHODS = ("afl", "local", "prior", "lda", "fed3r", "fedhip", "apfl-linear", "auto")
# Features with the constant, classes and samples of one contribution.
SHAPES = {"phone": (129, 10, 50), "hospital": (1281, 100, 10_000), "wide": (4097, 100, 10_000)}


class OneByOne(InProcess):
    """The engine without unions and stacks: one client after the other."""

    def _sum_of_union(self, step: Any, broadcast: Any, names: Any) -> None:
        return None

    def _stacked(self, step: Any, broadcast: Any, names: Any, client_at: Any) -> Any:
        alone = functools.partial(step)
        alone.__name__ = step.__name__  # type: ignore[attr-defined]
        return self._ask(alone, broadcast, names, client_at)

    def _evaluate_together(self, task: Any, shared: Any) -> None:
        return None


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--memory", nargs=3, type=int, help=argparse.SUPPRESS)


def measured(given: argparse.Namespace) -> dict[str, Any] | None:
    if given.memory:
        print(json.dumps(allocated(*given.memory)))
        return None
    with threadpool_limits(1):
        return everything(quick=given.quick)


def everything(*, quick: bool) -> dict[str, Any]:
    """Return all results; goals of ratios are stated on the page, not checked here."""
    samples = 14_000 if quick else 140_000  # three quarters of them for training
    clients = tuple(n for n in CLIENTS if n * 1.3 < samples)
    many = 10_000 if quick else 1_000_000
    return {
        "about": {"blas": versions()["blas"], "quick": quick},
        "samples": samples * 3 // 4,
        "features": 128,
        "clients": by_clients(samples, clients, repeats=3 if quick else 7),
        "one_by_one": one_by_one(samples, 100 if quick else 10_000),
        "methods": by_method(200 if quick else 1_000),
        "million": million(many),
        "memory": memory(many),
        "constants": constants(quick=quick),
    }


def lines(found: Mapping[str, Any]) -> Iterator[str]:
    for row in found["clients"]:
        yield (
            f"{row['clients']} clients: fit {row['fit_ratio']:.2f} of that of {FEW} clients, run "
            f"{row['run']['median']:.3f} s, {row['run_beyond']:.1f} us per client beyond {FEW}"
        )
    slow, kept = found["one_by_one"], found["memory"]["bytes_per_client"]
    yield f"one by one: {slow['ratio']:.1f} times as long for {slow['clients']} clients"
    for row in found["methods"]["rows"]:
        yield (
            f"{row['method']}: {row['microseconds']:.0f} us per client, one by one "
            f"{row['one_by_one']:.0f}"
        )
    yield f"bytes per client: {', '.join(f'{k} {v:.0f}' for k, v in kept.items())}"


def regressions(found: Mapping[str, Any]) -> Iterator[str]:
    for row in found["clients"]:
        if row["fit_ratio"] > 4 and row["fit_microseconds"] > 10:
            yield f"a fit of {row['clients']} clients takes {row['fit_ratio']:.1f} of that of {FEW}"
    if found["one_by_one"]["ratio"] < 2:
        yield f"one by one takes only {found['one_by_one']['ratio']:.1f} times as long"
    auto = next(row for row in found["methods"]["rows"] if row["method"] == "auto")
    if auto["one_by_one"] < 1.5 * auto["microseconds"]:
        yield f"auto: {auto['microseconds']:.0f} us per client, one by one {auto['one_by_one']:.0f}"
    for name, each in found["memory"]["bytes_per_client"].items():
        if each > 400:
            yield f"memory: {name} {each:.0f} bytes per client, expected at most 400"


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
            # Of the fastest runs: other programs only ever make a run slower.
            "run_beyond": 1e6 * (min(runs[n]) - min(runs[FEW])) / n,
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


def by_method(clients: int) -> dict[str, Any]:
    """Run methods with personal models, without the test of each model on all test samples.

    The engine takes turns with the one that computes one client after the other.
    """
    plan = PartitionPlan(clients=clients, partition="dirichlet", dirichlet=0.3, minimum=2)
    samples, features = 20 * clients, 64
    dealt = federate(drawn(samples, features), plan)
    found = []
    for name in METHODS:
        seconds: dict[str, list[float]] = {"together": [], "one_by_one": []}
        for _ in range(3):
            for way, engine in (("together", InProcess), ("one_by_one", OneByOne)):
                runner.InProcess = engine  # type: ignore[misc]
                seconds[way].append(
                    cpu_seconds(
                        lambda m=name: run(
                            create_method(m), dealt, metrics=Metrics(global_test=False)
                        )
                    )
                )
        runner.InProcess = InProcess  # type: ignore[misc]
        each = {way: 1e6 * median(taken) / clients for way, taken in seconds.items()}
        found.append(
            {
                "method": name,
                "microseconds": each["together"],
                "one_by_one": each["one_by_one"],
            }
        )
    load = os.getloadavg()[1]
    about = {"clients": clients, "samples": samples, "features": features, "load": load}
    return {**about, "cores": os.cpu_count(), "rows": found}


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
    command = [sys.executable, "-m", "benchmarks", "clients", "--memory", *map(str, numbers)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
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


def median(seconds: list[float]) -> float:
    return statistics.median(seconds)


def spread(seconds: list[float]) -> dict[str, float]:
    return {"median": median(seconds), "least": min(seconds), "most": max(seconds)}
