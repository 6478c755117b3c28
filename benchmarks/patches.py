"""Speed and memory of exact patch statistics, against float32 GEMM measured in the same run.

python -m benchmarks.patches [--quick]

A layer's Gram matrix is summed from patches that are written out (im2col) a few images at a time.
Both parts are timed apart. A Gram matrix is symmetric, and only half of it is computed. Its speed
is given twice: for the whole product, 2 x rows x width^2, which is what a GEMM would have to do for
the same result; and in brackets for the operations that are really done.
"""

from __future__ import annotations

import argparse
import tracemalloc
from collections.abc import Iterator

import numpy as np

from benchmarks import lab
from benchmarks.measure import cpu_seconds
from fedgram.core.exact import Accumulator, block_matmul
from fedgram.core.samples import Space
from fedgram.layerwise.patches import PatchSums, batch_size, patches, positions
from fedgram.models.architecture import Conv, MapShape

UNIT, BOUND, CONSTANT, CLASSES = 6 / 127, 127, 21, 10
SPACE = Space(width=1, unit=UNIT, bound=BOUND)
CASES = (  # what the layers of a network on 28 x 28 or 32 x 32 images see
    (Conv(channels=32, kernel=5, padding=2), MapShape(height=28, width=28, channels=1)),
    (Conv(channels=32, kernel=5, padding=2), MapShape(height=32, width=32, channels=3)),
    (Conv(channels=64, kernel=3, padding=1), MapShape(height=14, width=14, channels=32)),
    (Conv(channels=64, kernel=5, padding=2), MapShape(height=14, width=14, channels=32)),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, to try the script")
    lab.add_store(parser)
    given = parser.parse_args()
    lab.report(rows(quick=given.quick), given.store)


def rows(*, quick: bool) -> Iterator[lab.Row]:
    for layer, maps in CASES[:1] if quick else CASES:
        speed = speed_row(layer, maps, repeats=2 if quick else 9, side=256 if quick else 2048)
        yield {**speed, **memory_row(layer, maps, 40 if quick else 400)}


def images(maps: MapShape, count: int) -> np.ndarray:
    """Return maps as they come out of a layer: half of them zero, the rest of unit size."""
    rng = np.random.default_rng(0)
    return np.clip(np.rint(rng.normal(0, 21, (count, maps.size))), 0, BOUND).astype(np.int8)


def speed_row(layer: Conv, maps: MapShape, *, repeats: int, side: int) -> lab.Row:
    count, width = batch_size(layer, maps), layer.fan_in(maps) + 1
    values = images(maps, count)
    block = patches(values, layer, maps, CONSTANT, np.int8)
    total = Accumulator(width, 0, BOUND)
    square = np.ones((side, side), np.float32)
    shares, copies = [], []
    for _ in range(repeats):
        gemm = 2 * side**3 / cpu_seconds(lambda: block_matmul(square, square))
        gram = cpu_seconds(lambda: total.add_rows(block))
        shares.append(2 * block.size * width / gram / gemm)
        copies.append(cpu_seconds(lambda: patches(values, layer, maps, CONSTANT, np.int8)) / gram)
    share = np.median(shares)
    return {
        "layer": str(layer),
        "maps": str(maps),
        "inputs": width - 1,
        "speed": float(share),
        "done": float(share / 2),
        "writing": float(np.median(copies)),
    }


def memory_row(layer: Conv, maps: MapShape, count: int) -> lab.Row:
    values = images(maps, count)
    codes = np.arange(count) % CLASSES
    table = np.ones((CLASSES, positions(layer, maps), layer.channels), np.int8)

    def peak(times: int) -> int:
        tracemalloc.start()
        sums = PatchSums(layer, maps, SPACE, CLASSES)
        for _ in range(times):
            sums.add(values, codes)
        sums.gram(), sums.moment(table)
        top = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return top

    short, long = peak(1), peak(8)
    return {"memory": long / short, "megabytes": short / 1e6}


if __name__ == "__main__":
    main()
