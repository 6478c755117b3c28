"""The papers' claims beside our measurements, as a page.

python -m benchmarks.claims measure docs/results/theorems.json
python -m benchmarks.claims render docs/claims.md

`measure` checks the theorems on the embedded digits. `render` takes the papers' numbers from
claims.toml and ours from docs/results and docs/results.json, decides the verdicts by rules, and
writes the page.
"""

from __future__ import annotations

import argparse
import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.claims import apfl, fedhip, layers
from benchmarks.claims.records import Finding, Records
from benchmarks.claims.theorems import theorems

HEAD = """# The papers' claims, judged

Made by `python -m benchmarks.claims render` from recorded runs; no number is typed by hand. The papers' numbers are in
[claims.toml](../benchmarks/claims/claims.toml), ours in [results](results) and [results.json](results.json).

A verdict is about what was measured *here*: features of EfficientNet-Lite0 and sentence vectors instead of ViT-MAE-Base,
few seeds, and capped rounds, as [reproducing.md](reproducing.md) says. A contradicted claim may hold on the papers' features. The
terms are equal:

- trained methods send four bytes for a parameter, solved ones exact integers, both as counted on the wire;
- rates of trained methods are given in comparisons of cost; what pilots for a rate cost is listed apart;
- features are computed once for every method, and passes through the backbone are not counted, except where "with backbone
  passes" is said: that is a trained method that keeps no features and runs the backbone in each of its epochs;
- training time is CPU time of one core, with given rates, in turns;
- all methods of a row end with models of the same training samples. In [results.md](results.md) these are all that are not for
  testing: no validation samples are set aside, a search for a rate holds out a tenth in its pilots only, and the training after it
  has them all. The presets do the same, or set a tenth aside as validation samples for every method of the table.
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=("measure", "render"))
    parser.add_argument("file", type=Path)
    given = parser.parse_args()
    if given.part == "measure":
        given.file.write_text(json.dumps(theorems(), indent=1) + "\n", encoding="utf-8")
        return
    given.file.write_text(page(), encoding="utf-8")


def page() -> str:
    """Return the page of all claims."""
    stated = tomllib.loads((Path(__file__).parent / "claims.toml").read_text(encoding="utf-8"))
    records = Records()
    parts = [HEAD]
    for key, paper in stated["papers"].items():
        lines = [f"## {paper['title']}\n", "| claim | measured here | verdict |", "|---|---|---|"]
        commands: dict[str, list[int]] = {}
        of_paper = [c for c in stated["claims"].items() if c[1]["paper"] == key]
        for number, (name, claim) in enumerate(of_paper, 1):
            found = finding(name, records, claim, stated)
            verdict = f"**{found.verdict}**"
            lines.append(f"| {number}. {claim['text']} | {found.measured} | {verdict} |")
            commands.setdefault(found.command, []).append(number)
        lines += ["", "Commands, by number:", ""]
        lines += [f"- {', '.join(map(str, n))}: {command}" for command, n in commands.items()]
        parts.append("\n".join(lines) + "\n")
        if key in TABLES:
            parts.append(TABLES[key](records))
    return "\n".join(parts)


def finding(name: str, records: Records, claim: Any, stated: Any) -> Finding:
    """Return what was measured for a claim; of a study that lacks runs, that it does."""
    try:
        return FINDINGS[name](records, claim, stated)
    except LookupError as error:
        study = str(error.args[0]).split(",")[0]
        known = study in records.all_studies
        return Finding(
            measured="not recorded whole" if known else "not recorded",
            verdict="open",
            command=records.command(study) if known else f"`fedgram study {study}`",
        )


TABLES = {"fedhip": fedhip.ridge_table, "fedacnnl": layers.time_table}
FINDINGS: dict[str, Callable[[Records, Any, Any], Finding]] = {
    "fedhip-accuracy": fedhip.accuracy,
    "fedhip-computation": fedhip.cost("flops"),
    "fedhip-communication": fedhip.cost("bytes"),
    "fedhip-alpha": fedhip.alpha,
    "fedhip-singular": fedhip.singular,
    "fedhip-disjoint": fedhip.disjoint,
    "fedhip-backbone": fedhip.backbone,
    "fedhip-joiners": fedhip.joiners,
    "fedhip-inversion": fedhip.inversion,
    "apfl-accuracy": apfl.accuracy,
    "apfl-collapse": apfl.collapse,
    "apfl-computation-20": apfl.cost(20, "flops"),
    "apfl-communication-20": apfl.cost(20, "bytes"),
    "apfl-computation-200": apfl.cost(200, "flops"),
    "apfl-communication-200": apfl.cost(200, "bytes"),
    "apfl-costs": apfl.all_costs,
    "apfl-over-afl": apfl.over_afl,
    "apfl-projections": apfl.projections,
    "apfl-balance": apfl.balance,
    "apfl-ridges": apfl.ridges,
    "apfl-widths": apfl.widths,
    "apfl-activations": apfl.activations,
    "theorem-1": apfl.theorem(
        lambda f: (
            f"relative difference {f['primary']:.0e} from the solution with all samples in one place"
        ),
        lambda f: f["primary"] < 1e-9,
        "pytest tests/reference/test_apfl.py",
    ),
    "theorem-2": apfl.theorem(
        lambda f: f"largest relative difference {f['refinement']:.0e} over {f['clients']} clients",
        lambda f: f["refinement"] < 1e-9,
        "pytest tests/reference/test_apfl.py",
    ),
    "theorem-3": apfl.theorem(
        lambda f: (
            f"{f['invariance']['spreads']} ways to spread the others' samples: "
            f"{f['invariance']['apfl']} model of the client in APFL, {f['invariance']['fedhip']} in "
            "FedHiP, to the bit, for given settings. Settings that are selected by counts of "
            "leave-one-out predictions depend on the partition, and the models with them"
        ),
        lambda f: f["invariance"]["apfl"] == f["invariance"]["fedhip"] == 1,
        "pytest tests/laws",
    ),
    "theorem-4": apfl.privacy,
    "theorem-efficiency": apfl.efficiency,
    "fedacnnl-time": layers.time,
    "fedacnnl-gain": layers.gain,
    "fedacnnl-best": layers.best,
}


if __name__ == "__main__":
    main()
