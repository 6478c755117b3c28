"""Networks solved layer by layer: what their filters are worth, and personal heads.

FEDGRAM_DATA=... python -m benchmarks.layers filters [--data mnist_images.npz] [--layers acnnl5 ...]
FEDGRAM_DATA=... python -m benchmarks.layers personal [--partition dirichlet] [--seeds 3]

filters: every kind of filter in the same network beside the controls, random filters and no hidden
layers. The head's ridge is chosen on a tenth of the training images, which then do not train; the
test images are looked at once. The partition changes nothing, so there is one client.

personal: 20 clients with two labels each, or with shares of classes drawn from Dirichlet 0.1, test
images likewise. pFedACnnL pulls its heads with the strength that leave-one-out chooses; nothing is
chosen on validation or test images.

At most as many test images are looked at as there are training images.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, get_args

import numpy as np

from benchmarks import lab
from fedgram import InProcess, PartitionPlan, create_method, federate, load_dataset, run
from fedgram.core.samples import Samples
from fedgram.data.dataset import TEST, TRAIN, VALID, Dataset
from fedgram.experiments.scores import Metrics
from fedgram.layerwise.filters import FilterKind, Scaling
from fedgram.layerwise.solver import SolvedNetwork
from fedgram.methods.fedacnnl import FedACnnL
from fedgram.models.linear import predict

RIDGES = (10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0)
PERSONAL: dict[str, tuple[str, dict[str, Any]]] = {
    "fedacnnl": ("fedacnnl", {}),
    "pfedacnnl, head": ("pfedacnnl", {"strength": "auto"}),
    "pfedacnnl, head, 5 groups": ("pfedacnnl", {"strength": "auto", "groups": 5}),
    "fedacnnl, backward codes": ("fedacnnl", {"filters": "backward"}),
    "pfedacnnl, head, backward codes": ("pfedacnnl", {"strength": "auto", "filters": "backward"}),
    "pfedacnnl, all layers, backward codes": (
        "pfedacnnl",
        {"strength": "auto", "filters": "backward", "scope": "all"},
    ),
    "fedhip on pixels": ("fedhip", {}),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=("filters", "personal"))
    parser.add_argument("--data", default="mnist_images.npz", help="images, as fedgram run takes")
    parser.add_argument("--images", type=int, default=0, help="training images; 0 for all")
    parser.add_argument("--layers", nargs="*", default=["auto"])
    parser.add_argument(
        "--filters", nargs="*", choices=get_args(FilterKind), default=get_args(FilterKind)
    )
    parser.add_argument("--scaling", nargs="*", choices=get_args(Scaling), default=["length"])
    parser.add_argument("--cells", type=int, nargs="*", default=[0], help="of what the head sees")
    parser.add_argument("--lift", type=int, default=0, help="width of a lift before the head")
    parser.add_argument("--partition", choices=("classes", "dirichlet"), default="classes")
    parser.add_argument("--methods", nargs="*", choices=PERSONAL, default=PERSONAL)
    parser.add_argument("--seeds", type=int, default=3)
    lab.add_store(parser)
    arguments = parser.parse_args()
    parts = {"filters": filters, "personal": personal}
    lab.report(parts[arguments.part](arguments), arguments.store)


def filters(arguments: argparse.Namespace) -> Iterator[lab.Row]:
    data = some(load_dataset(arguments.data), arguments.images, valid=0.1)
    plan = PartitionPlan(clients=1, partition="iid", reserve_valid=True)
    (site,) = federate(data, plan).members
    choices = arguments.layers, arguments.filters, arguments.scaling, arguments.cells
    for layers, kind, scaling, cells in itertools.product(*choices):
        settings = {"layers": layers, "filters": kind, "scaling": scaling, "cells": cells}
        start = time.process_time()
        method = create_method("fedacnnl", {**settings, "lift": {"width": arguments.lift}})
        valid, test, ridge = best(method, InProcess([site]), site.valid, site.test)
        seconds = time.process_time() - start
        yield {
            "training": len(site.train),
            "tested": len(site.test),
            "lift": arguments.lift,
            "layers": layers,
            "filters": kind,
            "scaling": scaling,
            "cells": cells,
            "validation": 100 * valid,
            "test": 100 * test,
            "ridge": ridge,
            "seconds": seconds,
        }


def best(
    method: FedACnnL, engine: InProcess, valid: Samples, test: Samples
) -> tuple[float, float, float]:
    """Return accuracies with the ridge that is best on validation images, and that ridge."""
    stack, origins = method.solved(engine, engine.sum(method.census))
    total = engine.sum(method.head_statistics, stack)
    seen = valid.with_cache().features
    found: list[tuple[float, float, SolvedNetwork]] = []
    for ridge in RIDGES:
        model = method.headed(stack, total, origins, ridge)
        right = predict(model, seen) == valid.labels.codes
        found.append((float(right.mean()), ridge, model))
    accuracy, ridge, model = max(found, key=lambda item: item[0])
    right = predict(model, test.features) == test.labels.codes
    return accuracy, float(right.mean()), ridge


def personal(arguments: argparse.Namespace) -> Iterator[lab.Row]:
    data = some(load_dataset(arguments.data), arguments.images)
    found: dict[str, list[float]] = {name: [] for name in arguments.methods}
    seconds: dict[str, list[float]] = {name: [] for name in arguments.methods}
    shared = {
        "layers": arguments.layers[0],
        "scaling": arguments.scaling[0],
        "cells": arguments.cells[0],
    }
    for seed in range(arguments.seeds):
        plan = PartitionPlan(
            clients=20, partition=arguments.partition, classes_per_client=2, seed=seed
        )
        everybody = federate(data, replace(plan, dirichlet=0.1))
        for label in arguments.methods:
            name, settings = PERSONAL[label]
            network = {} if name == "fedhip" else shared
            start = time.process_time()
            method = create_method(name, {**network, **settings})
            result = run(method, everybody, metrics=Metrics(global_test=False))
            seconds[label].append(time.process_time() - start)
            found[label].append(100 * result.scores.tally.client_mean)
    for label, values in found.items():
        yield {
            "method": label,
            "partition": arguments.partition,
            "seeds": arguments.seeds,
            "mean": float(np.mean(values)),
            "deviation": float(np.std(values)),
            "seconds": float(np.mean(seconds[label])),
        }


def some(data: Dataset, images: int, valid: float = 0.0) -> Dataset:
    """Return the data with so many training images, and a share of them for validation."""
    rng = np.random.default_rng(0)
    split = np.asarray(data.split).copy()
    train = rng.permutation(np.flatnonzero(split == TRAIN))
    kept = train[: images or len(train)]
    split[kept[: round(valid * len(kept))]] = VALID
    test = rng.permutation(np.flatnonzero(split == TEST))[: len(kept)]
    rows = np.sort(np.concatenate([kept, test]))
    return replace(data, x=data.x[rows], y=data.y[rows], split=split[rows])


if __name__ == "__main__":
    main()
