"""A table as text, Markdown and LaTeX; all its files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path

from fedgram.experiments.study.export import table_csv, table_json
from fedgram.experiments.study.layout import LAST, PUBLISHED, Line, Panel, notes, panels
from fedgram.experiments.study.summary import CellValue, Summary
from fedgram.runtime import files
from fedgram.runtime.text import broken, escaped, one_line

WIDTH = 80  # of table.txt; on the screen it is that of the terminal
_MARKS = {1: "**", 2: " *", None: "  "}
_TEX = {
    **{c: f"\\{c}" for c in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    **{c: f"{{{c}}}" for c in "[]*"},  # after the end of a row they would be its options
    "<": r"\textless{}",
    ">": r"\textgreater{}",
}


def write(summary: Summary, folder: Path) -> None:
    """Write all five files of a table."""
    for name, render in WRITERS.items():
        files.write(folder / name, render(summary))


def text(summary: Summary, width: int = WIDTH) -> str:
    """Return the table for a terminal; a column that is wider than that stays whole."""
    parts = [broken(summary.table.title, width, rest="")]
    for panel in panels(summary):
        for shared, columns in _fitting(panel, panel.columns, width):
            words = ", ".join(word for word in (panel.heading, *shared) if word)
            heading = broken(words, width, rest="")
            parts.append("\n".join([heading, "", *_block(panel, columns, len(shared))]).strip("\n"))
    remarks = notes(summary, best="**", second="*")
    parts.append("\n".join(broken(remark, width) for remark in remarks))
    return escaped("\n\n".join(parts), keep="\n") + "\n"


def markdown(summary: Summary) -> str:
    """Return the table for a page in Markdown."""

    def marked(number: CellValue) -> str:
        shown = _shown(number)
        return {1: f"**{shown}**", 2: f"<u>{shown}</u>"}.get(number.rank or 0, shown)

    parts = [f"## {_plain_markdown(summary.table.title)}"]
    for panel in panels(summary):
        levels = len(panel.rows[0])
        heads = [*[""] * levels, *(_plain_markdown(" / ".join(c)) for c in panel.columns)]
        rows = [heads, [*["---"] * levels, *["---:"] * len(panel.columns)]]
        for line in panel.lines():
            labels = [_plain_markdown(label) for label in _labels(line)]
            rows.append([*labels, *_cells(line, marked)])
        lines = [f"| {' | '.join(row)} |" for row in rows]
        parts.append(
            "\n".join([*([_plain_markdown(panel.heading), ""] if panel.heading else []), *lines])
        )
    remarks = notes(summary, best="bold", second="underlined")
    parts.append("\n".join(f"- {_plain_markdown(note)}" for note in remarks))
    return "\n\n".join(parts) + "\n"


def latex(summary: Summary) -> str:
    """Return the table for a paper; it needs the package booktabs."""

    def marked(number: CellValue) -> str:
        shown = tex(_shown(number))
        return {1: rf"\textbf{{{shown}}}", 2: rf"\underline{{{shown}}}"}.get(
            number.rank or 0, shown
        )

    remarks = notes(summary, best="bold", second="underlined")
    parts = [r"% \usepackage{booktabs}"]
    for panel in panels(summary):
        levels = len(panel.rows[0])
        body = []
        for line in panel.lines():
            indented = [_indented(label) for label in _labels(line)]
            body.append(" & ".join([*indented, *_cells(line, marked, tex)]) + r" \\")
        title = ", ".join(word for word in (summary.table.title, panel.heading) if word)
        parts += [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{tex(title)}}}",
            rf"\begin{{tabular}}{{{'l' * levels}{'r' * len(panel.columns)}}}",
            r"\toprule",
            *_tex_heads(panel, levels),
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
            rf"\par\smallskip{{\footnotesize {tex('; '.join(remarks))}.\par}}",
            r"\end{table}",
        ]
    return "\n".join(parts) + "\n"


WRITERS: dict[str, Callable[[Summary], str]] = {
    "table.txt": text,
    "table.md": markdown,
    "table.tex": latex,
    "table.csv": table_csv,
    "table.json": table_json,
}


def tex(text: str) -> str:
    r"""Return a text for LaTeX.

    Examples
    --------
    >>> print(tex("afl_1 & 50 % ± {x}"))
    afl\_1 \& 50 \% $\pm$ \{x\}
    """
    return "".join(_TEX.get(character, character) for character in one_line(text))


def _indented(label: str) -> str:
    """Return a label for LaTeX with the indentation that it has in a text."""
    bare = label.lstrip(" ")
    return r"\quad " * ((len(label) - len(bare)) // 2) + tex(bare)


def _shown(number: CellValue) -> str:
    if number.chosen is None:
        return "-"
    shown = number.measure.shown(number.chosen.mean, number.chosen.deviation)
    planned, there = len(number.cell.runs), len(number.chosen.by_seed)
    return shown if there == planned else f"{shown} ({there} of {planned})"


def _cells(
    line: Line, marked: Callable[[CellValue], str], written: Callable[[str], str] = str
) -> list[str]:
    """Return a line's cells; only means at the chosen round are marked."""
    cells = []
    for number in line.numbers:
        if number is None:
            cells.append("")
        elif line.kind == "chosen":
            cells.append(marked(number))
        elif line.kind == "last":
            last = number.last if number.differs else None
            cells.append(written(number.measure.shown(last.mean, last.deviation)) if last else "")
        else:
            known = number.published
            cells.append("" if known is None else written(number.measure.shown(known)))
    return cells


def _labels(line: Line) -> list[str]:
    if line.kind == "chosen":
        return list(line.labels)
    name = LAST if line.kind == "last" else PUBLISHED
    return [*[""] * (len(line.labels) - 1), f"  {name}"]


def _fitting(
    panel: Panel, columns: Sequence[tuple[str, ...]], width: int, level: int = 0
) -> Iterator[tuple[tuple[str, ...], list[tuple[str, ...]]]]:
    """Cut columns until every part has at most a width: at their outer levels first.

    A part comes with the labels that all its columns share.
    """
    columns = list(columns)
    wide = max(map(len, _block(panel, columns, level))) > width
    if not wide or len(columns) < 2:
        yield columns[0][:level], columns
    elif level < len(columns[0]) - 1:
        for _, part in groupby(columns, key=lambda column: column[: level + 1]):
            yield from _fitting(panel, list(part), width, level + 1)
    else:
        half = (len(columns) + 1) // 2
        yield from _fitting(panel, columns[:half], width, level)
        yield from _fitting(panel, columns[half:], width, level)


def _block(panel: Panel, columns: Sequence[tuple[str, ...]], level: int) -> list[str]:
    def marked(number: CellValue) -> str:
        return _shown(number) + _MARKS[number.rank]

    body = []
    for line in panel.lines(columns):
        cells = _cells(line, marked)
        ends = "" if line.kind == "chosen" else _MARKS[None]
        body.append([*_labels(line), *(cell + ends for cell in cells)])
    levels = len(panel.rows[0])
    heads = [
        [*[""] * levels, *(column[deep] + _MARKS[None] for column in columns)]
        for deep in range(level, len(columns[0]))
    ]
    rows = [*heads, *body]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    aligned = [
        "  ".join(
            cell.ljust(width) if index < levels else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    rule = "-" * max(map(len, aligned))
    return [*aligned[: len(heads)], rule, *aligned[len(heads) :]]


def _tex_heads(panel: Panel, levels: int) -> list[str]:
    lines = []
    for deep in range(len(panel.columns[0])):
        cells = []
        for _, group in groupby(panel.columns, key=lambda column: column[: deep + 1]):
            members = list(group)
            label = tex(members[0][deep])
            several = rf"\multicolumn{{{len(members)}}}{{c}}{{{label}}}"
            cells.append(several if len(members) > 1 else label)
        lines.append(" & ".join([*[""] * levels, *cells]).strip() + r" \\")
    return lines


def _plain_markdown(text: str) -> str:
    text = one_line(text)
    for character in "\\|*_<>`[]&~":
        text = text.replace(character, f"\\{character}")
    return text
