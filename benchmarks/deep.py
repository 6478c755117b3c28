"""Depth: a network that is solved against the same network trained, and blocks on frozen features.

FEDGRAM_DATA=... python -m benchmarks.deep mnist [--images 6000] [--layers ...] [--rounds 200]
FEDGRAM_DATA=... python -m benchmarks.deep blocks [--blocks 10] [--block-ridges 10 30] [--seeds 3]

mnist: 20 clients with two labels each. FedACnnL is timed, then FedAvg, FedProx and pFedMe on the
same layers, until their shared network reaches the same test accuracy, for so many rounds, or until
they have taken so many times the work (--patience). Their rates are the best on validation samples,
found before the clock starts. Scoring is not timed. Needs torch. Clients compute one after the
other: set OPENBLAS_NUM_THREADS=1.

blocks: DeepAFL against AFL on CIFAR-100 features, the official test samples, and linear APFL on
deep features against linear APFL. A tenth of the training samples train nothing: ridge and depth of
the blocks, and ridge and balance of both refinements, are the best on them.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks import lab
from fedgram import (
    FederatedDataset,
    InProcess,
    PartitionPlan,
    Site,
    create_method,
    federate,
    load_dataset,
)
from fedgram.core.samples import Samples, concatenate
from fedgram.data.dataset import TEST, TRAIN, VALID, Dataset
from fedgram.features.lift import Lift
from fedgram.features.residual import Residual
from fedgram.federation.client import Client
from fedgram.federation.method import Method
from fedgram.layerwise.solver import FOR_IMAGES, SolvedNetwork
from fedgram.methods._stacked import StackedModel
from fedgram.methods.afl import AFL
from fedgram.methods.apfl_linear import APFLLinear as APFL
from fedgram.methods.deepafl import DeepAFL
from fedgram.models.linear import Predictor, predict
from fedgram.training.loop import GradientMethod

FEATURES = "cifar100_efficientnet_lite0.npz"
IMAGES = "mnist_images.npz"
PILOT = 5  # rounds after which a rate is judged
SCORED = 5  # rounds between two scores
SHOWN = 25  # rounds between two rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=("mnist", "blocks"))
    parser.add_argument("--images", type=int, default=6_000, help="training images of MNIST")
    parser.add_argument("--layers", default=FOR_IMAGES)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--against", nargs="*", default=["fedavg", "fedprox", "pfedme"])
    parser.add_argument("--patience", type=float, default=100.0, help="times the work of FedACnnL")
    parser.add_argument("--block-ridges", type=float, nargs="*", default=[3.0, 10.0, 30.0])
    parser.add_argument("--ridges", type=float, nargs="*", default=[100.0])
    parser.add_argument("--blocks", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=3)
    lab.add_store(parser)
    arguments = parser.parse_args()
    parts = {"mnist": mnist, "blocks": blocks}
    lab.report(parts[arguments.part](arguments), arguments.store)


# A network, solved and trained


def mnist(arguments: argparse.Namespace) -> Iterator[lab.Row]:
    data = some(load_dataset(IMAGES), arguments.images)
    plan = PartitionPlan(
        clients=20,
        partition="classes",
        classes_per_client=2,
        valid_fraction=0.1,
        reserve_valid=True,
    )
    everybody = federate(data, plan)
    layers = {"layers": arguments.layers}
    for filters in ("none", "random"):
        yield solved("fedacnnl", everybody, {**layers, "filters": filters})
    best = solved("fedacnnl", everybody, layers)
    yield best
    yield solved("pfedacnnl", everybody, {**layers, "strength": "auto"})
    for name in arguments.against:
        yield from trained(
            name, everybody, layers, arguments.rounds, best, arguments.patience * best["seconds"]
        )


def some(data: Dataset, images: int) -> Dataset:
    """Return the data with some of the training images, and all test images."""
    order = np.random.default_rng(0).permutation(np.flatnonzero(data.split == TRAIN))[:images]
    kept = np.sort(np.concatenate([order, np.flatnonzero(data.split == TEST)]))
    return replace(data, x=data.x[kept], y=data.y[kept], split=data.split[kept])


def solved(name: str, everybody: FederatedDataset, settings: dict[str, Any]) -> lab.Row:
    """Return accuracies in % and the processor's seconds."""
    method, engine = create_method(name, settings), InProcess(everybody.members)
    clock = Clock()
    with clock:
        *_, shared = method.fit(engine)
    return {
        "method": name,
        "filters": settings.get("filters", ""),
        "seconds": clock.work,
        # otherwise everybody has a model of its own
        "test": 100 * right(shared, everybody.test) if isinstance(shared, SolvedNetwork) else None,
        "client_mean": own_accuracy(method, engine, shared),
    }


def trained(
    name: str,
    everybody: FederatedDataset,
    settings: dict[str, Any],
    rounds: int,
    best: lab.Row,
    most_seconds: float,
) -> Iterator[lab.Row]:
    """Train until the goal is reached, timing rounds but not what is measured between them."""
    method = create_method(
        name, {"epochs": 1, "batch": 32, "pilot": PILOT, **settings, "rounds": 1}
    )
    assert isinstance(method, GradientMethod)
    search, clock, whole = Clock(), Clock(), 0.0
    with search:
        rate = next(iter(method.fit(InProcess(everybody.members)))).rate
    about = {"method": name, "rate": rate, "search_seconds": search.work}
    method, engine = replace(method, rate=rate, rounds=rounds), InProcess(everybody.members)
    training = method.fit(engine)
    for number in range(1, rounds + 1):
        with clock:
            model = next(training)
        if number % SCORED == 0 or number == rounds:
            whole = 100 * right(model.network, everybody.test)
        if whole >= best["test"] or clock.work > most_seconds:
            break
        if number % SHOWN == 0 and number < rounds:
            yield {**about, "rounds": number, "seconds": clock.work, "test": whole}
    yield {
        **about,
        "rounds": number,
        "seconds": clock.work,
        "test": whole,
        "client_mean": own_accuracy(method, engine, model),
        "times_the_work": clock.work / best["seconds"],
    }


class Clock:
    """Seconds of all threads of this process."""

    def __init__(self) -> None:
        self.work = 0.0

    def __enter__(self) -> None:
        self._start = time.process_time()

    def __exit__(self, *_: object) -> None:
        self.work += time.process_time() - self._start


def own_accuracy(method: Method, engine: InProcess, shared: Any) -> float:
    """Return the mean accuracy of the clients' models on their own test samples, in %."""

    def score(site: Site, client: Client, part: Any) -> float:
        return right(method.personalize(client, part), site.test)

    return 100 * float(np.nanmean([share for _, share in engine.evaluate(score, shared)]))


def right(model: Predictor, samples: Samples) -> float:
    if not len(samples):
        return float("nan")
    return float(np.mean(predict(model, samples.features) == samples.labels.codes))


# Blocks on frozen features


def blocks(arguments: argparse.Namespace) -> Iterator[lab.Row]:
    data = with_valid(load_dataset(FEATURES))
    everybody = federate(data, PartitionPlan(clients=10, reserve_valid=True))
    best, curves = choose(everybody, arguments)
    yield from curves
    afl = next(AFL().fit(InProcess(everybody.members, workers=2)))
    wide = next(AFL(lift=Lift(width=4096)).fit(InProcess(everybody.members, workers=2)))
    for name, model in (("afl", afl), ("afl, lift 4096", wide), ("deepafl", best)):
        yield {"method": name, "test": 100 * right(model, everybody.test)}
    # 100 clients; the blocks are the same, since no partition changes them
    found: dict[str, list[float]] = {"apfl-linear": [], "deepafl-apfl": []}
    for seed in range(arguments.seeds):
        plain = federate(
            data, PartitionPlan(clients=100, dirichlet=0.1, seed=seed, reserve_valid=True)
        )
        for name, federation in (
            ("apfl-linear", plain),
            ("deepafl-apfl", deepened(plain, best.below)),
        ):
            _, test = max(tuned(federation))
            found[name].append(100 * test)
    for name, values in found.items():
        if values:
            yield {
                "method": name,
                "seeds": len(values),
                "client_mean": float(np.mean(values)),
                "deviation": float(np.std(values)),
            }


def with_valid(data: Dataset) -> Dataset:
    """Return the data with a tenth of its training samples for choices."""
    split = data.split.copy()
    train = np.flatnonzero(split == TRAIN)
    split[np.random.default_rng(0).choice(train, len(train) // 10, replace=False)] = VALID
    return replace(data, split=split)


def choose(
    everybody: FederatedDataset, arguments: argparse.Namespace
) -> tuple[StackedModel, list[lab.Row]]:
    """Return the deep model that is best on validation samples, of all ridges and depths."""
    valid = concatenate([site.valid for site in everybody.members]).with_cache()
    best, most, found = None, 0.0, []
    for ridge, block_ridge in itertools.product(arguments.ridges, arguments.block_ridges):
        method = DeepAFL(ridge=ridge, block_ridge=block_ridge, blocks=arguments.blocks)
        shares, clock = [], Clock()
        with clock:
            for model in method.fit(InProcess(everybody.members, workers=2)):
                shares.append(100 * right(model, valid))
                if shares[-1] > most:
                    best, most = model, shares[-1]
        about = {"method": "deepafl", "ridge": ridge, "block_ridge": block_ridge}
        found.append({**about, "valid": [round(s, 2) for s in shares], "seconds": clock.work})
    assert best is not None
    return best, found


def tuned(federation: FederatedDataset) -> Iterator[tuple[float, float]]:
    """Yield validation and test accuracy of APFL, client means, for settings of its refinement."""
    engine = InProcess(federation.members, workers=2)
    shared = next(APFL().fit(engine))  # no setting of the refinement changes it
    for ridge, balance in itertools.product((100.0, 300.0, 1000.0), (0.3, 0.5, 1.0)):
        method = APFL(refinement_ridge=ridge, balance=balance)

        def score(site: Site, client: Client, part: Any, method: APFL = method) -> list[float]:
            model = method.personalize(client, part)
            return [right(model, samples) for samples in (site.valid, site.test)]

        valid, test = np.nanmean([both for _, both in engine.evaluate(score, shared)], axis=0)
        yield float(valid), float(test)


def deepened(everybody: FederatedDataset, below: Residual) -> FederatedDataset:
    """Return a federation of deep features: what a method on top sees, to the byte."""

    def deep(samples: Samples) -> Samples:
        return Samples(below(samples.features), samples.labels)

    members = [
        replace(site, train=deep(site.train), valid=deep(site.valid), test=deep(site.test))
        for site in everybody.members
    ]
    return FederatedDataset(
        members=members, holdout=[], test=concatenate([site.test for site in members])
    )


if __name__ == "__main__":
    main()
