"""Tiny ridges and dependent features: the papers' recursion beside sums, in several arithmetics.

FEDGRAM_DATA=... python -m benchmarks.tiny_ridge docs/results/tiny-ridge.json

Features of several widths, some wider than there are training samples, so that the Gram matrix of
all samples has no full rank. The same FedHiP models and ridge regression are computed by

- `exact sums`: fedgram as it is, sums of integers, one Cholesky factorization in float64;
- `float64 sums`: fedgram with `grid.bits = "off"`;
- `recursion, float64` and `recursion, float32`: what the papers describe. Each client inverts its
  own regularized Gram matrix, and the server merges the local models one after the other.

The recursion adds the ridge once for each client, so the shared head of the same row has a ridge of
as many times the given one; the personal heads have one. What is not finite counts as refused.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from fedgram import PartitionPlan, create_method, federate, load_dataset, run
from fedgram.data.dataset import Dataset
from fedgram.errors import SolveError
from fedgram.features.grid import Grid
from fedgram.federation.scoring import Metrics

CLIENTS, SKEW, SEED, ALPHA = 20, 0.1, 0, 30.0
RIDGES = (1e-12, 1e-9, 1e-6, 1e-3, 1.0)
TEXTS = 1000  # a quarter of them for tests: fewer training samples than the widest features
# Widths of a lift, 0 for none. The digits have constant pixels: dependent features without a lift.
CASES = {"digits": (0, 64, 512), "banking77": (0, 512, 1024)}
SUMS: dict[str, int | str] = {"exact sums": 8, "float64 sums": "off"}
RECURSIONS = {"recursion, float64": np.float64, "recursion, float32": np.float32}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("stored", type=Path)
    given = parser.parse_args()
    rows = [row for name, widths in CASES.items() for row in measured(name, widths)]
    found = {"clients": CLIENTS, "dirichlet": SKEW, "alpha": ALPHA, "rows": rows}
    lines = ",\n  ".join(json.dumps(row) for row in rows)
    head = json.dumps({**found, "rows": []}, indent=1)
    given.stored.write_text(head.replace('"rows": []', f'"rows": [\n  {lines}\n ]') + "\n")


def dataset(name: str) -> Dataset:
    if name == "digits":
        return load_dataset(name)
    data = load_dataset(str(Path(os.environ["FEDGRAM_DATA"]) / "banking77_minilm_l6.npz"))
    rows = np.random.default_rng(SEED).permutation(len(data))[:TEXTS]
    return Dataset(data.x[rows], data.y[rows], standardize=False, name=name)


def measured(name: str, widths: tuple[int, ...]) -> list[dict[str, Any]]:
    """Return a row for each width, ridge and arithmetic."""
    data, rows = dataset(name), []
    for width in widths:
        lift = {"lift": {"width": width}} if width else {}
        for ridge in RIDGES:
            for label, bits in SUMS.items():
                rows.append(
                    {"arithmetic": label, "ridge": ridge, **by_sums(data, lift, ridge, bits)}
                )
            for label, dtype in RECURSIONS.items():
                rows.append(
                    {"arithmetic": label, "ridge": ridge, **merged(data, lift, ridge, dtype)}
                )
            rows[-4:] = [{"data": name, "width": width, **row} for row in rows[-4:]]
            for row in rows[-4:]:
                print(row, flush=True)
    return rows


def members_of(data: Dataset, bits: int | str) -> Any:
    plan = PartitionPlan(clients=CLIENTS, partition="dirichlet", dirichlet=SKEW, seed=SEED)
    return federate(data, plan, Grid(bits=bits))  # type: ignore[arg-type]


def by_sums(data: Dataset, lift: dict[str, Any], ridge: float, bits: int | str) -> dict[str, Any]:
    """Return the client-mean accuracies of both methods in fedgram, or the reason of a refusal."""
    members, found = members_of(data, bits), {}
    for method, settings in (("afl", {}), ("fedhip", {"alpha": ALPHA})):
        made = create_method(method, {"ridge": ridge, **settings, **lift})
        try:
            result = run(made, members, metrics=Metrics(global_test=False))
        except SolveError as error:
            return {"refused": str(error)}
        found[method] = round(result.accuracy["client_mean"], 5)
    return found


def merged(data: Dataset, lift: dict[str, Any], ridge: float, dtype: Any) -> dict[str, Any]:
    """Return the client-mean accuracies of the recursion S_k, M_k and of the models made of it."""
    members = members_of(data, 8).members
    lifted = create_method("afl", {"ridge": ridge, **lift}).lift
    parts = [
        (lifted(site.train.features).real().astype(dtype), site.train.labels.onehot().astype(dtype))
        for site in members
    ]
    width, classes = parts[0][0].shape[1], parts[0][1].shape[1]
    beta = dtype(ridge) * np.eye(width, dtype=dtype)
    total, head = np.zeros((width, width), dtype), np.zeros((width, classes), dtype)
    try:
        for x, y in parts:
            own = x.T @ x + beta
            local = np.linalg.inv(own) @ (x.T @ y)
            total = total + own
            head = head + np.linalg.inv(total) @ (own @ (local - head))
        personal = [personal_head(total, head, x, y, beta, len(parts)) for x, y in parts]
    except np.linalg.LinAlgError as error:
        return {"refused": str(error)}
    if not all(np.isfinite(each).all() for each in (head, *personal)):
        return {"refused": "numbers that are not finite"}
    tests = [(lifted(site.test.features).real(), site.test.labels.codes) for site in members]
    return {"afl": accuracy(tests, [head] * len(tests)), "fedhip": accuracy(tests, personal)}


def personal_head(total: Any, head: Any, x: Any, y: Any, beta: Any, clients: int) -> Any:
    """Return FedHiP's head of a client, with one ridge: the others' are subtracted."""
    weight = x.dtype.type(ALPHA)
    gram = total - (clients - 1) * beta + weight * (x.T @ x)
    return np.linalg.inv(gram) @ (total @ head + weight * (x.T @ y))


def accuracy(tests: list[Any], heads: list[Any]) -> float:
    """Return the mean over clients that have test samples."""
    shares = [
        float(((x @ head).argmax(axis=1) == codes).mean())
        for (x, codes), head in zip(tests, heads, strict=True)
        if len(codes)
    ]
    return round(float(np.mean(shares)), 5)


if __name__ == "__main__":
    main()
