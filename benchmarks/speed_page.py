"""Write docs/speed.md from the stored results: python -m benchmarks page [OUT].

Further benchmarks add a section here and a file under benchmarks/results.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.measure import RESULTS

PAGE = Path(__file__).parent.parent / "docs" / "speed.md"
HEAD = """# Speed

Made by `python -m benchmarks page` from the files in `benchmarks/results`; no number here was
typed. Every figure is a ratio of processor times within one run, on one thread, in turns: the
median, with the smallest and largest ratio in brackets.

## Ways of exact products

Features of 8 bits are multiplied by int8 instructions where the machine has them. All ways give the
same integers ([exactness.md](exactness.md)), so the choice changes no byte. `fedgram info` shows
which ways a machine has and why others are not used; the environment variable `FEDGRAM_KERNEL`
forces one.
"""
RUNS = """CIFAR-100 features (1,280), 100 clients, Dirichlet 0.1. *lift and Gram*: all training
samples lifted to 4,096 features, and their statistics. *apfl*: fit, personalize and score with that
lift as primary stream. *auto*: one exchange, high effort (a lift to 4,096). *bare calls*: lift,
Gram, Cholesky, dual solves and scores of the same samples by the same products, as one script.
*blas*: the same version with `FEDGRAM_KERNEL=blas`. *before*: the version before int8 products.
*fedavg, 200 rounds*: our own, rate given, scaled from the difference of 10 and 20 rounds.
"""
GOALS = {
    "SkylakeX": {"vnni / ssyrk": 0.30, "Statistics.of / ssyrk": 0.40},
    "Haswell": {"vnni / ssyrk": 0.17, "Statistics.of / ssyrk": 0.25},
}
ALWAYS = {"vnni / float64 F.T @ F": 0.15}
GOAL_SHAPES = ("8192 x 4096", "8192 x 1281")
RUN_GOALS = {
    "lift and Gram, now / lift and Gram, before": 0.25,
    "apfl, now / apfl, before": 0.3333,
    "apfl, now / apfl, bare calls, now": 1.25,
    "auto, now / fedavg, 200 rounds": 0.15,
}


def main(arguments: list[str]) -> None:
    out = Path(arguments[0]) if arguments else PAGE
    out.write_text("\n".join(lines()).rstrip() + "\n", encoding="utf-8")


def lines() -> Iterator[str]:
    yield HEAD
    for path in sorted(RESULTS.glob("kernel-*.json")):
        yield from kernel_lines(json.loads(path.read_text("utf-8")))
    yield "## Whole runs"
    yield ""
    yield RUNS
    for path in sorted(RESULTS.glob("limit-*.json")):
        yield from limit_lines(json.loads(path.read_text("utf-8")))


def kernel_lines(found: dict[str, Any]) -> Iterator[str]:
    yield from _machine(found)
    goals = {**GOALS.get(found["machine"]["BLAS kernels"], {}), **ALWAYS}
    names = list(next(iter(found["shapes"].values())))
    yield "| time over time | goal | " + " | ".join(found["shapes"]) + " |"
    yield "|---" * (2 + len(found["shapes"])) + "|"
    short = []
    for name in names:
        goal = goals.get(name)
        cells = [_shown(each.get(name)) for each in found["shapes"].values()]
        yield f"| {name} | {'' if goal is None else f'{goal:g}'} | " + " | ".join(cells) + " |"
        short += [
            f"{name} at {shape} is {each[name]['median']:.2f}, the goal {goal:g}"
            for shape, each in found["shapes"].items()
            if goal is not None and shape in GOAL_SHAPES and each[name]["median"] > goal
        ]
    yield ""
    yield "Goals are for the first two shapes. " + _verdict(short)
    unused = [f"{name}: {reason}" for name, reason in found["reasons"].items() if reason]
    if unused:
        yield "Not used: " + "; ".join(unused) + "."
    yield ""


def limit_lines(found: dict[str, Any]) -> Iterator[str]:
    yield from _machine(found)
    yield "| time over time | goal | ratio |"
    yield "|---|---|---|"
    short = []
    for name, each in found["ratios"].items():
        goal = RUN_GOALS.get(name)
        yield f"| {name} | {'' if goal is None else f'{goal:.2f}'} | {_shown(each)} |"
        if goal is not None and each["median"] > goal:
            short.append(f"{name} is {each['median']:.2f}, the goal {goal:.2f}")
    yield ""
    yield _verdict(short)
    yield ""


def _machine(found: dict[str, Any]) -> Iterator[str]:
    machine = found["machine"]
    yield (
        f"{machine['processor']}, OpenBLAS kernels {machine['BLAS kernels']}, products by "
        f"`{machine['way of products']}`:"
    )
    yield ""


def _shown(each: dict[str, float] | None) -> str:
    return f"{each['median']:.2f} ({each['least']:.2f} to {each['most']:.2f})" if each else ""


def _verdict(short: list[str]) -> str:
    return f"Short of the goal: {'; '.join(short)}." if short else "All goals are met."
