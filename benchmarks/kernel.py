"""Exact Gram matrices by every way, beside float BLAS: ratios within one run, one thread.

python -m benchmarks kernel [--json] [--quick]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from scipy.linalg import blas

from benchmarks.measure import above, interleaved, ratio, shown
from fedgram import Features, Labels, Space, Statistics
from fedgram.core.kernels.choice import WAYS, chosen, tried

CLASSES = tuple(str(c) for c in range(100))


BY_KERNELS = True


def measured(given: argparse.Namespace) -> dict[str, Any]:
    # A small form still has products that are long enough to compare.
    shapes = ((2048, 1281),) if given.quick else ((8192, 4096), (8192, 1281), (450, 1281))
    found = {f"{n} x {d}": gram(n, d, repeats=3 if d > 2000 else 9) for n, d in shapes}
    return {"shapes": found, "reasons": reasons()}


def lines(found: Mapping[str, Any]) -> Iterator[str]:
    for shape, result in found["shapes"].items():
        for name, each in result.items():
            yield f"{shape}: {name}: {shown(each)}"
    for name, reason in found["reasons"].items():
        if reason:
            yield f"not used: {name}: {reason}"


def regressions(found: Mapping[str, Any]) -> Iterator[str]:
    for result in found["shapes"].values():
        yield from above(result, "vnni / ssyrk", 0.6)
        yield from above(result, "torch / ssyrk", 1.5)
        yield from above(result, "onnxruntime / ssyrk", 1.5)
        yield from above(result, "blas / ssyrk", 2.0)
        yield from above(result, "Statistics.of / float64 F.T @ F", 0.9)


def reasons() -> dict[str, str]:
    """Return why a way is not used, empty for an exact one."""
    return {name: tried(name).reason for name in WAYS}


def gram(rows: int, width: int, *, repeats: int) -> dict[str, Any]:
    """Return the time of each way, and of the whole statistics, over ssyrk and over float64."""
    rng = np.random.default_rng(0)
    values = np.clip(np.rint(rng.normal(0, 21, (rows, width))), -127, 127).astype(np.int8)
    features = Features(values, Space(width=width, bound=127))
    labels = Labels(rng.integers(0, len(CLASSES), rows), CLASSES)
    single, double = values.astype(np.float32), values.astype(np.float64)
    square = np.zeros((width, width), np.float32, order="F")
    total = np.zeros(width * (width + 1) // 2, np.int64)
    calls: dict[str, Callable[[], Any]] = {
        "ssyrk": lambda: blas.ssyrk(1.0, single.T, beta=0.0, c=square, lower=1, overwrite_c=1),
        "float64 F.T @ F": lambda: double.T @ double,
        "Statistics.of": lambda: Statistics.of(features, labels),
    }
    totals = []
    for name in WAYS:
        way = tried(name).way
        if way is not None:
            calls[name] = lambda way=way: way.gram(values, total)
            mine = np.zeros_like(total)
            way.gram(values, mine)
            totals.append(mine)
    assert all(np.array_equal(mine, totals[0]) for mine in totals)
    for call in calls.values():
        call()  # memory is there, libraries are loaded
    times = interleaved(calls, repeats)
    best = chosen(rows * width**2).name
    return {
        **{
            f"{name} / ssyrk": ratio(times, name, "ssyrk")
            for name in calls
            if name not in ("ssyrk", "float64 F.T @ F")
        },
        "ssyrk / float64 F.T @ F": ratio(times, "ssyrk", "float64 F.T @ F"),
        f"{best} / float64 F.T @ F": ratio(times, best, "float64 F.T @ F"),
        "Statistics.of / float64 F.T @ F": ratio(times, "Statistics.of", "float64 F.T @ F"),
    }
