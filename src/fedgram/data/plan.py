"""Settings of a partition: how a data set is split and distributed over clients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedgram.errors import ConfigError
from fedgram.runtime.settings import propose

PARTITIONS = ("iid", "dirichlet", "quantity", "shards", "classes", "domain", "given")


@dataclass(frozen=True, kw_only=True)
class PartitionPlan:
    """How to split a data set and distribute its samples over clients.

    Parameters
    ----------
    clients
        Number of clients; None means 20, one per domain, or the clients named in the data.
    partition
        iid, dirichlet (label skew), quantity (sizes differ, class frequencies do not), shards
        (contiguous pieces of the samples in class order), classes (a fixed number of classes per
        client), domain, or given (by the data).
    dirichlet
        Concentration of the label or quantity skew: a small value is a strong skew.
    equal_sizes
        With dirichlet: the same number of samples for all clients. Then class frequencies are drawn
        for each client; otherwise client frequencies are drawn for each class, and sizes differ.
    minimum
        Minimum number of training samples per client (with the split "within-client": of samples,
        before the split). Smaller clients receive samples from the largest ones.
    shards
        Number of shards per client.
    classes_per_client
        With classes: number of classes per client.
    seed
        Seed of the split and the partition.
    split
        "global" fixes train and test first, independent of the partition; "within-client"
        partitions all samples and then splits the samples of each client, as the papers do.
    test_fraction
        Fraction of test samples, if the data have no split of their own.
    valid_fraction
        Fraction of the training samples in the validation split, if the data have none.
    reserve_valid
        Keep the validation split out of training for all methods. Otherwise methods without a
        choice to make on validation samples train on these samples too.
    holdout_clients
        Number of clients that take no part in training and get a personal model afterwards.
    standardize
        Standardize raw columns, by means and deviations from exact sums over the training samples.
        false leaves them as they are. Without it, the data decide: columns are not standardized,
        and columns that the grid would lose are an error.

    Examples
    --------
    >>> PartitionPlan(partition="shards", clients=10).shards
    2
    >>> PartitionPlan(partition="shard")
    Traceback (most recent call last):
    ...
    fedgram.errors.ConfigError: data.partition = 'shard': unknown; did you mean 'shards'?
    """

    clients: int | None = None
    partition: str = "dirichlet"
    dirichlet: float = 0.1
    equal_sizes: bool = False
    minimum: int = 1
    shards: int = 2
    classes_per_client: int = 2
    seed: int = 0
    split: str = "global"
    test_fraction: float = 0.25
    valid_fraction: float = 0.0
    reserve_valid: bool = False
    holdout_clients: int = 0
    standardize: bool | None = None

    def __post_init__(self) -> None:
        if self.partition not in PARTITIONS:
            hint = propose(self.partition, PARTITIONS)
            raise ConfigError(f"data.partition = {self.partition!r}: unknown; {hint}")
        if self.split not in ("global", "within-client"):
            raise ConfigError(f"data.split = {self.split!r}: use 'global' or 'within-client'")
        if not 0 < self.dirichlet < float("inf"):
            raise ConfigError(f"data.dirichlet = {self.dirichlet}: use a number > 0")
        if not 0 < self.test_fraction < 1:
            raise ConfigError(f"data.test_fraction = {self.test_fraction}: use 0 < fraction < 1")
        if not 0 <= self.valid_fraction < 1:
            raise ConfigError(f"data.valid_fraction = {self.valid_fraction}: use 0 <= share < 1")
        counts = {"clients": 1, "shards": 1, "classes_per_client": 1, "minimum": 1}
        for name, least in {**counts, "seed": 0, "holdout_clients": 0}.items():
            value = getattr(self, name)
            if value is not None and value < least:
                wanted = "at least 1" if least else "0 or more"
                raise ConfigError(f"data.{name} = {value}: use {wanted}")


def stated(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return recorded settings of a plan without those added later that are not set.

    Studies find their earlier runs by the recorded settings.

    Examples
    --------
    >>> stated({"clients": 5, "standardize": None}), stated({"standardize": True})
    ({'clients': 5}, {'standardize': True})
    """
    return {key: value for key, value in settings.items() if key not in _ADDED or value is not None}


_ADDED = ("standardize", "task", "output_range")
