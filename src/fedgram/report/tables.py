"""The tables of the report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedgram.experiments.measures import AUROC, COSTS, ERRORS, Quantity
from fedgram.experiments.run_record import RunRecord
from fedgram.experiments.seeds import MeanAndStd, chosen_at, mean_and_std
from fedgram.experiments.step_words import step_words
from fedgram.report.groups import Comparison, MethodSeeds, data_seed, seeds, varied_seeds
from fedgram.report.markup import Markup, joined, tag
from fedgram.runtime.text import MISSING, percent, size

Header = str | tuple[str, str]  # a name, and what it means
FULL = 9  # columns from which on deviations are below their means
HEADLINE_COSTS = ("bytes_up", "bytes_down", "flops", "seconds")


@dataclass(frozen=True, kw_only=True)
class TableCell:
    """Content of a table cell, and the number it is sorted by."""

    content: str | Markup
    value: float | None = None
    class_: str | None = None


def table(
    headers: Sequence[Header],
    rows: Iterable[Sequence[TableCell | str]],
    *,
    texts: int = 1,
    class_: str = "",
    methods: Sequence[int | None] = (),
    columns: Mapping[int, int] | None = None,
) -> Markup:
    """Return a table whose first columns are texts and whose others are numbers.

    Parameters
    ----------
    headers, rows
        Names of the columns, and the cells.
    texts
        Number of columns that are texts.
    class_
        Class of the table.
    methods
        For each row the place of the method it is about, which the page can hide.
    columns
        The same for columns: from a column's place to that of its method.
    """
    about = columns or {}
    head = [
        tag(
            "th",
            name,
            scope="col",
            class_="text" if place < texts else None,
            title=more or None,
            data_row=_place(about.get(place)),
        )
        for place, (name, more) in enumerate(
            header if isinstance(header, tuple) else (header, "") for header in headers
        )
    ]
    body = []
    for number_of_row, row in enumerate(rows):
        cells = [cell if isinstance(cell, TableCell) else TableCell(content=cell) for cell in row]
        first = tag("th", cells[0].content, scope="row", class_="text")
        rest = [
            tag(
                "td",
                cell.content,
                class_=cell.class_ or ("text" if place < texts else None),
                data_value=None if cell.value is None else f"{cell.value:.12g}",
                data_row=_place(about.get(place)),
            )
            for place, cell in enumerate(cells[1:], 1)
        ]
        method = methods[number_of_row] if number_of_row < len(methods) else None
        body.append(tag("tr", first, rest, data_row=_place(method)))
    drawn = tag("table", tag("thead", tag("tr", head)), tag("tbody", body), class_=class_ or None)
    return tag("div", drawn, class_="wide")


def _place(place: int | None) -> str | None:
    return None if place is None else str(place)


def headline(comparison: Comparison) -> Markup:
    """Return the results side by side, best and second best marked."""
    rows, columns = comparison.rows, [_labels(comparison.rows)]
    headers: list[Header] = [("method", "")]
    if len({len(row.runs) for row in rows}) > 1:
        headers.append(("runs", "with different seeds"))
        columns.append([TableCell(content=str(len(r.runs)), value=len(r.runs)) for r in rows])
    more_headers, more = _scores(comparison)
    headers += more_headers
    columns += more
    if any(row.repeated for row in rows):
        headers += [
            ("round", "the best one on validation samples, and the number of rounds"),
            ("last round", "client mean after the last round"),
        ]
        columns += [[_rounds(row) for row in rows], [_last(row) for row in rows]]
    asked = [chosen_at(row.runs, "exchanges") for row in rows]
    if any(asked):
        headers.append(("exchanges", "with clients, up to the round of the row"))
        columns.append([_count(None if one is None else round(one)) for one in asked])
    gained = [None if row.alone else comparison.gain(row) for row in rows]
    if any(gained):
        headers.append(("better / worse", "% of clients, compared with training alone"))
        columns.append([_gain(found) for found in gained])
    for name in HEADLINE_COSTS:
        found = [row.cost(name) for row in rows]
        if any(found) or name != "flops":  # which were not always counted
            headers.append(_header(COSTS[name]))
            columns.append(_amounts(found, COSTS[name].text))
    dense = " dense" if len(headers) > FULL else ""
    body = zip(*columns, strict=True)
    return table(headers, body, class_=f"headline{dense}", methods=range(len(rows)))


def _scores(comparison: Comparison) -> tuple[list[Header], list[list[TableCell]]]:
    """Return the columns of accuracies, or of R2 and errors of a regression."""
    rows = comparison.rows
    headers: list[Header] = []
    columns = []
    for name, quantity in comparison.words.quantities.items():
        headers.append(_header(quantity))
        columns.append(_marked([row.score(name) for row in rows]))
    if comparison.numbers:
        for name, quantity in ERRORS.items():
            headers.append(_header(quantity))
            columns.append(_amounts([row.error(name) for row in rows], quantity.text))
    ranked = [row.score("auroc") for row in rows]
    if any(ranked):
        headers.append(_header(AUROC))
        columns.append(_marked(ranked))
    return headers, columns


def _header(quantity: Quantity) -> Header:
    return quantity.short, quantity.meaning


def _labels(rows: Sequence[MethodSeeds]) -> list[TableCell]:
    return [TableCell(content=row.label) for row in rows]


def _marked(found: Sequence[MeanAndStd | None]) -> list[TableCell]:
    """Return accuracies, the best and the second best marked if their shown values differ."""
    shown = [None if one is None else round(100 * one[0], 1) for one in found]
    ranks = sorted({value for value in shown if value is not None}, reverse=True)
    several = sum(value is not None for value in shown) > 1
    marks = dict(zip(ranks, ("best", "second"), strict=False)) if several else {}
    return [
        accuracy(one, class_=marks.get(value) if value is not None else None)
        for one, value in zip(found, shown, strict=True)
    ]


def accuracy(found: MeanAndStd | None, *, class_: str | None = None) -> TableCell:
    """Return an accuracy with its deviation, where there is one."""
    if found is None:
        return TableCell(content=MISSING)
    mean, deviation = found
    spread = "" if deviation is None else tag("small", f" ± {percent(deviation)}")
    value = tag("span", percent(mean), class_=class_)
    return TableCell(content=joined(value, spread), value=mean)


def _rounds(row: MethodSeeds) -> TableCell:
    if not row.repeated:
        return TableCell(content="1", value=1)
    rounds = [f"{run.chosen.round} of {run.last.round}" for run in row.runs]
    chosen = mean_and_std(run.chosen.round for run in row.runs)
    if len(set(rounds)) == 1:
        return TableCell(content=rounds[0], value=chosen and chosen[0])
    most = max(run.last.round for run in row.runs)
    numbers = [run.chosen.round for run in row.runs]
    low, high = min(numbers), max(numbers)
    return TableCell(content=f"{low}-{high} of {most}", value=chosen and chosen[0])


def _last(row: MethodSeeds) -> TableCell:
    if not row.repeated:
        return TableCell(content=MISSING)
    return accuracy(mean_and_std(run.last.summary.score("client_mean") for run in row.runs))


def _gain(found: Mapping[str, float] | None) -> TableCell:
    if found is None:
        return TableCell(content=MISSING)
    better, worse = found["better"], found["worse"]
    return TableCell(content=f"{100 * better:.0f} / {100 * worse:.0f}", value=better - worse)


def _amounts(found: Sequence[MeanAndStd | None], text: Any) -> list[TableCell]:
    return [
        TableCell(content=MISSING) if one is None else TableCell(content=text(one[0]), value=one[0])
        for one in found
    ]


def clients(comparison: Comparison) -> Markup:
    """Return every client's score with every method, including held-out clients."""
    several = len({data_seed(run) for run in comparison.runs}) > 1
    headers: list[Header] = ["client", *(["seed"] if several else [])]
    headers += [("train", "training samples")]
    headers += [] if comparison.numbers else [("classes", "classes in training")]
    headers += [("test", "test samples"), *(row.label for row in comparison.rows)]
    rows: list[list[TableCell | str]] = []
    for seed in dict.fromkeys(data_seed(run) for run in comparison.runs):
        rows += _clients_of(comparison, seed, several=several)
    first = len(headers) - len(comparison.rows)
    return table(headers, rows, columns={first + k: k for k in range(len(comparison.rows))})


def _clients_of(
    comparison: Comparison, seed: Any, *, several: bool
) -> Iterable[list[TableCell | str]]:
    """Yield a row for each client of one partition."""
    here = [[run for run in row.runs if data_seed(run) == seed] for row in comparison.rows]
    summary = next((run.partition for runs in here for run in runs if run.partition), None)
    counts = {entry.client: entry for entry in summary.clients} if summary else {}
    reached: dict[str, list[list[float | None]]] = {}
    tested: dict[str, int] = {}
    held: set[str] = set()
    for place, runs in enumerate(here):
        for run in runs:
            held_out = run.holdout.clients if run.holdout else ()
            held |= {score.client for score in held_out}
            for score in (*run.chosen.clients, *held_out):
                columns = reached.setdefault(score.client, [[] for _ in here])
                columns[place].append(score.accuracy)
                tested[score.client] = score.samples
    for client in sorted(reached):
        name = joined(client, tag("small", " held out")) if client in held else client
        count = counts.get(client)
        amounts = [sum(count.train) if count else None]
        amounts += [] if comparison.numbers else [count.classes if count else None]
        accuracies = [mean_and_std(values) for values in reached[client]]
        yield [
            TableCell(content=name),
            *([TableCell(content=str(seed), value=float(seed))] if several else []),
            *(_count(number) for number in (*amounts, tested[client])),
            *_marked([None if one is None else (one[0], None) for one in accuracies]),
        ]


def _count(number: int | None) -> TableCell:
    return TableCell(content=MISSING if number is None else f"{number:,}", value=number)


def holdout(comparison: Comparison) -> Markup | None:
    """Return the accuracy of clients held out of training, if there are any."""
    shown = [k for k, row in enumerate(comparison.rows) if any(r.holdout for r in row.runs)]
    rows = [comparison.rows[k] for k in shown]
    if not rows:
        return None
    found = {row.label: [run.holdout.summary for run in row.runs if run.holdout] for row in rows}
    number = [mean_and_std(summary.clients for summary in found[row.label]) for row in rows]
    columns = [_labels(rows), _amounts(number, "{:g}".format)]
    quantities = comparison.words.quantities
    for name in quantities:
        columns.append(
            _marked([mean_and_std(s.score(name) for s in found[row.label]) for row in rows])
        )
    headers: list[Header] = ["method", ("clients", "held out, per run")]
    headers += map(_header, quantities.values())
    return table(headers, zip(*columns, strict=True), methods=shown)


def choices(comparison: Comparison) -> Markup | None:
    """Return the settings that methods chose, with the accuracies behind the choice."""
    body: list[list[TableCell | str]] = []
    places = []
    for place, row, run, seed in _runs_with_seeds(comparison):
        tuned = run.summary.tuned
        if tuned:
            shown = _best(tuned.left_out_accuracy)
            body.append([row.label, *seed, _prose(tuned.description), _prose(shown)])
            places.append(place)
    several = ["seed"] if _repeated(comparison) else []
    headers = ["method", *several, "chosen", f"{comparison.words.one} on left-out samples, %"]
    return table(headers, body, texts=len(headers), methods=places) if body else None


_SHOWN_CHOICES = 6


def _best(accuracies: Mapping[str, float]) -> str:
    """Return the choices with the highest accuracies, and the range of the others.

    Examples
    --------
    >>> _best({"ridge 1": 0.5, "ridge 10": 0.7})
    'ridge 10: 70.0; ridge 1: 50.0'
    >>> _best({f"ridge {k}": k / 10 for k in range(10)}).split("; ")[-2:]
    ['ridge 4: 40.0', '4 others: 0.0 to 30.0']
    """
    ordered = sorted(accuracies.items(), key=lambda item: -item[1])
    shown = [f"{name}: {percent(share)}" for name, share in ordered[:_SHOWN_CHOICES]]
    if len(ordered) > _SHOWN_CHOICES + 1:
        most, least = ordered[_SHOWN_CHOICES][1], ordered[-1][1]
        shown.append(f"{len(ordered) - _SHOWN_CHOICES} others: {percent(least)} to {percent(most)}")
    else:
        shown += [f"{name}: {percent(share)}" for name, share in ordered[_SHOWN_CHOICES:]]
    return "; ".join(shown)


def pools(comparison: Comparison) -> Markup | None:
    """Return the models that methods pooled, with the weight of each in every run.

    In a regression one model is selected instead: the chosen settings name it.
    """
    if comparison.numbers:
        return None
    drawn = []
    for place, row in enumerate(comparison.rows):
        found = [(run, run.summary.tuned.pool) for run in row.runs if run.summary.tuned is not None]
        if not any(pool for _, pool in found):
            continue
        names = dict.fromkeys(name for _, pool in found for name in pool)
        headers = [f"{row.label} pooled", *(_weight_header(run, row) for run, _ in found)]
        body = [
            [TableCell(content=name), *(_weight(run, name) for run, _ in found)] for name in names
        ]
        drawn.append(tag("div", table(headers, body), data_row=_place(place)))
    if not drawn:
        return None
    return joined(drawn, tag("p", _POOLS, class_="note"))


_POOLS = (
    "A weight multiplies the scores of its model before they are added. Models have scores of "
    "different sizes, so weights do not compare across models; they do across seeds. In brackets: "
    "accuracy of the model alone on left-out samples, in %. No weight: not in the pool."
)


def _weight_header(run: RunRecord, row: MethodSeeds) -> str:
    return f"weight, seed {_seeds(run, row.runs)}" if len(row.runs) > 1 else "weight"


def _weight(run: RunRecord, name: str) -> TableCell:
    tuned = run.summary.tuned
    weight = tuned.pool.get(name) if tuned else None
    if tuned is None or weight is None:
        return TableCell(content=MISSING)
    alone = tuned.left_out_accuracy.get(f"{name} alone")
    share = "" if alone is None else tag("small", f" ({percent(alone)})")
    return TableCell(content=joined(f"{weight:.3g}", share), value=weight)


def rates(comparison: Comparison) -> Markup | None:
    """Return the learning rates that were searched for, and the pilots behind them."""
    body: list[list[TableCell | str]] = []
    places = []
    for place, row, run, seed in _runs_with_seeds(comparison):
        search = run.summary.rate_search
        if search:
            shown = "; ".join(f"{pilot.rate:g}: {pilot.outcome}" for pilot in search.pilots)
            rate = f"{search.rate:g}"
            body.append([row.label, *seed, rate, _prose(search.reason), _prose(shown)])
            places.append(place)
    several = ["seed"] if _repeated(comparison) else []
    headers = ["method", *several, "rate", "reason", "validation loss of pilots"]
    return table(headers, body, texts=len(headers), methods=places) if body else None


def _runs_with_seeds(
    comparison: Comparison,
) -> Iterable[tuple[int, MethodSeeds, RunRecord, list[str]]]:
    """Yield every run with the place of its row, and its seed where rows have several."""
    several = _repeated(comparison)
    for place, row in enumerate(comparison.rows):
        for run in row.runs:
            yield place, row, run, [_seeds(run, row.runs)] if several else []


def _repeated(comparison: Comparison) -> bool:
    return any(len(row.runs) > 1 for row in comparison.rows)


def _seeds(run: RunRecord, others: Sequence[RunRecord]) -> str:
    """Return the seeds in which runs of a row differ; one number where all are the same."""
    values = [str(values[others.index(run)]) for values in varied_seeds(others).values()]
    return " / ".join(dict.fromkeys(values)) or str(data_seed(run))


def _prose(text: str) -> TableCell:
    """Return a cell of words, which are broken into lines."""
    return TableCell(content=text, class_="text prose")


def classes(comparison: Comparison) -> Markup | None:
    """Return the accuracy within each class, if it was computed."""
    places = [
        k
        for k, row in enumerate(comparison.rows)
        if any(r.summary.class_accuracy for r in row.runs)
    ]
    rows = [comparison.rows[k] for k in places]
    if not rows:
        return None
    found = [[run.summary.class_accuracy or {} for run in row.runs] for row in rows]
    names = dict.fromkeys(name for some in found for one in some for name in one)
    body = [
        [
            TableCell(content=name),
            *_marked([mean_and_std(one.get(name) for one in some) for some in found]),
        ]
        for name in names
    ]
    columns = dict(enumerate(places, 1))
    return table(["class", *(row.label for row in rows)], body, columns=columns)


def digests(runs: Iterable[RunRecord]) -> Markup:
    """Return the digests that identify each result."""
    body = [
        [
            TableCell(content=str(run.folder)),
            _prose(", ".join(f"{k} {v}" for k, v in seeds(run).items())),
            _digest(run.summary.shared_digest),
            _digest(run.summary.model_digest),
        ]
        for run in runs
    ]
    headers: list[Header] = ["run", "seeds", ("shared digest", "of what is shared"), "model digest"]
    return table(headers, body, texts=4)


def _digest(value: Any) -> TableCell:
    return TableCell(content=tag("code", str(value or MISSING)), class_="text digest")


def exchanges(comparison: Comparison) -> Markup:
    """Return the messages of each method's first run, step by step."""
    body, places = [], []
    for place, row in enumerate(comparison.rows):
        for total in row.runs[0].step_totals():
            places.append(place)
            amounts = (total.bytes_up, total.bytes_down)
            body.append(
                [
                    TableCell(content=row.label),
                    TableCell(content=step_words(total.step)),
                    TableCell(content=total.phase),
                    _count(total.exchanges),
                    _count(total.clients),
                    *(TableCell(content=size(amount), value=amount) for amount in amounts),
                ]
            )
    headers = ["method", "step", "phase", "exchanges", "clients", "bytes up", "bytes down"]
    return table(headers, body, texts=3, methods=places)
