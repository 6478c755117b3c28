"""The account of a federation: who is in, who goes, and what can be shown of it."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import click

from fedgram.cli.federation import federation, folder_argument
from fedgram.core import codec
from fedgram.deploy.folders import Project, SiteFolder
from fedgram.deploy.membership import Membership
from fedgram.errors import ConfigError

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
PATH = click.Path(path_type=Path, dir_okay=False)


@federation.command()
@folder_argument
@json_option
def status(folder: Path, as_json: bool) -> None:
    """Show who is in the totals, who is out, and how the runs went."""
    found = _membership(folder).status()
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    for account in found["ledgers"]:
        who = ", ".join(account["members"]) or "nobody"
        kind = " (one sum of all)" if account["cohort"] else ""
        click.echo(f"members   {who}{kind}")
        if account["missing"]:
            click.echo(f"missing   {', '.join(account['missing'])}")
        click.echo(f"samples   {account['samples']}")
        click.echo(f"total     {account['total_digest']}  {account['ledger']}")
    if not found["ledgers"]:
        click.echo("members   nobody yet")
    for client, how in found["out"].items():
        click.echo(f"out       {client} {how}")
    for run in found["runs"]:
        for name, method in run["methods"].items():
            click.echo(f"run {run['run']}  {name}: {_how(method)}")


@federation.command()
@folder_argument
@click.option("-m", "--method", "name", help="Method to solve with; by default the first one.")
@click.option("-o", "--out", type=PATH, required=True, help="File to write what is shared to.")
def publish(folder: Path, name: str | None, out: Path) -> None:
    """Solve the total as it is now, without asking any site.

    Example: fedgram federation publish study -o shared.safetensors
    """
    made = _membership(folder).publish(name, out)
    click.echo(f"{made['shared_digest']}  {made['method']} on {made['samples']} samples -> {out}")


@federation.command()
@folder_argument
@click.argument("client")
def forget(folder: Path, client: str) -> None:
    """Take a site out of every total, erase all it sent, and certify it.

    The next run leaves it out; 'admit' lets it in again.
    """
    for path in _membership(folder).forget(client):
        click.echo(path.read_text(encoding="utf-8").rstrip())
        click.echo(f"{path}: the certificate", err=True)


@federation.command()
@folder_argument
@click.argument("client")
def admit(folder: Path, client: str) -> None:
    """Let a site that has left, or was forgotten, take part in the next run."""
    _membership(folder).admit(client)
    click.echo(f"{client} may take part again")


@federation.command()
@folder_argument
@click.argument("certificate", required=False, type=PATH)
def verify(folder: Path, certificate: Path | None) -> None:
    """Recompute every total from the stored contributions; check a certificate too."""
    for name, digest in _membership(folder).verify(certificate).items():
        click.echo(f"{digest}  {name}: the total is the sum of the members' contributions")
    if certificate:
        click.echo(f"{certificate}: the deletion is as certified")


@federation.command()
@click.argument("site", type=click.Path(path_type=Path, file_okay=False))
@click.option("-m", "--method", required=True, help="Out of whose total.")
@click.option("-o", "--out", type=PATH, required=True, help="File to write; it goes to the server.")
def withdraw(site: Path, method: str, out: Path) -> None:
    """At a site: take its part out of a secure sum, and sign it.

    The file shows the server this site's sums. Where that is not wanted, have the server 'forget'
    the site: then the whole total goes, and the others are summed again.

    Example: fedgram federation withdraw sites/north -m afl -o north.withdrawal
    """
    made = _withdrawal().withdraw(SiteFolder.open(site), method)
    codec.save(out, made)
    click.echo(f"{out}: {made.statistics.count} samples of {made.client}, signed")


@federation.command()
@folder_argument
@click.argument("withdrawal", type=PATH)
def accept(folder: Path, withdrawal: Path) -> None:
    """At the server: take a signed withdrawal off the total it was in, and certify it."""
    project = Project.open(folder)
    certificate = _withdrawal().accept(project, withdrawal)
    path = Membership(folder=project.server).certify(certificate)
    click.echo(path.read_text(encoding="utf-8").rstrip())
    click.echo(f"{path}: the certificate", err=True)


def _withdrawal() -> ModuleType:
    try:
        return importlib.import_module("fedgram.deploy.withdrawal")
    except ImportError as error:
        raise ConfigError("signatures need: pip install 'fedgram[secure]'") from error


def _membership(folder: Path) -> Membership:
    return Membership(folder=Project.open(folder).server)


def _how(method: dict[str, Any]) -> str:
    left = {note["client"]: note["text"] for note in method["left_out"]}
    without = "".join(f"; {client}: {text}" for client, text in left.items())
    if not method["done"]:
        return f"not finished{without}"
    accuracy = method["result"]["accuracy"]["client_mean"]
    shown = "no test samples" if accuracy is None else f"accuracy {accuracy:.4f}"
    return f"{shown}, shared {method['result']['shared_digest']}{without}"
