"""Partition of samples over clients: iid, Dirichlet label skew, quantity skew, shards, domains.

Seeded, pure functions of labels that return indices only. A partition is made from the training
samples; validation and test samples of each group (class, or domain) are distributed over clients
in the same proportions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from fedgram.core.samples import Array, Floats, Integers
from fedgram.data.dataset import TEST, TRAIN, VALID, Dataset
from fedgram.data.plan import PartitionPlan
from fedgram.errors import ConfigError, DataError

DEFAULT_CLIENTS = 20


@dataclass(frozen=True, eq=False, kw_only=True)
class ClientIndices:
    """The samples of one client, as indices into the data set."""

    id: str
    train: Integers
    valid: Integers
    test: Integers
    holdout: bool = False


def partition(data: Dataset, plan: PartitionPlan) -> list[ClientIndices]:
    """Return the indices of every client's samples.

    Examples
    --------
    >>> from fedgram.data.sources import load_dataset
    >>> shares = partition(load_dataset("digits"), PartitionPlan(clients=5, partition="iid"))
    >>> [(share.id, len(share.train), len(share.test)) for share in shares]
    [('c0', 270, 89), ('c1', 268, 90), ('c2', 270, 90), ('c3', 268, 90), ('c4', 271, 91)]
    """
    if len(np.unique(data.y)) < 2:
        raise DataError(f"{data.name}: all samples have one class; at least two are needed")
    names = _names(data, plan)
    if plan.split == "global":
        split = fixed_split(data, plan)
        owner = _owners(data, plan, split, len(names))
    else:
        everything = np.full(len(data), TRAIN)
        owner = _owners(data, plan, everything, len(names))
        split = _split_within(owner, plan, len(names))
    held = _held_out(plan, len(names))
    for k, name in enumerate(names):
        if not np.any((owner == k) & (split == TRAIN)):
            raise DataError(f"client {name} has no training samples; remove the client's samples")
    return [
        ClientIndices(
            id=name,
            train=np.flatnonzero((owner == k) & (split == TRAIN)),
            valid=np.flatnonzero((owner == k) & (split != TRAIN) & (split != TEST)),
            test=np.flatnonzero((owner == k) & (split == TEST)),
            holdout=k in held,
        )
        for k, name in enumerate(names)
    ]


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
            f"{len(train)} training samples are not enough for {clients} clients; "
            "use fewer data.clients"
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
    trained = _proportions(groups[train], owner[train], clients, int(groups.max()) + 1)
    for part in np.unique(split[split != TRAIN]):
        members = np.flatnonzero(split == part)
        rng = _rng(plan, f"follow-{part}")
        owner[members] = _assigned(groups[members], trained, rng, _rng(plan, "order"))
    return owner


def _iid(groups: Integers, clients: int, plan: PartitionPlan) -> Integers:
    even = np.full((int(groups.max()) + 1, clients), 1 / clients)
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
    alike = np.tile(sizes, (int(groups.max()) + 1, 1))
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
    for holder, shard in zip(holders, np.array_split(by_class, len(holders)), strict=True):
        owner[shard] = holder
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
    for place in range(wanted * clients):
        held[turns[place % len(found)], place // wanted] = 1
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
    groups: Integers, proportions: Floats, rng: np.random.Generator, order: np.random.Generator
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
        for client, part in zip(turn, np.split(members, ends[:-1]), strict=True):
            owner[part] = client
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


def _proportions(groups: Integers, owner: Integers, clients: int, size: int) -> Floats:
    counts = np.zeros((size, clients))
    np.add.at(counts, (groups, owner), 1)
    counts[counts.sum(axis=1) == 0] = 1  # a group without training samples goes to all clients
    shares: Floats = counts / counts.sum(axis=1, keepdims=True)
    return shares


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
    for poor in np.flatnonzero(sizes < plan.minimum):
        while sizes[poor] < plan.minimum:
            rich = int(sizes.argmax())
            owner[turn[np.flatnonzero(owner[turn] == rich)[0]]] = poor
            sizes[rich] -= 1
            sizes[poor] += 1


def _split_within(owner: Integers, plan: PartitionPlan, clients: int) -> Integers:
    split = np.full(len(owner), TRAIN)
    rng = _rng(plan, "within")
    for k in range(clients):
        members = rng.permutation(np.flatnonzero(owner == k))
        tested = min(round(plan.test_fraction * len(members)), max(0, len(members) - 1))
        split[members[:tested]] = TEST
        left = len(members) - tested
        validated = min(round(plan.valid_fraction * left), max(0, left - 1))
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


def _held_out(plan: PartitionPlan, clients: int) -> set[int]:
    if plan.holdout_clients >= clients:
        raise ConfigError(
            f"data.holdout_clients = {plan.holdout_clients}: no client of {clients} remains for "
            "training; use a smaller number"
        )
    chosen = _rng(plan, "holdout").permutation(clients)[: plan.holdout_clients]
    return {int(k) for k in chosen}


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
