"""Closed-form methods on CIFAR-100 features of a frozen EfficientNet-Lite0, 100 clients.

FEDGRAM_DATA=... python -m benchmarks.cifar100 [--seeds 3] [--dirichlet 0.1]

Settings are fixed: the defaults, but for FedHiP's alpha (30 of 3, 10, 30, 100). All were chosen on
other partitions of the official training part, its test part never seen. This protocol pools both
parts and splits anew, so some samples that helped to choose are test samples here. Both ways of
drawing a Dirichlet partition are shown, since papers seldom say which they use. The numbers are not
comparable with those of papers that use another backbone (ViT-MAE-Base).
"""

from __future__ import annotations

import argparse

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--dirichlet", type=float, nargs="*", default=[0.1])
    arguments = parser.parse_args()
    data = load_dataset(SOURCE)
    print("client-mean accuracy in %, mean and standard deviation over seeds")
    for dirichlet in arguments.dirichlet:
        for equal in (False, True):
            report(data, dirichlet, equal, arguments.seeds)


def report(data: object, dirichlet: float, equal: bool, seeds: int) -> None:
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
    sizes = "clients of equal size" if equal else "each class dealt on its own"
    print(f"Dirichlet {dirichlet:g}, {sizes}, {np.mean(classes):.1f} classes per client")
    for name, values in found.items():
        print(f"  {name:8} {np.mean(values):6.2f} +- {np.std(values):.2f}", flush=True)


if __name__ == "__main__":
    main()
