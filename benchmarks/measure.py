"""What all benchmarks share: arguments, processor time of alternatives in turns, stored results."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from threadpoolctl import threadpool_info

from fedgram.cli.info import processor
from fedgram.core.kernels.choice import chosen
from fedgram.runtime.threads import product_threads

RESULTS = Path(__file__).parent / "results"


class Benchmark(Protocol):
    """The module of a benchmark. `options(parser)` adds arguments of its own, if it is there."""

    BY_KERNELS: bool  # whether results are stored for each kind of BLAS kernels

    def measured(self, given: argparse.Namespace) -> dict[str, Any] | None:
        """Return the result; None for a part of another process, which has printed its own."""

    def lines(self, found: Mapping[str, Any]) -> Iterator[str]:
        """Yield the result as text."""

    def regressions(self, found: Mapping[str, Any]) -> Iterator[str]:
        """Yield what is clearly worse than it should be; of ratios and counts, never seconds."""


def given_to(name: str, benchmark: Any, arguments: Sequence[str]) -> argparse.Namespace:
    """Read the arguments of a benchmark."""
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks {name}",
        description=benchmark.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="store the result")
    parser.add_argument("--quick", action="store_true", help="small sizes, for a check")
    if hasattr(benchmark, "options"):
        benchmark.options(parser)
    return parser.parse_args(list(arguments))


def run(name: str, benchmark: Any, arguments: Sequence[str]) -> list[str]:
    """Run a benchmark, print and perhaps store its result; return its regressions."""
    given = given_to(name, benchmark, arguments)
    found = benchmark.measured(given)
    if found is None:
        return []
    found = {"machine": machine(), **found}
    print(", ".join(f"{key}: {value}" for key, value in found["machine"].items()))
    for line in benchmark.lines(found):
        print(line, flush=True)
    if given.json:
        print(stored(name, found, by_kernels=benchmark.BY_KERNELS))
    return [f"{name}: {text}" for text in benchmark.regressions(found)]


def machine() -> dict[str, Any]:
    """Return what the figures of a run depend on."""
    kernels = {
        each.get("architecture", "unknown")
        for each in threadpool_info()
        if each["user_api"] == "blas"
    }
    return {
        "processor": processor(),
        "BLAS kernels": ", ".join(sorted(kernels)),
        "way of products": chosen().name,
        "threads": product_threads(),
    }


def interleaved(calls: Mapping[str, Callable[[], Any]], repeats: int) -> dict[str, list[float]]:
    """Return the processor seconds of each call, in turns."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            found[name].append(cpu_seconds(call))
    return found


def cpu_seconds(work: Callable[[], Any]) -> float:
    """Return the processor seconds of a call, at least a microsecond."""
    start = time.process_time()
    work()
    return max(time.process_time() - start, 1e-6)


def ratio(times: Mapping[str, list[float]], name: str, base: str) -> dict[str, float]:
    """Return the median of a call's time over that of another in the same turn, and its spread."""
    return spread([a / b for a, b in zip(times[name], times[base], strict=True)])


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return the median, the smallest and the largest value."""
    return {
        "median": round(statistics.median(values), 4),
        "least": round(min(values), 4),
        "most": round(max(values), 4),
    }


def shown(each: Mapping[str, float] | None) -> str:
    """Return a ratio with its spread as text."""
    return f"{each['median']:.2f} ({each['least']:.2f} to {each['most']:.2f})" if each else ""


def above(found: Mapping[str, Any], name: str, most: float) -> Iterator[str]:
    """Yield a text if the median of a ratio is above `most`."""
    if name in found and found[name]["median"] > most:
        yield f"{name} is {found[name]['median']:.2f}, expected at most {most:g}"


def stored(name: str, found: Mapping[str, Any], *, by_kernels: bool = False) -> Path:
    """Write the results of a benchmark; if they depend on it, for each kind of BLAS kernels."""
    RESULTS.mkdir(exist_ok=True)
    kernels = str(found["machine"]["BLAS kernels"]).lower().replace(", ", "-")
    path = RESULTS / (f"{name}-{kernels}.json" if by_kernels else f"{name}.json")
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return path
