"""Rounds of FedAvg on a linear head: fedgram's loop against a plain torch loop, per round.

python -m benchmarks.descent [--quick]

Needs torch. The features are those of CIFAR-100 in the folder that FEDGRAM_DATA names, else random
ones of the same size. The two take turns with nobody else between them. Afterwards others take
turns with fedgram: torch without its loader, and the same arithmetic stacked over clients in NumPy,
which is what one would write first to save Python's overhead. What saves more is descent in the
span of a client's samples, where only what is not a product is stacked (fedgram.training.descent).
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, to try the script")
    quick = parser.parse_args().quick
    for line in lines(quick=quick):
        print(line, flush=True)


def lines(*, quick: bool) -> Iterator[str]:
    data, clients, rounds = (load_dataset("digits"), 20, 2) if quick else (_features(), 100, 12)
    everybody = federate(
        data, PartitionPlan(clients=clients, split="within-client", equal_sizes=True)
    )
    yield (
        f"{data.name}: {clients} clients, {sum(len(s.train) for s in everybody.members)} training "
        f"samples, {everybody.test.features.space.width} features, {len(data.classes)} classes"
    )
    for local in (MAIN, *OTHERS):
        some = rounds if local == MAIN else rounds // 2
        yield f"{some} rounds of {local}"
        ways = {"fedgram": fedgram(everybody, local), "torch": torch_loop(everybody, local)}
        yield from compared(everybody, ways, some)
    yield f"{rounds // 2} rounds of {MAIN}, other ways"
    ways = {
        "fedgram": fedgram(everybody, MAIN),
        "torch, batches sliced by hand": torch_loop(everybody, MAIN, sliced=True),
        "numpy, stacked over clients": stacked(everybody, MAIN),
    }
    yield from compared(everybody, ways, rounds // 2)
    yield "operations of a round, of those of plain steps: " + operations(everybody, MAIN)


def compared(
    everybody: FederatedDataset, ways: dict[str, Iterator[Timed]], rounds: int
) -> Iterator[str]:
    """Take a round of each in turn, so that a slow minute of a shared machine slows all of them."""
    turns = list(zip(*(islice(way, rounds) for way in ways.values()), strict=True))
    seconds = {name: [turn[at][0] for turn in turns] for at, name in enumerate(ways)}
    ours = seconds["fedgram"]
    for at, (name, taken) in enumerate(seconds.items()):
        ratio = statistics.median(t / o for t, o in zip(taken, ours, strict=True))
        right = turns[-1][at][1](everybody.test.features) == everybody.test.labels.codes
        goal = "  (goal >= 5)" if name == "torch" else ""
        yield (
            f"  {name}: {1000 * statistics.median(taken):.0f} ms per round, test accuracy "
            f"{100 * np.mean(right):.1f} %, {ratio:.1f} times fedgram's time{goal}"
        )
    yield f"  fedgram's first round, with what later ones keep: {1000 * ours[0]:.0f} ms"


def _features() -> Dataset:
    if os.environ.get("FEDGRAM_DATA") and (Path(os.environ["FEDGRAM_DATA"]) / FILE).is_file():
        return load_dataset(FILE)
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 100, 60_000)
    x = rng.normal(0, 1, (100, 1280)).astype(np.float32)[codes]
    x += rng.normal(0, 4, x.shape).astype(np.float32)
    return Dataset(x=x, y=codes, classes=tuple(map(str, range(100))), name="random features")


def fedgram(everybody: FederatedDataset, local: Local) -> Iterator[Timed]:
    forgotten = [replace(s, train=s.train.take(slice(None))) for s in everybody.members]
    engine = InProcess(forgotten, workers=2)
    method = FedAvg(rounds=sys.maxsize, epochs=local.epochs, batch=local.batch, rate=local.rate)
    models = iter(method.fit(engine))
    while True:
        start = time.perf_counter()
        model = next(models)
        yield time.perf_counter() - start, partial(predict, model.network)


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
        start = time.perf_counter()
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
        yield time.perf_counter() - start, _linear(shared.numpy().T)


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
        start = time.perf_counter()
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
        yield time.perf_counter() - start, _linear(shared)


def _linear(weights: Array) -> Predicts:
    return lambda features: (features.real() @ weights).argmax(axis=1)


def operations(everybody: FederatedDataset, local: Local) -> str:
    """Return the operations that are counted in a later round, relative to those of plain steps."""
    engine = InProcess(everybody.members)
    method = FedAvg(rounds=2, epochs=local.epochs, batch=local.batch, rate=local.rate)
    list(method.fit(engine))
    samples = sum(len(site.train) for site in everybody.members)
    width, classes = everybody.test.features.space.width, len(everybody.test.labels.classes)
    plain = 2 * 2 * local.epochs * samples * width * classes
    return f"{100 * engine.asks[-1].flops / plain:.0f} %"


if __name__ == "__main__":
    main()
