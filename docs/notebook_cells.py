"""Cells of a notebook script, and what they print and show when they run.

python notebook_cells.py SCRIPT    runs it in the current folder and prints outputs as JSON
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple


class Cell(NamedTuple):
    """A cell: text in Markdown, or Python code."""

    is_text: bool
    source: str


def cells(text: str) -> list[Cell]:
    r"""Return the cells of a script.

    Examples
    --------
    >>> cells("# %% [markdown]\n# Text\n\n# %%\nx = 1\n")
    [Cell(is_text=True, source='Text'), Cell(is_text=False, source='x = 1')]
    """
    found = []
    for one in re.split(r"^# %%", text, flags=re.MULTILINE)[1:]:
        kind, _, body = one.partition("\n")
        is_text = "markdown" in kind
        body = re.sub(r"^# ?", "", body.strip(), flags=re.MULTILINE) if is_text else body.strip()
        found.append(Cell(is_text, body))
    return found


def outputs(script: Path) -> list[dict[str, str]]:
    """Run a script in an empty folder and a process of its own; return what its cells show."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(  # noqa: S603  this Python and this file
            [sys.executable, __file__, str(script.resolve())],
            cwd=folder,
            env={**os.environ, "PATH": path, "NO_COLOR": "1", "COLUMNS": "100"},
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        raise RuntimeError(f"{script.name} ends with an error:\n{done.stderr}")
    found: list[dict[str, str]] = json.loads(done.stdout.splitlines()[-1])
    return found


def run(text: str) -> list[dict[str, str]]:
    r"""Run the code cells of a script; return the printed text and the last value of each.

    Examples
    --------
    >>> run("# %%\nx = 1\nprint('a')\nx + 1\n# %%\nx\n")
    [{'text': 'a\n2', 'html': ''}, {'text': '1', 'html': ''}]
    """
    names: dict[str, Any] = {"__name__": "__main__"}
    return [_shown(cell.source, names) for cell in cells(text) if not cell.is_text]


def _shown(source: str, names: dict[str, Any]) -> dict[str, str]:
    body = ast.parse(source).body
    last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        exec(compile(ast.Module(body, []), "cell", "exec"), names)  # noqa: S102
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)  # noqa: S307
    rich = hasattr(value, "_repr_html_")  # what Jupyter shows in place of the text
    text = "" if value is None or rich else repr(value)
    return {
        "text": (printed.getvalue() + text).rstrip(),
        "html": value._repr_html_() if rich else "",
    }


if __name__ == "__main__":
    print(json.dumps(run(Path(sys.argv[1]).read_text(encoding="utf-8"))))  # noqa: T201
