"""Number of samples of each class at each client."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Literal

import numpy as np

from fedgram.core.samples import Integers, Samples
from fedgram.data.dataset import Dataset
from fedgram.data.partition import ClientIndices
from fedgram.federation.federated_dataset import FederatedDataset

FORMAT = 1
Part = Literal["train", "valid", "test"]
Counts = tuple[int, ...]


STRENGTHS = {  # the setting that goes with each partition's name
    "dirichlet": "dirichlet",
    "quantity": "dirichlet",
    "shards": "shards",
    "classes": "classes_per_client",
}


def partition_name(data: Mapping[str, Any]) -> str:
    """Return a partition's name with its strength, from the settings of [data].

    Examples
    --------
    >>> partition_name({"partition": "dirichlet", "dirichlet": 0.1}), partition_name({})
    ('dirichlet 0.1', '')
    """
    kind = str(data.get("partition", ""))
    strength = data.get(STRENGTHS.get(kind, ""))
    return kind if strength is None else f"{kind} {strength}"


@dataclass(frozen=True, kw_only=True)
class ClientCounts:
    """One client's samples, by class."""

    client: str
    holdout: bool
    train: Counts
    valid: Counts
    test: Counts

    @property
    def classes(self) -> int:
        """Number of classes among the training samples."""
        return sum(count > 0 for count in self.train)


@dataclass(frozen=True, kw_only=True)
class PartitionSummary:
    """Number of samples per client and class: what a partition looks like.

    Class counts reveal what a client has. A private federation has no summary.

    Examples
    --------
    >>> from fedgram.data.partition import partition
    >>> from fedgram.data.plan import PartitionPlan
    >>> from fedgram.data.sources import load_dataset
    >>> digits, plan = load_dataset("digits"), PartitionPlan(clients=5, partition="shards")
    >>> found = summary_of_indices(digits, partition(digits, plan))
    >>> found.clients[0].client, found.clients[0].train
    ('c0', (0, 0, 0, 135, 1, 134, 0, 0, 0, 0))
    >>> found.summary()["train"]
    {'min': 269, 'median': 269, 'max': 270, 'total': 1347}
    """

    classes: tuple[str, ...]
    clients: tuple[ClientCounts, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the counts as plain numbers and texts, for JSON."""
        clients = [{**asdict(c), **_listed(c)} for c in self.clients]
        return {"format": FORMAT, "classes": list(self.classes), "clients": clients}

    @classmethod
    def read(cls, plain: Mapping[str, Any]) -> PartitionSummary:
        """Return the counts that `to_dict` gave; anything else raises ValueError."""
        if plain.get("format") != FORMAT:
            raise ValueError(f"format {plain.get('format')}, this fedgram reads format {FORMAT}")
        try:
            classes = tuple(str(name) for name in plain["classes"])
            clients = tuple(_client(entry, len(classes)) for entry in plain["clients"])
        except (KeyError, TypeError) as error:
            raise ValueError(f"it lacks {error}") from error
        if not classes or not clients:
            raise ValueError("it has no classes or no clients")
        return cls(classes=classes, clients=clients)

    def summary(self) -> dict[str, dict[str, float]]:
        """Return the smallest, median and largest client, by samples and by classes."""
        sizes = {
            part: [sum(getattr(client, part)) for client in self.clients]
            for part in ("train", "valid", "test")
        }
        ranges = {
            part: {**_min_median_max(found), "total": sum(found)} for part, found in sizes.items()
        }
        return {**ranges, "classes": _min_median_max([client.classes for client in self.clients])}


def summary_of_indices(data: Dataset, shares: Iterable[ClientIndices]) -> PartitionSummary:
    """Count the classes of every client's share of a data set."""

    def counted(indices: Integers) -> Counts:
        return _counted(data.y[indices], len(data.classes))

    clients = [
        ClientCounts(
            client=share.id,
            holdout=share.holdout,
            train=counted(share.train),
            valid=counted(share.valid),
            test=counted(share.test),
        )
        for share in shares
    ]
    return PartitionSummary(classes=data.classes, clients=tuple(clients))


def summary_of(sites: FederatedDataset) -> PartitionSummary:
    """Count the classes of every site's samples; the sites may list their classes differently."""
    all_sites = [(site, False) for site in sites.members] + [(site, True) for site in sites.holdout]
    lists = (
        part.labels.classes for site, _ in all_sites for part in (site.train, site.valid, site.test)
    )
    classes = tuple(dict.fromkeys(name for names in lists for name in names))

    def counted(samples: Samples) -> Counts:
        return _counted(samples.labels.relabel(classes).codes, len(classes))

    clients = [
        ClientCounts(
            client=site.id,
            holdout=holdout,
            train=counted(site.train),
            valid=counted(site.valid),
            test=counted(site.test),
        )
        for site, holdout in all_sites
    ]
    return PartitionSummary(
        classes=classes, clients=tuple(sorted(clients, key=lambda client: client.client))
    )


def _counted(codes: Integers, classes: int) -> Counts:
    return tuple(np.bincount(codes, minlength=classes).tolist())


def _listed(client: ClientCounts) -> dict[Part, list[int]]:
    return {"train": list(client.train), "valid": list(client.valid), "test": list(client.test)}


def _client(entry: Mapping[str, Any], classes: int) -> ClientCounts:
    parts = {part: tuple(entry[part]) for part in ("train", "valid", "test")}
    counts = [count for part in parts.values() for count in part]
    if not all(type(count) is int and 0 <= count < 2**53 for count in counts):
        raise TypeError(f"client {entry['client']} has a count that is not an integer >= 0")
    if any(len(counts) != classes for counts in parts.values()):
        raise ValueError(f"client {entry['client']} has counts of other than {classes} classes")
    return ClientCounts(client=str(entry["client"]), holdout=bool(entry["holdout"]), **parts)


def _min_median_max(values: Sequence[int]) -> dict[str, float]:
    return {"min": min(values), "median": median(values), "max": max(values)}
