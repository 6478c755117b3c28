"""Data for tests: class clusters, drawn from a seed."""

from collections.abc import Callable

import numpy as np
import pytest

from fedgram import Dataset, Grid, Labels, Lift, Samples, Site

# A plugin, which changes the process that imports it.
collect_ignore = ["torchvision_ops.py"]


def _clusters(
    samples: int = 200, features: int = 12, classes: int = 4, *, seed: int = 0
) -> Dataset:
    """Return vectors that scatter around the centre of their class."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(classes, features))
    y = rng.integers(classes, size=samples)
    x = centres[y] + rng.normal(size=(samples, features))
    return Dataset(x=x, y=y, classes=tuple(f"class {c}" for c in range(classes)))


def _gridded(
    *shape: int, grid: Grid | None = None, lift: Lift | None = None, seed: int = 0
) -> Samples:
    data = _clusters(*shape, seed=seed)
    features = (grid or Grid())(data.x)
    return Samples((lift or Lift())(features), Labels(data.y, data.classes))


def _dealt(samples: Samples, owners: np.ndarray) -> list[Site]:
    """Deal samples to sites, by the number of each sample's owner; nobody gets test samples."""
    nothing = samples.take([])
    return [
        Site(
            id=f"client {owner:03}",
            train=samples.take(np.flatnonzero(owners == owner)),
            valid=nothing,
            test=nothing,
        )
        for owner in np.unique(owners)
    ]


@pytest.fixture(scope="session")
def clusters() -> Callable[..., Dataset]:
    return _clusters


@pytest.fixture(scope="session")
def gridded() -> Callable[..., Samples]:
    """Return a function that makes clustered samples on a grid, lifted or not."""
    return _gridded


@pytest.fixture(scope="session")
def dealt() -> Callable[..., list[Site]]:
    return _dealt
