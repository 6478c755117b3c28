"""Many features: words of memory of a sum with its solve, and a Gram matrix in a file.

python -m benchmarks wide [--json] [--quick] [--width 16384]

*words* is the peak of memory above the samples, in units of 8 d^2 bytes, of `Statistics.of` and one
solve in a process of its own. *in a file* is `DiskStatistics` with memory for strips of a quarter
of the matrix, over the same in memory; processor time, one thread.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import above, interleaved, ratio, shown
from fedgram import DiskStatistics, Features, Labels, Space, Statistics

BY_KERNELS = False
WIDTHS, QUICK = (4096, 8192), 1536
CLASSES = tuple(str(c) for c in range(10))
RIDGE = 100.0


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--width", type=int, nargs="*", help="numbers of features")
    parser.add_argument("--memory", type=int, help=argparse.SUPPRESS)


def measured(given: argparse.Namespace) -> dict[str, Any] | None:
    if given.memory:
        print(json.dumps(words(given.memory)))
        return None
    widths = given.width or ((QUICK,) if given.quick else WIDTHS)
    return {"widths": {str(width): of_width(width, 2 * width) for width in widths}}


def lines(found: Mapping[str, Any]) -> Iterator[str]:
    for width, each in found["widths"].items():
        yield f"{width} features, {each['samples']} samples: {each['words']:.2f} words"
        for name, one in each["ratios"].items():
            yield f"  {name}: {shown(one)}"
        yield f"  largest difference of weights: {each['difference']:.1e}"


def regressions(found: Mapping[str, Any]) -> Iterator[str]:
    for width, each in found["widths"].items():
        if each["words"] > 3.5:
            yield f"{width} features take {each['words']:.2f} words, expected at most 3"
        yield from above(each["ratios"], "sum in a file / in memory", 4)
        yield from above(each["ratios"], "solve in a file / in memory", 4)


def of_width(width: int, count: int) -> dict[str, Any]:
    features, labels = samples(width, count)
    most = 8 * width**2 // 4
    kept: dict[str, Any] = {}

    def keep(name: str, value: Any) -> Callable[[], Any]:
        return lambda: kept.__setitem__(name, value())

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "gram"
        times = interleaved(
            {
                "sum": keep("whole", lambda: Statistics.of(features, labels)),
                "sum in a file": keep(
                    "disk",
                    lambda: DiskStatistics.over(lambda: batches(features, labels), path, most=most),
                ),
                "solve": keep("weights", lambda: kept["whole"].solve(RIDGE)),
                "solve in a file": keep("others", lambda: kept["disk"].solve(RIDGE, most=most)),
            },
            3 if width < 5000 else 1,
        )
        assert np.array_equal(np.memmap(path, np.int64, "r"), kept["whole"].gram)
    difference = np.abs(kept["weights"] - kept["others"]).max() / np.abs(kept["weights"]).max()
    command = [sys.executable, "-m", "benchmarks", "wide", "--memory", str(width)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return {
        "samples": count,
        "words": round(json.loads(done.stdout.splitlines()[-1]), 3),
        "ratios": {
            "sum in a file / in memory": ratio(times, "sum in a file", "sum"),
            "solve in a file / in memory": ratio(times, "solve in a file", "solve"),
        },
        "difference": float(difference),
    }


def words(width: int) -> float:
    """Return the peak of this process above what it has with its samples, in 8 d^2 bytes."""
    features, labels = samples(width, 2048)
    few = Statistics.of(features.take(slice(9)), labels.take(slice(9)))  # what is loaded once
    del few
    before = _memory("VmRSS")
    Statistics.of(features, labels).solve(RIDGE)
    return (_memory("VmHWM") - before) / 8 / width**2


def _memory(field: str) -> int:
    """Return bytes of this program; the peak of `resource` would be that of its parent too."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise OSError(f"this system does not tell {field}")


def samples(width: int, count: int) -> tuple[Features, Labels]:
    rng = np.random.default_rng(0)
    values = rng.integers(-60, 61, (count, width), dtype=np.int8)
    labels = Labels(rng.integers(0, len(CLASSES), count), CLASSES)
    return Features(values, Space(width=width, bound=127, unit=6 / 127)), labels


def batches(features: Features, labels: Labels) -> Iterator[tuple[Features, Labels]]:
    for start in range(0, len(features), 4096):
        part = slice(start, start + 4096)
        yield features.take(part), labels.take(part)
