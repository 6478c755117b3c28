"""Closed-form methods on CIFAR-100 features of a frozen EfficientNet-Lite0, 100 clients.

FEDGRAM_DATA=... python -m benchmarks papers [--json] [--seeds 3] [--dirichlet 0.1]

Settings are fixed: the defaults, but for FedHiP's alpha (30 of 3, 10, 30, 100). All were chosen on
other partitions of the official training part, its test part never seen. This protocol pools both
parts and splits anew, so some samples that helped to choose are test samples here. Both ways of
drawing a Dirichlet partition are shown, since papers seldom say which they use. The numbers are not
comparable with those of papers that use another backbone (ViT-MAE-Base).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from fedgram import PartitionPlan, create_method, federate, load_dataset, run

SOURCE = "cifar100_efficientnet_lite0.npz"
METHODS: dict[str, dict[str, float]] = {
    "local": {},
    "afl": {},
    "fedhip": {"alpha": 30.0},
    "apfl": {},
    "apfl-linear": {},
}


BY_KERNELS = False
Row = dict[str, Any]


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--dirichlet", type=float, nargs="*", default=[0.1])


def measured(given: argparse.Namespace) -> dict[str, Any]:
    data, seeds = load_dataset(SOURCE), 1 if given.quick else given.seeds
    rows = [
        of_partition(data, dirichlet, equal, seeds)
        for dirichlet in given.dirichlet
        for equal in (False, True)
    ]
    return {"seeds": seeds, "rows": rows}


def lines(found: Mapping[str, Any]) -> Iterator[str]:
    yield "client-mean accuracy in %, mean and standard deviation over seeds"
    for row in found["rows"]:
        sizes = "clients of equal size" if row["equal"] else "each class dealt on its own"
        yield (f"Dirichlet {row['dirichlet']:g}, {sizes}, {row['classes']:.1f} classes per client")
        for name, each in row["accuracy"].items():
            yield f"  {name:12} {each['mean']:6.2f} +- {each['sd']:.2f}"


def regressions(found: Mapping[str, Any]) -> Iterator[str]:
    del found
    yield from ()


def of_partition(data: Any, dirichlet: float, equal: bool, seeds: int) -> Row:
    found: dict[str, list[float]] = {name: [] for name in METHODS}
    classes = []
    for seed in range(seeds):
        everybody = federate(
            data,
            PartitionPlan(
                clients=100,
                dirichlet=dirichlet,
                equal_sizes=equal,
                split="within-client",
                seed=seed,
            ),
        )
        classes += [len(np.unique(site.train.labels.codes)) for site in everybody.members]
        for name, settings in METHODS.items():
            result = run(create_method(name, settings), everybody, workers=2)
            found[name].append(100 * result.accuracy["client_mean"])
    accuracy = {
        name: {"mean": round(float(np.mean(each)), 3), "sd": round(float(np.std(each)), 3)}
        for name, each in found.items()
    }
    return {
        "dirichlet": dirichlet,
        "equal": equal,
        "classes": round(float(np.mean(classes)), 2),
        "accuracy": accuracy,
    }
