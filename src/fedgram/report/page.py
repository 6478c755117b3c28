"""One HTML page about recorded runs: opens from disk, asks nothing of any network."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

from fedgram.errors import DataError
from fedgram.experiments.measures import ACCURACIES, COST_AXES
from fedgram.experiments.run_record import Plain, RunRecord
from fedgram.experiments.seeds import chosen_at, mean_curve
from fedgram.report import tables
from fedgram.report.charts.clients import floor, gains, spread_of_clients
from fedgram.report.charts.curves import curves
from fedgram.report.charts.partition import partition
from fedgram.report.groups import Comparison, MethodSeeds, settings
from fedgram.report.markup import Markup, joined, tag
from fedgram.report.reproduce import recipes
from fedgram.runtime.text import compact, percent

MARKS = (
    "Accuracies in %. Bold: the best; underlined: the second best. Marks compare means as shown, "
    "not whether the difference is more than chance. "
)


def page(runs: Sequence[RunRecord], *, title: str | None = None) -> str:
    """Return the report on these runs as one self-contained HTML page."""
    if not runs:
        raise DataError("there is nothing to report; give the folder of a run")
    found = settings(runs)
    names = [described(setting.data, _everybody(setting)) for setting in found]
    name = title or (names[0] if len(found) == 1 else "Federated runs")
    heading = tag("h1", name)
    if len(found) > 1:
        links = [tag("li", tag("a", n, href=f"#s{k}")) for k, n in enumerate(names)]
        heading = joined(heading, tag("nav", tag("ol", links)))
    sections = [
        _section(setting, place, "" if len(found) == 1 and not title else names[place])
        for place, setting in enumerate(found)
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
    dealt = str(data.get("partition", ""))
    strength = {"dirichlet": "dirichlet", "quantity": "dirichlet", "shards": "shards"}.get(dealt)
    if strength and strength in data:
        dealt += f" {data[strength]}"
    parts = [Path(str(data.get("source", ""))).stem, f"{clients} clients", dealt]
    if data.get("split", "global") != "global":
        parts.append(f"split {data['split']}")
    return ", ".join(part for part in parts if part)


def _everybody(setting: Comparison) -> int:
    """Return the number of clients, those held out among them."""
    run = setting.runs[0]
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
    """Return the name by which the policy knows the page's only script: no other one runs."""
    digest = hashlib.sha256(_file("page.js").encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


def _script() -> Markup:
    return tag("script", Markup(_file("page.js")))


def _footer(runs: int) -> Markup:
    told = f"{runs} recorded run{'s' * (runs != 1)}"
    return tag("footer", f"Written by fedgram {version('fedgram')} from the files of {told} alone.")


def _section(setting: Comparison, place: int, title: str) -> Markup:
    parts: list[Markup | None] = [
        tag("h2", title) if title else None,
        tag("p", _lead(setting), class_="lead"),
        tables.headline(setting),
        tag("p", _caption(setting), class_="note"),
        _notes(setting),
        _block("What accuracy costs", _cost_figures(setting)),
        _block("Client by client", _client_figures(setting)),
        _block("Settings that chose themselves", tables.choices(setting)),
        _block("Learning rates", tables.rates(setting)),
        _block("Clients held out of training", tables.holdout(setting)),
        _block("How the samples are dealt", _partition(setting)),
        _block("Run it again", _again(setting)),
        _folded("Every client's accuracy", _by_client(setting)),
        _folded("Accuracy within classes", tables.classes(setting)),
        _folded("Digests", tables.digests(setting.runs), class_="kept"),
        _folded("Exchanges", tables.exchanges(setting)),
    ]
    return tag("section", [part for part in parts if part is not None], id=f"s{place}")


def _block(title: str, content: Markup | None) -> Markup | None:
    return None if content is None else joined(tag("h3", title), content)


def _folded(title: str, content: Markup | None, class_: str | None = None) -> Markup | None:
    """Return what is shown at a click; what is kept is printed too."""
    if content is None:
        return None
    return tag("details", tag("summary", title), content, class_=class_)


def _lead(setting: Comparison) -> str:
    """Say the result in a sentence."""
    scored = [(row, found) for row in setting.rows if (found := row.score("client_mean"))]
    if not scored:
        return "No client has test samples: there is no accuracy to report."
    best, (mean, deviation) = max(scored, key=lambda one: one[1][0])
    spread = "" if deviation is None else f" ± {percent(deviation)}"
    said = f"{best.label} reaches {percent(mean)}{spread} % at the mean client"
    alone = next((found for row, found in scored if row.alone), None)
    pairs = setting.pairs(best)
    if best.alone or alone is None:
        return f"{said}."
    said += f", {100 * (mean - alone[0]):.1f} points more than training alone"
    if not pairs:
        return f"{said}."
    better = sum(pair.ours > pair.alone for pair in pairs) / len(pairs)
    worse = sum(pair.ours < pair.alone for pair in pairs) / len(pairs)
    return f"{said}; {100 * better:.0f} % of the clients gain by it, {100 * worse:.0f} % lose."


def _caption(setting: Comparison) -> str:
    told = [f"{one.short}: {one.meaning}" for one in ACCURACIES.values()]
    said = MARKS + "; ".join(told).capitalize() + "."
    counts = {len(row.runs) for row in setting.rows}
    if max(counts) > 1:
        number = f"{max(counts)} " if len(counts) == 1 else ""
        said += f" ± is the standard deviation over {number}runs with different seeds."
    if any(row.repeated for row in setting.rows):
        said += (
            " Where a method goes on for rounds, the row shows the round chosen on validation "
            "samples, the last one where there are none."
        )
    return said


def _notes(setting: Comparison) -> Markup | None:
    """Tell what a reader must know before comparing."""
    told = [
        f"{run.folder}: interrupted after round {run.last.round}"
        for run in setting.runs
        if not run.finished
    ]
    if setting.repeats:
        told.append(f"{setting.repeats} runs with the seeds of another are left out")
    told += [
        f"{run.summary.untested_clients} of {run.summary.clients} clients have no test "
        "samples and are left out of client means"
        for run in setting.runs
        if run.summary.untested_clients
    ]
    if not told:
        return None
    return tag("ul", [tag("li", text) for text in dict.fromkeys(told)], class_="note")


def _cost_figures(setting: Comparison) -> Markup | None:
    drawn = []
    for axis, about in COST_AXES.items():
        series = {row.label: mean_curve(row.runs, axis) for row in setting.rows}
        if axis == "rounds" and not any(row.repeated for row in setting.rows):
            continue  # all of them take one
        if any(series.values()):
            chosen = {row.label: chosen_at(row.runs, axis) for row in setting.rows if row.repeated}
            rings = {label: where for label, where in chosen.items() if where is not None}
            title = f"Accuracy against {about.short}"
            drawn.append(_figure(curves(title, series, axis=axis, chosen=rings)))
    return _gallery(drawn)


def _client_figures(setting: Comparison) -> Markup | None:
    reached = {row.label: _accuracies(row) for row in setting.rows}
    if not any(reached.values()):
        return None
    ordered = spread_of_clients("Clients from the worst to the best", reached)
    drawn = [tag("figure", Markup(ordered), class_="double")]
    compared = {row.label: setting.pairs(row) for row in setting.rows if not row.alone}
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


def _partition(setting: Comparison) -> Markup | None:
    """Draw the partition of the first seed; others are dealt in the same way."""
    run = next((run for run in setting.runs if run.partition), None)
    if run is None or run.partition is None:
        return tag(
            "p", "Not recorded: the runs are private, or of an earlier fedgram.", class_="note"
        )
    seed = run.table("data").get("seed")
    title = described(setting.data, len(run.partition.clients))
    title += "" if seed is None else f", seed {seed}"
    summary = run.partition.summary()
    body: list[list[tables.TableCell | str]] = [
        [name, *(tables.TableCell(content=compact(told[key])) for key in ("min", "median", "max"))]
        for name, told in (
            ("training samples", summary["train"]),
            ("validation samples", summary["valid"]),
            ("test samples", summary["test"]),
            ("classes in training", summary["classes"]),
        )
    ]
    numbers = tables.table(["per client", "least", "median", "most"], body)
    drawn = tag("div", _figure(partition(title, run.partition)), class_="wide")
    return tag("div", drawn, numbers, class_="beside")


def _by_client(setting: Comparison) -> Markup | None:
    scored = [one for run in setting.runs for one in (run.chosen, run.holdout) if one]
    if not any(one.clients for one in scored):
        return None
    return tables.clients(setting)


def _again(setting: Comparison) -> Markup:
    parts: list[Markup] = []
    for recipe in recipes(setting.runs):
        parts.append(tag("pre", tag("code", "\n".join(recipe.commands))))
        shown = tag("pre", tag("code", recipe.toml))
        parts.append(tag("details", tag("summary", recipe.name), shown, class_="kept"))
    kinds = {tuple((k, _told(v)) for k, v in run.versions.items()): None for run in setting.runs}
    for kind in kinds:
        parts.append(tag("p", "Run with ", ", ".join(f"{k} {v}" for k, v in kind), class_="note"))
    return joined(parts)


def _told(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
