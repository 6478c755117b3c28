"""Many sites whose samples are used together or one by one."""

from __future__ import annotations

import operator
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedgram.core.samples import Floats, Integers, Samples, concatenate
from fedgram.errors import DataError
from fedgram.federation.client import Site
from fedgram.runtime.lazy_sequence import LazySequence

_ROWS = 2**14  # samples of a batch of clients, unless one client has more
_CLIENTS = 2**15  # clients of a batch
_STACK_ROWS, _STACK_CLIENTS = 2**12, 2**8  # the same of clients that answer one by one, in stacks


class SitePart(Protocol):
    """One part (train, valid or test) of the samples of all sites."""

    @property
    def counts(self) -> Integers:
        """Number of samples of each site."""

    def __getitem__(self, client: int) -> Samples:
        """Return the samples of one site."""

    def rows(self, clients: Integers) -> tuple[Samples, Integers]:
        """Return the samples of some sites, and the place in `clients` of each sample's site."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Owners:
    """The client of each row of a batch of clients.

    Parameters
    ----------
    owners
        The client of each row, counted from 0 in the batch.
    clients
        Number of clients in the batch.
    """

    owners: Integers
    clients: int

    def count(self, chosen: NDArray[np.bool_] | None = None) -> Integers:
        """Return each client's number of rows, or of the chosen ones among them."""
        owners = self.owners if chosen is None else self.owners[chosen]
        return np.bincount(owners, minlength=self.clients)


@dataclass(frozen=True, eq=False, kw_only=True)
class Union(Owners):
    """The samples of a batch of clients together.

    Parameters
    ----------
    samples
        The samples.
    """

    samples: Samples

    def class_counts(self) -> Floats:
        """Return each client's number of samples of each class, (clients, classes)."""
        labels = self.samples.labels
        classes = len(labels.classes)
        places = self.owners * classes + labels.codes
        counts = np.bincount(places, minlength=self.clients * classes).astype(np.float64)
        return counts.reshape(self.clients, classes)


class Sites(LazySequence[Site]):
    """The sites of a federation, in one block of samples or each with its own.

    A `Site` of a block is made when it is first asked for, and then kept.

    Parameters
    ----------
    names
        Names of the sites.
    train, valid, test
        Their samples.
    reserve_valid
        Whether validation samples are for model selection only: for all, or for each site.

    Examples
    --------
    >>> from fedgram.core.samples import Features, Labels, Space
    >>> from fedgram.core.segments import Segments
    >>> rows = Features(np.array([[1], [2], [3]], dtype=np.int8), Space(width=1, bound=127))
    >>> block = Samples(rows, Labels(np.array([0, 1, 1]), ("no", "yes")))
    >>> nothing = Segments.of(block.take([]), np.array([0, 0]))
    >>> train = Segments.of(block, np.array([1, 2]))
    >>> sites = Sites(["south", "north"], train=train, valid=nothing, test=nothing)
    >>> len(sites), sites[1].id, len(sites[1].train), sites.sorted().names
    (2, 'north', 2, ['north', 'south'])
    """

    def __init__(
        self,
        names: Sequence[str],
        *,
        train: SitePart,
        valid: SitePart,
        test: SitePart,
        reserve_valid: bool | NDArray[np.bool_] = False,
    ) -> None:
        self.names = names
        self.train, self.valid, self.test = train, valid, test
        self._reserve_valid = np.broadcast_to(reserve_valid, len(names))
        self._made: dict[int, Site] = {}
        self._origin: Sites | None = None

    @classmethod
    def of(cls, sites: Iterable[Site]) -> Sites:
        """Return the same sites as `Sites`, whatever sequence they are in."""
        if isinstance(sites, Sites):
            return sites
        listed = list(sites)
        made = cls(
            [site.id for site in listed],
            train=_Listed([site.train for site in listed]),
            valid=_Listed([site.valid for site in listed]),
            test=_Listed([site.test for site in listed]),
            reserve_valid=np.array([site.reserve_valid for site in listed], bool),
        )
        made._made = dict(enumerate(listed))
        return made

    def __len__(self) -> int:
        return len(self.names)

    def make(self, place: int) -> Site:
        """Return a site; it is made once."""
        if place not in self._made:
            self._made[place] = self._new(place)
        return self._made[place]

    def _new(self, place: int) -> Site:
        if self._origin is not None:  # the same arrays: what is computed from them is cached
            return replace(self._origin[place], state={})
        return Site(
            id=self.names[place],
            train=self.train[place],
            valid=self.valid[place],
            test=self.test[place],
            reserve_valid=bool(self._reserve_valid[place]),
        )

    @property
    def reserve_valid(self) -> bool:
        """Whether validation samples are for model selection only, at all sites."""
        return bool(self._reserve_valid.all())

    def fresh(self) -> Sites:
        """Return the same sites with empty states."""
        made = Sites(
            self.names,
            train=self.train,
            valid=self.valid,
            test=self.test,
            reserve_valid=self._reserve_valid,
        )
        made._origin = self
        return made

    def sorted(self) -> Sites:
        """Return the sites in the order of their names, which must differ."""
        names = self.names
        if any(map(operator.gt, names, islice(names, 1, None))):
            order = sorted(range(len(names)), key=names.__getitem__)
            return Sites.of([self[k] for k in order]).sorted()
        same = map(operator.eq, names, islice(names, 1, None))
        for name in islice((name for name, twice in zip(names, same, strict=False) if twice), 1):
            raise DataError(f"client {name}: two clients have this name; names must differ")
        return self

    def place(self, name: str) -> int:
        """Return the place of a site among sorted sites."""
        return bisect_left(self.names, name)

    def places(self, names: Sequence[str]) -> Integers:
        """Return the places of some sites among sorted sites."""
        if names is self.names:
            return np.arange(len(names))
        return np.fromiter(map(self.place, names), np.int64, len(names))

    def batches(self, places: Integers) -> Iterator[Integers]:
        """Yield the places in batches with a bounded number of samples and of sites."""
        for begin, end in self._ends(places, _ROWS, _CLIENTS):
            yield places[begin:end]

    def stacks(self, places: Integers) -> Iterator[range]:
        """Yield the positions in `places` of clients that are computed in stacks of arrays."""
        for begin, end in self._ends(places, _STACK_ROWS, _STACK_CLIENTS):
            yield range(begin, end)

    def _ends(self, places: Integers, rows: int, clients: int) -> Iterator[tuple[int, int]]:
        parts = self.train, self.valid, self.test
        batch = np.cumsum(np.max([part.counts[places] for part in parts], axis=0)) // rows
        new = (np.diff(batch) > 0) | (np.arange(1, len(places)) % clients == 0)
        return pairwise([0, *(np.flatnonzero(new) + 1).tolist(), len(places)])

    def closed_form(self, places: Integers) -> Union:
        """Return the union of the samples of closed-form methods (`Client.samples`)."""
        samples, owners = self.train.rows(places)
        kept = np.flatnonzero((self.valid.counts[places] > 0) & ~self._reserve_valid[places])
        if len(kept):
            more, theirs = self.valid.rows(places[kept])
            samples = concatenate([samples, more])
            owners = np.concatenate([owners, kept[theirs]])
        return Union(samples=samples, owners=owners, clients=len(places))


class _Listed:
    """A part of sites that have samples of their own."""

    def __init__(self, listed: Sequence[Samples]) -> None:
        self._listed = listed
        self.counts: Integers = np.array([len(samples) for samples in listed], np.int64)

    def __getitem__(self, client: int) -> Samples:
        return self._listed[client]

    def rows(self, clients: Integers) -> tuple[Samples, Integers]:
        parts = [self._listed[client] for client in clients]
        samples = parts[0] if len(parts) == 1 else concatenate(parts)
        return samples, np.repeat(np.arange(len(clients)), self.counts[clients])


def union(part: SitePart, places: Integers) -> Union:
    """Return the union of one part of the samples of some sites."""
    samples, owners = part.rows(places)
    return Union(samples=samples, owners=owners, clients=len(places))
