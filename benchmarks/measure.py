"""Processor time of alternatives, interleaved; ratios with their spread; where results are kept."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_info

from fedgram.cli.info import processor
from fedgram.core.kernels.choice import chosen
from fedgram.runtime.threads import product_threads

RESULTS = Path(__file__).parent / "results"


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
            start = time.process_time()
            call()
            found[name].append(time.process_time() - start)
    return found


def ratio(times: Mapping[str, list[float]], name: str, base: str) -> dict[str, float]:
    """Return the median of a call's time over that of another in the same turn, and its spread."""
    each = [a / b for a, b in zip(times[name], times[base], strict=True)]
    return {
        "median": round(statistics.median(each), 4),
        "least": round(min(each), 4),
        "most": round(max(each), 4),
    }


def stored(name: str, found: Mapping[str, Any]) -> Path:
    """Write the results of a benchmark, a file for each kind of BLAS kernels."""
    RESULTS.mkdir(exist_ok=True)
    kernels = str(found["machine"]["BLAS kernels"]).lower().replace(", ", "-")
    path = RESULTS / f"{name}-{kernels}.json"
    path.write_text(json.dumps(found, indent=1) + "\n")
    return path
