"""What would not fit in memory is refused before it is tried, and the error says how much."""

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from fedgram.checks.federations import partitioned
from fedgram.core.exact import Accumulator
from fedgram.core.samples import Labels
from fedgram.core.statistics import Statistics
from fedgram.errors import MemoryLimitError
from fedgram.experiments.runner import run
from fedgram.features import lift as lift_module
from fedgram.features.grid import Grid
from fedgram.features.lift import Lift
from fedgram.federation.method import create_method
from fedgram.runtime import memory


@pytest.fixture
def free(monkeypatch):
    def set_to(count):
        monkeypatch.setattr(memory, "available", lambda: count)

    return set_to


# The rule


def test_what_fits_is_let_through(free):
    free(1000)
    memory.require(1000, "a table", "use a smaller one")


def test_a_byte_too_many_is_refused(free):
    free(1000)
    with pytest.raises(MemoryLimitError):
        memory.require(1001, "a table", "use a smaller one")


def test_the_error_says_what_how_much_and_what_to_do(free):
    free(3_000_000)
    with pytest.raises(MemoryLimitError) as refused:
        memory.require(2_500_000_000, "a table", "use a smaller one")
    assert str(refused.value) == (
        "a table needs 2.5 GB of memory, 3 MB are free; use a smaller one"
    )
    assert refused.value.exit_code == 10


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (999, "999 B"),
        (1000, "1 kB"),
        (1_500_000, "1.5 MB"),
        (2 * 10**9, "2 GB"),
        (3 * 10**12, "3 TB"),
        (4 * 10**18, "4 EB"),
    ],
)
def test_sizes_are_told_in_units_people_read(free, count, shown):
    free(0)
    with pytest.raises(MemoryLimitError, match=f"needs {shown} of memory"):
        memory.require(count, "a table", "use a smaller one")


def test_where_the_system_does_not_say_nothing_is_refused(free):
    free(None)
    memory.require(10**30, "a table", "use a smaller one")


# What is free


def test_something_is_free_here():
    assert memory.available() > 10**6


def test_what_is_free_is_read_from_the_system(monkeypatch):
    text = "MemTotal:  99 kB\nMemFree:  1 kB\nMemAvailable:     12345 kB\n"
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: text)
    assert memory.available() == 12345 * 1024


def test_an_older_system_tells_all_there_is(monkeypatch):
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: "MemTotal:  99 kB\n")
    monkeypatch.setattr("os.sysconf", {"SC_PHYS_PAGES": 7, "SC_PAGE_SIZE": 4096}.get, raising=False)
    assert memory.available() == 7 * 4096


@pytest.mark.parametrize("error", [OSError, ValueError])
def test_a_system_that_does_not_say_is_no_error(monkeypatch, error):
    def unknown(*_, **__):
        raise error

    monkeypatch.setattr(Path, "read_text", unknown)
    monkeypatch.setattr("os.sysconf", unknown, raising=False)
    assert memory.available() is None


# Where it is asked


def test_a_gram_matrix_that_does_not_fit_is_refused(free):
    free(10**6)
    with pytest.raises(MemoryLimitError, match="Gram matrix of 1000 features and 3 classes"):
        Accumulator(1000, 3, 127)


def test_a_gram_matrix_is_not_asked_for_more_than_a_few_times_its_size(free):
    free(8 * 8 * 500**2)
    Accumulator(500, 3, 127)


def test_a_lift_that_does_not_fit_is_refused(free):
    rows = Grid()(np.ones((4, 3)))
    free(10**6)
    with pytest.raises(MemoryLimitError, match="lift of 4 samples to 500000 features"):
        Lift(width=500_000)(rows)
    assert Lift(width=50)(rows).values.shape == (4, 51)


def test_the_error_of_a_client_names_it(free):
    federation = partitioned(clients=3)
    free(10_000)
    with pytest.raises(MemoryLimitError, match=r"client c0: a Gram matrix of 65 features .*; use"):
        run(create_method("afl"), federation)


def test_a_gram_matrix_that_would_not_fit_is_refused_before_the_lift_is_made(free, monkeypatch):
    def made(*_):
        raise AssertionError("the lift was made for nothing")

    monkeypatch.setattr(lift_module, "signs_of", made)
    free(10**9)  # enough for the lift
    with pytest.raises(MemoryLimitError, match="Gram matrix of 50001 features"):
        run(create_method("afl", {"lift": {"width": 50_000}}), partitioned(clients=3))


# What is asked for covers what is used


@pytest.fixture
def used(monkeypatch):
    def measure(work):
        """Return the most bytes that were asked for, and the most that were used at a time."""
        asked = []
        monkeypatch.setattr(memory, "require", lambda needed, *_: asked.append(needed))
        tracemalloc.start()
        try:
            work()
            return max(asked), tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    return measure


def gridded(samples, features, bits):
    return Grid(bits=bits)(np.random.default_rng(0).normal(size=(samples, features)))


@pytest.mark.parametrize("bits", [8, 16, "off"])
def test_a_gram_matrix_asks_for_what_it_uses(used, bits):
    rows, labels = gridded(30, 800, bits), Labels(np.arange(30) % 2, ("no", "yes"))
    asked, peak = used(lambda: Statistics.of(rows, labels).solve(1.0))
    assert peak <= asked + 10**6


@pytest.mark.parametrize("bits", [8, 16, "off"])
def test_a_lift_asks_for_what_it_uses(used, bits):
    rows = gridded(5, 1000, bits)
    lift_module.signs_of.cache_clear()
    asked, peak = used(lambda: Lift(width=8000)(rows))
    assert peak <= asked + 4 * 10**6
