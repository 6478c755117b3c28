"""Speed and memory of the exact core, each as a ratio to something measured in the same run.

python -m benchmarks.core [--quick]
"""

from __future__ import annotations

import argparse
import time
import tracemalloc
from collections.abc import Callable, Iterator

import numpy as np

from fedgram import Features, Labels, Space, Statistics
from fedgram.core.exact import Accumulator
from fedgram.core.kernels.blas import blocks
from fedgram.core.solve import least_squares, ridge_solve, unpack_symmetric

UNIT = 6 / 127
CLASSES = tuple(str(c) for c in range(10))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, to try the script")
    quick = parser.parse_args().quick
    for line in lines(quick=quick):
        print(line, flush=True)


def lines(*, quick: bool) -> Iterator[str]:
    yield "exact 8-bit Gram, time as a share of numpy's float64 F.T @ F (median of alternations)"
    for width, goal in ((64, None),) if quick else ((1024, 0.9), (4096, 0.65)):
        for shape in ("shortest", "long"):
            yield "  " + gram_line(width, shape, goal if shape == "shortest" else None, quick)
    yield "streaming Gram, peak memory at 8 times the samples as a share of that at 1 time"
    yield "  " + memory_line(64 if quick else 1024)
    yield "sum + solve against the paper's pairwise aggregation"
    yield "  " + aggregation_line(*((5, 32) if quick else (100, 512)))
    yield "check of a contribution of 5,000 samples, as a share of its Gram matrix and of a solve"
    for width in (65,) if quick else (1281, 4096):
        yield "  " + check_line(width, 500 if quick else 5_000, repeats=3 if quick else 5)
    yield "personal solves in the dual form against the primal form"
    yield "  " + dual_line(*((20, 128, 3) if quick else (100, 4096, 100)))


def gram_line(width: int, shape: str, goal: float | None, quick: bool) -> str:
    rng = np.random.default_rng(0)
    count = 2_000 if quick else {1024: 41_600, 4096: 16_640}[width]
    values = np.clip(np.rint(rng.normal(0, 21, (count, width))), -127, 127).astype(np.int8)
    if shape == "shortest":
        values[:, 0] = 127  # a column at the clip: no block may be longer than 1,040 rows
    codes = rng.integers(0, len(CLASSES), count)
    real = values.astype(np.float64)
    parts = list(blocks(values, 127, np.dtype(np.float32)))
    rows = max(map(len, parts))

    def ours() -> None:
        total = Accumulator(width, len(CLASSES), 127)
        total.add(values, codes)
        total.take()

    ratio = alternate(ours, lambda: real.T @ real, repeats=3 if quick else 9)
    wanted = "" if goal is None else f"  (goal <= {goal})"
    return f"d = {width}, {shape} blocks of {rows} rows, {count} samples: {ratio:.2f}{wanted}"


def memory_line(width: int) -> str:
    def peak(batches: int) -> int:
        rng = np.random.default_rng(0)
        space = Space(width=width, unit=UNIT, bound=127)

        def stream() -> Iterator[tuple[Features, Labels]]:
            for _ in range(batches):
                values = rng.integers(-127, 128, (2_000, width), dtype=np.int8)
                codes = rng.integers(0, len(CLASSES), len(values))
                yield Features(values, space), Labels(codes, CLASSES)

        tracemalloc.start()
        Statistics.over(stream())
        top = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return top

    short, long = peak(4), peak(32)
    return f"d = {width}: {long / short:.3f}, {short / 1e6:.0f} MB in all  (goal: 1)"


def check_line(width: int, count: int, repeats: int) -> str:
    rng = np.random.default_rng(0)
    values = np.clip(np.rint(rng.normal(0, 21, (count, width))), -127, 127).astype(np.int8)
    values[:, -1] = 21
    space = Space(width=width, unit=UNIT, bound=127, inputs=width - 1, steps=("input",))
    features = Features(values, space)
    labels = Labels(rng.integers(0, len(CLASSES), count), CLASSES)
    sums = Statistics.of(features, labels)
    made = alternate(sums.validate, lambda: Statistics.of(features, labels), repeats=repeats)
    solved = alternate(sums.validate, lambda: sums.solve(1.0), repeats=repeats)
    return f"d = {width}: {made:.2f} of the Gram matrix, {solved:.2f} of a solve"


def aggregation_line(clients: int, width: int) -> str:
    rng = np.random.default_rng(0)
    space = Space(width=width, unit=UNIT, bound=127)
    contributions = []
    for _ in range(clients):
        values = rng.integers(-60, 61, (100, width), dtype=np.int8)
        labels = Labels(rng.integers(0, len(CLASSES), 100), CLASSES)
        contributions.append(Statistics.of(Features(values, space), labels))
    grams = [unpack_symmetric(c.gram, width) * UNIT**2 for c in contributions]
    moments = [c.moment * UNIT for c in contributions]
    heads = {}

    def ours() -> None:
        total = Statistics.zero()
        for contribution in contributions:
            total = total + contribution
        heads["ours"] = total.solve(1.0)

    def paper() -> None:
        heads["paper"] = absolute_aggregation(grams, moments, ridge=1.0)

    ours_first = best(ours, repeats=5)
    paper_time = best(paper, repeats=1)
    gap = np.abs(heads["ours"] - heads["paper"]).max() / np.abs(heads["ours"]).max()
    return (
        f"{clients} clients, d = {width}: {paper_time / ours_first:.0f} times faster "
        f"(goal >= 100), heads agree to {gap:.0e}"
    )


def absolute_aggregation(
    grams: list[np.ndarray], moments: list[np.ndarray], ridge: float
) -> np.ndarray:
    """AFL's recursion as published (He et al., CVPR 2025), then its ridge put back once."""
    eye = np.eye(len(grams[0]))
    covariance = head = None
    for gram, moment in zip(grams, moments, strict=True):
        own = gram + ridge * eye
        own_head = np.linalg.inv(own) @ moment
        if covariance is None:
            covariance, head = own, own_head
            continue
        total = covariance + own
        inverse = np.linalg.inv(total)
        keep = eye - np.linalg.inv(covariance) @ own @ (eye - inverse @ own)
        join = eye - np.linalg.inv(own) @ covariance @ (eye - inverse @ covariance)
        head = keep @ head + join @ own_head
        covariance = total
    extra = (len(grams) - 1) * ridge
    return np.linalg.inv(covariance - extra * eye) @ covariance @ head


def dual_line(samples: int, width: int, clients: int) -> str:
    rng = np.random.default_rng(0)
    rows = rng.integers(-127, 128, (samples, width)).astype(np.float64)
    targets = np.eye(len(CLASSES))[rng.integers(0, len(CLASSES), samples)]
    dual = best(lambda: [least_squares(rows, targets, 100.0) for _ in range(clients)], repeats=1)
    primal = best(lambda: ridge_solve(rows.T @ rows, rows.T @ targets, 100.0), repeats=1)
    ratio = primal * clients / dual
    return (
        f"{clients} clients, n = {samples}, d = {width}: {ratio:.0f} times faster (goal >= 50; "
        "the primal form timed on one client)"
    )


def alternate(ours: Callable[[], object], theirs: Callable[[], object], repeats: int) -> float:
    """Return the median ratio of times measured in turn, so that noise hits both alike."""
    ratios = []
    for _ in range(repeats):
        ratios.append(timed(ours) / timed(theirs))
    return float(np.median(ratios))


def best(work: Callable[[], object], repeats: int) -> float:
    return min(timed(work) for _ in range(repeats))


def timed(work: Callable[[], object]) -> float:
    time.sleep(0.05)  # idle BLAS threads of the last measurement stop spinning
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
