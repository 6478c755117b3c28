"""A site as it runs: its samples, made into features if need be, behind an office."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedgram.data.dataset import TEST, TRAIN, VALID
from fedgram.data.items import Columns, read_items
from fedgram.data.partition import fixed_split
from fedgram.data.sources import load_dataset
from fedgram.deploy.settings import Raw, SiteSettings, found, plain_grid
from fedgram.engines.remote.site import SiteEndpoint, SitePolicy
from fedgram.errors import ConfigError, DataError
from fedgram.experiments.config import Config
from fedgram.features.backbones import find
from fedgram.features.backbones.registry import DEFAULTS
from fedgram.features.extract import Extraction
from fedgram.federation.client import Site
from fedgram.federation.federated_dataset import federate, gridded

CACHE = "cache"


def office(settings: SiteSettings) -> SiteEndpoint:
    """Return the office of a site."""
    return SiteEndpoint(
        settings.name,
        lambda: site_of(settings),
        grid=plain_grid(settings.grid),
        folder=settings.folder / CACHE,
        accept=settings.accept,
    )


def simulated(config: Config, share: int, folder: Path) -> SiteEndpoint:
    """Return the office of one of the clients that a data set is dealt to."""
    everybody = federate(load_dataset(config.data.source), config.data, config.grid).members
    if not 0 <= share < len(everybody):
        raise ConfigError(
            f"node {share} has no share: the data are dealt to {len(everybody)} clients; use as "
            "many nodes"
        )
    site = everybody[share]
    return SiteEndpoint(
        site.id,
        lambda: site,
        grid=plain_grid(config.grid),
        folder=folder / site.id / CACHE,
        accept=SitePolicy(),
    )


def site_of(settings: SiteSettings) -> Site:
    """Return the site's samples on its grid, split into train, valid and test."""
    source = settings.data.source
    if settings.features is not None:
        source = str(_extracted(settings.features, settings))
    data = load_dataset(source)
    if settings.share is not None:
        members = federate(data, settings.data, settings.grid).members
        if settings.share >= len(members):
            raise ConfigError(f"share = {settings.share}: there are {len(members)} dealt clients")
        return members[settings.share]
    samples, split = gridded(data, settings.grid), fixed_split(data, settings.data)
    if not np.any(split == TRAIN):
        raise DataError(f"{source}: there are no training samples; check its 'split'")
    train, valid, test = (
        samples.take(np.flatnonzero(split == part)) for part in (TRAIN, VALID, TEST)
    )
    return Site(id=settings.name, train=train, valid=valid, test=test)


def _extracted(raw: Raw, settings: SiteSettings) -> Path:
    """Make features of a site's own images or texts; what is there already is not made again."""
    columns = Columns(text=raw.text or None, label=raw.label)
    items = read_items(found(raw.source, settings.folder), columns)
    weights = settings.folder / raw.weights if raw.weights else None
    backbone = find(raw.backbone or DEFAULTS[items.kind], weights)
    out = settings.folder / CACHE / "features.npz"
    out.parent.mkdir(parents=True, exist_ok=True)
    Extraction(backbone=backbone, grid=settings.grid).run(items, out)
    return out
