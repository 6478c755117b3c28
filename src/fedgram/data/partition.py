"""Partition of samples over clients: iid, Dirichlet label skew, quantity skew, shards, domains.

Seeded, pure functions of labels that return indices only. A partition is made from the training
samples; validation and test samples of each group (class, or domain) are distributed over clients
in the same proportions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import compress

import numpy as np
from numpy.typing import NDArray

from fedgram.core.samples import Array, Floats, Integers
from fedgram.data.arrays import require_two_classes
from fedgram.data.dataset import TEST, TRAIN, VALID, Dataset
from fedgram.data.plan import PartitionPlan
from fedgram.errors import ConfigError, DataError
from fedgram.runtime.lazy_sequence import LazySequence

DEFAULT_CLIENTS = 20


@dataclass(frozen=True, eq=False, kw_only=True)
class ClientIndices:
    """The samples of one client, as indices into the data set."""

    id: str
    train: Integers
    valid: Integers
    test: Integers
    holdout: bool = False


@dataclass(frozen=True, eq=False, kw_only=True)
class ClientRows:
    """One part of the split of all clients: the clients' indices, one client after the other."""

    indices: Integers
    counts: Integers

    @classmethod
    def of(cls, owner: Integers, members: Integers, clients: int) -> ClientRows:
        """Sort some samples by their client; those of one client stay in order.

        Parameters
        ----------
        owner
            The client of each sample of the data set.
        members
            Indices of the samples of this part.
        clients
            Number of clients.
        """
        owners = owner[members]
        order = np.argsort(owners, kind="stable")
        return cls(indices=members[order], counts=np.bincount(owners, minlength=clients))

    @cached_property
    def ends(self) -> Integers:
        """Where the next client's indices begin."""
        ends: Integers = np.cumsum(self.counts)
        return ends

    def __getitem__(self, client: int) -> Integers:
        end = self.ends[client]
        return self.indices[end - self.counts[client] : end]

    def select(self, chosen: Array) -> ClientRows:
        """Return the rows of the chosen clients only."""
        kept = np.repeat(chosen, self.counts)
        return ClientRows(indices=self.indices[kept], counts=self.counts[chosen])


@dataclass(frozen=True, eq=False, kw_only=True)
class Partition(LazySequence[ClientIndices]):
    """The samples of all clients, as arrays: `ClientIndices` are made when they are asked for.

    Parameters
    ----------
    names
        Names of the clients.
    train, valid, test
        Indices of their samples.
    held_out
        Whether each client is held out of training.
    """

    names: Sequence[str]
    train: ClientRows
    valid: ClientRows
    test: ClientRows
    held_out: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.names)

    def make(self, place: int) -> ClientIndices:
        """Return the samples of one client."""
        return ClientIndices(
            id=self.names[place],
            train=self.train[place],
            valid=self.valid[place],
            test=self.test[place],
            holdout=bool(self.held_out[place]),
        )

    def select(self, chosen: NDArray[np.bool_]) -> Partition:
        """Return the chosen clients only."""
        if chosen.all():
            return self
        return Partition(
            names=list(compress(self.names, chosen)),
            train=self.train.select(chosen),
            valid=self.valid.select(chosen),
            test=self.test.select(chosen),
            held_out=self.held_out[chosen],
        )


def partition(data: Dataset, plan: PartitionPlan) -> Partition:
    """Return the indices of every client's samples.

    Examples
    --------
    >>> from fedgram.data.sources import load_dataset
    >>> shares = partition(load_dataset("digits"), PartitionPlan(clients=5, partition="iid"))
    >>> [(share.id, len(share.train), len(share.test)) for share in shares]
    [('c0', 270, 89), ('c1', 268, 90), ('c2', 270, 90), ('c3', 268, 90), ('c4', 271, 91)]
    """
    if data.targets is None:  # outputs may be so uneven that all are in one group
        require_two_classes(data.y, data.classes, f"{data.name}: y")
    names = _names(data, plan)
    if plan.split == "global":
        split = fixed_split(data, plan)
        owner = _owners(data, plan, split, len(names))
    else:
        everything = np.full(len(data), TRAIN)
        owner = _owners(data, plan, everything, len(names))
        split = _split_within(owner, plan, len(names))
    train, valid, test = (
        ClientRows.of(owner, np.flatnonzero(which), len(names))
        for which in (split == TRAIN, (split != TRAIN) & (split != TEST), split == TEST)
    )
    for k in np.flatnonzero(train.counts == 0):
        raise DataError(f"client {names[k]} has no training samples; remove the client's samples")
    held = _held_out(plan, len(names))
    return Partition(names=names, train=train, valid=valid, test=test, held_out=held)


def fixed_split(data: Dataset, plan: PartitionPlan) -> Integers:
    """Return the data's own split, or one that depends on the seed and the labels only."""
    if data.split is not None:
        split = data.split.astype(np.int64)
    else:
        split = np.full(len(data), TRAIN)
        _take_from_classes(data.y, split, TEST, plan.test_fraction, _rng(plan, "split"))
    if plan.valid_fraction and not np.any(split == VALID):
        _take_from_classes(data.y, split, VALID, plan.valid_fraction, _rng(plan, "valid"))
    return split


def _take_from_classes(
    codes: Integers, split: Integers, part: int, share: float, rng: np.random.Generator
) -> None:
    """Move a fraction of each class's training samples to another part of the split, in place."""
    train = np.flatnonzero(split == TRAIN)
    for members in _groups(codes[train]):
        shuffled = train[rng.permutation(members)]
        split[shuffled[: round(share * len(members))]] = part


def _owners(data: Dataset, plan: PartitionPlan, split: Integers, clients: int) -> Integers:
    """Return the client of each sample: train first, then valid and test in proportion."""
    train = np.flatnonzero(split == TRAIN)
    if len(train) < clients:
        raise DataError(
            f"expected at least {clients} training samples, one for each client, got "
            f"{len(train)}; use fewer clients (data.clients)"
        )
    if plan.partition == "given":
        _, owner = np.unique(_column(data, "client"), return_inverse=True)
        return owner.astype(np.int64)
    groups = data.y
    if plan.partition == "domain":
        groups = _domains(data, train, clients)
    owner = np.full(len(data), -1)
    owner[train] = _PARTITIONERS[plan.partition](groups[train], clients, plan)
    _ensure_minimum(owner, train, clients, plan)
    for part in np.unique(split[split != TRAIN]):
        members = np.flatnonzero(split == part)
        rng = _rng(plan, f"follow-{part}")
        trained = _proportions(groups[train], owner[train], clients, int(groups.max()) + 1)
        owner[members] = _assigned(groups[members], trained, rng, _rng(plan, "order"))
    return owner


def _iid(groups: Integers, clients: int, plan: PartitionPlan) -> Integers:
    even = np.broadcast_to(1 / clients, (int(groups.max()) + 1, clients))
    return _assigned(groups, even, _rng(plan, "deal"), _rng(plan, "order"))


def _dirichlet(groups: Integers, clients: int, plan: PartitionPlan) -> Integers:
    classes, rng = int(groups.max()) + 1, _rng(plan, "dirichlet")
    if plan.equal_sizes:
        skewed = _drawn_by_clients(np.bincount(groups), clients, plan.dirichlet, rng)
    else:
        skewed = rng.dirichlet(np.full(clients, plan.dirichlet), classes)
    return _assigned(groups, skewed, _rng(plan, "deal"), _rng(plan, "order"))


def _quantity(groups: Integers, clients: int, plan: PartitionPlan) -> Integers:
    sizes = _rng(plan, "quantity").dirichlet(np.full(clients, plan.dirichlet))
    alike = np.broadcast_to(sizes, (int(groups.max()) + 1, clients))
    return _assigned(groups, alike, _rng(plan, "deal"), _rng(plan, "order"))


def _drawn_by_clients(
    pools: Integers, clients: int, concentration: float, rng: np.random.Generator
) -> Floats:
    """Draw the class frequencies of clients of equal size, one client after the other.

    As Hsu et al. (2019). A class without remaining samples has frequency zero for later clients.
    """
    left, total = pools.copy(), int(pools.sum())
    counts = np.zeros((len(pools), clients))
    for client in range(clients):
        mix = rng.dirichlet(np.full(len(pools), concentration))
        missing = (client + 1) * total // clients - client * total // clients
        while missing:
            open_mix = np.where(left > 0, mix + 1e-12, 0.0)
            drawn = np.minimum(rng.multinomial(missing, open_mix / open_mix.sum()), left)
            counts[:, client] += drawn
            left -= drawn
            missing -= int(drawn.sum())
    shares: Floats = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    return shares


def _shards(groups: Integers, clients: int, plan: PartitionPlan) -> Integers:
    """Sort by class, cut into contiguous shards, and assign the shards at random."""
    rng = _rng(plan, "shards")
    shuffled = rng.permutation(len(groups))
    by_class = shuffled[np.argsort(groups[shuffled], kind="stable")]
    owner = np.empty(len(groups), np.int64)
    holders = rng.permutation(np.repeat(np.arange(clients), plan.shards))
    size, longer = divmod(len(groups), len(holders))  # the first shards have one sample more
    owner[by_class] = np.repeat(holders, size + (np.arange(len(holders)) < longer))
    return owner


def _classes(groups: Integers, clients: int, plan: PartitionPlan) -> Integers:
    """Assign classes to clients round-robin, and split each class evenly over its clients."""
    found = np.unique(groups)
    wanted = plan.classes_per_client
    if wanted > len(found) or wanted * clients < len(found):
        raise ConfigError(
            f"data.classes_per_client = {wanted}: {clients} clients and {len(found)} classes need "
            f"a number from {-(-len(found) // clients)} to {len(found)}"
        )
    turns = _rng(plan, "classes").permutation(found)
    held = np.zeros((int(groups.max()) + 1, clients))
    places = np.arange(wanted * clients)
    held[turns[places % len(found)], places // wanted] = 1
    scarce = np.flatnonzero(np.bincount(groups) < held.sum(axis=1))
    if len(scarce):
        raise DataError(
            f"class {scarce[0]} has fewer training samples than clients; use fewer data.clients or "
            "data.classes_per_client"
        )
    even = held / np.maximum(held.sum(axis=1, keepdims=True), 1)
    return _assigned(groups, even, _rng(plan, "deal"), _rng(plan, "order"))


def _domain(groups: Integers, clients: int, plan: PartitionPlan) -> Integers:
    """Assign clients to domains round-robin, and split each domain evenly over its clients."""
    domains = int(groups.max()) + 1
    theirs = (np.arange(clients)[None, :] % domains) == np.arange(domains)[:, None]
    even = theirs / theirs.sum(axis=1, keepdims=True)
    return _assigned(groups, even, _rng(plan, "deal"), _rng(plan, "order"))


_PARTITIONERS: Mapping[str, Callable[[Integers, int, PartitionPlan], Integers]] = {
    "iid": _iid,
    "dirichlet": _dirichlet,
    "quantity": _quantity,
    "shards": _shards,
    "classes": _classes,
    "domain": _domain,
}


def _assigned(
    groups: Integers,
    proportions: Iterable[Floats],
    rng: np.random.Generator,
    order: np.random.Generator,
) -> Integers:
    """Assign each group's samples in proportion; cumulative rounding loses no sample.

    The order of clients within a group has a random stream of its own, so that rounding favors the
    same clients in train and test.
    """
    owner = np.empty(len(groups), np.int64)
    for group, row in enumerate(proportions):
        turn = order.permutation(len(row))
        members = rng.permutation(np.flatnonzero(groups == group))
        ends = np.rint(np.cumsum(row[turn]) * len(members)).astype(np.int64)
        ends[-1] = len(members)
        owner[members] = np.repeat(turn, np.diff(ends, prepend=0))
    return owner


def _domains(data: Dataset, train: Integers, clients: int) -> Integers:
    """Return the domain of each sample; raise `DataError` if a domain has too few for clients."""
    names, codes = np.unique(_column(data, "domain"), return_inverse=True)
    trained = np.bincount(codes[train], minlength=len(names))
    theirs = np.bincount(np.arange(clients) % len(names), minlength=len(names))
    for name, found, wanted in zip(names, trained, theirs, strict=True):
        if found < wanted:
            raise DataError(
                f"domain {name} has {found} training samples for {wanted} clients; remove the "
                "domain, or use fewer data.clients"
            )
    return codes.astype(np.int64)


def _proportions(groups: Integers, owner: Integers, clients: int, size: int) -> Iterator[Floats]:
    """Yield the proportions of each group, one at a time: there may be a million clients."""
    for group in range(size):
        counts = np.bincount(owner[groups == group], minlength=clients)
        if not counts.any():  # a group without training samples goes to all clients
            counts = np.ones(clients, np.int64)
        yield counts / counts.sum()


def _ensure_minimum(owner: Integers, train: Integers, clients: int, plan: PartitionPlan) -> None:
    """Move training samples from the largest clients to those below `minimum`, in place."""
    if len(train) < plan.minimum * clients:
        raise ConfigError(
            f"data.minimum = {plan.minimum}: {len(train)} training samples are not enough for "
            f"{clients} clients; use a smaller minimum"
        )
    turn = train if plan.minimum == 1 else _rng(plan, "minimum").permutation(train)
    sizes = np.bincount(owner[train], minlength=clients)
    if plan.partition in ("classes", "domain") and sizes.min() < plan.minimum:
        raise DataError(
            f"data.minimum = {plan.minimum}: a client has {sizes.min()} training samples, and the "
            f"partition by {plan.partition} allows no other clients' samples; use a smaller "
            "minimum, or fewer data.clients"
        )
    moved = _spare(owner[turn], sizes, plan.minimum)
    poor = np.repeat(np.arange(clients), np.maximum(plan.minimum - sizes, 0))
    owner[turn[moved[: len(poor)]]] = poor


def _spare(owners: Integers, sizes: Integers, minimum: int) -> Integers:
    """Return the samples to take from clients with more than `minimum`, in order.

    The next one is always the first sample that is left of the largest client: of equal clients,
    of the first. So a client's sample number j (from 0) is taken when the client is the largest
    with `size - j` samples.
    """
    order = np.argsort(owners, kind="stable")
    number = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    left = np.repeat(sizes, sizes) - number
    spare = np.flatnonzero(left > minimum)
    return order[spare[np.argsort(-left[spare], kind="stable")]]


def _split_within(owner: Integers, plan: PartitionPlan, clients: int) -> Integers:
    split = np.full(len(owner), TRAIN)
    rng = _rng(plan, "within")
    rows = ClientRows.of(owner, np.arange(len(owner)), clients)
    for k in np.flatnonzero(rows.counts > 1).tolist():  # a single sample is for training
        members = rng.permutation(rows[k])
        tested = min(round(plan.test_fraction * len(members)), len(members) - 1)
        split[members[:tested]] = TEST
        left = len(members) - tested
        validated = min(round(plan.valid_fraction * left), left - 1)
        split[members[tested : tested + validated]] = VALID
    return split


def _names(data: Dataset, plan: PartitionPlan) -> list[str]:
    if plan.partition == "given":
        given = [str(name) for name in np.unique(_column(data, "client"))]
        if plan.clients not in (None, len(given)):
            raise ConfigError(
                f"data.clients = {plan.clients}, but the data have {len(given)} clients; "
                "remove data.clients"
            )
        return given
    count = plan.clients or DEFAULT_CLIENTS
    if plan.partition != "domain":
        digits = len(str(count - 1))
        return [f"c{k:0{digits}d}" for k in range(count)]
    domains = [str(name) for name in np.unique(_column(data, "domain"))]
    count = plan.clients or len(domains)
    if count < len(domains):
        raise ConfigError(
            f"data.clients = {count} is fewer than the {len(domains)} domains; use at least "
            f"{len(domains)}, or remove data.clients"
        )
    if count == len(domains):
        return domains
    return [f"{domains[k % len(domains)]}-{k // len(domains)}" for k in range(count)]


def _held_out(plan: PartitionPlan, clients: int) -> NDArray[np.bool_]:
    if plan.holdout_clients >= clients:
        raise ConfigError(
            f"data.holdout_clients = {plan.holdout_clients}: no client of {clients} remains for "
            "training; use a smaller number"
        )
    held = np.zeros(clients, bool)
    held[_rng(plan, "holdout").permutation(clients)[: plan.holdout_clients]] = True
    return held


def _column(data: Dataset, name: str) -> Array:
    column: Array | None = getattr(data, name)
    if column is None:
        wanted = "given" if name == "client" else name
        raise DataError(
            f"{data.name}: data.partition = {wanted!r}: the array {name!r} is missing in the data"
        )
    return column


def _groups(codes: Integers) -> list[Integers]:
    return [np.flatnonzero(codes == code) for code in np.unique(codes)]


def _rng(plan: PartitionPlan, purpose: str) -> np.random.Generator:
    """Return a random stream for each purpose, so that the draws are independent."""
    return np.random.default_rng([plan.seed, *purpose.encode()])
