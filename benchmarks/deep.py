"""Depth: a network that is solved against the same network trained, and blocks on frozen features.

FEDGRAM_DATA=... python -m benchmarks.deep mnist [--images 10000] [--layers ...] [--rounds 200]
FEDGRAM_DATA=... python -m benchmarks.deep blocks [--clients 10]
FEDGRAM_DATA=... python -m benchmarks.deep personal [--seeds 3]

mnist: 20 clients with two labels each. FedACnnL is timed, then FedAvg on the same layers until it
reaches the same test accuracy, or for so many rounds; its rate is the best on validation samples,
found before the clock starts. Scoring is not timed. Needs torch. Set OPENBLAS_NUM_THREADS=1: there
are two workers.

blocks: DeepAFL against AFL on CIFAR-100 features, the official split. Ridges and depth are chosen
on a tenth of the training samples, which then train too; the test samples are looked at once.

personal: APFL on deep features against APFL, 100 clients, Dirichlet 0.1, split within clients. The
refinement's ridge and balance of both are chosen on validation samples, which train neither.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from fedgram import InProcess, Plan, Site, Sites, codec, load, make, run, sites
from fedgram.client import Client
from fedgram.data.sources import TEST, TRAIN, Dataset
from fedgram.experiment.runner import Scoring
from fedgram.features.lift import Lift
from fedgram.features.residual import Residual
from fedgram.heads import Predictor, predict
from fedgram.method import Method
from fedgram.methods.afl import AFL
from fedgram.methods.apfl import APFL
from fedgram.methods.deepafl import DeepAFL
from fedgram.samples import Samples, concatenate
from fedgram.training import Training

FEATURES = "cifar100_efficientnet_lite0.npz"
IMAGES = "mnist_images.npz"
LAYERS = "conv 32 5x5 pad 2 max 2, conv 64 5x5 pad 2 max 2"
PILOT = 5  # rounds after which a rate is judged
SCORED = 5  # rounds between two scores


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=("mnist", "blocks", "personal"))
    parser.add_argument("--images", type=int, default=10_000, help="training images of MNIST")
    parser.add_argument("--layers", default=LAYERS)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--others", type=int, default=20, help="rounds of FedProx and pFedMe")
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--block-ridges", type=float, nargs="*", default=[10.0, 30.0, 100.0])
    parser.add_argument("--ridges", type=float, nargs="*", default=[100.0])
    parser.add_argument("--blocks", type=int, default=20)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    parts = {"mnist": mnist, "blocks": blocks, "personal": personal}
    for line in parts[arguments.part](arguments):
        print(line, flush=True)


# A network, solved and trained


def mnist(arguments: argparse.Namespace) -> Iterator[str]:
    data = some(load(IMAGES), arguments.images)
    plan = Plan(
        clients=20,
        partition="classes",
        classes_per_client=2,
        valid_fraction=0.1,
        reserve_valid=True,
    )
    everybody = sites(data, plan)
    held = [len(np.unique(site.train.labels.codes)) for site in everybody.members]
    yield (
        f"MNIST, {sum(len(s.train) for s in everybody.members)} training images, 20 clients of "
        f"{min(held)} to {max(held)} labels, {len(everybody.test)} test images; {arguments.layers}"
    )
    layers = {"layers": arguments.layers}
    for filters in ("none", "random"):
        yield solved("fedacnnl", everybody, {**layers, "filters": filters})[0]
    line, goal, work = solved("fedacnnl", everybody, layers)
    yield line
    yield solved("pfedacnnl", everybody, {**layers, "strength": "auto"})[0]
    yield from trained("fedavg", everybody, layers, arguments.rounds, goal, work)
    for name in ("fedprox", "pfedme"):
        yield from trained(name, everybody, layers, arguments.others)


def some(data: Dataset, images: int) -> Dataset:
    """Return the data with some of the training images, and all test images."""
    order = np.random.default_rng(0).permutation(np.flatnonzero(data.split == TRAIN))[:images]
    kept = np.sort(np.concatenate([order, np.flatnonzero(data.split == TEST)]))
    return replace(data, x=data.x[kept], y=data.y[kept], split=data.split[kept])


def solved(name: str, everybody: Sites, settings: dict[str, Any]) -> tuple[str, float, float]:
    """Return a line, the accuracy on all test samples and the processor's seconds."""
    method, engine = make(name, settings), InProcess(everybody.members, workers=2)
    clock = Clock()
    with clock:
        *_, shared = method.fit(engine)
    whole, own = accuracies(method, engine, shared, everybody)
    label = f"{name} {settings.get('filters', '')}".strip()
    return f"  {label}: {clock}, {whole:.2f} % of all, {own:.2f} % client mean", whole, clock.work


def trained(
    name: str,
    everybody: Sites,
    settings: dict[str, Any],
    rounds: int,
    goal: float = 100.0,
    ours: float = 0.0,
) -> Iterator[str]:
    """Train until the goal is reached, timing rounds but not what is measured between them."""
    method = make(name, {"epochs": 1, "batch": 32, "pilot": PILOT, **settings, "rounds": 1})
    assert isinstance(method, Training)
    search, clock, whole = Clock(), Clock(), 0.0
    with search:
        rate = next(iter(method.fit(InProcess(everybody.members, workers=2)))).rate
    yield f"  {name}: rate {rate:g}, found in {search}"
    method, engine = (
        replace(method, rate=rate, rounds=rounds),
        InProcess(everybody.members, workers=2),
    )
    training = method.fit(engine)
    for number in range(1, rounds + 1):
        with clock:
            model = next(training)
        if number % SCORED == 0 or number == rounds:
            whole = 100 * right(model.network, everybody.test)
            yield f"    round {number}: {clock}, {whole:.2f} %"
        if whole >= goal:
            break
    _, own = accuracies(method, engine, model, everybody)
    yield (f"  {name}: {clock} for {number} rounds, {whole:.2f} % of all, {own:.2f} % client mean")
    if ours:
        yield f"  fedacnnl takes {100 * (1 - ours / clock.work):.1f} % less work than {name}"


class Clock:
    """Seconds on the wall, and of all this process's threads: the latter tell in a crowd too."""

    def __init__(self) -> None:
        self.wall = self.work = 0.0

    def __enter__(self) -> None:
        self._start = time.perf_counter(), time.process_time()

    def __exit__(self, *_: object) -> None:
        self.wall += time.perf_counter() - self._start[0]
        self.work += time.process_time() - self._start[1]

    def __str__(self) -> str:
        return f"{self.wall:.1f} s ({self.work:.1f} s of processors)"


def accuracies(
    method: Method, engine: InProcess, shared: Any, everybody: Sites
) -> tuple[float, float]:
    """Return the mean accuracy of all models on all test samples, and on their own, in %."""
    found: dict[str, float] = {}  # one model for all is tried once

    def score(site: Site, client: Client, part: Any) -> tuple[float, float]:
        model = method.personalize(client, part)
        name = codec.digest(model)
        if name not in found:
            found[name] = right(model, everybody.test)
        return found[name], right(model, site.test)

    both = np.mean([pair for _, pair in engine.evaluate(score, shared)], axis=0)
    return 100 * float(both[0]), 100 * float(both[1])


def right(model: Predictor, samples: Samples) -> float:
    return float(np.mean(predict(model, samples.features) == samples.labels.codes))


# Blocks on frozen features


def blocks(arguments: argparse.Namespace) -> Iterator[str]:
    data = load(FEATURES)
    plan = Plan(clients=arguments.clients, dirichlet=0.5, valid_fraction=0.1, reserve_valid=True)
    yield f"{data.name}: {arguments.clients} clients, chosen on validation samples"
    choosing = sites(data, plan)
    valid = concatenate([site.valid for site in choosing.members])
    best: tuple[float, DeepAFL] = (0.0, DeepAFL(blocks=0))
    for ridge, block_ridge in itertools.product(arguments.ridges, arguments.block_ridges):
        method = DeepAFL(
            ridge=ridge,
            block_ridge=block_ridge,
            blocks=arguments.blocks,
            width=arguments.width,
        )
        start, found = time.perf_counter(), []
        for depth in method.fit(InProcess(choosing.members, workers=2)):
            found.append(right(depth, valid))
        deepest = int(np.argmax(found))
        best = max(best, (found[deepest], replace(method, blocks=deepest)), key=lambda b: b[0])
        curve = " ".join(f"{100 * share:.2f}" for share in found[::5])
        yield (
            f"  ridge {ridge:g}, block_ridge {block_ridge:g}: valid {curve} (every 5 blocks), best "
            f"{100 * found[deepest]:.2f} at {deepest}; {time.perf_counter() - start:.0f} s"
        )
    everybody = sites(data, replace(plan, reserve_valid=False))
    yield f"  chosen: {best[1]}"
    for name, method in (
        ("afl", AFL()),
        ("afl, lift 1024", AFL(lift=Lift(width=1024))),
        ("afl, lift 4096", AFL(lift=Lift(width=4096))),
        ("deepafl", best[1]),
    ):
        result = run(method, everybody, workers=2, scoring=Scoring(every=1000))
        up = sum(ask.bytes_up / ask.clients for ask in result.asks if ask.phase == "train")
        yield (
            f"  {name}: test accuracy {100 * result.accuracy['global']:.2f} %, "
            f"{result.scores.seconds:.0f} s, {up / 1e6:.1f} MB up per client"
        )


# A personal method on deep features


def personal(arguments: argparse.Namespace) -> Iterator[str]:
    data = load(FEATURES)
    found: dict[str, list[float]] = {"apfl": [], "deepafl-apfl": []}
    below = DeepAFL(blocks=arguments.blocks, block_ridge=arguments.block_ridges[0])
    for seed in range(arguments.seeds):
        plan = Plan(
            clients=100,
            dirichlet=0.1,
            split="within-client",
            seed=seed,
            valid_fraction=0.1,
            reserve_valid=True,
        )
        everybody = sites(data, plan)
        *_, last = below.fit(InProcess(everybody.members, workers=2))
        for name, federation in (
            ("apfl", everybody),
            ("deepafl-apfl", deepened(everybody, last.below)),
        ):
            best = max(
                (
                    run(APFL(refinement_ridge=ridge, balance=balance), federation, workers=2)
                    for ridge, balance in itertools.product((100.0, 300.0, 1000.0), (0.3, 0.5, 1.0))
                ),
                key=lambda result: result.scores.validity,
            )
            found[name].append(100 * best.accuracy["client_mean"])
            yield (
                f"  seed {seed}, {name}: valid {100 * best.scores.validity:.2f}, "
                f"test client mean {found[name][-1]:.2f}"
            )
    for name, values in found.items():
        yield f"{name}: {np.mean(values):.2f} +- {np.std(values):.2f} over {len(values)} seeds"


def deepened(everybody: Sites, below: Residual) -> Sites:
    """Return a federation of deep features: what a method on top sees, to the byte."""

    def deep(samples: Samples) -> Samples:
        return Samples(below(samples.features), samples.labels)

    members = [
        replace(site, train=deep(site.train), valid=deep(site.valid), test=deep(site.test))
        for site in everybody.members
    ]
    return Sites(members=members, holdout=[], test=concatenate([site.test for site in members]))


if __name__ == "__main__":
    main()
