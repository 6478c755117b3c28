"""What is drawn on the terminal: tables and progress bars."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from textwrap import wrap
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from fedgram.report.charts.axes import size as written_size

NARROW = 78
REASONS = 3  # alternatives that are told of below the table
CLASS_COLUMNS = 5  # methods side by side that fit a narrow terminal
OnReply = Callable[[str, int, int], None]
OnRound = Callable[[int], None]
COLUMNS = {
    "client\nmean": "client_mean",
    "sample\nmean": "sample_mean",
    "worst\ntenth": "worst_decile",
    "whole\ntest": "global",
    "bal-\nanced": "balanced",
}


def print_table(title: str, results: list[dict[str, Any]], label: str = "method") -> None:
    """Draw results side by side, with what there is to say about them below."""
    console = Console()
    console.print(title, markup=False, highlight=False, soft_wrap=True)
    console.print(_accuracy_table(results, label))
    console.print("accuracy in %, bytes per client")
    if len(results) > 1 and any(any((r.get("gains") or {}).values()) for r in results):
        console.print("\n% of clients that do better / worse than")
        console.print(_gains_table(results, label))
    if any(result["class_accuracy"] for result in results):
        console.print("\naccuracy within classes, in %")
        for start in range(0, len(results), CLASS_COLUMNS):
            console.print(_class_table(results[start : start + CLASS_COLUMNS], label))
    for note in dict.fromkeys(note for result in results for note in _notes(result, label)):
        console.print(note, highlight=False, markup=False, soft_wrap=True)


def _table(label: str, *headers: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column(label, overflow="fold")
    for header in headers:
        table.add_column(header, justify="right", no_wrap=True)
    return table


def _accuracy_table(results: list[dict[str, Any]], label: str) -> Table:
    ranked = any(result["auroc"] is not None for result in results)
    more = ("macro\nAUROC",) if ranked else ()
    table = _table(label, *COLUMNS, *more, "bytes\nup", "bytes\ndown", "time\ns")
    means = [result["accuracy"]["client_mean"] for result in results]
    best = max((mean for mean in means if mean is not None), default=None)
    for result in results:
        cells = [_percent(result["accuracy"][key]) for key in COLUMNS.values()]
        if result["accuracy"]["client_mean"] == best:
            cells[0] = f"[bold]{cells[0]}[/bold]"
        if ranked:
            cells.append(_percent(result["auroc"]))
        size = [written_size(result["bytes"][key]) for key in ("up", "down")]
        table.add_row(escape(str(result[label])), *cells, *size, _seconds(result["seconds"]))
    return table


def _notes(result: dict[str, Any], label: str) -> Iterator[str]:
    if result.get("chosen", result["rounds"]) != result["rounds"]:
        last = _percent(result["last"]["accuracy"]["client_mean"])
        yield (
            f"{result[label]}: round {result['chosen']} of {result['rounds']}, chosen on "
            f"validation samples; the last round has a client mean of {last} %"
        )
    if result.get("settled"):
        said = f"{result[label]} chose {_choice(result['settled'])}"
        yield "\n".join(wrap(said, NARROW, subsequent_indent="  "))
    if result.get("rate_search"):
        said = f"{result[label]} uses {_rate(result['rate_search'])}"
        yield "\n".join(wrap(said, NARROW, subsequent_indent="  "))
    if not result.get("finished", True):
        yield f"{result[label]}: interrupted after round {result['rounds']}"
    if result["untested_clients"]:
        yield (
            f"{result['untested_clients']} of {result['clients']} clients have no test samples "
            "and are left out of client means"
        )
    if result["holdout"]:
        accuracy = _percent(result["holdout"]["accuracy"]["client_mean"])
        yield (
            f"{result[label]}: {result['holdout']['clients']} clients held out of training reach "
            f"a client mean of {accuracy} %"
        )


def _choice(settled: dict[str, Any]) -> str:
    """Return what was chosen, and what came closest."""
    shares = list(settled["reasons"].items())
    shown = "; ".join(f"{name} {_percent(share)} %" for name, share in shares[:REASONS])
    return f"{settled['told']}; accuracy on left-out samples: {shown}" if shown else settled["told"]


def _rate(search: dict[str, Any]) -> str:
    """Return the chosen rate, the reason, and the validation loss at every rate."""
    shown = "; ".join(f"rate {pilot['rate']:g} {pilot['outcome']}" for pilot in search["pilots"])
    return f"rate {search['rate']:g}, {search['reason']}; validation loss of pilots: {shown}"


@contextmanager
def progress(*, shown: bool) -> Iterator[Callable[[str, int], tuple[OnReply, OnRound]]]:
    """Draw on standard error, and only on a terminal."""
    console = Console(stderr=True)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not (shown and console.is_terminal),
    ) as bar:

        def follow(name: str, rounds: int) -> tuple[OnReply, OnRound]:
            task, finished = bar.add_task(name), [0]

            def reply(step: str, done: int, total: int) -> None:
                where = f" {finished[0]} of {rounds} rounds," if rounds > 1 else ""
                bar.update(
                    task,
                    description=f"{name}:{where} {step.strip('_').replace('_', ' ')}",
                    completed=done,
                    total=total,
                )

            def round_(number: int) -> None:
                finished[0] = number

            return reply, round_

        yield follow


def _gains_table(results: list[dict[str, Any]], label: str) -> Table:
    table = _table(label, "alone", "with the shared model")
    for result in results:
        cells = []
        for key in ("over_alone", "over_shared"):
            gain = (result.get("gains") or {}).get(key)
            shown = gain and f"{_percent(gain['better'])} / {_percent(gain['worse'])}"
            cells.append(shown or "-")
        table.add_row(escape(str(result[label])), *cells)
    return table


def _class_table(results: list[dict[str, Any]], label: str) -> Table:
    table = _table("class")
    for result in results:
        table.add_column(escape(str(result[label])), justify="right", overflow="fold", min_width=5)
    for name in next(r["class_accuracy"] for r in results if r["class_accuracy"]):
        shares = [(result["class_accuracy"] or {}).get(name) for result in results]
        table.add_row(escape(name), *map(_percent, shares))
    return table


def _seconds(value: float) -> str:
    """Return a time in four characters as long as it fits: minutes need no hundredths."""
    return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f}"


class _Rate(ProgressColumn):
    """How many a second; nothing as long as that is not known."""

    def render(self, task: Task) -> Text:
        rate = task.finished_speed or task.speed
        if rate is None:
            return Text("")
        return Text(f"{rate:,.0f}/s" if rate >= 10 else f"{rate:.1f}/s")


@contextmanager
def counting(name: str, total: int) -> Iterator[Callable[[int, int], None]]:
    """Draw how many are done, how fast, and the time left; on a terminal only."""
    console = Console(stderr=True)
    with Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        _Rate(),
        TimeRemainingColumn(),
        TextColumn("left"),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as bar:
        task = bar.add_task(name, total=total)
        yield lambda done, _: bar.update(task, completed=done)
