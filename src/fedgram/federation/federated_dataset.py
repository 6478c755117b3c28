"""A data set on the grid, partitioned over sites."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from fedgram.core.samples import Labels, Samples, concatenate
from fedgram.core.segments import Segments
from fedgram.data.batches import dataset_batches
from fedgram.data.dataset import REGRESSION, TEST, Dataset
from fedgram.data.partition import Partition, partition
from fedgram.data.plan import PartitionPlan
from fedgram.data.sources import load_dataset
from fedgram.errors import ConfigError, DataError
from fedgram.features.column_order import places
from fedgram.features.grid import Grid
from fedgram.features.inputs import Inputs
from fedgram.features.standardize import Standardization, require_kept
from fedgram.features.stored import features_of
from fedgram.federation.client import Site
from fedgram.federation.sites import Sites
from fedgram.runtime.settings import build, propose
from fedgram.runtime.text import escaped


@dataclass(frozen=True, eq=False, kw_only=True)
class Origin:
    """What a federated data set was made of.

    Parameters
    ----------
    data, plan, grid
        The data set, how it was partitioned, and the grid.
    inputs
        What turns arrays into features of this federation, for new samples.
    """

    data: Dataset
    plan: PartitionPlan
    grid: Grid
    inputs: Inputs


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class FederatedDataset:
    """The members of a federation, the held-out clients, and the test samples of all.

    Parameters
    ----------
    members
        The clients.
    holdout
        Clients that take no part in training.
    test
        The test samples of all clients.
    made
        What it was made of, if `federate` made it.

    Examples
    --------
    >>> from fedgram.data.sources import load_dataset
    >>> [site.id for site in federate(load_dataset("digits"), PartitionPlan(clients=3)).members]
    ['c0', 'c1', 'c2']
    """

    members: Sequence[Site]
    holdout: Sequence[Site]
    test: Samples
    made: Origin | None = None

    def __repr__(self) -> str:
        held = f", {len(self.holdout)} held out" if len(self.holdout) else ""
        data = f"{escaped(self.made.data.name)}: " if self.made else ""
        train = int(Sites.of(self.members).train.counts.sum())
        return (
            f"FederatedDataset({data}{len(self.members)} clients{held}, {train} training and "
            f"{len(self.test)} test samples)"
        )

    def _repr_html_(self) -> str:
        return f"<code>{html.escape(repr(self))}</code>"

    @property
    def reserves_valid(self) -> bool:
        """Whether validation samples are for model selection only, with any method."""
        return Sites.of(self.members).reserve_valid


def gridded(data: Dataset, grid: Grid, scaling: Standardization | None = None) -> Samples:
    """Return all samples of a data set on the grid; errors name the invalid row and its client.

    Raw columns are standardized first, if a standardization is given.
    """
    return Samples(features_of(data, grid, scaling), _labels(data))


def _labels(data: Dataset) -> Labels:
    return Labels(data.y, data.classes) if data.targets is None else data.targets


def training_batches(
    source: str,
    grid: Grid,
    *,
    scaling: Standardization | None = None,
    columns: Sequence[str] = (),
    output_range: Sequence[Any] | None = None,
) -> Iterator[Samples]:
    """Yield the samples of a site's file on the grid without test samples, in batches of rows.

    On the grid, sums over batches equal the sum over all rows to the bit. Without a grid the file
    is one batch, because rounding errors would depend on the batches; so is that of a regression.

    Parameters
    ----------
    source
        As in `load_dataset`.
    grid
        The grid.
    scaling
        Standardizes raw columns.
    columns
        Names of the columns, in the order of the features, of files that have such names.
    output_range
        For a regression the lowest and highest possible value of the outputs, as in `load_dataset`.

    Examples
    --------
    >>> [len(samples) for samples in training_batches("digits", Grid())]
    [1797]
    """
    found = False
    if output_range is not None:
        batches = iter([load_dataset(source, task=REGRESSION, output_range=output_range)])
    else:
        batches = dataset_batches(source) if grid.bound else iter([load_dataset(source)])
    for data in batches:
        if columns and data.columns:
            order = places(columns, data.columns, source)
            data = replace(data, x=data.x[:, order], columns=tuple(columns))
        samples = gridded(data, grid, scaling)
        if data.split is not None:
            samples = samples.take(np.flatnonzero(data.split != TEST))
        if len(samples):
            found = True
            yield samples
    if not found:
        raise DataError(f"{source}: no training samples; check the array 'split'")


def federate(
    data: Dataset, plan: PartitionPlan | None = None, grid: Grid | None = None, **settings: Any
) -> FederatedDataset:
    """Put the data on the grid and partition them over clients.

    Without a plan and settings, clients are those that the data name, each with a quarter of its
    samples for tests; without names, 20 clients are drawn as by `PartitionPlan()`.

    Parameters
    ----------
    data
        The data set.
    plan
        How to partition the data. Instead of a plan, its fields can be given as settings.
    grid
        The grid; by default `Grid()`.
    **settings
        Fields of `PartitionPlan`, such as ``clients=20, partition="dirichlet", seed=0``; `alpha`
        is the concentration of the Dirichlet distribution.

    Examples
    --------
    >>> from fedgram.data.sources import load_dataset
    >>> digits = load_dataset("digits")
    >>> federate(digits, clients=20, partition="dirichlet", alpha=0.1, seed=0)
    FederatedDataset(digits: 20 clients, 1347 training and 450 test samples)
    >>> federate(digits, PartitionPlan(clients=4, holdout_clients=1))
    FederatedDataset(digits: 3 clients, 1 held out, 1154 training and 450 test samples)
    >>> federate(Dataset([[0, 1], [1, 0]] * 4, ["a", "b"] * 4, ["n", "n", "s", "s"] * 2,
    ...     standardize=True))
    FederatedDataset(data: 2 clients, 6 training and 2 test samples)
    >>> federate(digits, clints=20)
    Traceback (most recent call last):
    ...
    fedgram.errors.ConfigError: clints: not a setting of federate(); did you mean 'clients'?
    """
    if not isinstance(data, Dataset):
        raise DataError(f"data: expected a Dataset, got {type(data).__name__}; use Dataset(X, y)")
    plan, grid = _plan(data, plan, settings), grid or Grid()
    shares = partition(data, plan)
    standardize = data.standardize if plan.standardize is None else plan.standardize
    scaling = None
    if standardize:
        training = shares.train.indices[np.repeat(~shares.held_out, shares.train.counts)]
        scaling = Standardization.of(data.x[training])
    everything = gridded(data, grid, scaling)
    if standardize is None and not data.backbone and data.grid is None and data.scale is None:
        require_kept(data.x, grid, data.name, data.columns)

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
    inputs = Inputs(
        space=everything.features.space,
        columns=data.columns,
        standardization=scaling,
        scale=data.scale,
        offset=data.offset,
    )
    made = Origin(data=data, plan=plan, grid=grid, inputs=inputs)
    return FederatedDataset(members=members, holdout=holdout, test=everyones, made=made)


def _plan(data: Dataset, plan: PartitionPlan | None, settings: Mapping[str, Any]) -> PartitionPlan:
    """Return the plan, or one of the settings; without both, of the clients that the data name."""
    if plan is not None and not isinstance(plan, PartitionPlan):
        raise ConfigError(
            f"plan: expected a PartitionPlan, got {type(plan).__name__}; name settings, as in "
            "federate(data, clients=20)"
        )
    known = [*(each.name for each in fields(PartitionPlan)), "alpha"]
    unknown = next((key for key in settings if key not in known), None)
    if unknown is not None:
        raise ConfigError(f"{unknown}: not a setting of federate(); {propose(unknown, known)}")
    if "alpha" in settings:
        if "dirichlet" in settings:
            raise ConfigError("alpha: expected alpha or dirichlet, got both")
        settings = {**settings, "dirichlet": settings["alpha"]}
        settings.pop("alpha")
    if plan is not None:
        return build(PartitionPlan, settings, "data", default=plan) if settings else plan
    partitions = {"clients", "partition", "dirichlet"}
    if data.client is not None and partitions.isdisjoint(settings):
        settings = {"partition": "given", **settings}
        if data.split is None:
            settings = {"split": "within-client", **settings}
    made: PartitionPlan = build(PartitionPlan, settings, "data")
    return made
