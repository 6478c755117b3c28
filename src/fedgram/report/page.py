"""One HTML page about recorded runs: opens from disk, needs no network."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from fedgram.errors import DataError
from fedgram.experiments.measures import ACCURACIES, COST_AXES
from fedgram.experiments.partition_summary import partition_name
from fedgram.experiments.run_record import Plain, RunRecord
from fedgram.experiments.seeds import chosen_at, mean_curve
from fedgram.report import tables
from fedgram.report.charts.clients import floor, gains, spread_of_clients
from fedgram.report.charts.curves import curves
from fedgram.report.charts.partition import partition
from fedgram.report.groups import Comparison, MethodSeeds, comparisons
from fedgram.report.markup import Markup, joined, tag
from fedgram.report.reproduce import recipes
from fedgram.runtime.text import compact, percent
from fedgram.runtime.version import own_version

MARKS = (
    "Accuracies in %. Bold: the best; underlined: the second best. Marks compare the means as "
    "shown; they do not test whether a difference is significant. "
)


def page(runs: Sequence[RunRecord], *, title: str | None = None) -> str:
    """Return the report on these runs as one self-contained HTML page."""
    if not runs:
        raise DataError("no runs to report; give the folder of a run")
    found = comparisons(runs)
    names = [described(comparison.data, _number_of_clients(comparison)) for comparison in found]
    name = title or (names[0] if len(found) == 1 else "Federated runs")
    heading = tag("h1", name)
    if len(found) > 1:
        links = [tag("li", tag("a", n, href=f"#s{k}")) for k, n in enumerate(names)]
        heading = joined(heading, tag("nav", tag("ol", links)))
    sections = [
        _section(comparison, place, "" if len(found) == 1 and not title else names[place])
        for place, comparison in enumerate(found)
    ]
    body = tag("main", tag("header", heading), sections, _footer(len(runs)))
    return "<!doctype html>\n" + tag("html", _head(name), tag("body", body, _script()), lang="en")


def described(data: Plain, clients: int) -> str:
    """Return data and partition in a few words.

    Examples
    --------
    >>> described({"source": "data/digits.npz", "partition": "dirichlet", "dirichlet": 0.1}, 20)
    'digits, 20 clients, dirichlet 0.1'
    """
    parts = [Path(str(data.get("source", ""))).stem, f"{clients} clients", partition_name(data)]
    if data.get("split", "global") != "global":
        parts.append(f"split {data['split']}")
    return ", ".join(part for part in parts if part)


def _number_of_clients(comparison: Comparison) -> int:
    """Return the number of clients, with those held out of training."""
    run = comparison.runs[0]
    return run.summary.clients + (run.holdout.summary.clients if run.holdout else 0)


def _head(title: str) -> Markup:
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src '{_hash()}'"
    return tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("style", Markup(_file("page.css"))),
    )


def _file(name: str) -> str:
    return (files("fedgram.report") / name).read_text(encoding="utf-8")


def _hash() -> str:
    """Return the hash of the page's only script; the policy allows no other one."""
    digest = hashlib.sha256(_file("page.js").encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


def _script() -> Markup:
    return tag("script", Markup(_file("page.js")))


def _footer(runs: int) -> Markup:
    counted = f"{runs} recorded run{'s' * (runs != 1)}"
    return tag("footer", f"Written by fedgram {own_version()} from the files of {counted} alone.")


def _section(comparison: Comparison, place: int, title: str) -> Markup:
    parts: list[Markup | None] = [
        tag("h2", title) if title else None,
        tag("p", _lead(comparison), class_="lead"),
        tables.headline(comparison),
        tag("p", _caption(comparison), class_="note"),
        _notes(comparison),
        _block("Accuracy and cost", _cost_figures(comparison)),
        _block("Client by client", _client_figures(comparison)),
        _block("Chosen settings", tables.choices(comparison)),
        _block("Learning rates", tables.rates(comparison)),
        _block("Clients held out of training", tables.holdout(comparison)),
        _block("Partition", _partition(comparison)),
        _block("Reproduce", _again(comparison)),
        _folded("Every client's accuracy", _by_client(comparison)),
        _folded("Accuracy within classes", tables.classes(comparison)),
        _folded("Digests", tables.digests(comparison.runs), class_="kept"),
        _folded("Exchanges", tables.exchanges(comparison)),
    ]
    return tag("section", [part for part in parts if part is not None], id=f"s{place}")


def _block(title: str, content: Markup | None) -> Markup | None:
    return None if content is None else joined(tag("h3", title), content)


def _folded(title: str, content: Markup | None, class_: str | None = None) -> Markup | None:
    """Return content that is shown at a click; with the class "kept" it is printed too."""
    if content is None:
        return None
    return tag("details", tag("summary", title), content, class_=class_)


def _lead(comparison: Comparison) -> str:
    """Return the result in a sentence."""
    scored = [(row, found) for row in comparison.rows if (found := row.score("client_mean"))]
    if not scored:
        return "No client has test samples: there is no accuracy to report."
    best, (mean, deviation) = max(scored, key=lambda one: one[1][0])
    spread = "" if deviation is None else f" ± {percent(deviation)}"
    sentence = f"{best.label} reaches {percent(mean)}{spread} % mean accuracy over clients"
    alone = next((found for row, found in scored if row.alone), None)
    gained = comparison.gain(best)
    if best.alone or alone is None:
        return f"{sentence}."
    sentence += f", {percent(mean - alone[0])} percentage points more than training alone"
    if gained is None:
        return f"{sentence}."
    better, worse = 100 * gained["better"], 100 * gained["worse"]
    return f"{sentence}; {better:.0f} % of the clients gain, {worse:.0f} % lose."


def _caption(comparison: Comparison) -> str:
    meanings = [f"{one.short}: {one.meaning}" for one in ACCURACIES.values()]
    sentence = MARKS + "; ".join(meanings).capitalize() + "."
    counts = {len(row.runs) for row in comparison.rows}
    if max(counts) > 1:
        number = f"{max(counts)} " if len(counts) == 1 else ""
        sentence += f" ± is the standard deviation over {number}runs with different seeds."
    if any(row.repeated for row in comparison.rows):
        sentence += (
            " For a method with several rounds, the row shows the round with the best validation "
            "accuracy, or the last round if there are no validation samples."
        )
    return sentence


def _notes(comparison: Comparison) -> Markup | None:
    """Return what a reader must know before comparing runs."""
    notes = [
        f"{run.folder}: interrupted after round {run.last.round}"
        for run in comparison.runs
        if not run.finished
    ]
    if comparison.repeats:
        notes.append(f"{comparison.repeats} runs with the same seeds as another run are left out")
    notes += [
        f"{run.summary.untested_clients} of {run.summary.clients} clients have no test "
        "samples and are left out of client means"
        for run in comparison.runs
        if run.summary.untested_clients
    ]
    if not notes:
        return None
    return tag("ul", [tag("li", text) for text in dict.fromkeys(notes)], class_="note")


def _cost_figures(comparison: Comparison) -> Markup | None:
    drawn = []
    for axis, about in COST_AXES.items():
        series = {row.label: mean_curve(row.runs, axis) for row in comparison.rows}
        if axis == "rounds" and not any(row.repeated for row in comparison.rows):
            continue  # all of them take one
        if any(series.values()):
            chosen = {
                row.label: chosen_at(row.runs, axis) for row in comparison.rows if row.repeated
            }
            rings = {label: where for label, where in chosen.items() if where is not None}
            title = f"Accuracy against {about.short}"
            drawn.append(_figure(curves(title, series, axis=axis, chosen=rings)))
    return _gallery(drawn)


def _client_figures(comparison: Comparison) -> Markup | None:
    reached = {row.label: _accuracies(row) for row in comparison.rows}
    if not any(reached.values()):
        return None
    ordered = spread_of_clients("Clients from the worst to the best", reached)
    drawn = [tag("figure", Markup(ordered), class_="double")]
    compared = {row.label: comparison.pairs(row) for row in comparison.rows if not row.alone}
    start = floor([pair for some in compared.values() for pair in some])
    drawn += [_figure(gains(label, some, low=start)) for label, some in compared.items() if some]
    return _gallery(drawn, class_="panels")


def _accuracies(row: MethodSeeds) -> list[float]:
    scores = (score.accuracy for run in row.runs for score in run.chosen.clients)
    return [accuracy for accuracy in scores if accuracy is not None]


def _figure(drawing: str) -> Markup:
    return tag("figure", Markup(drawing))


def _gallery(figures: Sequence[Markup], class_: str = "figures") -> Markup | None:
    return tag("div", figures, class_=class_) if figures else None


def _partition(comparison: Comparison) -> Markup | None:
    """Draw the partition of the first seed; other seeds are partitioned in the same way."""
    run = next((run for run in comparison.runs if run.partition), None)
    if run is None or run.partition is None:
        return tag(
            "p",
            "Not recorded: the runs are private, or from an earlier version of fedgram.",
            class_="note",
        )
    seed = run.table("data").get("seed")
    title = described(comparison.data, len(run.partition.clients))
    title += "" if seed is None else f", seed {seed}"
    summary = run.partition.summary()
    body: list[list[tables.TableCell | str]] = [
        [
            name,
            *(tables.TableCell(content=compact(values[key])) for key in ("min", "median", "max")),
        ]
        for name, values in (
            ("training samples", summary["train"]),
            ("validation samples", summary["valid"]),
            ("test samples", summary["test"]),
            ("classes in training", summary["classes"]),
        )
    ]
    numbers = tables.table(["per client", "minimum", "median", "maximum"], body)
    drawn = tag("div", _figure(partition(title, run.partition)), class_="wide")
    return tag("div", drawn, numbers, class_="beside")


def _by_client(comparison: Comparison) -> Markup | None:
    scored = [one for run in comparison.runs for one in (run.chosen, run.holdout) if one]
    if not any(one.clients for one in scored):
        return None
    return tables.clients(comparison)


def _again(comparison: Comparison) -> Markup:
    parts: list[Markup] = []
    for recipe in recipes(comparison.runs):
        parts.append(tag("pre", tag("code", "\n".join(recipe.commands))))
        shown = tag("pre", tag("code", recipe.toml))
        parts.append(tag("details", tag("summary", recipe.name), shown, class_="kept"))
    kinds = {
        tuple((k, _version_text(v)) for k, v in run.versions.items()): None
        for run in comparison.runs
    }
    for kind in kinds:
        parts.append(tag("p", "Run with ", ", ".join(f"{k} {v}" for k, v in kind), class_="note"))
    return joined(parts)


def _version_text(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
