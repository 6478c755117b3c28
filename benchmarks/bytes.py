"""Bytes of a client's statistics: dense float64, packed integers, and as sent with zstd.

Sizes are ratios to the packed integers; time is that of compressing as a share of computing the
statistics. Without feature files (FEDGRAM_DATA) only the embedded digits are measured.

python -m benchmarks bytes [--json] [--quick]
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from benchmarks.measure import RESULTS, cpu_seconds
from fedgram import Grid, Lift, Samples, Statistics, load_dataset
from fedgram.core import codec
from fedgram.core.compression import compress
from fedgram.errors import DataError
from fedgram.federation.federated_dataset import gridded
from fedgram.models.linear import lifted

BY_KERNELS = False
FILES = ("cifar100_efficientnet_lite0.npz", "banking77_minilm_l6.npz", "mnist_images.npz")


def measured(given: argparse.Namespace) -> dict[str, Any]:
    return {"rows": list(rows(quick=given.quick))}


def lines(found: Mapping[str, Any]) -> Iterator[str]:
    for row in found["rows"]:
        yield (
            f"{row['data']}, {row['samples']} samples, {row['features']} features: "
            f"{row['bytes']} bytes, dense float64 {row['dense']:.2f}, sent {row['sent']:.2f}, "
            f"compressing takes {row['time']:.2f} of the statistics"
        )


def regressions(found: Mapping[str, Any]) -> Iterator[str]:
    before = json.loads((RESULTS / "bytes.json").read_text("utf-8"))["rows"]
    expected = {(row["data"], row["samples"], row["features"]): row["bytes"] for row in before}
    for row in found["rows"]:
        known = expected.get((row["data"], row["samples"], row["features"]))
        if known is not None and row["bytes"] > known:
            yield f"{row['data']}, {row['samples']} samples: {row['bytes']} bytes, was {known}"
        if row["sent"] > 1:
            yield f"{row['data']}, {row['samples']} samples: compressed to more bytes"


def rows(*, quick: bool) -> Iterator[dict[str, Any]]:
    for source in ("digits", *(() if quick else FILES)):
        try:
            samples = gridded(load_dataset(source), Grid())
        except DataError as error:
            print(f"left out: {error}")
            continue
        for count in (50,) if quick else (50, 500):
            for width in (0,) if quick else (0, 2048):
                yield {"data": source, **measured_row(samples.take(np.arange(count)), width)}


def measured_row(samples: Samples, width: int) -> dict[str, Any]:
    features, labels = lifted(samples, Lift(width=width))
    value = Statistics.of(features, labels)
    message = codec.encode(value)
    columns = features.space.width
    ratios = [
        cpu_seconds(lambda: compress(message))
        / cpu_seconds(lambda: Statistics.of(features, labels))
        for _ in range(5)
    ]
    return {
        "samples": len(samples),
        "features": columns,
        "bytes": len(message),
        "dense": round(8 * columns * (columns + len(labels.classes)) / len(message), 3),
        "sent": round(len(compress(message)) / len(message), 3),
        "time": round(statistics.median(ratios), 3),
    }
