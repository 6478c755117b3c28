"""Terminal output: tables and progress bars."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from rich import box
from rich.console import Console
from rich.markup import escape as without_markup
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Column, Table
from rich.text import Text

from fedgram.cli.method_line import MethodLine
from fedgram.experiments.measures import ACCURACIES, COSTS, ERRORS, SCORES, Quantity, score_words
from fedgram.experiments.run_record import RateSearchRecord, RunRecord, TunedSettings
from fedgram.experiments.seeds import MeanAndStd, mean_and_std
from fedgram.federation.method import method_name
from fedgram.runtime.text import MISSING, broken, escaped, percent, short_seconds

NARROW = 78
ALTERNATIVES = 3  # number of alternatives shown below the table
CLASS_COLUMNS = 5  # methods side by side that fit a narrow terminal
OnReply = Callable[[str, int, int], None]
OnRound = Callable[[int], None]
Gain = Mapping[str, Any]
Label = Literal["method", "run"]
LONGEST_LABEL = 24  # characters of a row's name in one line
COSTS_SHOWN = ("bytes_up", "bytes_down")


def cell(text: object) -> str:
    r"""Return a foreign text for `rich`: neither its markup nor its control characters act.

    Examples
    --------
    >>> cell("[bold]ward\x1b[2J")
    '\\[bold]ward\\x1b[2J'
    """
    return without_markup(escaped(text))


def print_runs(title: str, runs: Sequence[RunRecord], gains: Sequence[Gain], label: Label) -> None:
    """Draw the results of runs side by side, with notes below.

    Parameters
    ----------
    title
        Above the table.
    runs
        One for each row.
    gains
        Which clients gain by each run, as `who_gains` returns it.
    label
        Whether rows are named by their method or by their folder.
    """
    console = Console()
    names = [_named(run, label) for run in runs]
    console.print(escaped(title), markup=False, highlight=False, soft_wrap=True)
    for table in _accuracy_tables(console.width, runs, names, label):
        console.print(table)
    numbers = any(run.summary.errors for run in runs)
    errors = "; RMSE and MAE in the units of the outputs" if numbers else ""
    score = score_words(numbers=numbers).one
    console.print(f"{score} in %, bytes per client{errors}")
    if len(runs) > 1 and any(any(gain.values()) for gain in gains):
        console.print(f"\n% of clients with higher / lower {score} than")
        console.print(_gains_table(gains, names, label))
    if any(run.summary.class_accuracy for run in runs):
        console.print("\naccuracy within classes, in %")
        for start in range(0, len(runs), CLASS_COLUMNS):
            part = slice(start, start + CLASS_COLUMNS)
            console.print(_class_table(runs[part], names[part]))
    notes = (note for run, name in zip(runs, names, strict=True) for note in _notes(run, name))
    width = min(console.width, NARROW)
    for note in dict.fromkeys(notes):
        lines = broken(escaped(note), width)
        console.print(lines, highlight=False, markup=False, soft_wrap=True)


def print_seeds(title: str, methods: Sequence[Sequence[RunRecord]]) -> None:
    """Draw mean and standard deviation over seeds, a row for each method.

    Parameters
    ----------
    title
        Above the table.
    methods
        The runs of each method, one for each seed.
    """
    console = Console()
    console.print(escaped(title), markup=False, highlight=False, soft_wrap=True)
    scores = _scores_of([run for runs in methods for run in runs])
    shown = [*scores.values(), *(COSTS[name] for name in COSTS_SHOWN)]
    rows = []
    means = [mean_and_std(run.summary.score("client_mean") for run in runs) for runs in methods]
    best = max((mean[0] for mean in means if mean is not None), default=None)
    for runs, mean in zip(methods, means, strict=True):
        cells = [
            _spread(mean_and_std(run.summary.score(score) for run in runs)) for score in scores
        ]
        if mean is not None and mean[0] == best:
            cells[0] = f"[bold]{cells[0]}[/bold]"
        for cost in COSTS_SHOWN:
            found = mean_and_std(run.summary.cost(cost) for run in runs)
            cells.append(_written(found and found[0], COSTS[cost].text))
        found = mean_and_std(run.summary.seconds for run in runs)
        rows.append(
            (cell(_named(runs[0], "method")), [*cells, _written(found and found[0], short_seconds)])
        )
    headers = [*(one.header for one in shown), "time\ns"]
    for table in _tables(console.width, "method", headers, rows):
        console.print(table)
    score = score_words(numbers=any(run.summary.errors for runs in methods for run in runs)).one
    console.print(f"{score} in %: mean ± standard deviation over seeds; bytes per client")


def _spread(found: MeanAndStd | None) -> str:
    if found is None:
        return MISSING
    mean, deviation = found
    return percent(mean) + ("" if deviation is None else f" ± {percent(deviation)}")


def _named(run: RunRecord, label: str) -> str:
    return method_name(run.method) if label == "method" else str(run.folder)


def _scores_of(runs: Sequence[RunRecord]) -> Mapping[str, Quantity]:
    ranked = any(run.summary.auroc is not None for run in runs)
    scores = SCORES if ranked else ACCURACIES
    if any(run.summary.errors for run in runs):
        scores = {name: one for name, one in scores.items() if name != "balanced"}
    return scores


def _table(label: str, *headers: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column(label, overflow="fold")
    for header in headers:
        table.add_column(header, justify="right", no_wrap=True)
    return table


def _tables(
    width: int, label: str, headers: Sequence[str], rows: Sequence[tuple[str, Sequence[str]]]
) -> Iterator[Table]:
    """Yield a table, or several of some columns each that fit the width with the rows' names."""
    texts = [
        [Text.from_markup(cells[k]).cell_len for _, cells in rows] for k in range(len(headers))
    ]
    widths = [
        max([*(len(line) for line in header.split("\n")), *lengths])
        for header, lengths in zip(headers, texts, strict=True)
    ]
    names = max(
        len(label), *(min(LONGEST_LABEL, Text.from_markup(name).cell_len) for name, _ in rows)
    )
    room = width - names - 2
    start = 0
    while start < len(headers):
        end, used = start, 0
        while end < len(headers) and (end == start or used + widths[end] + 2 <= room):
            used += widths[end] + 2
            end += 1
        table = _table(label, *headers[start:end])
        table.columns[0].min_width = names
        for name, cells in rows:
            table.add_row(name, *cells[start:end])
        yield table
        start = end


def _accuracy_tables(
    width: int, runs: Sequence[RunRecord], names: Sequence[str], label: str
) -> Iterator[Table]:
    scores = _scores_of(runs)
    errors = ERRORS if any(run.summary.errors for run in runs) else ()
    shown = [one.header for one in (*scores.values(), *(COSTS[name] for name in COSTS_SHOWN))]
    shown[len(scores) : len(scores)] = [name.upper() for name in errors]
    means = [run.summary.score("client_mean") for run in runs]
    best = max((mean for mean in means if mean is not None), default=None)
    rows = []
    for run, name in zip(runs, names, strict=True):
        summary = run.summary
        cells = [percent(summary.score(score)) for score in scores]
        if summary.score("client_mean") == best:
            cells[0] = f"[bold]{cells[0]}[/bold]"
        cells += [_written((summary.errors or {}).get(name), compact_error) for name in errors]
        cells += [_written(summary.cost(cost), COSTS[cost].text) for cost in COSTS_SHOWN]
        rows.append((cell(name), [*cells, _written(summary.seconds, short_seconds)]))
    return _tables(width, label, [*shown, "time\ns"], rows)


def compact_error(value: float) -> str:
    """Return an error in the units of the outputs, with four digits."""
    return f"{value:.4g}"


def _written(value: float | None, text: Callable[[float], str]) -> str:
    return MISSING if value is None else text(value)


def _notes(run: RunRecord, name: str) -> Iterator[str]:
    if run.chosen.round != run.last.round:
        last = percent(run.last.summary.score("client_mean"))
        yield (
            f"{name}: round {run.chosen.round} of {run.last.round}, the best on "
            f"validation samples; client mean of the last round: {last} %"
        )
    if run.summary.tuned:
        score = score_words(numbers=bool(run.summary.errors)).one
        yield f"{name} chose {_choice(run.summary.tuned, score)}"
    if run.summary.rate_search:
        yield f"{name} uses {_rate(run.summary.rate_search)}"
    if not run.finished:
        yield f"{name}: interrupted after round {run.last.round}"
    if run.summary.untested_clients:
        yield (
            f"{run.summary.untested_clients} of {run.summary.clients} clients have no test samples "
            "and are left out of client means"
        )
    if run.holdout:
        held_out = run.holdout.summary
        accuracy = percent(held_out.score("client_mean"))
        counted = f"{held_out.clients} client{'s' * (held_out.clients != 1)}"
        yield f"{name}: {counted} held out of training, client mean {accuracy} %"


def _choice(tuned: TunedSettings, score: str) -> str:
    """Return the chosen settings, and the accuracy of the best alternatives."""
    shares = list(tuned.left_out_accuracy.items())[:ALTERNATIVES]
    shown = "; ".join(f"{name} {percent(share)} %" for name, share in shares)
    return tuned.description + (f"; {score} on left-out samples: {shown}" if shown else "")


def _rate(search: RateSearchRecord) -> str:
    """Return the chosen rate, the reason, and the validation loss at every rate."""
    shown = "; ".join(f"rate {pilot.rate:g}: {pilot.outcome}" for pilot in search.pilots)
    return f"rate {search.rate:g}, {search.reason}; validation loss of pilots: {shown}"


@contextmanager
def progress(*, shown: bool) -> Iterator[Callable[[str, int], tuple[OnReply, OnRound]]]:
    """Draw method, round, step, clients and time left: on standard error, on a terminal only."""
    console = Console(stderr=True)
    narrow = console.width < NARROW
    with Progress(
        TextColumn(
            "{task.description}",
            markup=False,
            table_column=Column(no_wrap=True, overflow="ellipsis"),
        ),
        *([] if narrow else [BarColumn(bar_width=12)]),
        TextColumn("{task.fields[clients]}", table_column=Column(no_wrap=True)),
        TextColumn("{task.fields[left]}", table_column=Column(no_wrap=True)),
        console=console,
        transient=True,
        disable=not (shown and console.is_terminal),
    ) as bar:

        def follow(name: str, rounds: int) -> tuple[OnReply, OnRound]:
            for other in bar.task_ids:
                bar.remove_task(other)
            task = bar.add_task(escaped(name), clients="", left="")
            line = MethodLine(name=escaped(name), rounds=rounds, narrow=narrow)

            def reply(step: str, done: int, total: int) -> None:
                description, clients, left = line.reply(step, done, total)
                bar.update(
                    task,
                    description=description,
                    clients=clients,
                    left=left,
                    completed=done,
                    total=total,
                )

            return reply, line.round

        yield follow


def _gains_table(gains: Sequence[Gain], names: Sequence[str], label: str) -> Table:
    table = _table(label, "training alone", "the shared model")
    for gain, name in zip(gains, names, strict=True):
        cells = []
        for key in ("over_alone", "over_shared"):
            found = gain.get(key)
            shown = found and f"{percent(found['better'])} / {percent(found['worse'])}"
            cells.append(shown or MISSING)
        table.add_row(cell(name), *cells)
    return table


def _class_table(runs: Sequence[RunRecord], names: Sequence[str]) -> Table:
    table = _table("class")
    for name in names:
        table.add_column(cell(name), justify="right", overflow="fold", min_width=5)
    accuracies = [run.summary.class_accuracy or {} for run in runs]
    for class_ in dict.fromkeys(class_ for some in accuracies for class_ in some):
        table.add_row(cell(class_), *(percent(some.get(class_)) for some in accuracies))
    return table


class _Rate(ProgressColumn):
    """Items per second; empty until it is measured."""

    def render(self, task: Task) -> Text:
        rate = task.finished_speed or task.speed
        if rate is None:
            return Text("")
        return Text(f"{rate:,.0f}/s" if rate >= 10 else f"{rate:.1f}/s")


@contextmanager
def counting(name: str, total: int) -> Iterator[Callable[[int, int], None]]:
    """Draw the number of items done, the rate and the time left; on a terminal only."""
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
