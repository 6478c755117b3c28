"""What was measured for the claims about FedACnnL and pFedACnnL."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
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
NO_RIVALS = ("local", "logistic")  # rows that are no framework of the paper
HIDDEN, HIDDEN_LAYER = " 128", "one hidden layer"
STUDIES = {  # with their networks; rows whose names end so have a hidden layer
    "fedacnnl-convex": "linear",
    "fedacnnl-convex-cifar10": "linear",
    "fedacnnl-mlp": HIDDEN_LAYER,
    "fedacnnl-cnn": "convolutions",
    "fedacnnl-synthetic": "linear",
    "fedacnnl-gain-convex": "linear",
    "fedacnnl-gain-mlp": HIDDEN_LAYER,
}
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


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A network on a data set, partitioned: accuracies of one seed by method, in %."""

    network: str
    dataset: str
    partition: str
    accuracies: dict[str, float]

    def key(self) -> tuple[str, str, str]:
        return self.network, self.dataset, self.partition


def recorded(records: Records) -> Iterator[Setting]:
    """Return the settings of all studies, and those of the training times that no study has."""
    known: set[tuple[str, str, str]] = set()
    for setting in itertools.chain(of_studies(records), of_times(records)):
        if setting.key() not in known:
            known.add(setting.key())
            yield setting


def of_studies(records: Records) -> Iterator[Setting]:
    for study, network in STUDIES.items():
        if study not in records.all_studies:
            continue
        rows = [
            row for row in records.all_studies[study]["rows"] if row["measure"] == "client_mean"
        ]
        for dataset, partition in dict.fromkeys((r["dataset"], r["partition"]) for r in rows):
            here = {
                row["method"]: row["mean"]
                for row in rows
                if (row["dataset"], row["partition"]) == (dataset, partition)
            }
            wide = {row.removesuffix(HIDDEN): x for row, x in here.items() if row.endswith(HIDDEN)}
            plain = {row: x for row, x in here.items() if not row.endswith(HIDDEN)}
            for name, found in ((network, plain), (HIDDEN_LAYER, wide)):
                if all(method in found for method in SOLVED):
                    yield Setting(
                        network=name, dataset=dataset, partition=partition, accuracies=found
                    )


def of_times(records: Records) -> Iterator[Setting]:
    for name, case in records.times["cases"].items():
        network, dataset = name.split(", ")
        clients = case["preset"] == "fedacnnl-synthetic"
        yield Setting(
            network=network,
            dataset="synthetic:0.5,0.5" if clients else dataset,
            partition="given" if clients else records.times["partition"],
            accuracies={row: 100 * each["accuracy"] for row, each in case["rows"].items()},
        )


def studies_used(records: Records) -> str:
    return ", ".join(records.command(study) for study in STUDIES if study in records.all_studies)


def gain(records: Records, claim: Any, _: Any) -> Finding:
    found: dict[str, list[float]] = {}
    for setting in recorded(records):
        shared, personal = (setting.accuracies[method] for method in SOLVED)
        found.setdefault(setting.partition, []).append(personal - shared)
    means = [statistics.fmean(found[place]) for place in FROM_MOST_SKEW if place in found]
    falls = all(a > b for a, b in itertools.pairwise(means))
    return Finding(
        measured="; ".join(
            f"{place}: {signed(gains)} ({len(gains)})" for place, gains in found.items()
        )
        + " points (number of settings: linear, one hidden layer, convolutions; MNIST, CIFAR-10, synthetic)"
        + (", on average the larger the more skew" if falls else ""),
        verdict=ranged(itertools.chain(*found.values()), claim["least"], claim["most"]),
        command=f"{MEASURE}, {studies_used(records)}",
    )


def best(records: Records, _: Any, __: Any) -> Finding:
    said, won = [], []
    for setting in recorded(records):
        found = setting.accuracies
        others = [row for row in found if row not in (*SOLVED, *NO_RIVALS)]
        if not others:
            continue
        first = max(("pfedacnnl", *others), key=found.__getitem__)
        won.append(first == "pfedacnnl")
        higher = [row for row in NO_RIVALS if found.get(row, 0.0) > found["pfedacnnl"]]
        words = f"{setting.network}, {setting.dataset}: "
        if not won[-1]:
            words += f"`{first}` {found[first]:.1f} %, "
        words += f"`pfedacnnl` {found['pfedacnnl']:.1f} %"
        more = ", ".join(f"`{row}` {found[row]:.1f} %" for row in higher)
        said.append(words + (f" ({more})" if more else ""))
    return Finding(
        measured=f"best of the paper's frameworks in {sum(won)} of {len(won)} settings, of one seed: "
        f"{'; '.join(said)}. In brackets: {', '.join(f'`{row}`' for row in NO_RIVALS)}, where they are better",
        verdict=f"{REPRODUCED} at capped rounds"
        if sum(won) > len(won) / 2
        else f"{PARTLY}: not in most"
        if any(won)
        else CONTRADICTED,
        command=f"{MEASURE}, {studies_used(records)}",
    )
