"""How a data set is split and dealt, as settings."""

from __future__ import annotations

from dataclasses import dataclass

from fedgram.errors import ConfigError
from fedgram.runtime.settings import propose

PARTITIONS = ("iid", "dirichlet", "quantity", "shards", "classes", "domain", "given")


@dataclass(frozen=True, kw_only=True)
class PartitionPlan:
    """How to split and deal a data set.

    Parameters
    ----------
    clients
        Number of clients; None means 20, one per domain, or those the data name.
    partition
        iid, dirichlet (label skew), quantity (sizes differ, mixes do not), shards (pieces of the
        samples in class order), classes (so many classes each), domain, or given (by the data).
    dirichlet
        Concentration of the label or quantity skew: small is strong.
    equal_sizes
        With dirichlet: give all clients equally many samples. Then every client draws its mix of
        classes; else every class draws its mix of clients, and sizes differ.
    minimum
        Training samples that every client has at least (with the split "within-client": samples,
        before the split); the largest clients give them away.
    shards
        Shards per client.
    classes_per_client
        With classes: how many classes a client has.
    seed
        Of split and partition.
    split
        "global" fixes train and test first, the same whatever the partition; "within-client"
        partitions all samples and then splits in each client, as the papers do.
    test_fraction
        Share of test samples where the data bring no split of their own.
    valid_fraction
        Share of the training samples kept for choices, where the data bring none.
    reserve_valid
        Keep validation samples for choices only. Else methods that have nothing to choose on them
        train on them too.
    holdout_clients
        Clients that take no part in training and get a personal model afterwards.

    Examples
    --------
    >>> PartitionPlan(partition="shards", clients=10).shards
    2
    >>> PartitionPlan(partition="shard")
    Traceback (most recent call last):
    ...
    fedgram.errors.ConfigError: data.partition = 'shard' is not known; did you mean 'shards'?
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

    def __post_init__(self) -> None:
        if self.partition not in PARTITIONS:
            hint = propose(self.partition, PARTITIONS)
            raise ConfigError(f"data.partition = {self.partition!r} is not known; {hint}")
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
