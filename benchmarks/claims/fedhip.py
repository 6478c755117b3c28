"""What was measured for the claims about FedHiP."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.claims.accuracy import TABLE_1, TERMS, gains, in_words, number_of_rivals
from benchmarks.claims.records import (
    CONTRADICTED,
    PARTLY,
    REPRODUCED,
    Finding,
    Records,
    judged,
    saved,
)

COSTS = "apfl-overheads"


def accuracy(records: Records, claim: Any, _: Any) -> Finding:
    found = gains(records, "fedhip")
    return Finding(
        measured=f"points against the best of {number_of_rivals(records)} trained methods ({TERMS}): "
        f"{in_words(found)}. CIFAR-100 and Banking77 at Dirichlet 0.1, 0.5 and 1. On features this good "
        "trained personal methods are strong",
        verdict=judged([gain.points for each in found.values() for gain in each], claim["least"]),
        command=TABLE_1,
    )


def cost(measure: str) -> Callable[[Records, Any, Any], Finding]:
    def finding(records: Records, claim: Any, _: Any) -> Finding:
        ours = records.value(COSTS, "fedhip", measure)
        found = [
            saved(ours, records.value(COSTS, base, measure)) for base in ("fedavg 20", "fedavg 200")
        ]
        where = f"{records.values(COSTS, 'dataset')[0]}, {records.clients(COSTS)}"
        return Finding(
            measured=f"{found[0]:.1f} % less than 20 rounds of FedAvg, {found[1]:.1f} % less than "
            f"200 (one sum, heads solved at the server; {where})",
            verdict=judged([max(found)], claim["least"]),
            command=records.command(COSTS),
        )

    return finding


NEAR_ZERO = 5  # %


def alpha(records: Records, _: Any, __: Any) -> Finding:
    study = "fedhip-alpha"
    own, whole = (records.series(study, "fedhip", m) for m in ("client_mean", "global_test"))
    first, last = min(own), max(own)
    best = max(own, key=own.__getitem__)
    fallen = whole[last] < whole[first] / 2
    high, near_zero = own[last] > own[first], whole[last] < NEAR_ZERO
    how = ["accuracy on all falls" + (" to nearly 0" if near_zero else ", but not to nearly 0")]
    how.append("that on own samples stays high" if high else "that on own samples falls too")
    said = [
        f"alpha {each:g}: own {own[each]:.1f} %, all {whole[each]:.1f} %"
        for each in dict.fromkeys([first, best, last])
    ]
    return Finding(
        measured=f"{'; '.join(said)} (CIFAR-100, {records.values(study, 'partition')[0]})"
        + (f": {', and '.join(how)}" if fallen else ""),
        verdict=REPRODUCED if fallen and high and near_zero else PARTLY if fallen else CONTRADICTED,
        command=records.command(study),
    )


def singular(records: Records, _: Any, __: Any) -> Finding:
    rows = records.ridges["rows"]
    cases = {(row["data"], row["width"]) for row in rows}
    names = list(dict.fromkeys(row["arithmetic"] for row in rows))
    said, wrong = [], {}
    for name in names:
        own = [row for row in rows if row["arithmetic"] == name]
        refused = [row for row in own if "refused" in row]
        wrong[name] = [row for row in own if "refused" not in row and error(row, rows) > WRONG]
        parts = []
        if refused:
            parts.append(f"{len(refused)} of {len(own)} refused ({up_to(refused)})")
        if wrong[name]:
            lowest = min(100 * row["fedhip"] for row in wrong[name])
            parts.append(
                f"{len(wrong[name])} wrong without an error ({up_to(wrong[name])}), down to {lowest:.1f} %"
            )
        said.append(f"{name}: {', '.join(parts or ['all right'])}")
    safe = not any(wrong[name] for name in names if name.endswith("sums"))
    broken = any(wrong[name] for name in names if not name.endswith("sums"))
    least, most = (end(row["ridge"] for row in rows) for end in (min, max))
    overfitted = max(overfitting(row, rows) for row in rows if row["arithmetic"] == names[0])
    return Finding(
        measured=f"{len(cases)} sets of features, some linearly dependent or more than there are samples, "
        f"ridges from {least:g} to {most:g} ([table](#tiny-ridges)); wrong is more than {WRONG} points below "
        f"exact sums. {'; '.join(said)}. A right solution with a tiny ridge can be a bad one: exact sums lose up "
        f"to {overfitted:.1f} points against the largest ridge. Without any ridge: refused "
        f"(“{records.theorems['singular']}”)",
        verdict=f"{REPRODUCED} in the papers' recursion; sums refuse instead of being wrong"
        if safe and broken
        else REPRODUCED,
        command="`python -m benchmarks.tiny_ridge docs/results/tiny-ridge.json`, "
        f"{records.command('fedhip-tiny-ridge')}",
    )


WRONG = 5  # points below exact sums


def error(row: dict[str, Any], rows: list[dict[str, Any]]) -> float:
    """Return the points below exact sums with the same ridge, or the next one that they accept."""
    exact = [each for each in _same_features(row, rows) if each["arithmetic"] == "exact sums"]
    found = {each["ridge"]: each["fedhip"] for each in exact if "fedhip" in each}
    next_ridge = min(ridge for ridge in found if ridge >= row["ridge"])
    return float(100 * (found[next_ridge] - row["fedhip"]))


def overfitting(row: dict[str, Any], rows: list[dict[str, Any]]) -> float:
    """Return the points below the largest ridge, in the same arithmetic."""
    same = [r for r in _same_features(row, rows) if r["arithmetic"] == row["arithmetic"]]
    largest = max(same, key=lambda each: float(each["ridge"]))
    return 0.0 if "refused" in row else float(100 * (largest["fedhip"] - row["fedhip"]))


def _same_features(row: dict[str, Any], rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [each for each in rows if all(each[key] == row[key] for key in ("data", "width"))]


def up_to(rows: list[dict[str, Any]]) -> str:
    return f"with ridges up to {max(row['ridge'] for row in rows):g}"


def ridge_table(records: Records) -> str:
    """Return FedHiP's accuracies by features, arithmetic and ridge."""
    rows = records.ridges["rows"]
    ridges = sorted({row["ridge"] for row in rows})
    lines = [
        f"### Tiny ridges\n\nFedHiP (alpha {records.ridges['alpha']:g}): client-mean accuracy in %, by ridge. "
        f"{records.ridges['clients']} clients, Dirichlet {records.ridges['dirichlet']:g}.\n",
        "| features | arithmetic | " + " | ".join(f"{ridge:g}" for ridge in ridges) + " |",
        "|---|---|" + "---|" * len(ridges),
    ]
    places = dict.fromkeys((row["data"], row["width"], row["arithmetic"]) for row in rows)
    for data, width, name in places:
        known = {
            row["ridge"]: row
            for row in rows
            if (row["data"], row["width"], row["arithmetic"]) == (data, width, name)
        }
        cells = [
            "refused" if "refused" in known[ridge] else f"{100 * known[ridge]['fedhip']:.1f}"
            for ridge in ridges
        ]
        features = f"{data}, {f'lift of {width}' if width else 'as they are'}"
        lines.append(f"| {features} | {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def disjoint(records: Records, _: Any, __: Any) -> Finding:
    study = "fedhip-disjoint"
    rows = ("local", "afl", "fedhip", "apfl-linear", "apfl", "auto")
    found = {row: records.value(study, row) for row in rows}
    gain = found["fedhip"] - found["local"]
    return Finding(
        measured=", ".join(f"`{row}` {number:.1f} %" for row, number in found.items())
        + f" (CIFAR-100, {records.clients(study)}, {records.values(study, 'partition')[0]}): the shared "
        f"part is worth {gain:+.1f} points to FedHiP",
        verdict="measured",
        command=records.command(study),
    )


def backbone(records: Records, _: Any, __: Any) -> Finding:
    study = "fedhip-backbones"
    said = []
    for dataset in ("strong", "weak"):
        found = [records.value(study, row, dataset=dataset) for row in ("local", "afl", "fedhip")]
        said.append("{}: local {:.1f}, AFL {:.1f}, FedHiP {:.1f} %".format(dataset, *found))
    return Finding(
        measured="; ".join(said)
        + " (the same images of CIFAR-100: EfficientNet-Lite0, and 8 x 8 pixels)",
        verdict="measured",
        command=records.command(study),
    )


def joiners(records: Records, _: Any, __: Any) -> Finding:
    study = "fedhip-joiners"
    new = records.series(study, "fedhip", "new_clients")
    many = max(new)
    (clients,) = records.values(study, "clients")
    later = {
        row: records.series(study, row, "new_clients")[many] for row in ("local", "fedhip", "auto")
    }
    share = records.series(study, "fedhip", "bytes")[0]
    joined = records.theorems["joiners"]
    return Finding(
        measured=f"{many:g} of {clients} clients come later: "
        + ", ".join(f"`{row}` {number:.1f} %" for row, number in later.items())
        + f" for them (Banking77). A newcomer's sums are added to the total, {share / 1e6:.2f} MB up "
        f"and down and one solve: with {joined['later']} of {joined['clients']} clients added later (digits) the "
        f"total {'is' if joined['same'] else 'is not'} that of all clients from the start, to the bit",
        verdict=f"{CONTRADICTED}: nothing is computed again" if joined["same"] else REPRODUCED,
        command=f"{records.command(study)}, "
        "`python -m benchmarks.claims measure docs/results/theorems.json`, `fedgram ledger join`",
    )


def inversion(records: Records, _: Any, __: Any) -> Finding:
    study = "fedhip-inversion"
    solved = records.series(study, "fedhip", "flops")
    epoch = records.series(study, "fedavg, 1 epoch", "flops")
    accuracy = records.series(study, "fedavg, 1 epoch", "client_mean")
    ours = records.series(study, "fedhip", "client_mean")
    taken = [records.series(study, row, "seconds") for row in ("fedhip", "fedavg, 1 epoch")]
    said = ", ".join(
        f"{width:g} features: {solved[width] / epoch[width]:.1f} times the operations of an epoch"
        for width in solved
    )
    last = max(solved)
    seconds = f"{taken[0][last]:.1f} s against {taken[1][last]:.1f} s of a shared machine"
    return Finding(
        measured=f"{said}, {seconds}; after it {ours[last]:.1f} % against {accuracy[last]:.1f} % (Banking77, "
        f"{records.clients(study)})",
        verdict="measured",
        command=records.command(study),
    )
