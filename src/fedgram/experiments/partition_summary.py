"""Number of samples of each class at each client."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from statistics import median
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedgram.core.samples import Integers
from fedgram.core.segments import Segments
from fedgram.data.dataset import Dataset
from fedgram.data.partition import ClientRows, Partition
from fedgram.federation.federated_dataset import FederatedDataset
from fedgram.federation.sites import Sites
from fedgram.runtime.lazy_sequence import LazySequence

FORMAT = 1
Part = Literal["train", "valid", "test"]
PARTS: tuple[Part, ...] = ("train", "valid", "test")
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
    clients: Sequence[ClientCounts]

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
        found = self.clients
        if isinstance(found, CountedClients):
            sizes, classes = found.sizes(), found.numbers_of_classes()
        else:
            sizes = {part: [sum(getattr(client, part)) for client in found] for part in PARTS}
            classes = [client.classes for client in found]
        ranges: dict[str, dict[str, float]] = {
            part: {**_min_median_max(counts), "total": sum(counts)}
            for part, counts in sizes.items()
        }
        return {**ranges, "classes": _min_median_max(classes)}


@dataclass(frozen=True, eq=False, kw_only=True)
class PartCodes:
    """The class codes of one part of all clients' samples; those of a client are together."""

    codes: Integers
    starts: Integers
    counts: Integers

    @classmethod
    def of(cls, codes: Integers, counts: Integers) -> PartCodes:
        """Return the codes of clients that follow each other."""
        return cls(codes=codes, starts=np.cumsum(counts) - counts, counts=counts)

    def of_client(self, client: int) -> Integers:
        """Return the codes of one client."""
        start = self.starts[client]
        return self.codes[start : start + self.counts[client]]

    def select(self, order: Integers) -> PartCodes:
        """Return the clients in this order."""
        return replace(self, starts=self.starts[order], counts=self.counts[order])

    def joined(self, other: PartCodes) -> PartCodes:
        """Return these clients and then others."""
        if not len(other.counts):
            return self
        return PartCodes(
            codes=np.concatenate([self.codes, other.codes]),
            starts=np.concatenate([self.starts, other.starts + len(self.codes)]),
            counts=np.concatenate([self.counts, other.counts]),
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class CountedClients(LazySequence[ClientCounts]):
    """Clients whose classes are counted when they are asked for: there may be a million."""

    names: Sequence[str]
    held_out: NDArray[np.bool_]
    classes: int
    parts: Mapping[Part, PartCodes]

    def __len__(self) -> int:
        return len(self.names)

    def make(self, place: int) -> ClientCounts:
        """Return the counts of one client."""
        counts = {
            part: _counted(found.of_client(place), self.classes)
            for part, found in self.parts.items()
        }
        held = bool(self.held_out[place])
        return ClientCounts(client=self.names[place], holdout=held, **counts)

    def sizes(self) -> dict[Part, list[int]]:
        """Return the number of samples of each client."""
        return {part: found.counts.tolist() for part, found in self.parts.items()}

    def numbers_of_classes(self) -> list[int]:
        """Return the number of classes among each client's training samples."""
        train = self.parts["train"]
        owners = np.empty(len(train.codes), np.int64)
        order = np.argsort(train.starts, kind="stable")  # of clients without samples, any
        owners[:] = np.repeat(order, train.counts[order])
        present = np.unique(owners * self.classes + train.codes) // self.classes
        numbers: list[int] = np.bincount(present, minlength=len(self)).tolist()
        return numbers

    def sorted(self) -> CountedClients:
        """Return the clients in the order of their names."""
        if not any(map(operator.gt, self.names, islice(self.names, 1, None))):
            return self
        order = np.array(sorted(range(len(self)), key=self.names.__getitem__))
        return replace(
            self,
            names=[self.names[k] for k in order],
            held_out=self.held_out[order],
            parts={part: found.select(order) for part, found in self.parts.items()},
        )


def summary_of_indices(data: Dataset, shares: Partition) -> PartitionSummary:
    """Count the classes of every client's share of a data set."""
    rows: dict[Part, ClientRows] = {
        "train": shares.train,
        "valid": shares.valid,
        "test": shares.test,
    }
    parts = {part: PartCodes.of(data.y[one.indices], one.counts) for part, one in rows.items()}
    clients = CountedClients(
        names=shares.names, held_out=shares.held_out, classes=len(data.classes), parts=parts
    )
    return PartitionSummary(classes=data.classes, clients=clients)


def _rows(shares: Partition, part: Part) -> ClientRows:
    rows: ClientRows = getattr(shares, part)
    return rows


def summary_of(sites: FederatedDataset) -> PartitionSummary:
    """Count the classes of every site's samples; the sites may list their classes differently."""
    groups = [Sites.of(sites.members), Sites.of(sites.holdout)]
    lists = dict.fromkeys(
        c for group in groups for part in PARTS for c in _class_lists(group, part)
    )
    classes = tuple(dict.fromkeys(name for names in lists for name in names))
    parts = {
        part: _codes(groups[0], part, classes).joined(_codes(groups[1], part, classes))
        for part in PARTS
    }
    clients = CountedClients(
        names=[*groups[0].names, *groups[1].names] if len(groups[1]) else groups[0].names,
        held_out=np.repeat([False, True], [len(group) for group in groups]),
        classes=len(classes),
        parts=parts,
    )
    return PartitionSummary(classes=classes, clients=clients.sorted())


def _class_lists(group: Sites, part: Part) -> Iterable[tuple[str, ...]]:
    """Return the class lists of the samples of sites: one, if the samples are in one block."""
    found = getattr(group, part)
    if isinstance(found, Segments):
        return [found.samples.labels.classes]
    return [found[k].labels.classes for k in range(len(group))]


def _codes(group: Sites, part: Part, classes: tuple[str, ...]) -> PartCodes:
    found = getattr(group, part)
    if isinstance(found, Segments):
        codes = found.samples.labels.relabel(classes).codes
        return PartCodes(codes=codes, starts=found.starts, counts=found.counts)
    codes_of = [found[k].labels.relabel(classes).codes for k in range(len(group))]
    empty = np.zeros(0, np.int64)
    return PartCodes.of(np.concatenate([empty, *codes_of]), found.counts)


def _counted(codes: Integers, classes: int) -> Counts:
    return tuple(np.bincount(codes, minlength=classes).tolist())


def _listed(client: ClientCounts) -> dict[Part, list[int]]:
    return {"train": list(client.train), "valid": list(client.valid), "test": list(client.test)}


def _client(entry: Mapping[str, Any], classes: int) -> ClientCounts:
    parts = {part: tuple(entry[part]) for part in PARTS}
    counts = [count for part in parts.values() for count in part]
    if not all(type(count) is int and 0 <= count < 2**53 for count in counts):
        raise TypeError(f"client {entry['client']} has a count that is not an integer >= 0")
    if any(len(counts) != classes for counts in parts.values()):
        raise ValueError(f"client {entry['client']} has counts of other than {classes} classes")
    return ClientCounts(client=str(entry["client"]), holdout=bool(entry["holdout"]), **parts)


def _min_median_max(values: Sequence[int]) -> dict[str, float]:
    return {"min": min(values), "median": median(values), "max": max(values)}
