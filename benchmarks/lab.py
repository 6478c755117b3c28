"""Rows that a benchmark measures: printed as they come, and stored for the pages on request.

With `--store NAME` a script keeps its rows in `docs/results/lab/NAME.json`, with the command, the
version and the machine. `benchmarks.lab_pages` shows them in pages.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fedgram
from benchmarks.measure import machine

DOCS = Path(__file__).parent.parent / "docs"
LAB = DOCS / "results" / "lab"
Row = dict[str, Any]


def add_store(parser: argparse.ArgumentParser) -> None:
    """Add the option that stores the rows."""
    parser.add_argument("--store", default="", help="name of a file in docs/results/lab")


def report(rows: Iterator[Row], store: str) -> None:
    """Print rows as they are measured, and store all of them under a name that is not empty."""
    measured = []
    for row in rows:
        measured.append({name: _rounded(value) for name, value in row.items()})
        print(", ".join(f"{name} {value}" for name, value in measured[-1].items()), flush=True)
    if store:
        LAB.mkdir(parents=True, exist_ok=True)
        found = {
            "command": _command(),
            "version": fedgram.__version__,
            "machine": machine(),
            "rows": measured,
        }
        text = json.dumps(found, indent=1, ensure_ascii=False) + "\n"
        (LAB / f"{store}.json").write_text(text, encoding="utf-8")


def stored(name: str) -> dict[str, Any]:
    """Return what was stored under a name."""
    found: dict[str, Any] = json.loads((LAB / f"{name}.json").read_text(encoding="utf-8"))
    return found


def _command() -> str:
    """Return the command of this process without the name of its file of results."""
    words = list(sys.argv)
    place = words.index("--store")
    del words[place : place + 2]
    return shlex.join(["python", "-m", f"benchmarks.{Path(words[0]).stem}", *words[1:]])


def _rounded(value: Any) -> Any:
    return round(float(value), 4) if isinstance(value, float) else value
