"""Recorded studies of the papers' experiments: stored compactly, and written as a page.

python -m benchmarks.paper_studies store FOLDER NAME COMMAND docs/results/studies
python -m benchmarks.paper_studies render docs/results/studies docs/reproducing.md

FOLDER is that of a study, with its table.json; COMMAND is what made it, for the page.
"""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fedgram.experiments.measures import measure
from fedgram.experiments.reader import read_runs
from fedgram.experiments.study.settings import load

KEPT = ("dataset", "clients", "partition", "method", "value", "measure", "mean")
ORDER = (  # as the papers have them
    *("apfl-table1", "lambda-ablation", "ridge-sensitivity", "width-sensitivity"),
    *(
        "activation-sensitivity",
        "efficiency",
        "apfl-overheads",
        "apfl-overheads-banking77",
        "apfl-forms",
    ),
    *(
        "fedhip-alpha",
        "fedhip-stress",
        "fedhip-stress-cifar100",
        "fedhip-backbones",
        "fedhip-disjoint",
        "fedhip-joiners",
    ),
    *("fedhip-inversion", "fedhip-tiny-ridge"),
    *("fedacnnl-convex", "fedacnnl-convex-cifar10", "fedacnnl-mlp", "fedacnnl-cnn"),
    *("fedacnnl-gain-convex", "fedacnnl-gain-mlp"),
    *("fedacnnl-synthetic", "natural-clients", "texts"),
)
HEAD = """# The papers' experiments, measured

Made by `python -m benchmarks.paper_studies render` from [results/studies](results/studies). Each part is one preset of
[`fedgram study`](tables-of-results.md), run once at a size that fits two cores, often with fewer rounds, seeds or samples than the
preset has by default: the command above each table is the one that made it, and what is left out is said below. So single numbers are of one seed where no
deviation is given, and rounds are capped where the command says so. CIFAR-100 stands for features of EfficientNet-Lite0 (1,280
numbers), not of the papers' ViT-MAE-Base; Banking77 for sentence vectors of all-MiniLM-L6-v2 (384). Seconds are of a shared machine, and
comparable within a row at best; operations and bytes do not depend on it.

[claims.md](claims.md) says what this means for the papers' claims.
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parts = parser.add_subparsers(dest="part", required=True)
    store = parts.add_parser("store")
    for name in ("folder", "name", "command", "stored"):
        store.add_argument(name)
    render = parts.add_parser("render")
    render.add_argument("stored", type=Path)
    render.add_argument("page", type=Path)
    given = parser.parse_args()
    if given.part == "store":
        out = Path(given.stored) / f"{given.name}.json"
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(written(compact(Path(given.folder), given.command)), encoding="utf-8")
        return
    given.page.write_text(page(studies(given.stored)), encoding="utf-8")


def compact(folder: Path, command: str) -> dict[str, Any]:
    """Return what a page needs of a study: its numbers, and what was not finished."""
    table = json.loads((folder / "table.json").read_text(encoding="utf-8"))
    numbers = [
        {
            **{key: number[key] for key in KEPT},
            "deviation": number["deviation"],
            "round": number["chosen_round"],
            "rounds": number["rounds"],
            "last": number["last_mean"],
            "published": number["published"],
        }
        for number in table["numbers"]
        if number["mean"] is not None
    ]
    parameters = {number["parameter"] for number in table["numbers"]} - {None}
    kept = [
        [number["parameter"] or "", *(each[key] for key in each)]
        for number, each in zip(
            (n for n in table["numbers"] if n["mean"] is not None), numbers, strict=True
        )
    ]
    runs = read_runs([folder / "runs"], clients=False)
    trained = {str(len_of(run)) for run in runs if len_of(run)}
    return {
        "title": table["title"],
        "command": command,
        "complete": table["complete"],
        "missing": len(table["missing"]),
        "versions": table["versions"],
        "parameters": sorted(parameters),
        "training_samples": sorted(trained, key=int),
        "columns": ["parameter", *(key for key in numbers[0])],
        "numbers": [[rounded(value) for value in row] for row in kept],
        "published": [[p["source"], p["backbone"], p["remarks"]] for p in table["published"]],
    }


def len_of(run: Any) -> int:
    """Return the number of training samples of a recorded run, 0 where it is not recorded."""
    return 0 if run.partition is None else int(run.partition.summary()["train"]["total"])


def rounded(value: Any) -> Any:
    """Return a number with six digits."""
    if isinstance(value, float) and math.isfinite(value):
        value = float(f"{value:.6g}")
        return int(value) if value.is_integer() else value
    return value


def written(study: dict[str, Any]) -> str:
    """Return a study as JSON, a line per number."""
    numbers = ",\n  ".join(json.dumps(row) for row in study["numbers"])
    head = json.dumps({**study, "numbers": []}, indent=1, ensure_ascii=False)
    return head.replace('"numbers": []', f'"numbers": [\n  {numbers}\n ]') + "\n"


def studies(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the stored studies by name, in the order of the page."""
    found = {path.stem: json.loads(path.read_text("utf-8")) for path in folder.glob("*.json")}
    names = [name for name in ORDER if name in found]
    for study in found.values():
        study["rows"] = [dict(zip(study["columns"], row, strict=True)) for row in study["numbers"]]
    return {name: found[name] for name in [*names, *sorted(set(found) - set(names))]}


def page(found: dict[str, dict[str, Any]]) -> str:
    """Return the page of all studies."""
    parts = [HEAD]
    for name, study in found.items():
        parts.append(f"## {study['title']}\n\n```\n{study['command']}\n```\n\n" + tables(study))
        if not study["complete"]:
            parts.append(f"{study['missing']} of the runs were not made.\n")
        if lacking := left_out(study):
            parts.append(f"Of the preset left out: {'; '.join(lacking)}.\n")
        quoted = [f"- {remark}" for _, _, remarks in study["published"] for remark in remarks]
        if (quoted and name in ("apfl-table1", "fedhip-alpha", "fedacnnl-convex")) or (
            quoted and not name.startswith(("fedhip", "fedacnnl"))
        ):
            parts.append("The paper says:\n\n" + "\n".join(quoted) + "\n")
    return "\n".join(parts)


def left_out(study: dict[str, Any]) -> list[str]:
    """Return the rows, partitions and numbers of clients of the preset that a study has not.

    A single partition or number of clients of a preset may be replaced by another.
    """
    (name,) = set(re.findall(r"^fedgram study (\S+)", study["command"], re.MULTILINE))
    preset = load(name)
    has = {key: {row[key] for row in study["rows"]} for key in ("method", "partition", "clients")}
    found = {
        "rows": [f"`{row.name}`" for row in preset.methods if row.name not in has["method"]],
        "partitions": [p.name for p in preset.partitions if p.name not in has["partition"]],
        "numbers of clients": [str(n) for n in preset.clients if n not in has["clients"]],
    }
    replaced = {
        "partitions": len(preset.partitions) == 1,
        "numbers of clients": len(preset.clients) == 1,
    }
    return [
        f"{what} {', '.join(names)}"
        for what, names in found.items()
        if names and not replaced.get(what)
    ]


def tables(study: dict[str, Any]) -> str:
    """Return a table for each parameter that varies, or one."""
    parts = []
    for parameter in study["parameters"] or [""]:
        rows = [row for row in study["rows"] if row["parameter"] == parameter]
        parts.append(by_value(rows, parameter) if parameter else by_method(rows))
    return "\n".join(parts)


def by_method(rows: list[dict[str, Any]]) -> str:
    """Return methods as rows; data, clients, partitions and measures as columns."""
    methods = unique(row["method"] for row in rows)
    columns = unique(place(row) for row in rows)
    known = {(row["method"], *place(row)): row for row in rows}
    where = [unique(column[:-1]) for column in columns]
    same = all(each == where[0] for each in where)
    heads = [label(column, short=same) for column in columns]
    lines = [header(["method", *heads])]
    for method in methods:
        cells = [shown(known.get((method, *column))) for column in columns]
        lines.append(f"| `{method}` | {' | '.join(cells)} |")
        published = [known.get((method, *column), {}).get("published") for column in columns]
        if any(number is not None for number in published):
            cells = ["" if number is None else f"{number:g}" for number in published]
            lines.append(f"| *published* | {' | '.join(cells)} |")
    before = f"{told(columns[0])}.\n\n" if same else ""
    return before + "\n".join(lines) + "\n"


def by_value(rows: list[dict[str, Any]], parameter: str) -> str:
    """Return places and methods as rows; the values of the parameter as columns."""
    values = unique(row["value"] for row in rows)
    lines = [
        header(
            ["", "method", "", *(f"{value:g}" if number(value) else str(value) for value in values)]
        )
    ]
    known = {(row["method"], *place(row), row["value"]): row for row in rows}
    for place_ in unique(place(row) for row in rows):
        for method in unique(row["method"] for row in rows if place(row) == place_):
            found = [known.get((method, *place_, value)) for value in values]
            cells = [shown(row) for row in found]
            lines.append(
                f"| {told(place_)} | `{method}` | {measure(place_[-1]).label} | {' | '.join(cells)} |"
            )
            published = [row and row.get("published") for row in found]
            if any(each is not None for each in published):
                cells = ["" if each is None else f"{each:g}" for each in published]
                lines.append(f"| | *published* | | {' | '.join(cells)} |")
    return f"`{parameter}`:\n\n" + "\n".join(lines) + "\n"


def number(value: Any) -> bool:
    return isinstance(value, int | float)


def place(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["dataset"], row["clients"], row["partition"], row["measure"]


def told(column: tuple[Any, ...]) -> str:
    """Return data, clients and partition in words."""
    dataset, clients, partition, _ = column
    return f"{dataset}, {clients or 'their own'} clients, {partition}"


def label(column: tuple[Any, ...], *, short: bool) -> str:
    name = measure(column[-1]).label
    return name if short else f"{told(column)}: {name}"


def header(heads: list[str]) -> str:
    return f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}"


def shown(row: dict[str, Any] | None) -> str:
    """Return a number as it is written in tables, with the round where it was chosen early."""
    if row is None:
        return "-"
    return measure(row["measure"]).shown(row["mean"], row["deviation"])


def unique(items: Iterable[Any]) -> list[Any]:
    return list(dict.fromkeys(items))


if __name__ == "__main__":
    main()
