"""How tests are run: threads, workers, numbers of examples; and data that many of them use."""

import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

# One BLAS thread, also in the processes that tests start, because workers share the cores. Tests
# about threads set their own number; their idle threads sleep at once instead of spinning. Both
# variables are read when numpy is imported.
os.environ["OPENBLAS_NUM_THREADS"] = "1"
os.environ["OPENBLAS_THREAD_TIMEOUT"] = "4"

# Bytecode is kept, also where the environment says otherwise: dozens of tests start processes, and
# each of them would compile the package again.
os.environ["PYTHONDONTWRITEBYTECODE"] = ""

import numpy as np
import pytest
import scipy.linalg  # noqa: F401  (scipy brings a second BLAS, which must be loaded to be limited)
from hypothesis import HealthCheck, settings
from threadpoolctl import threadpool_limits

from fedgram import Dataset, Grid, Labels, Lift, Samples, Site

# A plugin, which changes the process that imports it.
collect_ignore = ["torchvision_ops.py"]

# The power does not fail in tests: to wait for the disk would only take time.
os.fsync = lambda descriptor: None

# Where numpy was imported earlier, by a plugin, the variable came too late.
threadpool_limits(1, user_api="blas")
sys.dont_write_bytecode = False

# Tests write thousands of small files: into memory, where there is room for all of them.
MEMORY, ROOM = Path("/dev/shm"), 4 << 30
roomy = os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free >= ROOM
if roomy and "TMPDIR" not in os.environ:
    os.environ["TMPDIR"] = str(MEMORY)
    tempfile.tempdir = None  # it is found again, by the variable

# How many examples are drawn, by HYPOTHESIS_PROFILE. A failure is found again by the same command,
# except at night, when examples are new each time.
COMMON = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("default", max_examples=25, derandomize=True, **COMMON)
settings.register_profile("ci", max_examples=60, derandomize=True, **COMMON)
settings.register_profile("nightly", max_examples=500, print_blob=True, **COMMON)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


def pytest_xdist_auto_num_workers() -> int | None:
    """On one core, run in one process; on more, let xdist count them."""
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count())
    return 0 if len(cores) == 1 else None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Refuse parameters without an order: workers would collect different tests, now and then."""
    for mark in metafunc.definition.iter_markers("parametrize"):
        values = mark.args[1] if len(mark.args) > 1 else mark.kwargs["argvalues"]
        assert not isinstance(values, set | frozenset), f"{metafunc.function.__name__}: sort them"


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
