"""A federation of real sites: its folder, its keys, its processes."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import click

from fedgram.cli.group import main
from fedgram.errors import ConfigError
from fedgram.federated.project import (
    DEFAULT_ADDRESS,
    DEMO_SITES,
    Address,
    Project,
    SiteFolder,
    create,
)

FOLDER = click.Path(path_type=Path, file_okay=False)
folder_argument = click.argument("folder", metavar="DIR", type=FOLDER)


@main.group()
def federation() -> None:
    """Carry a federation between real sites, by Flower."""


@federation.command()
@folder_argument
@click.option("-m", "--method", "methods", multiple=True, help="Method to run; may be repeated.")
@click.option("--site", "sites", multiple=True, metavar="NAME", help="Site; may be repeated.")
@click.option("--source", default="features.npz", show_default=True, help="Data, as sites see it.")
@click.option("--address", default=DEFAULT_ADDRESS, show_default=True, help="Of the server.")
@click.option("--demo", is_flag=True, help="Three sites that share the embedded digits.")
@click.option(
    "-s", "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change a setting."
)
def init(
    folder: Path,
    methods: tuple[str, ...],
    sites: tuple[str, ...],
    source: str,
    address: str,
    demo: bool,
    overrides: tuple[str, ...],
) -> None:
    """Write the folder of a new federation: for the server, and one to hand to each site.

    Settings are those of 'fedgram run', and federation.minimum, wait, timeout and quorum. Their
    meaning stands in DIR/server/federation.toml; what to run where, in DIR/README.md.

    Example: fedgram federation init study --site north --site west -m apfl --address
    fl.example.org:8000
    """
    project = create(
        folder,
        sites=sites or (DEMO_SITES if demo else ()),
        methods=methods,
        overrides=overrides,
        source=source,
        address=Address.read(address),
        demo=demo,
    )
    names = ", ".join(site.name for site in project.sites)
    click.echo(f"{folder}: a federation of {names}; read {folder / 'README.md'}")


@federation.command()
@folder_argument
@click.option("--host", "hosts", multiple=True, help="Another name or IP address of the server.")
@click.option("--days", type=click.IntRange(1, 3650), default=397, show_default=True)
@click.option("--site", "sites", multiple=True, metavar="NAME", help="Make this site's; or add it.")
@click.option("--renew", is_flag=True, help="Replace the server's certificate, or a site's pair.")
@click.option("--authority", is_flag=True, help="With --renew: replace the authority as well.")
def keys(
    folder: Path,
    hosts: tuple[str, ...],
    days: int,
    sites: tuple[str, ...],
    renew: bool,
    authority: bool,
) -> None:
    """Make the authority, the server's certificate and every site's key pair; or what is missing.

    In a site's own folder only that site's pair is made: then its private key never travels. With
    --site NAME a site that is not there yet is added. Nothing is replaced without --renew.

    Example: fedgram federation keys study --host 10.0.0.5
    """
    make = _keys()
    if (folder / "site.toml").is_file():
        site = SiteFolder.open(folder)
        click.echo(make.make_pair(site, renew=renew))
        click.echo(f"{site.public_key}: send this to the server, and keep {site.key} to yourself")
        return
    project = Project.open(folder)
    if renew and sites and not authority:
        made = make.renew_pairs(project, sites)
    else:
        there = {site.name for site in project.sites}
        for name in dict.fromkeys(sites):
            if name not in there:
                click.echo(f"{project.add_site(name).folder}: a new site")
        made = make.make_keys(project, hosts=hosts, days=days, renew=renew, authority=authority)
    for line in made:
        click.echo(line)


def _keys() -> ModuleType:
    try:
        from fedgram.federated import keys as module
    except ModuleNotFoundError as error:
        raise ConfigError("keys need: pip install 'fedgram[secure]'") from error
    return module
