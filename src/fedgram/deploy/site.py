"""A running site: its samples, whose features are extracted if necessary, and its endpoint."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from fedgram.data.dataset import TEST, TRAIN, VALID
from fedgram.data.items import Columns, read_items
from fedgram.data.partition import fixed_split
from fedgram.deploy.folders import SiteFolder, federation_digest
from fedgram.deploy.settings import Raw, SiteSettings, found, plain_grid
from fedgram.engines.remote.policy import SitePolicy
from fedgram.engines.remote.site import SiteEndpoint, relabel
from fedgram.errors import ConfigError, DataError
from fedgram.experiments.config import Config
from fedgram.features.backbones import find
from fedgram.features.backbones.registry import DEFAULTS
from fedgram.features.extract import Extraction
from fedgram.federation.client import Site
from fedgram.federation.federated_dataset import federate, gridded
from fedgram.runtime import files
from fedgram.secure.messages import Signer

CACHE = "cache"


def office(settings: SiteSettings) -> SiteEndpoint:
    """Return the endpoint of a site."""
    site = SiteFolder(folder=settings.folder)
    return SiteEndpoint(
        settings.name,
        lambda: site_of(settings),
        grid=plain_grid(settings.grid),
        folder=settings.folder / CACHE,
        accept=settings.accept,
        signer=_signer(site, compared=settings.accept.compared),
        federation=federation_digest(site.root),
    )


def _signer(site: SiteFolder, *, compared: bool) -> Signer | None:
    """Return what signs for a site; without its package there are no secure sums anyway."""
    try:
        from fedgram.deploy.pins import site_signer
    except ModuleNotFoundError:
        return None
    return site_signer(site, compared=compared)


def simulated(config: Config, share: int, folder: Path) -> SiteEndpoint:
    """Return the endpoint of one client of a partitioned data set.

    Parameters
    ----------
    config
        The settings of the run.
    share
        Number of the client.
    folder
        Folder for the caches of simulated sites.
    """
    clients = federate(config.data.load(), config.data, config.grid).members
    if not 0 <= share < len(clients):
        raise ConfigError(
            f"node {share} has no samples: the data are partitioned over {len(clients)} clients; "
            "use the same number of nodes"
        )
    site = clients[share]
    return SiteEndpoint(
        site.id,
        lambda: site,
        grid=plain_grid(config.grid),
        folder=folder / site.id / CACHE,
        # Nobody is protected from the machine that simulates: members may differ as they like.
        accept=SitePolicy(difference=0, threshold=0.5),
    )


def site_of(settings: SiteSettings) -> Site:
    """Return the site's samples on its grid, split into train, valid and test."""
    source = settings.data.source
    if settings.features is not None:
        source = str(_extracted(settings.features, settings))
    data = replace(settings.data, source=source).load()
    if settings.share is not None:
        members = federate(data, settings.data, settings.grid).members
        if settings.share >= len(members):
            raise ConfigError(f"share = {settings.share}: the partition has {len(members)} clients")
        return _declared(members[settings.share], settings.classes)
    samples, split = gridded(data, settings.grid), fixed_split(data, settings.data)
    if not np.any(split == TRAIN):
        raise DataError(f"{source}: no training samples; check the array 'split'")
    train, valid, test = (
        samples.take(np.flatnonzero(split == part)) for part in (TRAIN, VALID, TEST)
    )
    site = Site(id=settings.name, train=train, valid=valid, test=test)
    return _declared(site, settings.classes)


def _declared(site: Site, classes: tuple[str, ...]) -> Site:
    """Return the site with the class list of its settings, if there is one."""
    if not classes:
        return site
    train, valid, test = (relabel(part, classes) for part in (site.train, site.valid, site.test))
    return replace(site, train=train, valid=valid, test=test)


def _extracted(raw: Raw, settings: SiteSettings) -> Path:
    """Extract the features of a site's images or texts; finished parts are not repeated."""
    columns = Columns(text=raw.text or None, label=raw.label)
    items = read_items(found(raw.source, settings.folder), columns)
    weights = settings.folder / raw.weights if raw.weights else None
    backbone = find(raw.backbone or DEFAULTS[items.kind], weights)
    out = settings.folder / CACHE / "features.npz"
    files.write_folder(out.parent)
    Extraction(backbone=backbone, grid=settings.grid).run(items, out)
    return out
