"""Write stored rows into pages, between marks: `<!-- NAME: begin -->` and `<!-- NAME: end -->`.

python -m benchmarks pages [FOLDER]
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from benchmarks.lab import DOCS, Row, stored

MARKED = re.compile(r"^<!-- (?P<name>[\w-]+): begin -->\n.*?^<!-- (?P=name): end -->$", re.M | re.S)


class Table(NamedTuple):
    """A table of stored rows: a title and a format for each column; a row may lack a value."""

    source: str
    columns: Mapping[str, str]
    shown: Callable[[Row], bool] = bool
    note: str = ""


KINDS = {"none": ", no layers (a control)", "random": ", random filters (a control)"}
NETWORK = {
    "method": "`{method}`{kind}",
    "rate": "{rate:g}",
    "rounds": "{rounds}",
    "seconds": "{seconds:.1f}",
    "test accuracy, %": "{test:.2f}",
    "client mean, %": "{client_mean:.2f}",
}
PERSONAL = {
    "method": "{method}",
    "client mean, %": "{mean:.2f} ± {deviation:.2f}",
    "seconds a seed": "{seconds:.0f}",
}
FILTERS = {
    "filters": "`{filters}`",
    "scaling": "`{scaling}`",
    "cells": "{cells}",
    "validation, %": "{validation:.2f}",
    "test, %": "{test:.2f}",
    "ridge": "{ridge:g}",
    "seconds": "{seconds:.0f}",
}
WAYS = {
    title: f"{{{way}:.1f}} [{{{way}, error:.3f}}]"
    for title, way in {
        "raw columns, RMS": "raw, RMS",
        "range": "range",
        "anchor 0": "anchor 0",
        "anchor 1": "anchor 1",
        "anchor 1000": "anchor 1000",
    }.items()
}
SECONDS = "Seconds are processor seconds of one thread"
TABLES = {
    "network": Table(
        "network",
        NETWORK,
        # the end of each, and some rounds before
        shown=lambda row: "client_mean" in row or row["rounds"] in (50, 100, 150),
        note=f"{SECONDS}, without scoring.",
    ),
    "filters-mnist": Table(
        "filters-mnist",
        {title: FILTERS[title] for title in FILTERS if title not in ("scaling", "cells")},
        note=f"{SECONDS}, with all ridges and tests.",
    ),
    "filters-mnist-all": Table(
        "filters-mnist-all",
        {"training images": "{training:,}", "lift": "{lift:,}"}
        | {title: FILTERS[title] for title in ("test, %", "ridge", "seconds")},
        note=f"{SECONDS}, with all ridges and tests.",
    ),
    "filters-cifar10": Table("filters-cifar10", FILTERS, note=f"{SECONDS}, with all ridges."),
    "depth-cifar10": Table(
        "depth-cifar10",
        {"layers": "`{layers}`"}
        | {title: FILTERS[title] for title in ("validation, %", "test, %", "ridge", "seconds")},
        note=f"{SECONDS}, with all ridges.",
    ),
    "personal-mnist": Table(
        "personal-mnist", PERSONAL, note=f"{SECONDS}, of all clients in turn, with tests."
    ),
    "personal-cifar10": Table(
        "personal-cifar10", PERSONAL, note=f"{SECONDS}, of all clients in turn, with tests."
    ),
    "patches": Table(
        "patches",
        {
            "layer": "`{layer}`",
            "images": "{maps}",
            "inputs of a filter": "{inputs}",
            "speed": "{speed:.2f}",
            "of operations done": "{done:.2f}",
            "writing patches": "{writing:.2f}",
            "memory": "{memory:.3f}",
        },
        note="Times are medians of turns.",
    ),
    "blocks": Table(
        "blocks",
        {"method": "`{method}`", "test accuracy, %": "{test:.2f}"},
        shown=lambda row: "test" in row,
    ),
    "blocks-valid": Table(
        "blocks",
        {"block ridge": "{block_ridge:g}", "validation accuracy by depth, %": "{curve}"}
        | {"seconds": "{seconds:.0f}"},
        shown=lambda row: "valid" in row,
        note=SECONDS + ".",
    ),
    "blocks-personal": Table(
        "blocks",
        {"method": "`{method}`", "client mean, %": "{client_mean:.2f}", "seeds": "{seeds}"},
        shown=lambda row: "client_mean" in row,
    ),
    "secure-sums": Table(
        "secure-sums",
        {
            "signed": "{signed}",
            "clients": "{clients}",
            "dropped": "{dropped}",
            "features": "{features:,}",
            "open MB": "{open:.3f}",
            "up MB": "{up:.3f}",
            "down MB": "{down:.3f}",
            "s per client": "{client_seconds:.3f}",
            "s at the server": "{server_seconds:.3f}",
        },
        shown=lambda row: "signed" in row,
    ),
    "masks": Table(
        "secure-sums",
        {"mask, MB": "{mask_megabytes:.0f}", "time over copying": "{times_a_copy:.1f}"},
        shown=lambda row: "times_a_copy" in row,
    ),
    "grid": Table(
        "grid",
        {"data": "{data}", "float64": "{float64:.2f}"}
        | {f"{bits} bits": f"{{{bits} bits:.2f}}" for bits in (16, 8, 6, 4, 3, 2)},
    ),
    "columns": Table("tables", {"data": "{data}", **WAYS}),
}


def write(folder: Path = DOCS) -> None:
    """Write every page that has marks, to a folder."""
    for page in marked():
        text = page.read_text(encoding="utf-8")
        place = folder / page.relative_to(DOCS)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(filled(text), encoding="utf-8")


def marked() -> Iterator[Path]:
    """Yield the pages that have one of these tables."""
    for page in sorted(DOCS.rglob("*.md")):
        if any(found["name"] in TABLES for found in MARKED.finditer(page.read_text("utf-8"))):
            yield page


def filled(text: str) -> str:
    """Return a page with its tables; other marks are left as they are."""

    def one(found: re.Match[str]) -> str:
        name = found["name"]
        if name not in TABLES:
            return found[0]
        inside = "\n".join(lines(TABLES[name]))
        return f"<!-- {name}: begin -->\n{inside}\n<!-- {name}: end -->"

    return MARKED.sub(one, text)


def lines(table: Table) -> Iterator[str]:
    """Yield a table in Markdown, with its command and machine."""
    found = stored(table.source)
    yield f"| {' | '.join(table.columns)} |"
    yield "|---" * len(table.columns) + "|"
    for row in filter(table.shown, found["rows"]):
        extra = {"kind": KINDS.get(row.get("filters", ""), "")}
        extra["curve"] = ", ".join(f"{value:.2f}" for value in row.get("valid", ()))
        yield f"| {' | '.join(cell(form, {**row, **extra}) for form in table.columns.values())} |"
    machine = found["machine"]
    yield (
        f"\n`{found['command']}`, version {found['version']}, {machine['processor']}, BLAS kernels "
        f"{machine['BLAS kernels']}. {table.note}".rstrip()
    )


def cell(form: str, row: Row) -> str:
    """Return a value as text; nothing where the row has none."""
    named = re.findall(r"\{([^:}]+)", form)
    if any(row.get(name) is None for name in named):
        return ""
    return form.format_map(row)
