"""Measurements on the embedded digits that the papers' theorems are judged by."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedgram import Dataset, PartitionPlan, Statistics, create_method, federate, load_dataset, run
from fedgram.core import codec

GIVEN = {"ridge": 10.0, "refinement_ridge": 100.0, "balance": 0.5}
NARROW = {"primary": {"width": 128}, "refinement": {"width": 96, "seed": 1}}


def theorems() -> dict[str, Any]:
    """Return the errors, digests and recovered data that the theorems are judged by."""
    primary, refinement, clients = streams()
    return {
        "primary": primary,
        "refinement": refinement,
        "clients": clients,
        "invariance": {
            "spreads": SPREADS,
            **{name: invariance(name) for name in ("apfl", "fedhip")},
        },
        "joiners": joiners(),
        "efficiency": efficiency(),
        "privacy": recovered(),
        "forms": forms(),
        "singular": refusal(),
    }


def streams() -> tuple[float, float, int]:
    """Return the relative differences of both streams from their least-squares problems."""
    federated = federate(load_dataset("digits"), PartitionPlan(clients=20))
    method = create_method("apfl", {**GIVEN, **NARROW})
    result = run(method, federated)
    members = federated.members
    phi = [method.primary(site.train.features).real() for site in members]
    y = [site.train.labels.onehot() for site in members]
    every, labels = np.concatenate(phi), np.concatenate(y)
    head = ridge(every, labels, method.ridge)
    worst = 0.0
    for site, rows, own in zip(members, phi, y, strict=True):
        psi = method.refinement(site.train.features).real()
        expected = ridge(psi, own - rows @ head, method.refinement_ridge)
        worst = max(worst, distance(result.models[site.id].predictor.second.weights, expected))
    return distance(result.models[members[0].id].predictor.first.weights, head), worst, len(members)


def ridge(rows: Any, targets: Any, strength: float) -> Any:
    return np.linalg.solve(rows.T @ rows + strength * np.eye(rows.shape[1]), rows.T @ targets)


def distance(found: Any, expected: Any) -> float:
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


SETTINGS: dict[str, dict[str, Any]] = {
    "apfl": {**GIVEN, **NARROW},
    "fedhip": {"alpha": 30.0, "ridge": 10.0},
}
SPREADS = 4


def invariance(name: str) -> int:
    """Return how many models a client gets when the others' samples are spread differently."""
    data = load_dataset("digits")
    rng = np.random.default_rng(0)
    others = np.arange(len(data)) >= 150
    spreads = [
        np.where(others, "all", "own"),
        *(np.where(others, rng.integers(k, size=len(data)).astype(str), "own") for k in (3, 17)),
        np.where(others, data.y.astype(str), "own"),  # a class each
    ]
    split = np.zeros(len(data), np.int64)
    split[rng.permutation(len(data))[:300]] = 2
    digests = set()
    for client in spreads:
        named = Dataset(x=data.x, y=data.y, classes=data.classes, client=client, split=split)
        federated = federate(named, PartitionPlan(clients=None, partition="given"))
        models = run(create_method(name, SETTINGS[name]), federated).models
        digests.add(codec.digest(models["own"].predictor))
    assert len(spreads) == SPREADS
    return len(digests)


def joiners() -> dict[str, Any]:
    """Return whether sums of newcomers, added to a total, give the total of all from the start."""
    sites = federate(load_dataset("digits"), PartitionPlan(clients=20)).members
    sums = [Statistics.of(site.train.features, site.train.labels) for site in sites]
    early, total = sums[0], sums[0]
    for each in sums[1:15]:
        early = early + each
    for each in sums[1:]:
        total = total + each
    added = early
    for each in reversed(sums[15:]):
        added = added + each
    return {"clients": len(sites), "later": 5, "same": codec.digest(added) == codec.digest(total)}


def efficiency() -> dict[str, Any]:
    """Return the costs of APFL's sum by number of clients and width, and by formula."""
    data, rows = load_dataset("digits"), []
    for clients in (10, 40):
        federated = federate(data, PartitionPlan(clients=clients))
        n = sum(len(site.train) for site in federated.members)
        d, c = federated.members[0].train.features.space.width, len(data.classes)
        for width in (128, 256, 512):
            lifts = {"primary": {"width": width}, "refinement": {"width": 64, "seed": 1}}
            result = run(create_method("apfl", {**GIVEN, **lifts}), federated)
            asked = result.record.exchanges[0]
            m = width + 1  # with the constant
            numbers = m * (m + 1) // 2 + m * c
            formula = 2 * n * d * width + n * m * (m + 1) + 2 * n * m * c
            rows.append(
                {
                    "clients": clients,
                    "width": width,
                    "flops": asked.flops,
                    "formula": formula,
                    "bytes_per_number": round(asked.bytes_up / clients / numbers, 2),
                }
            )
    return {"rows": rows, "right": all(row["flops"] == row["formula"] for row in rows)}


def recovered() -> dict[str, Any]:
    """Return what one client's contribution shows of its samples, over all clients."""
    federated = federate(load_dataset("digits"), PartitionPlan(clients=20))
    method = create_method("apfl", {**GIVEN})
    exact = singles = alone = 0
    areas = []
    for site in federated.members:
        labels, own = site.train.labels, method.primary(site.train.features)
        sent = Statistics.of(own, labels)
        counts = counts_of(sent)
        order = [labels.classes.index(name) for name in sent.classes]
        true = np.bincount(labels.codes, minlength=len(labels.classes))[order]
        exact += bool(np.array_equal(counts, true))
        for place in np.flatnonzero(counts == 1):
            (row,) = np.flatnonzero(labels.codes == order[place])
            singles += 1
            alone += bool(np.array_equal(sent.moment[:, place], own.values[row]))
        strangers = method.primary(site.test.features) if len(site.test) else None
        if strangers is not None:
            areas.append(area(leverage(sent, own), leverage(sent, strangers)))
    return {
        "clients": len(federated.members),
        "exact_counts": exact,
        "singletons": singles,
        "exact_singletons": alone,
        "membership_auc": float(np.mean(areas)),
    }


def counts_of(sent: Statistics) -> Any:
    """Return the class counts: class sums of the constant feature, divided by the constant."""
    constant = sent.space.constant
    total = sent.moment[constant]
    return np.rint(total * sent.count / total.sum()).astype(int)


def leverage(sent: Statistics, rows: Any) -> Any:
    """Return the weight that a sample would have in the client's own fit: less for members."""
    from fedgram.core.solve import unpack_symmetric

    gram = unpack_symmetric(sent.gram, sent.space.width).astype(float) * sent.space.unit**2
    x = rows.real()
    inverse = np.linalg.inv(gram + 1e-3 * np.eye(len(gram)))
    return np.einsum("ij,jk,ik->i", x, inverse, x)


def area(members: Any, strangers: Any) -> float:
    """Return the probability that a member has less leverage than a stranger."""
    less = (members[:, None] < strangers[None, :]).mean()
    return float(less + (members[:, None] == strangers[None, :]).mean() / 2)


def forms() -> dict[str, float]:
    """Return client-mean accuracies of both forms on the digits, every setting selected."""
    federated = federate(load_dataset("digits"), PartitionPlan(clients=20))
    auto = {"ridge": "auto", "refinement_ridge": "auto", "balance": "auto"}
    names = ("apfl", "apfl-linear")
    return {
        name: 100 * run(create_method(name, auto), federated).accuracy["client_mean"]
        for name in names
    }


def refusal() -> str:
    """Return how a singular matrix is refused."""
    from fedgram.errors import FedgramError

    federated = federate(load_dataset("digits"), PartitionPlan(clients=20))
    try:
        run(create_method("afl", {"ridge": 0.0}), federated)
    except FedgramError as error:
        return str(error)
    raise AssertionError("the digits have constant pixels: their Gram matrix is singular")
