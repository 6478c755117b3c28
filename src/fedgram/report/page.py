"""One HTML page about recorded runs: opens from disk, needs no network."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from fedgram.errors import DataError
from fedgram.experiments.partition_summary import partition_name
from fedgram.experiments.run_record import Plain, RunRecord
from fedgram.report import figures, tables
from fedgram.report.charts.palette import style_rules
from fedgram.report.groups import Comparison, comparisons, named_seeds
from fedgram.report.markup import Markup, joined, tag
from fedgram.report.reproduce import recipes
from fedgram.runtime.text import compact, percent
from fedgram.runtime.version import own_version

AGAIN = 3  # seconds until a page of a running study is loaded again
MARKS = (
    " in %. Bold: the best; underlined: the second best. Marks compare the means as shown; they do "
    "not test whether a difference is significant. "
)


def page(runs: Sequence[RunRecord], *, title: str | None = None, watched: str | None = None) -> str:
    """Return the report on these runs as one self-contained HTML page.

    Parameters
    ----------
    runs
        What `read_runs` returns.
    title
        Title of the page; by default the data and the partition.
    watched
        How far a running study is: the page says so, and loads itself again every few seconds.
    """
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
        _section(
            comparison,
            place,
            "" if len(found) == 1 and not title else names[place],
            watched=watched is not None,
        )
        for place, comparison in enumerate(found)
    ]
    header = tag("header", heading, _watched(watched))
    body = tag("main", header, sections, _footer(len(runs)))
    return _document(name, body, watched)


def waiting(title: str, watched: str) -> str:
    """Return the page of a study of which nothing is scored yet."""
    body = tag("main", tag("header", tag("h1", title), _watched(watched)))
    return _document(title, body, watched)


def _document(title: str, body: Markup, watched: str | None) -> str:
    again = None if watched is None else str(AGAIN)
    content = tag("body", body, _script(), data_again=again)
    return "<!doctype html>\n" + tag("html", _head(title, again), content, lang="en")


def _watched(text: str | None) -> Markup | str:
    return "" if text is None else tag("p", text, class_="watched", role="status")


def described(data: Plain, clients: int) -> str:
    """Return data and partition in a few words.

    Examples
    --------
    >>> described({"source": "data/digits.npz", "partition": "dirichlet", "dirichlet": 0.1}, 20)
    'digits, 20 clients, dirichlet 0.1'
    >>> described({"source": "synthetic:0.5,0.5", "partition": "given"}, 30)
    'synthetic:0.5,0.5, 30 clients, given'
    """
    source = str(data.get("source", ""))
    drawn = source.startswith("synthetic:")  # no file: what follows a dot is no suffix
    name = source if drawn else Path(source).stem
    parts = [name, f"{clients} clients", partition_name(data)]
    if data.get("split", "global") != "global":
        parts.append(f"split {data['split']}")
    return ", ".join(part for part in parts if part)


def _number_of_clients(comparison: Comparison) -> int:
    """Return the number of clients, with those held out of training."""
    run = comparison.runs[0]
    return run.summary.clients + (run.holdout.summary.clients if run.holdout else 0)


def _head(title: str, again: str | None) -> Markup:
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src '{_hash()}'"
    return tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        # The script keeps what is open and selected; this is for browsers that run none.
        tag("noscript", tag("meta", http_equiv="refresh", content=again)) if again else "",
        tag("title", title),
        tag("style", Markup(_file("page.css")), Markup(style_rules())),
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


def _section(comparison: Comparison, place: int, title: str, *, watched: bool) -> Markup:
    score = comparison.words.one
    parts: list[Markup | None] = [
        tag("h2", title) if title else None,
        tag("p", _lead(comparison), class_="lead"),
        tables.headline(comparison),
        tag("p", _caption(comparison), class_="note"),
        _notes(comparison, watched=watched),
        _block(f"{comparison.words.One} and cost", figures.costs(comparison)),
        _block("Client by client", figures.clients(comparison)),
        _block("Pooled models", tables.pools(comparison)),
        _block("Chosen settings", tables.choices(comparison)),
        _block("Learning rates", tables.rates(comparison)),
        _block("Clients held out of training", tables.holdout(comparison)),
        _block("Partition", _partition(comparison)),
        _block("Reproduce", _again(comparison)),
        _folded(f"Every client's {score}", _by_client(comparison)),
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
    words = comparison.words
    scored = [(row, found) for row in comparison.rows if (found := row.score("client_mean"))]
    if not scored:
        return f"No client has test samples: there is no {words.one} to report."
    best, (mean, deviation) = max(scored, key=lambda one: one[1][0])
    spread = "" if deviation is None else f" ± {percent(deviation)}"
    sentence = f"{best.label} reaches {percent(mean)}{spread} % mean {words.one} over clients"
    alone = next((found for row, found in scored if row.alone), None)
    gained = comparison.gain(best)
    if best.alone or alone is None:
        return f"{sentence}."
    sentence += f", {percent(mean - alone[0])} {words.difference} more than training alone"
    if gained is None:
        return f"{sentence}."
    better, worse = 100 * gained["better"], 100 * gained["worse"]
    return f"{sentence}; {better:.0f} % of the clients gain, {worse:.0f} % lose."


def _caption(comparison: Comparison) -> str:
    words = comparison.words
    meanings = [f"{one.short}: {one.meaning}" for one in words.quantities.values()]
    listed = "; ".join(meanings)
    sentence = f"{words.Many}{MARKS}{listed[0].upper()}{listed[1:]}."
    if comparison.numbers:
        sentence += (
            " Numbers are predicted: scores are R2, the coefficient of determination, in % (100: "
            "exact, 0: as good as the mean). RMSE and MAE are in the units of the outputs."
        )
    counts = {len(row.runs) for row in comparison.rows}
    if max(counts) > 1:
        number = f"{max(counts)} " if len(counts) == 1 else ""
        sentence += f" ± is the standard deviation over {number}runs with different seeds"
        sentence += f" ({named_seeds(comparison.runs)})."
    else:
        sentence += f" One run for each method ({named_seeds(comparison.runs)})."
    if any(row.repeated for row in comparison.rows):
        sentence += (
            " For a method with several rounds, the row shows the round with the best validation "
            f"{words.one}, or the last round if there are no validation samples."
        )
    return sentence


def _notes(comparison: Comparison, *, watched: bool) -> Markup | None:
    """Return what a reader must know before comparing runs."""
    notes = [
        f"{run.folder}: {'running, scored up to' if watched else 'interrupted after'} "
        f"round {run.last.round}"
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
        if not (comparison.numbers and name == "classes in training")
    ]
    numbers = tables.table(["per client", "minimum", "median", "maximum"], body)
    drawn = figures.partition_of(title, run.partition)
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
