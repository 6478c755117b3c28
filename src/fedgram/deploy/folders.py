"""The folder of a federation: what the server runs, and a folder to hand to each site."""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fedgram.deploy.pages import (
    APP,
    CONNECTION_TOML,
    FEDERATION_TOML,
    IGNORED,
    PROGRAM,
    README,
    SITE_README,
    SITE_TOML,
)
from fedgram.deploy.settings import FederationRules
from fedgram.errors import ConfigError
from fedgram.experiments import config as configuration
from fedgram.runtime import files
from fedgram.runtime.settings import build
from fedgram.runtime.toml import written

DEMO_SITES = ("north", "west", "south")
DEFAULT_ADDRESS = "127.0.0.1:8000"
CONNECTION = "connection.toml"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_SITES_LINE = re.compile(r"^sites = \[.*\]$", re.MULTILINE)
# What a site may want to know of how its own samples are split; the rest deals out one data set.
_SPLIT = ("test_fraction", "valid_fraction", "reserve_valid", "seed")


@dataclass(frozen=True, kw_only=True)
class Address:
    """Where a server is reached.

    Examples
    --------
    >>> Address.read("fl.example.org:8000")
    Address(host='fl.example.org', port=8000)
    >>> str(Address.read("[::1]:8000")), Address.read("127.0.0.1:1").is_here
    ('[::1]:8000', True)
    """

    host: str
    port: int

    @classmethod
    def read(cls, text: str) -> Address:
        """Return the address that a text like ``host:port`` gives."""
        host, _, port = text.rpartition(":")
        host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
        good = re.fullmatch(r"[0-9]{1,5}", port) and 0 < int(port) < 2**16
        if not good or not re.fullmatch(r"[\w.:-]+", host) or text.count(":") > 1 != (":" in host):
            raise ConfigError(f"{text!r} is not an address; write host:port, such as 10.0.0.5:8000")
        return cls(host=host, port=int(port))

    @property
    def is_here(self) -> bool:
        """Whether this machine alone can reach it."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, kw_only=True)
class SiteFolder:
    """One site's folder: all that the site needs, and where its processes write."""

    folder: Path

    @classmethod
    def open(cls, folder: Path) -> SiteFolder:
        """Return the site of a folder that has a site.toml."""
        if not (folder / "site.toml").is_file():
            raise ConfigError(
                f"{folder}: has no site.toml; give a folder of one site, such as DIR/sites/north"
            )
        return cls(folder=folder.resolve())

    @property
    def settings(self) -> Path:
        return self.folder / "site.toml"

    @property
    def root(self) -> Path:
        return self.folder / "ca.crt"

    @property
    def key(self) -> Path:
        return self.folder / "node"

    @property
    def public_key(self) -> Path:
        return self.folder / "node.pub"

    @property
    def name(self) -> str:
        return _text(self.settings, "name")

    @property
    def server(self) -> Address:
        """Where this site finds the server."""
        return Address.read(_text(self.folder / CONNECTION, "address"))


@dataclass(frozen=True, kw_only=True)
class Project:
    """A federation's folder, as the server's machine has it."""

    folder: Path

    @classmethod
    def open(cls, folder: Path) -> Project:
        """Return the federation that `init` wrote."""
        if not (folder / "server" / "federation.toml").is_file():
            raise ConfigError(
                f"{folder}: has no server/federation.toml; make one with 'fedgram federation init'"
            )
        return cls(folder=folder.resolve())

    @property
    def app(self) -> Path:
        return self.folder / "app"

    @property
    def server(self) -> Path:
        return self.folder / "server"

    def new_simulation(self) -> Path:
        """Return a new folder to take the place of the server's: each simulation begins afresh."""
        there = [int(path.name) for path in (self.folder / "simulations").glob("[0-9]*")]
        return self.folder / "simulations" / f"{max(there, default=0) + 1:04d}" / "server"

    @property
    def authority(self) -> Path:
        return self.folder / "authority"

    @property
    def logs(self) -> Path:
        return self.folder / "logs"

    @property
    def home(self) -> Path:
        """Where Flower's programs keep what is theirs."""
        return self.folder / ".flwr"

    @property
    def settings(self) -> Path:
        return self.server / "federation.toml"

    @property
    def rules(self) -> Mapping[str, Any]:
        """What stands under [federation]."""
        found = configuration.read_toml(self.settings).get("federation", {})
        if not isinstance(found, Mapping):
            raise ConfigError(f"{self.settings}: federation: a table is wanted")
        return found

    @property
    def address(self) -> Address:
        """Where sites find the server."""
        return Address.read(_text(self.server / CONNECTION, "address"))

    @property
    def sites(self) -> list[SiteFolder]:
        """The sites that have a folder here."""
        found = sorted((self.folder / "sites").glob("*/site.toml"))
        return [SiteFolder(folder=path.parent) for path in found]

    def site(self, name: str) -> SiteFolder:
        """Return the folder of one site, which need not be there."""
        return SiteFolder(folder=self.folder / "sites" / name)

    def add_site(self, name: str, *, source: str = "features.npz") -> SiteFolder:
        """Admit one more site: a folder for it, and its name in the server's settings."""
        there = [site.name for site in self.sites]
        require_names([*there, name])
        settings = self.settings.read_text(encoding="utf-8")
        sites = json.dumps([*self.rules.get("sites", there), name])
        if not _SITES_LINE.search(settings):
            raise ConfigError(
                f"{self.settings}: there is no line 'sites = [...]' under [federation] to add "
                f"{name!r} to; write one"
            )
        _write_site(self.site(name), name, self.address, {"source": source})
        files.write(self.settings, _SITES_LINE.sub(lambda _: f"sites = {sites}", settings))
        return self.site(name)


def create(
    folder: Path,
    *,
    sites: Sequence[str],
    methods: Sequence[str] = (),
    overrides: Iterable[str] = (),
    source: str = "features.npz",
    address: Address | None = None,
    demo: bool = False,
) -> Project:
    """Write the folder of a new federation.

    Parameters
    ----------
    folder
        Must be new or empty.
    sites
        Who takes part.
    methods, overrides
        As for `fedgram run`; ``federation.KEY=VALUE`` changes the rules of rounds.
    source
        Where a site has its data, seen from its folder.
    address
        Where sites reach the server.
    demo
        Deal the embedded digits to the sites.
    """
    require_names(sites)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder}: is there already, and not empty; choose another folder")
    settings, rules = _settings(sites, methods, overrides)
    place = address or Address.read(DEFAULT_ADDRESS)
    project = Project(folder=folder.resolve())
    for index, name in enumerate(sites):
        data = {key: value for key, value in settings["data"].items() if demo or key in _SPLIT}
        data["source"] = data.get("source", "digits") if demo else source
        share = index if demo else None
        _write_site(project.site(name), name, place, data, share=share, grid=settings.get("grid"))
    _write_app(project)
    text = written({**settings, "federation": {**rules, "sites": list(sites)}})
    connection = CONNECTION_TOML + written({"address": str(place)})
    files.write(project.server / CONNECTION, connection)
    files.write(project.folder / ".gitignore", IGNORED)
    files.write(project.folder / "README.md", _readme(project, sites, place))
    files.write(project.settings, FEDERATION_TOML + text)  # last: what is there is complete
    return project


def require_names(names: Sequence[str]) -> None:
    """Refuse names of sites that cannot be names of folders everywhere, and equal ones."""
    if not names:
        raise ConfigError("there are no sites; name them with --site, or use --demo")
    seen: dict[str, str] = {}
    for name in names:
        if not _NAME.fullmatch(name):
            raise ConfigError(
                f"--site {name!r}: use up to 63 letters a-z, digits, '-', '_' and '.', a letter or "
                "a digit first; it becomes a folder's name at the site"
            )
        if name.lower() in seen:
            raise ConfigError(f"--site {name}: there is {seen[name.lower()]} already; rename one")
        seen[name.lower()] = name


def _settings(
    sites: Sequence[str], methods: Sequence[str], overrides: Iterable[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what the server runs, and the rules of its rounds, once both are known to be good."""
    given: dict[str, Any] = {}
    for text in overrides:
        configuration.override(given, text)
    changed = given.pop("federation", {})
    if not isinstance(changed, dict):
        raise ConfigError(
            f"federation = {changed!r}: a table is wanted, such as federation.wait = 60"
        )
    rules = asdict(build(FederationRules, {"minimum": len(sites), **changed}, "federation"))
    if methods:
        given["methods"] = list(methods)
    config = configuration.read(given)
    for name in config.methods:
        if name.endswith(".py"):
            raise ConfigError(f"method {name}: is a file of yours; sites know methods by name")
    if "grid" in given:
        given["grid"] = asdict(config.grid)  # the same at every site, however it was written
    data = {"clients": len(sites), **given.pop("data", {})}
    settings = {"version": configuration.VERSION, "methods": list(config.methods), "data": data}
    return {**settings, **{k: v for k, v in given.items() if k not in settings}}, rules


def _text(path: Path, key: str) -> str:
    value = configuration.read_toml(path).get(key)
    if not isinstance(value, str):
        raise ConfigError(f"{path}: {key} = {value!r}: a text is wanted")
    return value


def _write_site(
    site: SiteFolder,
    name: str,
    server: Address,
    data: Mapping[str, Any],
    *,
    share: int | None = None,
    grid: Mapping[str, Any] | None = None,
) -> None:
    settings = {
        "name": name,
        "share": share,
        "data": data,
        "grid": grid,
        "accept": {"methods": [], "secure": False, "samples": 1},
    }
    files.write(site.folder / "README.md", SITE_README.format(name=name, server=server))
    files.write(site.folder / CONNECTION, CONNECTION_TOML + written({"address": str(server)}))
    files.write(site.settings, SITE_TOML + written(settings))


def _write_app(project: Project) -> None:
    """Write the Flower app: a name for the two programs that fedgram itself has."""
    server = json.dumps(str(project.server), ensure_ascii=False)
    about = APP.format(version=version("fedgram"), server=server)
    files.write(project.app / "pyproject.toml", about)
    files.write(project.app / "fedgram_app" / "__init__.py", "")
    for name in ("client", "server"):
        files.write(project.app / "fedgram_app" / f"{name}.py", PROGRAM.format(name=name))


def _readme(project: Project, sites: Sequence[str], address: Address) -> str:
    starts = "\n".join(f"    fedgram federation site {name}" for name in sites)
    return README.format(
        name=project.folder.name, address=address, port=address.port, starts=starts
    )
