"""What it costs to choose settings in closed form: ratios to one solve measured in the same run.

python -m benchmarks.choices costs [--quick]

What choices reach is in `benchmarks.default`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator

import numpy as np

from fedgram import Features, Labels, Lift, Samples, Space, Statistics
from fedgram.core.gcv import RIDGES, best_ridge
from fedgram.models.linear import Linear
from fedgram.selection.leave_one_out import BALANCES, STRENGTHS, LeaveOneOut, correct
from fedgram.selection.normal_equations import NormalEquations

UNIT = 6 / 127
THIRTY = np.geomspace(1, 1e4, 30)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["costs"])
    parser.add_argument("--quick", action="store_true", help="small sizes, to try the script")
    for line in costs(quick=parser.parse_args().quick):
        print(line, flush=True)


def costs(*, quick: bool) -> Iterator[str]:
    width, classes, repeats = (128, 10, 3) if quick else (2048, 100, 3)
    total = made(width, classes, 4 * width)
    solve = best(lambda: total.solve(100.0), repeats)
    choose = best(lambda: best_ridge(total), repeats)
    yield f"the best of {len(RIDGES)} ridges, d = {width}: {choose / solve:.1f} solves (goal <= 12)"
    samples, count = 60 if quick else 450, 2_000 if quick else 20_000
    width = 128 if quick else 1280
    own = rows_of(width, classes, samples, seed=1)
    whole = NormalEquations(total=made(width, classes, count), ridge=100.0)
    head, _ = whole.linear(Lift()), whole.factor
    unit = whole.total.space.unit

    def heavier() -> None:
        scores = LeaveOneOut.of(own, whole, Lift(), in_total=True).with_extra_weight()
        for alpha in THIRTY:
            correct(scores(alpha), own.labels.codes)

    def streams(shared: NormalEquations | Linear) -> Callable[[], None]:
        def leave_out() -> None:
            # Nobody but a client that leaves samples out needs the total's factor: it counts.
            fresh = NormalEquations(total=shared.total, ridge=100.0) if shared is whole else shared
            mine = LeaveOneOut.of(own, fresh, Lift(), in_total=True)
            refined = mine.fit_residual(own.features.values.astype(np.float64))
            for ridge in STRENGTHS[1:6]:
                second = refined(ridge / unit**2)
                for balance in BALANCES[::2]:
                    correct(mine.shared() + balance * second, own.labels.codes)

        return leave_out

    once = best(lambda: whole.with_extra_weight(own, Lift(), 10.0), repeats)
    told = f"of 30 settings, {samples} samples, d = {width}, {classes} classes"
    yield (
        f"fedhip, samples left out {told}: {best(heavier, repeats) / once:.1f} personal solves "
        "(goal <= 10)"
    )
    once = best(lambda: head.fit_residual(own, ridge=300.0, lift=Lift()), repeats)
    for name, shared in (("total and its factor", whole), ("head alone", head)):
        ratio = best(streams(shared), repeats) / once
        row = f"apfl-linear, samples left out {told}, {name}"
        yield f"{row}: {ratio:.1f} personal solves (goal <= 10)"


def best(work: Callable[[], object], repeats: int) -> float:
    """Return the least processor time: solves run on one thread, and others may use the machine."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


def rows_of(width: int, classes: int, count: int, seed: int) -> Samples:
    rng = np.random.default_rng(seed)
    space = Space(width=width + 1, unit=UNIT, bound=127)
    centres = np.random.default_rng(9).normal(0, 8, (classes, width))
    codes = rng.integers(0, classes, count)
    values = np.clip(np.rint(centres[codes] + rng.normal(0, 21, (count, width))), -127, 127)
    values = np.hstack([values, np.full((count, 1), 21)]).astype(np.int8)
    names = tuple(str(c) for c in range(classes))
    return Samples(Features(values, space), Labels(codes, names))


def made(width: int, classes: int, count: int) -> Statistics:
    rows = rows_of(width, classes, count, seed=0)
    return Statistics.of(rows.features, rows.labels)


if __name__ == "__main__":
    main()
