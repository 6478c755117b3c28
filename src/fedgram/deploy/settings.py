"""The files of a real federation: ``federation.toml`` at the server, ``site.toml`` at a site."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from fedgram.data.ranges import require_agreed_range
from fedgram.engines.remote.collector import Deadlines
from fedgram.engines.remote.policy import SitePolicy
from fedgram.errors import ConfigError, DataError
from fedgram.experiments import config as configuration
from fedgram.experiments.config import Config, Data
from fedgram.experiments.record import read_object
from fedgram.features.grid import Grid
from fedgram.runtime.settings import build, propose
from fedgram.runtime.text import clean_name

NODES = "nodes.json"  # which node is which site, by their registered keys


@dataclass(frozen=True, kw_only=True)
class FederationRules(Deadlines):
    """The sites that may take part, and the deadlines of an exchange.

    Parameters
    ----------
    sites
        Names of the sites that may take part; empty for every site that connects.
    keep_replaced
        Keep contributions that a site has replaced, for audit. They are erased otherwise: their
        difference from the new ones shows the samples that were removed.
    samples
        Registered number of samples of each site, as confirmed by the operator. A contribution of
        more samples, or of a site without a number, is refused. Empty for no limit.
    compress
        Compress messages by zstd, in both directions. In a secure run messages are never
        compressed.
    """

    sites: tuple[str, ...] = ()
    keep_replaced: bool = False
    samples: dict[str, int] = field(default_factory=dict)
    compress: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, number in self.samples.items():
            if number < 0:
                raise ConfigError(f"federation.samples.{name} = {number}: use 0 or more")


@dataclass(frozen=True, kw_only=True)
class Raw:
    """Images, texts or vectors from which a site extracts its features.

    Parameters
    ----------
    source
        A source of ``fedgram features``: a folder of images, a table, ...
    backbone
        The backbone; by default the one for this kind of data.
    weights
        File with the weights of the backbone, if it needs one.
    text, label
        Names of the columns with texts and classes in a table.
    """

    source: str
    backbone: str = ""
    weights: str = ""
    text: str = ""
    label: str = "label"


@dataclass(frozen=True, kw_only=True)
class SiteSettings:
    """The settings of a site.

    Parameters
    ----------
    name
        Name of the site, unique in the federation.
    folder
        Folder of ``site.toml``, to which cache and models are written.
    data
        Source and split of its samples, with the settings of ``fedgram run``.
    share
        To try things out on one data set: the number of the client whose part of the partition
        this site has; None for the whole data set.
    grid
        Grid of its features.
    features
        Source of the features, if they must be extracted first.
    accept
        Requests that the site accepts.
    classes
        The classes that samples of this site may have. It reports this list, whether or not there
        are samples of a class; if it is empty, the class list of its features.
    """

    name: str
    folder: Path
    data: Data = field(default_factory=Data)
    share: int | None = None
    grid: Grid = field(default_factory=Grid)
    features: Raw | None = None
    accept: SitePolicy = field(default_factory=SitePolicy)
    classes: tuple[str, ...] = ()


def read_federation(path: Path) -> tuple[Config, FederationRules]:
    """Return the settings of a federation's server."""
    settings = configuration.read_toml(path)
    table = settings.pop("federation", {})
    if not isinstance(table, dict):
        raise ConfigError(f"{path}: federation: expected a table")
    config = configuration.read(settings)
    for name in config.methods:
        if name.endswith(".py"):
            raise ConfigError(
                f"{path}: method {name!r} is a file; sites only have the methods that come with "
                "fedgram"
            )
    federation: FederationRules = build(FederationRules, table, "federation")
    sites = dict.fromkeys(
        _site_name(name, f"{path}: federation.sites") for name in federation.sites
    )
    return config, replace(federation, sites=tuple(sites))


def read_site(path: Path) -> SiteSettings:
    """Return the settings of a site; paths are relative to ``site.toml``.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "site.toml"
    ...     _ = path.write_text('name = "north"')
    ...     read_site(path).data.source
    'digits'
    """
    settings = configuration.read_toml(path)
    known = ("version", "name", "share", "classes", "data", "grid", "features", "accept")
    for key in settings:
        if key not in known:
            raise ConfigError(f"{path}: {key} is not a setting; {propose(key, known)}")
    name, share = settings.get("name"), settings.get("share")
    if not isinstance(name, str) or not name.strip():
        raise ConfigError(f'{path}: the name is missing; write name = "..."')
    if share is not None and (not isinstance(share, int) or isinstance(share, bool) or share < 0):
        raise ConfigError(f"{path}: share = {share!r}: expected an integer >= 0")
    folder = path.resolve().parent
    data = _table(settings, "data", path)
    require_agreed_range(data.get("task"), data.get("output_range"), str(path))
    raw = _table(settings, "features", path)
    if isinstance(data.get("source"), str):
        data["source"] = found(data["source"], folder)
    return SiteSettings(
        name=_site_name(name, f"{path}: name"),
        folder=folder,
        data=build(Data, data, "data"),
        share=share,
        grid=build(Grid, _table(settings, "grid", path), "grid"),
        features=build(Raw, raw, "features") if raw else None,
        accept=build(SitePolicy, _table(settings, "accept", path), "accept"),
        classes=_classes(settings, path),
    )


def _site_name(name: str, where: str) -> str:
    try:
        return clean_name(name, where)
    except DataError as error:
        raise ConfigError(str(error)) from error


def _classes(settings: dict[str, Any], path: Path) -> tuple[str, ...]:
    found = settings.get("classes", [])
    if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
        raise ConfigError(f"{path}: classes: expected a list of names")
    if len(set(found)) < len(found):
        raise ConfigError(f"{path}: classes: expected every name once")
    return tuple(found)


def registered(folder: Path) -> dict[str, int]:
    """Return the node of each site's key; empty where sites have no keys."""
    path = folder / NODES
    if not path.is_file():
        return {}
    try:
        found = {name: entry["node"] for name, entry in read_object(path).items()}
        if not all(type(node) is int for node in found.values()):
            raise TypeError("a node is not an integer")
        return found
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"{path}: not a list of registered sites ({error}); delete it and the server's "
            "state.db, and register the sites again"
        ) from error


def found(source: str, folder: Path) -> str:
    """Return a source; a path relative to the folder becomes one that can be opened from here."""
    path = folder / source
    return str(path) if os.path.exists(path) else source  # never raises, also for invalid names


def plain_grid(grid: Grid) -> dict[str, Any]:
    """Return the settings of a grid in the form that server and site compare."""
    return {**asdict(grid), "clip": grid.reach}


def _table(settings: dict[str, Any], name: str, path: Path) -> dict[str, Any]:
    table = settings.get(name, {})
    if not isinstance(table, dict):
        raise ConfigError(f"{path}: {name}: expected a table")
    return dict(table)
