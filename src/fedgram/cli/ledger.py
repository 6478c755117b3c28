"""Commands for contributions as files, and for the ledger that adds them."""

from __future__ import annotations

import functools
import json
import operator
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.table import Table

from fedgram.cli.root import main, say
from fedgram.cli.screen import cell
from fedgram.core import codec
from fedgram.core.statistics import Statistics
from fedgram.data.ranges import require_agreed_range
from fedgram.engines.ledger_backed import publish
from fedgram.errors import ConfigError, DataError, FedgramError, LedgerError
from fedgram.experiments import config as configuration
from fedgram.federation.client import Client
from fedgram.federation.federated_dataset import training_batches
from fedgram.ledger import signing
from fedgram.ledger.certificate import Certificate
from fedgram.ledger.contribution import Contribution, random_tag
from fedgram.ledger.folder import unused
from fedgram.ledger.ledger import Ledger
from fedgram.runtime import files
from fedgram.runtime.parse import json_object
from fedgram.runtime.text import clean_name
from fedgram.selection.site_screen import LEAST_SITES, screen

PATH = click.Path(path_type=Path, dir_okay=False)
ledger_argument = click.argument("ledger", type=PATH)
method_option = click.option(
    "-m", "--method", "name", default="afl", show_default=True, help="Name of the method."
)
set_option = click.option(
    "-s", "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change a setting."
)
_SHOWN = ("seq", "time", "what", "client", "samples", "total_digest", "detail")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@main.command()
@click.argument("data")
@click.option("-o", "--out", type=PATH, required=True, help="File to write.")
@click.option("--client", required=True, help="Name of this site.")
@click.option("--remove", is_flag=True, help="Remove these samples from the total.")
@click.option("--tag", default="", help="Distinguishes increments with the same content.")
@method_option
@set_option
def contribute(
    data: str, out: Path, client: str, remove: bool, tag: str, name: str, overrides: tuple[str, ...]
) -> None:
    """Write this site's sums to a file that may leave the site.

    DATA is a feature file (.npz, .safetensors, .parquet, .arrow), which may be larger than memory;
    test samples (split 2) are not included. Of a regression all sites give the same range of the
    outputs: -s data.task=regression -s data.output_range=[0,100]

    Example: fedgram contribute north/features.npz --client north -o north.contribution
    """
    client = clean_name(client, "--client")
    settings = configuration.load(None, overrides, [name])
    step = settings.make(name).statistics_step()
    if step is None:
        raise ConfigError(
            f"method {name!r} has no statistics to contribute; use afl, fedhip or apfl-linear"
        )
    require_agreed_range(settings.data.task, settings.data.output_range, "contribute")
    batches = training_batches(data, settings.grid, output_range=settings.data.output_range)
    parts = (step(Client(id=client, train=part, valid=part.take([])), None) for part in batches)
    statistics = functools.reduce(operator.add, parts)  # there is a part, or an error
    if remove:  # the ledger keeps its id, which must not confirm a guess of what was removed
        statistics, tag = -statistics, random_tag(tag)
    codec.save(out, Contribution(client=client, statistics=statistics, tag=tag))
    say(f"{out}: {statistics.count} samples of {client}, {out.stat().st_size} bytes")


@main.group()
def ledger() -> None:
    """Manage the ledger of contributions."""


@ledger.command()
@ledger_argument
@click.option("--classes", help="Fix the class list: names separated by commas.")
@click.option("--key", type=PATH, help="Key that signs the history; by default beside the ledger.")
def init(ledger: Path, classes: str | None, key: Path | None) -> None:
    """Create an empty ledger, and the key that signs its history.

    The key is created if its file is missing. Let auditors write down its fingerprint.

    Example: fedgram ledger init study.ledger --classes cat,dog
    """
    fixed = classes.split(",") if classes else None
    if key is None and signing.available():
        key = ledger.with_name(signing.KEY)
    with Ledger.create(ledger, classes=fixed, key=key) as book:
        say(f"{ledger}: created")
        _echo_signed(book)


@ledger.command()
@ledger_argument
@click.option("--change", type=PATH, help="Sign with the key in this file from now on.")
@click.option("--lost", is_flag=True, help="With --change: the old key is lost and cannot sign it.")
def key(ledger: Path, change: Path | None, lost: bool) -> None:
    """Print the fingerprint of the key that signs the history, or change the key.

    Example: fedgram ledger key study.ledger
    """
    with _to_change(ledger) as book:
        if change:
            book.change_key(change, lost=lost)
        _echo_signed(book)


@ledger.command()
@ledger_argument
@click.option("-o", "--out", type=PATH, required=True, help="File to write.")
def export(ledger: Path, out: Path) -> None:
    """Write the signed history for an auditor, and record that it was exported.

    Example: fedgram ledger export study.ledger -o history.json
    """
    files.require_writable(out)
    with _to_change(ledger) as book:
        found = book.export()
    files.write(out, json.dumps(found, indent=2) + "\n", private=True)
    say(f"{out}: {len(found['events'])} events")


@ledger.command()
@ledger_argument
@click.argument("contributions", nargs=-1, required=True, type=PATH)
def join(ledger: Path, contributions: tuple[Path, ...]) -> None:
    """Add the contributions of new members.

    Example: fedgram ledger join study.ledger north.contribution south.contribution
    """
    with _to_change(ledger) as book:
        for part in _contributions(contributions):
            book.join(part.client, part.statistics, tag=part.tag)
            _echo_total(book, f"{part.client} joined with {part.statistics.count} samples")


@ledger.command()
@ledger_argument
@click.argument("contributions", nargs=-1, required=True, type=PATH)
def stream(ledger: Path, contributions: tuple[Path, ...]) -> None:
    """Add increments of members; an increment made with --remove removes samples.

    Example: fedgram ledger stream study.ledger north-more.contribution
    """
    with _to_change(ledger) as book:
        for part in _contributions(contributions):
            book.stream(part.client, part.statistics, tag=part.tag)
            _echo_total(book, f"{part.client}: {part.statistics.count:+d} samples")


@ledger.command()
@ledger_argument
@click.argument("client")
def leave(ledger: Path, client: str) -> None:
    """Remove a member from the total; its contributions are kept for audit.

    Example: fedgram ledger leave study.ledger north
    """
    with _to_change(ledger) as book:
        client = _member(book, client)
        book.leave(client)
        _echo_total(book, f"{client} left")


@ledger.command()
@ledger_argument
@click.argument("client")
@click.option("--certificate", type=PATH, help="File to write the certificate to.")
def forget(ledger: Path, client: str, certificate: Path | None) -> None:
    """Remove a client, erase all its contributions, and print a certificate.

    Example: fedgram ledger forget study.ledger north --certificate north.json
    """
    if certificate:
        files.require_writable(certificate)
    with _to_change(ledger) as book:
        shown = json.dumps(book.forget(_member(book, client)).to_dict(), indent=2)
        echo_lost_keys(book.lost_keys, err=True)
    if certificate:
        files.write(certificate, shown + "\n")
    click.echo(shown)
    say(
        f"also delete files of contributions of {client}, and models that were made with it: the "
        "ledger does not know where copies are",
        err=True,
    )


@ledger.command()
@ledger_argument
@click.argument("client")
def certificate(ledger: Path, client: str) -> None:
    """Print the certificate of a forgotten client again.

    Example: fedgram ledger certificate study.ledger north
    """
    with Ledger.open(ledger) as book:
        found = book.certificates(client)
    if not found:
        raise LedgerError(f"client {client}: was not forgotten in this ledger")
    click.echo(json.dumps(found[-1].to_dict(), indent=2))


@ledger.command()
@ledger_argument
@json_option
def show(ledger: Path, as_json: bool) -> None:
    """Show members, total and history.

    Example: fedgram ledger show study.ledger
    """
    with Ledger.open(ledger) as book:
        total, history = book.total, book.history()
        about: dict[str, Any] = {
            "members": book.members,
            "samples": total.count,
            "classes": list(total.classes),
            "made_by": list(book.space.steps),
            "total_digest": history[-1].total_digest,
            "history": [{name: getattr(event, name) for name in _SHOWN} for event in history],
        }
    if as_json:
        click.echo(json.dumps(about, indent=2))
        return
    say(f"members   {', '.join(about['members']) or 'none'}")
    say(f"samples   {about['samples']}")
    say(f"classes   {', '.join(about['classes']) or 'none'}")
    say(f"made by   {' -> '.join(about['made_by']) or 'nothing yet'}")
    say(f"total     {about['total_digest']}")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for header in ("time", "what", "client", "samples", "total"):
        table.add_column(header)
    for event in history:
        samples = "" if event.samples is None else f"{event.samples:+d}"
        cells = (event.time, event.what, event.client or "", samples, event.total_digest[:12])
        table.add_row(*map(cell, cells))
    Console().print(table)


@ledger.command()
@ledger_argument
@click.argument("certificate", required=False, type=PATH)
def verify(ledger: Path, certificate: Path | None) -> None:
    """Recompute the total from the stored contributions, and check a certificate.

    Example: fedgram ledger verify study.ledger north.json
    """
    shown = None
    if certificate:
        try:
            shown = Certificate.read(json_object(files.read_text(certificate)))
        except (OSError, ValueError) as error:
            raise DataError(f"{certificate}: cannot be read ({error})") from error
    with Ledger.open(ledger) as book:
        digest = book.verify(shown)
        say(f"{digest}  the total is the sum of the members' contributions")
        if shown:
            of = shown.total_digest or "a total that is not opened any more"
            say(f"{of}  after the deletion of {shown.client}, as certified")
        _echo_signed(book)


@ledger.command("screen")
@ledger_argument
@json_option
def screen_members(ledger: Path, as_json: bool) -> None:
    """Look for contributions that contradict or harm the others.

    Nothing is changed. A warning is a question to the site, not a proof.

    Example: fedgram ledger screen study.ledger
    """
    with Ledger.open(ledger) as book:
        classes = book.total.classes
        reports = screen(
            lambda: ((name, book.of(name).with_classes(classes)) for name in book.members)
        )
    if as_json:
        lines = [{**asdict(report), "warnings": report.warnings} for report in reports]
        click.echo(json.dumps(lines, indent=2))
        return
    if not reports:
        click.echo(f"a screen needs contributions of at least {LEAST_SITES} sites")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for header in ("client", "samples", "misfit", "harm", "scale", "warnings"):
        table.add_column(header)
    for report in reports:
        numbers = [f"{n:.3g}" for n in (report.misfit, report.harm, report.scale)]
        cells = (report.name, str(report.samples), *numbers, "; ".join(report.warnings))
        table.add_row(*map(cell, cells))
    if reports:
        Console().print(table)


@ledger.command()
@ledger_argument
@click.option("-o", "--out", type=PATH, required=True, help="File for the shared model.")
@method_option
@set_option
@json_option
def solve(ledger: Path, out: Path, name: str, overrides: tuple[str, ...], as_json: bool) -> None:
    """Solve the total with a method, and record that the model was published.

    Example: fedgram ledger solve study.ledger -m apfl-linear -o shared.safetensors
    """
    method = configuration.load(None, overrides, [name]).make(name)
    with Ledger.open(ledger) as book:
        made = publish(book, name, method, out)
    if as_json:
        click.echo(json.dumps(made, indent=2))
    else:
        say(f"{made['shared_digest']}  {name} on {made['samples']} samples -> {out}")


@contextmanager
def _to_change(path: Path) -> Iterator[Ledger]:
    """Open a ledger that no run uses meanwhile, if it belongs to a server."""
    with unused(path.parent), Ledger.open(path) as book:
        yield book


def _contributions(paths: tuple[Path, ...]) -> Iterator[Contribution]:
    for path in paths:
        part = codec.load(path)
        if not isinstance(part, Contribution):
            raise DataError(f"{path}: not a contribution; write one with 'fedgram contribute'")
        _require_valid(part, path)
        yield replace(part, client=clean_name(part.client, f"{path}: client"))


def _member(book: Ledger, client: str) -> str:
    """Return the name that the ledger has; an early ledger may have names as they were written."""
    known = {event.client for event in book.history()}
    return client if client in known else clean_name(client, "client")


def echo_lost_keys(lost: Mapping[int, str], *, err: bool = False) -> None:
    """Print a line for every key that replaced a lost one."""
    for number, key in lost.items():
        text = f"{key}  signs from event {number} on, and the key before, which was lost, has not"
        click.echo(f"{text} named it; compare this fingerprint with the operator", err=err)


def _echo_signed(book: Ledger) -> None:
    echo_lost_keys(book.lost_keys)
    if not book.chained:
        click.echo("the history is of format 1, without a chain; the next change begins one")
    elif not book.signed_by:
        how = "; sign it: fedgram ledger key LEDGER --change history.key"
        if not signing.available():
            how = "; pip install 'fedgram[secure]'"
        click.echo(f"the history is chained, but not signed{how}")
    elif signing.available():
        click.echo(f"{book.signed_by}  the key that signs the history")
    else:
        click.echo("the signatures were not checked; pip install 'fedgram[secure]'")


def _require_valid(part: Contribution, path: Path) -> None:
    """Raise an error unless a contribution, or what it removes, can be the sums of samples."""
    sums = part.statistics
    if not isinstance(sums, Statistics) or not all(
        isinstance(text, str) for text in (part.client, part.tag)
    ):
        raise DataError(f"{path}: expected a name, statistics and a tag; contribute again")
    removal = type(sums.count) is int and sums.count < 0
    try:
        (-sums if removal else sums).validate()
    except FedgramError as error:
        raise error.with_context(f"{path}: client {part.client}") from error


def _echo_total(book: Ledger, what: str) -> None:
    say(f"{book.history()[-1].total_digest}  {what}")
