"""What was measured for the claims about FedACnnL and pFedACnnL."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator
from typing import Any

from benchmarks.claims.records import (
    CONTRADICTED,
    PARTLY,
    REPRODUCED,
    Finding,
    Records,
    between,
    judged,
    ranged,
    saved,
    signed,
)

SOLVED = ("fedacnnl", "pfedacnnl")
FROM_MOST_SKEW = ("classes 2", "dirichlet 0.1", "dirichlet 0.5")
SKEWS = ("fedacnnl-gain-convex", "fedacnnl-gain-mlp")
STUDIES = ("fedacnnl-convex", "fedacnnl-convex-cifar10", "fedacnnl-mlp", "fedacnnl-cnn", *SKEWS)
MEASURE = "`python -m benchmarks.training_time docs/results/training-time.json`"


def rivals(case: dict[str, Any]) -> list[str]:
    return [row for row in case["rows"] if row not in SOLVED]


def time(records: Records, claim: Any, _: Any) -> Finding:
    cases = records.times["cases"]
    said, seconds, operations, slower = [], [], [], []
    for name, case in cases.items():
        ours, others = case["rows"]["fedacnnl"], [case["rows"][row] for row in rivals(case)]
        less = [saved(ours["seconds"], other["seconds"]) for other in others]
        seconds += less
        operations += [saved(ours["flops"], other["flops"]) for other in others]
        said.append(f"{name}: {between(less)} %")
        slower += [
            f"{name}, `{row}` ({case['rows'][row]['round']} rounds, "
            f"{100 * case['rows'][row]['accuracy']:.1f} % where `fedacnnl` has {100 * ours['accuracy']:.1f} %)"
            for row in rivals(case)
            if case["rows"][row]["seconds"] < ours["seconds"]
        ]
    reason = ""
    if slower:
        reason = (
            f". More time than {len(slower)} of {len(seconds)} runs: {'; '.join(slower)}. A method that is at its "
            "best after few rounds needs little; and where inputs are wide and channels or classes few, one Gram "
            "matrix costs as much as many rounds: the ratio is about `6 E R m / (f + 1)` "
            "([deep.md](deep.md#what-it-costs))"
        )
    return Finding(
        measured=f"CPU time of one core, rates given, every method until its validation accuracy is flat "
        f"([table](#training-time)), less than {len(seconds)} trained runs: {'; '.join(said)}; median "
        f"{statistics.median(seconds):.1f} %, of operations {statistics.median(operations):.1f} %{reason}",
        verdict=judged(seconds, claim["least"]),
        command=MEASURE,
    )


def time_table(records: Records) -> str:
    """Return CPU seconds, operations, rounds, bytes and accuracies by case and method."""
    found = records.times
    lines = [
        f"### Training time\n\nUntil validation accuracy is flat, at most as many rounds as given; {found['partition']} "
        f"but for synthetic. The least CPU time of the turns, up to the round that was best on "
        "validation samples. What the search for a rate costs is not in the other columns.\n",
        "| case | method | CPU seconds | 10^9 operations | MB per client | round | client mean, % "
        "| search for the rate, 10^9 operations |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, case in records.times["cases"].items():
        size = (
            f"{case['samples']:,} samples, {case['features']:,} inputs, at most {case['rounds']} rounds, "
            f"turns: {case['turns']}"
        )
        for row, found in case["rows"].items():
            search = "" if found["rate"] is None else f"{found['search_flops'] / 1e9:.3g}"
            lines.append(
                f"| {name}, {size} | `{row}` | {found['seconds']:.2f} | {found['flops'] / 1e9:.3g} | "
                f"{found['bytes'] / 1e6:.2f} | {found['round']} | {100 * found['accuracy']:.1f} | {search} |"
            )
    return "\n".join(lines) + "\n"


def pairs(records: Records) -> Iterator[tuple[str, float, float]]:
    """Return the partition and the accuracies of `fedacnnl` and `pfedacnnl`, of all records."""
    for name in STUDIES:
        rows = records.all_studies[name]["rows"] if name in records.all_studies else []
        known = {
            (row["partition"], row["method"]): row["mean"]
            for row in rows
            if row["measure"] == "client_mean"
        }
        for place in dict.fromkeys(place for place, _ in known):
            if all((place, method) in known for method in SOLVED):
                shared, personal = (known[place, method] for method in SOLVED)
                yield place, shared, personal
    for case in records.times["cases"].values():
        shared, personal = (100 * case["rows"][method]["accuracy"] for method in SOLVED)
        place = (
            "given clients"
            if case["preset"] == "fedacnnl-synthetic"
            else records.times["partition"]
        )
        yield place, shared, personal


def gain(records: Records, claim: Any, _: Any) -> Finding:
    found: dict[str, list[float]] = {}
    for place, shared, personal in pairs(records):
        found.setdefault(place, []).append(personal - shared)
    verdicts = {place: ranged(gains, claim) for place, gains in found.items()}
    means = {place: statistics.fmean(found[place]) for place in FROM_MOST_SKEW if place in found}
    falls = all(a > b for a, b in itertools.pairwise(means.values()))
    there = [study for study in STUDIES if study in records.all_studies]
    return Finding(
        measured="; ".join(
            f"{place}: {signed(gains)} ({len(gains)})" for place, gains in found.items()
        )
        + " points (number of settings: linear, one hidden layer, convolutions; MNIST, CIFAR-10, synthetic)"
        + (": the more skew, the larger" if falls else ""),
        verdict="; ".join(
            f"{verdict} at {', '.join(place for place, other in verdicts.items() if other == verdict)}"
            for verdict in dict.fromkeys(verdicts.values())
        ),
        command=", ".join([MEASURE, *map(records.command, there)]),
    )


def best(records: Records, _: Any, __: Any) -> Finding:
    cases = records.times["cases"]
    said, won = [], 0
    for name, case in cases.items():
        found = {row: 100 * each["accuracy"] for row, each in case["rows"].items()}
        first = max(found, key=found.__getitem__)
        won += first == "pfedacnnl"
        said.append(f"{name}: `{first}` {found[first]:.1f} %")
        if first != "pfedacnnl":
            said[-1] += f", `pfedacnnl` {found['pfedacnnl']:.1f} %"
    return Finding(
        measured=f"best in {won} of {len(cases)}, of one seed: {'; '.join(said)}",
        verdict=REPRODUCED if won > len(cases) / 2 else PARTLY if won else CONTRADICTED,
        command=MEASURE,
    )
