"""The folder of a federation: the server's settings, and one folder to send to each site."""

from __future__ import annotations

import hashlib
import ipaddress
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

import tomlkit

from fedgram.deploy.settings import FederationRules
from fedgram.errors import ConfigError
from fedgram.experiments import config as configuration
from fedgram.runtime import files
from fedgram.runtime.settings import build
from fedgram.runtime.toml import written
from fedgram.runtime.version import own_version

DEMO_SITES = ("north", "west", "south")
DEFAULT_ADDRESS = "127.0.0.1:8000"
CONNECTION = "connection.toml"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
# Settings of [data] that apply to a site's own samples; the others partition one data set.
_SPLIT = ("test_fraction", "valid_fraction", "reserve_valid", "seed")
_TASK = ("task", "output_range")


@dataclass(frozen=True, kw_only=True)
class Address:
    """Host and port of a server.

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
        """Parse ``host:port``."""
        host, _, port = text.rpartition(":")
        host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
        good = re.fullmatch(r"[0-9]{1,5}", port) and 0 < int(port) < 2**16
        if not good or not re.fullmatch(r"[\w.:-]+", host) or text.count(":") > 1 != (":" in host):
            raise ConfigError(f"{text!r} is not an address; write host:port, such as 10.0.0.5:8000")
        return cls(host=host, port=int(port))

    @property
    def is_here(self) -> bool:
        """Whether only this machine can reach the address."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, kw_only=True)
class SiteFolder:
    """The folder of one site: its settings, its keys, and the output of its processes."""

    folder: Path

    @classmethod
    def open(cls, folder: Path) -> SiteFolder:
        """Return the site of a folder with a site.toml."""
        if not (folder / "site.toml").is_file():
            raise ConfigError(
                f"{folder}: no site.toml there; give the folder of a site, such as DIR/sites/north"
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
    def pins(self) -> Path:
        """The keys of other sites that this site has pinned."""
        return self.folder / "pins.json"

    @property
    def name(self) -> str:
        return _text(self.settings, "name")

    @property
    def server(self) -> Address:
        """Address at which this site reaches the server."""
        return Address.read(_text(self.folder / CONNECTION, "address"))


@dataclass(frozen=True, kw_only=True)
class Project:
    """The folder of a federation, on the server's machine."""

    folder: Path

    @classmethod
    def open(cls, folder: Path) -> Project:
        """Return the federation of a folder that `create` wrote."""
        if not (folder / "server" / "federation.toml").is_file():
            raise ConfigError(
                f"{folder}: no server/federation.toml there; create a federation with 'fedgram "
                "federation init'"
            )
        return cls(folder=folder.resolve())

    @property
    def app(self) -> Path:
        return self.folder / "app"

    @property
    def server(self) -> Path:
        return self.folder / "server"

    def new_simulation(self) -> Path:
        """Return a new folder, which a simulation uses in place of the server's."""
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
        """Folder for the files of Flower's programs."""
        return self.folder / ".flwr"

    @property
    def settings(self) -> Path:
        return self.server / "federation.toml"

    @property
    def rules(self) -> Mapping[str, Any]:
        """The table [federation] of the server's settings."""
        found = configuration.read_toml(self.settings).get("federation", {})
        if not isinstance(found, Mapping):
            raise ConfigError(f"{self.settings}: federation: expected a table")
        return found

    @property
    def address(self) -> Address:
        """Address at which sites reach the server."""
        return Address.read(_text(self.server / CONNECTION, "address"))

    @property
    def sites(self) -> list[SiteFolder]:
        """The sites with a folder here."""
        found = sorted((self.folder / "sites").glob("*/site.toml"))
        return [SiteFolder(folder=path.parent) for path in found]

    def site(self, name: str) -> SiteFolder:
        """Return the folder of one site, which need not exist."""
        return SiteFolder(folder=self.folder / "sites" / name)

    def add_site(self, name: str, *, source: str = "features.npz") -> SiteFolder:
        """Write the folder of a new site and add its name to the server's settings.

        A list ``sites`` that is missing or empty stays so: it allows every site already.
        """
        require_names([*(site.name for site in self.sites), name])
        sites = self.rules.get("sites", [])
        if not isinstance(sites, list):
            raise ConfigError(f"{self.settings}: federation.sites = {sites!r}: expected a list")
        known = configuration.read_toml(self.settings)
        _write_site(
            self.site(name),
            name,
            self.address,
            {"source": source, **{k: v for k, v in known.get("data", {}).items() if k in _TASK}},
            grid=known.get("grid"),
            secure=bool(known.get("engine", {}).get("secure")),
        )
        if sites:
            settings: Any = tomlkit.parse(self.settings.read_text(encoding="utf-8"))
            settings["federation"]["sites"].append(name)
            files.write(self.settings, tomlkit.dumps(settings))
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
        Folder to write; must be new or empty.
    sites
        Names of the sites.
    methods, overrides
        As for `fedgram run`; ``federation.KEY=VALUE`` changes the rules of a run.
    source
        Data of a site, relative to its folder.
    address
        Address at which sites reach the server.
    demo
        Partition the embedded digits over the sites, in place of their own data.
    """
    require_names(sites)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder}: exists and is not empty; choose another folder")
    settings, rules = _settings(sites, methods, overrides)
    place = address or Address.read(DEFAULT_ADDRESS)
    project = Project(folder=folder.resolve())
    for index, name in enumerate(sites):
        kept = (*_SPLIT, *_TASK)
        data = {key: value for key, value in settings["data"].items() if demo or key in kept}
        data["source"] = data.get("source", "digits") if demo else source
        share = index if demo else None
        _write_site(
            project.site(name),
            name,
            place,
            data,
            share=share,
            grid=settings.get("grid"),
            secure=bool(settings.get("engine", {}).get("secure")),
            compared=not demo,
        )
    _write_app(project)
    text = written({**settings, "federation": {**rules, "sites": list(sites)}})
    files.write(project.server / CONNECTION, _page("connection.toml", address=place))
    files.write(project.folder / ".gitignore", _page("gitignore.txt"))
    files.write(project.folder / "README.md", _readme(project, sites, place))
    # Last: a folder with this file is complete.
    files.write(project.settings, _page("federation.toml", settings=text.rstrip()))
    return project


def require_names(names: Sequence[str]) -> None:
    """Raise ConfigError unless the names are distinct and valid folder names on every system."""
    if not names:
        raise ConfigError("no sites are given; name them with --site, or use --demo")
    seen: dict[str, str] = {}
    for name in names:
        if not _NAME.fullmatch(name):
            raise ConfigError(
                f"--site {name!r}: use up to 63 letters a-z, digits, '-', '_' and '.', with a "
                "letter or digit first; the name of a site is also the name of its folder"
            )
        if name.lower() in seen:
            raise ConfigError(f"--site {name}: site {seen[name.lower()]} exists; rename one")
        seen[name.lower()] = name


def _settings(
    sites: Sequence[str], methods: Sequence[str], overrides: Iterable[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the server's settings and the rules of a run, both validated."""
    given: dict[str, Any] = {}
    for text in overrides:
        configuration.override(given, text)
    changed = given.pop("federation", {})
    if not isinstance(changed, dict):
        raise ConfigError(
            f"federation = {changed!r}: expected a table, such as federation.wait = 60"
        )
    rules = asdict(build(FederationRules, {"minimum": len(sites), **changed}, "federation"))
    if methods:
        given["methods"] = list(methods)
    config = configuration.read(given)
    for name in config.methods:
        if name.endswith(".py"):
            raise ConfigError(
                f"method {name}: a federation cannot run a method from a file; sites only have "
                "the methods that come with fedgram"
            )
    if "grid" in given:
        given["grid"] = asdict(config.grid)  # in full, to be written to every site
    data = {"clients": len(sites), **given.pop("data", {})}
    settings = {"version": configuration.VERSION, "methods": list(config.methods), "data": data}
    return {**settings, **{k: v for k, v in given.items() if k not in settings}}, rules


def federation_digest(root: Path) -> str:
    """Return the digest that names a federation: that of its authority's certificate, if any."""
    return hashlib.sha256(root.read_bytes()).hexdigest() if root.is_file() else ""


def _text(path: Path, key: str) -> str:
    value = configuration.read_toml(path).get(key)
    if not isinstance(value, str):
        raise ConfigError(f"{path}: {key} = {value!r}: expected a string")
    return value


def _write_site(
    site: SiteFolder,
    name: str,
    server: Address,
    data: Mapping[str, Any],
    *,
    share: int | None = None,
    grid: Mapping[str, Any] | None = None,
    secure: bool = False,
    compared: bool = True,
) -> None:
    settings = {
        "name": name,
        "share": share,
        "data": data,
        "grid": grid,
        "accept": {
            "methods": [],
            "secure": secure,
            "samples": 1,
            "members": 3,
            "compared": compared,
            "difference": "same",
        },
    }
    files.write(site.folder / "README.md", _page("site_readme.md", name=name, server=server))
    files.write(site.folder / CONNECTION, _page("connection.toml", address=server))
    files.write(site.settings, _page("site.toml", settings=written(settings).rstrip()))


def _write_app(project: Project) -> None:
    """Write the Flower app: a package whose two modules import the apps of fedgram."""
    server = tomlkit.item(str(project.server)).as_string()
    about = _page("app.toml", version=own_version(), server=server)
    files.write(project.app / "pyproject.toml", about)
    files.write(project.app / "fedgram_app" / "__init__.py", "")
    for name in ("client", "server"):
        text = _page("app_module.txt", name=name)
        files.write(project.app / "fedgram_app" / f"{name}.py", text)


def _readme(project: Project, sites: Sequence[str], address: Address) -> str:
    starts = "\n".join(f"    fedgram federation site {name}" for name in sites)
    return _page(
        "readme.md", name=project.folder.name, address=address, port=address.port, starts=starts
    )


def _page(file: str, /, **values: object) -> str:
    """Return the text of a file in ``templates``, with these values in place of their names."""
    path = resources.files("fedgram.deploy") / "templates" / file
    return Template(path.read_text(encoding="utf-8")).substitute(values)
