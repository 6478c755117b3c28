"""Rounds of FedAvg on a linear head: fedgram's loop against a plain torch loop, per round.

python -m benchmarks gradients [--json] [--quick]

Needs torch. The features are those of CIFAR-100 in the folder that FEDGRAM_DATA names, else random
ones of the same size. The two take turns with nobody else between them. Afterwards others take
turns with fedgram: torch without its loader, and the same arithmetic stacked over clients in NumPy,
which is what one would write first to save Python's overhead. What saves more is descent in the
span of a client's samples, where only what is not a product is stacked (fedgram.training.descent).
Clients of the embedded digits are so small that most of the time is Python's: there fedgram takes
turns with itself, one client after the other, too.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.measure import above, ratio, shown
from fedgram.core.samples import Array, Features, Integers
from fedgram.data.dataset import Dataset
from fedgram.data.plan import PartitionPlan
from fedgram.data.sources import load_dataset
from fedgram.engines.in_process import InProcess
from fedgram.federation.federated_dataset import FederatedDataset, federate
from fedgram.methods.fedavg import FedAvg
from fedgram.models.linear import predict
from fedgram.models.mlp import TrainingRows

FILE = "cifar100_efficientnet_lite0.npz"

Predicts = Callable[[Features], Integers]
Timed = tuple[float, Predicts]  # the seconds of a round, and what predicts after it


class Local(NamedTuple):
    """What a client does in a round; smaller batches take smaller steps."""

    epochs: int
    batch: int

    @property
    def rate(self) -> float:
        return 0.1 * self.batch / 128

    def __str__(self) -> str:
        return f"{self.epochs} epochs, batches of {self.batch}"


MAIN, *OTHERS = Local(3, 128), Local(3, 32), Local(5, 10)


BY_KERNELS = True


def measured(given: argparse.Namespace) -> dict[str, Any]:
    import torch

    torch.set_num_threads(1)
    quick = given.quick
    data, clients, rounds = (load_dataset("digits"), 20, 3) if quick else (_features(), 100, 8)
    everybody = federate(
        data, PartitionPlan(clients=clients, split="within-client", equal_sizes=True)
    )
    found = {}
    for local in (MAIN, *OTHERS):
        ways = {"fedgram": fedgram(everybody, local), "torch": torch_loop(everybody, local)}
        found[str(local)] = compared(everybody, ways, rounds if local == MAIN else rounds // 2 + 1)
    others = {
        "fedgram": fedgram(everybody, MAIN),
        "torch, batches sliced by hand": torch_loop(everybody, MAIN, sliced=True),
        "numpy, stacked over clients": stacked(everybody, MAIN),
    }
    found[f"{MAIN}, other ways"] = compared(everybody, others, rounds // 2 + 1)
    return {
        "data": data.name,
        "clients": clients,
        "samples": sum(len(site.train) for site in everybody.members),
        "features": everybody.test.features.space.width,
        "classes": len(data.classes),
        "rounds": found,
        "operations": operations(everybody, MAIN),
        "small": {str(clients): small(clients, quick=quick) for clients in (20, 100)},
    }


def small(clients: int, *, quick: bool) -> dict[str, Any]:
    """Compare on the digits with the label skew of `fedgram run`: clients of unequal sizes."""
    everybody = federate(load_dataset("digits"), PartitionPlan(clients=clients))
    ways = {
        "fedgram": fedgram(everybody, MAIN),
        "torch": torch_loop(everybody, MAIN),
        "fedgram, one client after the other": fedgram(everybody, MAIN, OneByOne),
        "numpy, stacked over clients": stacked(everybody, MAIN),
    }
    sizes = [len(site.train) for site in everybody.members]
    found = compared(everybody, ways, 4 if quick else 30)
    return {"smallest": min(sizes), "largest": max(sizes), **found}


class OneByOne(InProcess):
    """The engine, with each client trained alone."""

    def _groups(self, names: Sequence[str], most: int) -> list[Sequence[str]]:
        return [[name] for name in names]


def lines(found: Mapping[str, Any]) -> Iterator[str]:
    yield (
        f"{found['data']}: {found['clients']} clients, {found['samples']} training samples, "
        f"{found['features']} features, {found['classes']} classes"
    )
    for local, each in found["rounds"].items():
        yield f"{local}, test accuracy: " + ", ".join(
            f"{name} {100 * share:.1f} %" for name, share in each["accuracy"].items()
        )
        for name, one in each["ratios"].items():
            yield f"  {name}: {shown(one)}"
    yield f"operations of a round, of those of plain steps: {found['operations']:.2f}"
    for clients, each in found["small"].items():
        yield (
            f"digits, {clients} clients of {each['smallest']} to {each['largest']} samples, {MAIN}:"
        )
        for name, one in each["ratios"].items():
            yield f"  {name}: {shown(one)}"


def regressions(found: Mapping[str, Any]) -> Iterator[str]:
    yield from above(found["rounds"][str(MAIN)]["ratios"], "fedgram / torch", 0.6)
    for each in found["small"].values():
        yield from above(each["ratios"], "fedgram / fedgram, one client after the other", 0.8)


def compared(
    everybody: FederatedDataset, ways: dict[str, Iterator[Timed]], rounds: int
) -> dict[str, Any]:
    """Take a round of each in turn; the first round, with what later ones use, does not count."""
    turns = list(zip(*(islice(way, rounds) for way in ways.values()), strict=True))
    times = {name: [turn[at][0] for turn in turns[1:]] for at, name in enumerate(ways)}
    test = everybody.test
    accuracy = {
        name: float(np.mean(turns[-1][at][1](test.features) == test.labels.codes))
        for at, name in enumerate(ways)
    }
    return {
        "ratios": {
            f"fedgram / {name}": ratio(times, "fedgram", name)
            for name in times
            if name != "fedgram"
        },
        "accuracy": {name: round(share, 4) for name, share in accuracy.items()},
    }


def _features() -> Dataset:
    if os.environ.get("FEDGRAM_DATA") and (Path(os.environ["FEDGRAM_DATA"]) / FILE).is_file():
        return load_dataset(FILE)
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 100, 60_000)
    x = rng.normal(0, 1, (100, 1280)).astype(np.float32)[codes]
    x += rng.normal(0, 4, x.shape).astype(np.float32)
    return Dataset(x=x, y=codes, classes=tuple(map(str, range(100))), name="random features")


def fedgram(
    everybody: FederatedDataset, local: Local, engine_type: type[InProcess] = InProcess
) -> Iterator[Timed]:
    forgotten = [replace(s, train=s.train.take(slice(None))) for s in everybody.members]
    engine = engine_type(forgotten)
    method = FedAvg(rounds=sys.maxsize, epochs=local.epochs, batch=local.batch, rate=local.rate)
    models = iter(method.fit(engine))
    while True:
        start = time.process_time()
        model = next(models)
        yield time.process_time() - start, partial(predict, model.network)


def torch_loop(
    everybody: FederatedDataset, local: Local, *, sliced: bool = False
) -> Iterator[Timed]:
    """What one writes first: a model, an optimizer and a loader per client."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    torch.manual_seed(0)
    unit = everybody.test.features.space.unit
    parts = [
        TensorDataset(
            torch.from_numpy(site.train.features.values.astype(np.float32) * np.float32(unit)),
            torch.from_numpy(site.train.labels.codes),
        )
        for site in everybody.members
    ]
    width, classes = everybody.test.features.space.width, len(everybody.test.labels.classes)
    shared = torch.zeros(classes, width)
    weights = np.array([len(part) for part in parts]) / sum(map(len, parts))
    while True:
        start = time.process_time()
        total = torch.zeros_like(shared)
        for part, weight in zip(parts, weights, strict=True):
            model = torch.nn.Linear(width, classes, bias=False)
            with torch.no_grad():
                model.weight.copy_(shared)
            optimizer = torch.optim.SGD(model.parameters(), lr=local.rate)
            for _ in range(local.epochs):
                order = torch.randperm(len(part))
                batches = (
                    [part[some] for some in order.split(local.batch)]
                    if sliced
                    else DataLoader(part, batch_size=local.batch, shuffle=True)
                )
                for rows, codes in batches:
                    optimizer.zero_grad()
                    torch.nn.functional.cross_entropy(model(rows), codes).backward()
                    optimizer.step()
            total += float(weight) * model.weight.detach()
        shared = total
        yield time.process_time() - start, _linear(shared.numpy().T)


def stacked(everybody: FederatedDataset, local: Local) -> Iterator[Timed]:
    """All clients at once, padded to the longest: one product per step for everybody."""
    rows = [TrainingRows.of(site.train, FedAvg().lift, np.float32) for site in everybody.members]
    unit = np.float32(rows[0].unit)
    longest = max(map(len, rows))
    width, classes = rows[0].values.shape[1], len(everybody.test.labels.classes)
    values = np.zeros((len(rows), longest, width), np.float32)
    onehot = np.zeros((len(rows), longest, classes), np.float32)
    for k, part in enumerate(rows):
        values[k, : len(part)] = part.values * unit
        onehot[k, np.arange(len(part)), part.codes] = 1
    present = onehot.sum(axis=2, keepdims=True)
    weights = np.array([len(part) for part in rows], np.float32) / sum(map(len, rows))
    shared, rng = np.zeros((width, classes), np.float32), np.random.default_rng(0)
    while True:
        start = time.process_time()
        theta = np.repeat(shared[None], len(rows), axis=0)
        for _ in range(local.epochs):
            order = rng.permutation(longest)
            for at in range(0, longest, local.batch):
                some = order[at : at + local.batch]
                x, mask = values[:, some], present[:, some]
                scores = x @ theta
                scores -= scores.max(axis=2, keepdims=True)
                np.exp(scores, out=scores)
                scores /= scores.sum(axis=2, keepdims=True)
                residual = (scores - onehot[:, some]) * mask
                residual /= np.maximum(mask.sum(axis=1, keepdims=True), 1)
                theta -= local.rate * (x.transpose(0, 2, 1) @ residual)
        shared = np.tensordot(weights, theta, axes=1)
        yield time.process_time() - start, _linear(shared)


def _linear(weights: Array) -> Predicts:
    return lambda features: (features.real() @ weights).argmax(axis=1)


def operations(everybody: FederatedDataset, local: Local) -> float:
    """Return the operations that are counted in a later round, relative to those of plain steps."""
    engine = InProcess(everybody.members)
    method = FedAvg(rounds=2, epochs=local.epochs, batch=local.batch, rate=local.rate)
    list(method.fit(engine))
    samples = sum(len(site.train) for site in everybody.members)
    width, classes = everybody.test.features.space.width, len(everybody.test.labels.classes)
    plain = 2 * 2 * local.epochs * samples * width * classes
    return round(engine.asks[-1].flops / plain, 4)
