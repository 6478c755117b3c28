"""Bytes of a client's statistics: dense float64, packed integers, and as sent with zstd.

Sizes are ratios to the packed integers; time is that of compressing as a share of computing the
statistics. Without feature files (FEDGRAM_DATA) only the embedded digits are measured.

python -m benchmarks.bytes_sent [--json FILE] [--quick]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fedgram import Grid, Lift, Samples, Statistics, load_dataset
from fedgram.core import codec
from fedgram.core.compression import compress
from fedgram.errors import DataError
from fedgram.federation.federated_dataset import gridded
from fedgram.models.linear import lifted

FILES = ("cifar100_efficientnet_lite0.npz", "banking77_minilm_l6.npz", "mnist_images.npz")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, to try the script")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here too")
    given = parser.parse_args()
    found = {"benchmark": "bytes", "rows": list(rows(quick=given.quick))}
    for row in found["rows"]:
        print(
            f"{row['data']}, {row['samples']} samples, {row['features']} features: "
            f"{row['bytes']} bytes, dense float64 {row['dense']:.2f}, sent {row['sent']:.2f}, "
            f"compressing takes {row['time']:.2f} of the statistics"
        )
    if given.json:
        given.json.parent.mkdir(parents=True, exist_ok=True)
        given.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


def rows(*, quick: bool) -> Iterator[dict[str, Any]]:
    for source in ("digits", *(() if quick else FILES)):
        try:
            samples = gridded(load_dataset(source), Grid())
        except DataError as error:
            print(f"left out: {error}")
            continue
        for count in (50,) if quick else (50, 500):
            for width in (0,) if quick else (0, 2048):
                yield {"data": source, **measured(samples.take(np.arange(count)), width)}


def measured(samples: Samples, width: int) -> dict[str, Any]:
    features, labels = lifted(samples, Lift(width=width))
    value = Statistics.of(features, labels)
    message = codec.encode(value)
    columns = features.space.width
    ratios = [
        _seconds(lambda: compress(message)) / _seconds(lambda: Statistics.of(features, labels))
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


def _seconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return max(time.process_time() - start, 1e-6)


if __name__ == "__main__":
    main()
