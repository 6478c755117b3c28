"""Rows and parameters for tests of networks and their descent."""

import numpy as np

from fedgram.models.mlp import TrainingRows


def some_rows(shape, count=11, seed=0, dtype=np.float64, unit=0.25):
    rng = np.random.default_rng(seed)
    values = rng.integers(-9, 10, (count, shape.width)).astype(dtype)
    return TrainingRows(values=values, codes=rng.integers(shape.classes, size=count), unit=unit)


def some_theta(shape, seed=1, dtype=np.float64):
    return np.random.default_rng(seed).normal(size=shape.size).astype(dtype)
