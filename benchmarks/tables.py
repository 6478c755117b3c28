"""What the scale of a table's columns and rows is worth: test accuracy of one ridge regression.

python -m benchmarks.tables [--repeats 10] [--store tables]

Needs scikit-learn for its data. The ridge is chosen by cross-validation on the training rows, which
also settle the schema. The default anchor was chosen by the squared error of that
cross-validation, never by test rows; it is printed in brackets.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from sklearn import datasets
from sklearn.model_selection import StratifiedKFold, StratifiedShuffleSplit

from benchmarks import lab
from fedgram import Features, Grid, Labels, Lift, Statistics
from fedgram.data.tabular.draft import draft
from fedgram.data.tabular.moments import measured, with_moments
from fedgram.data.tabular.reader import Table
from fedgram.data.tabular.schema import Schema
from fedgram.features.tabular import rows

RIDGES = 10.0 ** np.arange(-2, 4.5, 0.5)
WAYS = ("raw, RMS", "range", "anchor 0", "anchor 1", "anchor 1000")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=10)
    lab.add_store(parser)
    given = parser.parse_args()
    lab.report(measured_rows(given.repeats), given.store)


def measured_rows(repeats: int) -> Iterator[lab.Row]:
    for name, x, y, width in sources():
        shares = StratifiedShuffleSplit(repeats, test_size=0.25, random_state=0)
        tried = [
            [accuracy(x, y, train, test, way, Lift(width=width)) for way in WAYS]
            for train, test in shares.split(x, y)
        ]
        means = np.mean(tried, axis=0)
        yield {
            "data": name,
            **{way: 100 * float(right) for way, (right, _) in zip(WAYS, means, strict=True)},
            **{f"{way}, error": float(e) for way, (_, e) in zip(WAYS, means, strict=True)},
        }


def sources() -> Iterator[tuple[str, np.ndarray, np.ndarray, int]]:
    """Yield names, rows and classes of tables, and the width of a lift of them."""
    diabetes = datasets.load_diabetes(scaled=False)
    thirds = np.digitize(diabetes.target, np.quantile(diabetes.target, [1 / 3, 2 / 3]))
    cancer, wine = datasets.load_breast_cancer(), datasets.load_wine()
    iris = datasets.load_iris()
    yield "breast cancer, 30 columns", cancer.data, cancer.target, 0
    yield "wine, 13 columns", wine.data, wine.target, 0
    yield "diabetes in thirds, 10 columns", diabetes.data, thirds, 0
    yield "iris, 4 columns", iris.data, iris.target, 0
    yield "iris, lifted to 512", iris.data, iris.target, 512
    yield "breast cancer, 1 column", cancer.data[:, :1], cancer.target, 0
    yield "wine, 2 columns", wine.data[:, [0, 9]], wine.target, 0


def accuracy(
    x: np.ndarray, y: np.ndarray, train: np.ndarray, test: np.ndarray, way: str, lift: Lift
) -> tuple[float, float]:
    """Return the test accuracy with the ridge of least cross-validated error, and that error."""
    grid = Grid()
    if way == "raw, RMS":
        features = lift(grid(x))
    else:
        made = schema(x, y, train, way)
        features = lift(grid.stored(rows(made, table(x, y), grid), backbone=made.backbone))
    labels = Labels(y, tuple(map(str, range(int(y.max()) + 1))))
    errors = np.zeros(len(RIDGES))
    for kept, left in StratifiedKFold(5, shuffle=True, random_state=0).split(train, y[train]):
        for k, weights in enumerate(path(features, labels, train[kept])):
            scores = features.take(train[left]).real() @ weights
            errors[k] += np.sum((scores - labels.take(train[left]).onehot()) ** 2) / len(train)
    weights = path(features, labels, train)[int(errors.argmin())]
    right = (features.take(test).real() @ weights).argmax(axis=1) == y[test]
    return float(right.mean()), float(errors.min())


def path(features: Features, labels: Labels, kept: np.ndarray) -> list[np.ndarray]:
    total = Statistics.of(features.take(kept), labels.take(kept))
    return list(total.path([float(ridge) for ridge in RIDGES]))


def table(x: np.ndarray, y: np.ndarray) -> Table:
    columns = {f"c{k}": column.tolist() for k, column in enumerate(x.T)}
    return Table(name="table", columns={**columns, "label": y.tolist()})


def schema(x: np.ndarray, y: np.ndarray, train: np.ndarray, way: str) -> Schema:
    """Return a schema with the ranges of all rows, as if public, and moments of training rows."""
    made, _ = draft([table(x, y)], label="label")
    if way == "range":
        return made
    made = with_moments(made, measured(made, [table(x[train], y[train])]))
    return replace(made, anchor=float(way.removeprefix("anchor ")))


if __name__ == "__main__":
    main()
