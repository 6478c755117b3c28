"""Commands for the members of a federation: status, forget, admit, verify, withdraw."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import click

from fedgram.cli.federation import federation, folder_argument
from fedgram.cli.ledger import echo_lost_keys
from fedgram.cli.root import say
from fedgram.core import codec
from fedgram.deploy.flower.state import DATABASE
from fedgram.deploy.folders import Project, SiteFolder
from fedgram.deploy.membership import Membership
from fedgram.errors import ConfigError

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
PATH = click.Path(path_type=Path, dir_okay=False)


@federation.command()
@folder_argument
@json_option
def status(folder: Path, as_json: bool) -> None:
    """Show members of totals, excluded sites, runs, and the end of the certificate.

    Example: fedgram federation status study
    """
    found = _membership(folder).status()
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    for account in found["ledgers"]:
        who = ", ".join(account["members"]) or "none"
        kind = " (one secure sum)" if account["cohort"] else ""
        say(f"members   {who}{kind}")
        if account["missing"]:
            say(f"missing   {', '.join(account['missing'])}")
        click.echo(f"samples   {account['samples']}")
        click.echo(f"total     {account['total_digest']}  {account['ledger']}")
    if not found["ledgers"]:
        click.echo("members   none yet")
    if found["certificate_until"]:
        click.echo(
            f"keys      the server's certificate is valid until {found['certificate_until']}"
        )
    for client, how in found["out"].items():
        say(f"excluded  {client} {how}")
    for run in found["runs"]:
        for name, method in run["methods"].items():
            click.echo(f"run {run['run']}  {name}: {_outcome(method)}")


@federation.command()
@folder_argument
@click.option("-m", "--method", "name", help="Method; by default the first of the settings.")
@click.option("-o", "--out", type=PATH, required=True, help="File for the shared model.")
def publish(folder: Path, name: str | None, out: Path) -> None:
    """Solve the current total, without contacting any site.

    Example: fedgram federation publish study -o shared.safetensors
    """
    made = _membership(folder).publish(name, out)
    click.echo(f"{made['shared_digest']}  {made['method']} on {made['samples']} samples -> {out}")


@federation.command()
@folder_argument
@click.argument("client")
def forget(folder: Path, client: str) -> None:
    """Remove a site from every total, erase all it sent, and print certificates.

    The next runs exclude the site until 'admit'.

    Example: fedgram federation forget study north
    """
    membership = _membership(folder)
    _echo_certificates(membership.forget(client))
    for lost in membership.lost_keys().values():
        echo_lost_keys(lost, err=True)
    for path in membership.holding_digests(client):
        click.echo(f"{path}: holds a digest of a total with {client}; it is not erased", err=True)
    for name, path in membership.residue():
        what = "is in use: it is cleaned at the next start of the server"
        if not path.name.startswith(DATABASE):
            what = "is not a file of the server: delete it"
        say(f"{path}: holds messages of {name}, and {what}", err=True)


@federation.command()
@folder_argument
@click.argument("client")
def certificate(folder: Path, client: str) -> None:
    """Write and print the certificates of a forgotten site again.

    Example: fedgram federation certificate study north
    """
    _echo_certificates(_membership(folder).certificates(client))


@federation.command()
@folder_argument
@click.argument("client")
def admit(folder: Path, client: str) -> None:
    """Admit a site that has left, or was forgotten, to the next run.

    Example: fedgram federation admit study north
    """
    _membership(folder).admit(client)
    say(f"{client}: admitted to the next run")


@federation.command()
@folder_argument
@click.argument("certificate", required=False, type=PATH)
def verify(folder: Path, certificate: Path | None) -> None:
    """Recompute every total, check histories and a certificate, and search for residue.

    Residue is what a forgotten site sent and what is still in a file of the server.

    Example: fedgram federation verify study north.json
    """
    membership = _membership(folder)
    for name, digest in membership.verify(certificate).items():
        click.echo(f"{digest}  {name}: the total is the sum of the members' contributions")
    for name, key in membership.keys().items():
        signed = f"signed by {key}" if key else "chained, but not signed"
        click.echo(f"{name}: the history is {signed}")
    for lost in membership.lost_keys().values():
        echo_lost_keys(lost)
    if certificate:
        click.echo(f"{certificate}: the certificate is valid")
    membership.require_no_residue()


@federation.command()
@click.argument("site", type=click.Path(path_type=Path, file_okay=False))
@click.option("-m", "--method", required=True, help="Method whose total is changed.")
@click.option("-o", "--out", type=PATH, required=True, help="File to write and send to the server.")
def withdraw(site: Path, method: str, out: Path) -> None:
    """At a site: write the signed withdrawal of its part of a secure sum.

    The file shows the server the sums of this site. To avoid that, use 'forget' at the server: it
    erases the total, and the other sites are summed again.

    Example: fedgram federation withdraw sites/north -m afl -o north.withdrawal
    """
    made = _withdrawal().withdraw(SiteFolder.open(site), method)
    codec.save(out, made)
    say(f"{out}: {made.statistics.count} samples of {made.client}, signed")


@federation.command()
@folder_argument
@click.argument("withdrawal", type=PATH)
def accept(folder: Path, withdrawal: Path) -> None:
    """At the server: subtract a signed withdrawal from its total, and print the certificate.

    Example: fedgram federation accept study north.withdrawal
    """
    project = Project.open(folder)
    certificate = _withdrawal().accept(project, withdrawal)
    _echo_certificates([Membership(folder=project.server).certify(certificate)])


def _echo_certificates(paths: list[Path]) -> None:
    for path in paths:
        click.echo(path.read_text(encoding="utf-8").rstrip())
        click.echo(f"{path}: the certificate", err=True)


def _withdrawal() -> ModuleType:
    try:
        return importlib.import_module("fedgram.deploy.withdrawal")
    except ImportError as error:
        raise ConfigError(
            "signatures need more packages; run: pip install 'fedgram[secure]'"
        ) from error


def _membership(folder: Path) -> Membership:
    return Membership(folder=Project.open(folder).server)


def _outcome(method: dict[str, Any]) -> str:
    left = {note["client"]: note["text"] for note in method["left_out"]}
    without = "".join(f"; {client}: {text}" for client, text in left.items())
    if not method["done"]:
        return f"not finished{without}"
    accuracy = method["result"]["accuracy"]["client_mean"]
    shown = "no test samples" if accuracy is None else f"accuracy {accuracy:.4f}"
    return f"{shown}, shared {method['result']['shared_digest']}{without}"
