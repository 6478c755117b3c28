"""Commands for a federation across real sites: its folder, keys and processes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import ModuleType

import click

from fedgram.cli.report import report
from fedgram.cli.root import main, say
from fedgram.deploy.folders import (
    DEFAULT_ADDRESS,
    DEMO_SITES,
    Address,
    Project,
    SiteFolder,
    create,
)
from fedgram.deploy.operator import (
    latest,
    operator_of,
    register,
    require_keys,
    simulate,
    start_site,
    start_superlink,
)
from fedgram.deploy.processes import Child, Processes, follow, free_ports
from fedgram.deploy.settings import read_site
from fedgram.deploy.site import CACHE, site_of
from fedgram.engines.remote.policy import AnswerRecord
from fedgram.errors import ConfigError
from fedgram.runtime import files

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")  # of the lines that Flower prints
_LEVEL = re.compile(r"^(?:INFO|(DEBUG|WARNING|ERROR)) *: *(?:fedgram: )?")


def plain(line: str) -> str:
    r"""Return a line of Flower's programs without colors, columns and the level of information.

    Examples
    --------
    >>> plain("\x1b[92mINFO \x1b[0m:      fedgram: south: connected, as node 12")
    'south: connected, as node 12'
    >>> plain("\x1b[93mWARNING \x1b[0m:   Connection attempt failed")
    'WARNING: Connection attempt failed'
    >>> plain("\x1b[92mINFO \x1b[0m:      ")
    ''
    """

    def level(found: re.Match[str]) -> str:
        return f"{found[1]}: " if found[1] else ""

    return _LEVEL.sub(level, _COLOURS.sub("", line).strip(), count=1).strip()


FOLDER = click.Path(path_type=Path, file_okay=False)
folder_argument = click.argument("folder", metavar="DIR", type=FOLDER)


@main.group()
def federation() -> None:
    """Run a federation across real sites with Flower."""


@federation.command()
@folder_argument
@click.option("-m", "--method", "methods", multiple=True, help="Method to run; may be repeated.")
@click.option(
    "--site", "sites", multiple=True, metavar="NAME", help="Name of a site; may be repeated."
)
@click.option(
    "--source",
    default="features.npz",
    show_default=True,
    help="Data of a site, relative to its folder.",
)
@click.option(
    "--address", default=DEFAULT_ADDRESS, show_default=True, help="Address of the server."
)
@click.option("--demo", is_flag=True, help="Three sites with parts of the embedded digits.")
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
    """Write the folder of a new federation, with one folder for the server and one per site.

    Settings are those of 'fedgram run', and federation.minimum, wait, timeout, quorum and grace.
    DIR/server/federation.toml explains them; DIR/README.md lists the next steps.

    Example: fedgram federation init study --site north --site west -m apfl-linear --address
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
    click.echo(f"{folder}: created a federation of {names}; see {folder / 'README.md'}")


@federation.command()
@folder_argument
@click.option("--host", "hosts", multiple=True, help="Another name or IP address of the server.")
@click.option(
    "--days",
    type=click.IntRange(1, 3650),
    default=397,
    show_default=True,
    help="Days for which the server's certificate is valid.",
)
@click.option(
    "--site", "sites", multiple=True, metavar="NAME", help="Add this site, or renew its key pair."
)
@click.option("--renew", is_flag=True, help="Replace the server's certificate, or key pairs.")
@click.option("--authority", is_flag=True, help="With --renew: replace the authority as well.")
def keys(
    folder: Path,
    hosts: tuple[str, ...],
    days: int,
    sites: tuple[str, ...],
    renew: bool,
    authority: bool,
) -> None:
    """Create the missing keys: the authority, the server's certificate, the sites' key pairs.

    In a site's own folder, only create the key pair of this site: its private key then never leaves
    the site. --site NAME adds a new site. Only --renew replaces existing keys.

    Example: fedgram federation keys study --host 10.0.0.5
    """
    make = _keys()
    if (folder / "site.toml").is_file():
        site = SiteFolder.open(folder)
        click.echo(make.make_pair(site, renew=renew))
        click.echo(f"{site.public_key}: send this file to the server, and keep {site.key} secret")
        return
    project = Project.open(folder)
    if renew and sites and not authority:
        made = make.renew_pairs(project, sites)
    else:
        there = {site.name for site in project.sites}
        for name in dict.fromkeys(sites):
            if name not in there:
                click.echo(f"{project.add_site(name).folder}: added a site")
        made = make.make_keys(project, hosts=hosts, days=days, renew=renew, authority=authority)
    for line in made:
        say(line)


@federation.command()
@click.argument("folder", metavar="SITE", type=FOLDER)
@click.argument("key", metavar="PEER.pub", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--name", help="Name of the other site; by default the comment in the file.")
@click.option(
    "--fingerprint", "read_out", help="The fingerprint that its people have read out to you."
)
@click.option("--replace", is_flag=True, help="Replace another key that is pinned with this name.")
def pin(folder: Path, key: Path, name: str | None, read_out: str | None, replace: bool) -> None:
    """Pin the key of another site: secure sums are answered among pinned keys only.

    Call the people of the other site, by a number that is not from the server. They run 'fedgram
    federation pins' and read out their fingerprint.

    Example: fedgram federation pin north west.pub
    """
    pins, site = _pins(), SiteFolder.open(folder)
    who, found = pins.peer(key, name)
    click.echo(f"{key}: the key of {who}, with the fingerprint {found}")
    if read_out is None:
        read_out = click.prompt(f"The fingerprint that the people of {who} have read out")
    pins.pin(site, who, key, read_out=read_out, replace=replace)
    click.echo(f"{site.pins}: pinned the key of {who}")


@federation.command("pins")
@click.argument("folder", metavar="SITE", type=FOLDER)
def pins_command(folder: Path) -> None:
    """Show the fingerprint of a site's own key, to read it out, and those of the pinned keys.

    Example: fedgram federation pins north
    """
    pins, site = _pins(), SiteFolder.open(folder)
    click.echo(f"{site.name}: {pins.own_fingerprint(site)}, the key of this site")
    for name, found in sorted(pins.pins(site).items()):
        how = "compared" if found.compared else "NOT compared; see 'fedgram federation pin'"
        click.echo(f"{name}: {found.fingerprint}, {how}")


@federation.command()
@click.argument("folder", metavar="SITE", type=FOLDER)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "--allow-others", is_flag=True, help="Forget the sums: other members are accepted next time."
)
def releases(folder: Path, as_json: bool, allow_others: bool) -> None:
    """Show how often a site has answered, and which secure sums it has helped to reveal.

    A site answers for the same members every time (accept.difference). When sites have joined or
    left, decide together, and use --allow-others at each site before the next run: the difference
    of the sums before and after shows the sums of those who joined or left.

    Example: fedgram federation releases north
    """
    site = SiteFolder.open(folder)
    record = AnswerRecord(site.folder / CACHE)
    found = record.to_dict()
    if allow_others:
        with files.exclusive(site.folder / CACHE / "site.lock"):
            record.allow_others()
    if as_json:
        click.echo(json.dumps(found, indent=1))
        return
    sums = sum(entry["times"] for entry in found["sums"])
    click.echo(
        f"{site.name}: {found['answers']} answers that depend on its samples, in "
        f"{len(found['runs'])} runs; {sums} secure sums revealed"
    )
    for entry in found["sums"]:
        members = ", ".join(entry["members"])
        samples = entry["samples"][:8]
        click.echo(f"{entry['step']}, samples {samples}: {entry['times']} x {members}")


@federation.command()
@folder_argument
def server(folder: Path) -> None:
    """Run the server, Flower's SuperLink, until you stop it; only registered sites may connect.

    The server runs in the foreground; its output is also in DIR/logs/server.log.

    Example: fedgram federation server study
    """
    project = Project.open(folder)
    with Processes(project.logs) as processes:
        child = start_superlink(project, processes)
        click.echo(f"{project.address}: the server is up; stop it with Ctrl-C")
        _stay(child)


@federation.command()
@click.argument("folder", metavar="SITE", type=FOLDER)
@click.option("--server", "address", metavar="HOST:PORT", help="Address of the server.")
@click.option("--port", type=click.IntRange(1, 65535), help="Port for the site's own processes.")
def site(folder: Path, address: str | None, port: int | None) -> None:
    """Take part as one site, with Flower's SuperNode, until you stop it.

    SITE is the folder of the site. The address of the server is in SITE/connection.toml unless
    --server gives another one. The site runs in the foreground; its output is also in SITE/logs.

    Example: fedgram federation site north
    """
    place = SiteFolder.open(folder)
    given = Address.read(address) if address else place.server
    require_keys(place)
    _show_samples(place)
    _warn_of_pins(place)
    with Processes(place.folder / "logs") as processes:
        _stay(start_site(place, processes, server=given, port=port or 0))


@federation.command("register")
@folder_argument
def register_command(folder: Path) -> None:
    """Register the public keys of all sites at the running server.

    Run it again after a change: registered sites stay, and a renewed key replaces the old one.

    Example: fedgram federation register study
    """
    project = Project.open(folder)
    with Processes(project.logs) as processes:
        operator = operator_of(project, processes)
        operator.require_up()
        register(operator, say)


@federation.command()
@folder_argument
def run(folder: Path) -> None:
    """Run the methods of DIR/server/federation.toml on the connected sites.

    Example: fedgram federation run study
    """
    project = Project.open(folder)
    with Processes(project.logs) as processes:
        operator = operator_of(project, processes)
        operator.require_up()
        operator.run(_pass_on)
    _show_record(project.server)


@federation.command("simulate")
@folder_argument
@click.option(
    "--cpus",
    type=click.FloatRange(min=0.1),
    default=1.0,
    show_default=True,
    help="Processors for each simulated site.",
)
def simulate_command(folder: Path, cpus: float) -> None:
    """Run the federation on this machine only, with the data of DIR/server/federation.toml.

    --cpus limits the number of sites that compute at the same time. This command needs: pip install
    'fedgram[simulation]'.

    Example: fedgram federation simulate study
    """
    project = Project.open(folder)
    with Processes(project.logs) as processes:
        folder = simulate(project, processes, _pass_on, cpus=cpus)
    _show_record(folder)


@federation.command()
@folder_argument
@click.option(
    "-m", "--method", "methods", multiple=True, default=("apfl-linear",), show_default=True
)
@click.option(
    "-s", "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change a setting."
)
@click.pass_context
def demo(
    context: click.Context, folder: Path, methods: tuple[str, ...], overrides: tuple[str, ...]
) -> None:
    """Start a server and three sites on this machine, run a method, and write the report.

    Does all that 'init --demo', 'keys', 'server', 'register', 'site', 'run' and 'report' do, on
    free ports, and stops all processes at the end.

    Example: fedgram federation demo try
    """
    port, *ports = free_ports(1 + len(DEMO_SITES))
    project = create(
        folder,
        sites=DEMO_SITES,
        methods=methods,
        overrides=overrides,
        address=Address(host="127.0.0.1", port=port),
        demo=True,
    )
    _keys().make_keys(project)
    with Processes(project.logs) as processes:
        click.echo(f"{project.address}: starting the server")
        start_superlink(project, processes)
        operator = operator_of(project, processes)
        register(operator, say)
        for place, own in zip(project.sites, ports, strict=True):
            start_site(place, processes, port=own)
        operator.run(_pass_on)
    page = project.folder / "report.html"
    context.invoke(report, folders=(latest(project.server),), out=page, title=None)


def _show_samples(site: SiteFolder) -> None:
    """Read a site's data and print their sizes; an error in the data shows before the start."""
    mine = site_of(read_site(site.settings))
    parts = (mine.train, "training"), (mine.valid, "validation"), (mine.test, "test")
    sizes = ", ".join(f"{len(part)} {name}" for part, name in parts)
    click.echo(f"{site.name}: {sizes} samples; stop the site with Ctrl-C")


def _warn_of_pins(site: SiteFolder) -> None:
    """Print which pinned keys nobody has compared."""
    open_ = [name for name, found in _pins().pins(site).items() if not found.compared]
    if open_:
        click.echo(
            f"{site.name}: nobody has compared the keys of {', '.join(open_)}; compare them before "
            "secure sums ('fedgram federation pin')"
        )


def _stay(child: Child) -> None:
    """Print the output of a process until it ends, which is an error."""
    for line in follow(child):
        _pass_on(line)
    raise child.failure()


def _pass_on(line: str) -> None:
    """Print a line of Flower's programs if it says something, in plain text."""
    if text := plain(line):
        say(text)


def _show_record(folder: Path) -> None:
    found = latest(folder)
    click.echo(f"{found}: recorded; show it with 'fedgram report {found}'")


def _pins() -> ModuleType:
    try:
        from fedgram.deploy import pins as module
    except ModuleNotFoundError as error:
        raise ConfigError("pins need more packages; run: pip install 'fedgram[secure]'") from error
    return module


def _keys() -> ModuleType:
    try:
        from fedgram.deploy import keys as module
    except ModuleNotFoundError as error:
        raise ConfigError("keys need more packages; run: pip install 'fedgram[secure]'") from error
    return module
