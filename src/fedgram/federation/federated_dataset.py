"""A data set on the grid, partitioned over sites."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from fedgram.core.samples import Labels, Samples, concatenate
from fedgram.core.segments import Segments
from fedgram.data.batches import dataset_batches
from fedgram.data.dataset import TEST, Dataset
from fedgram.data.partition import Partition, partition
from fedgram.data.plan import PartitionPlan
from fedgram.data.sources import load_dataset
from fedgram.errors import DataError, RowError
from fedgram.features.grid import Grid
from fedgram.federation.client import Site
from fedgram.federation.sites import Sites


@dataclass(frozen=True, eq=False, kw_only=True)
class FederatedDataset:
    """The members of a federation, the held-out clients, and the test samples of all.

    Examples
    --------
    >>> from fedgram.data.sources import load_dataset
    >>> [site.id for site in federate(load_dataset("digits"), PartitionPlan(clients=3)).members]
    ['c0', 'c1', 'c2']
    """

    members: Sequence[Site]
    holdout: Sequence[Site]
    test: Samples

    @property
    def reserves_valid(self) -> bool:
        """Whether validation samples are for model selection only, with any method."""
        return Sites.of(self.members).reserve_valid


def gridded(data: Dataset, grid: Grid) -> Samples:
    """Return all samples of a data set on the grid; errors name the invalid row and its client."""
    if data.grid is not None:
        if (grid.bits, grid.reach) != data.grid:
            bits, clip = data.grid
            raise DataError(
                f"{data.name}: the features were stored on a grid of {bits} bits, clip {clip:g}; "
                f"set grid.bits={bits} and grid.clip={clip:g}, or extract them again"
            )
        whole = np.issubdtype(data.x.dtype, np.integer)
        if not whole or np.abs(data.x.astype(np.int64)).max(initial=0) > grid.bound:
            raise DataError(
                f"{data.name}: the features are not on the grid that the file names; "
                "extract them again"
            )
        stored = grid.stored(data.x, backbone=data.backbone)
        return Samples(stored, Labels(data.y, data.classes))
    try:
        features = grid(data.x, scale=data.scale, offset=data.offset, backbone=data.backbone)
    except RowError as error:
        client = "" if data.client is None else f"client {data.client[error.row]}: "
        raise DataError(f"{data.name}: {client}{error}") from error
    return Samples(features, Labels(data.y, data.classes))


def training_batches(source: str, grid: Grid) -> Iterator[Samples]:
    """Yield the samples of a site's file on the grid without test samples, in batches of rows.

    On the grid, sums over batches equal the sum over all rows to the bit. Without a grid the file
    is one batch, because rounding errors would depend on the batches.

    Examples
    --------
    >>> [len(samples) for samples in training_batches("digits", Grid())]
    [1797]
    """
    found = False
    for data in dataset_batches(source) if grid.bound else [load_dataset(source)]:
        samples = gridded(data, grid)
        if data.split is not None:
            samples = samples.take(np.flatnonzero(data.split != TEST))
        if len(samples):
            found = True
            yield samples
    if not found:
        raise DataError(f"{source}: no training samples; check the array 'split'")


def federate(
    data: Dataset, plan: PartitionPlan | None = None, grid: Grid | None = None
) -> FederatedDataset:
    """Put the data on the grid and partition them over sites.

    Parameters
    ----------
    data
        The data set.
    plan
        How to partition the data; by default `PartitionPlan()`.
    grid
        The grid; by default `Grid()`.

    Examples
    --------
    >>> from fedgram.data.sources import load_dataset
    >>> dataset = federate(load_dataset("digits"), PartitionPlan(clients=4, holdout_clients=1))
    >>> len(dataset.members), len(dataset.holdout), len(dataset.test)
    (3, 1, 450)
    """
    plan = plan or PartitionPlan()
    everything = gridded(data, grid or Grid())
    shares = partition(data, plan)

    def sites_of(chosen: Partition) -> tuple[Sites, Samples]:
        train, valid, test = (
            Segments.of(everything.take(rows.indices), rows.counts)
            for rows in (chosen.train, chosen.valid, chosen.test)
        )
        reserve = plan.reserve_valid
        sites = Sites(chosen.names, train=train, valid=valid, test=test, reserve_valid=reserve)
        return sites, test.samples

    members, test = sites_of(shares.select(~shares.held_out))
    holdout, late = sites_of(shares.select(shares.held_out))
    everyones = concatenate([test, late]) if len(late) else test
    return FederatedDataset(members=members, holdout=holdout, test=everyones)
