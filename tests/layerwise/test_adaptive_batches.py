"""A slow client uses smaller batches, and nothing else changes; time is that of a clock we set."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgram.checks.federations import federated, partitioned, trainable
from fedgram.errors import ConfigError
from fedgram.experiments.runner import run
from fedgram.federation.method import create_method, shared_digest
from fedgram.layerwise import adaptive_batches as module
from fedgram.layerwise.adaptive_batches import adaptive_batches

CONV = {"layers": "conv 4 3x3 pad 1 max 2, dense 8", "image": [8, 8, 1]}


class Client:
    """A client with a clock, which does so many samples a second, batch after batch."""

    def __init__(self, *speeds):
        self.now, self._speeds = 0.0, itertools.cycle(speeds)

    def clock(self):
        return self.now

    def walk(self, samples, most, seconds):
        """Yield each batch, and let its time pass."""
        for batch in adaptive_batches(samples, most, seconds, clock=self.clock):
            yield batch
            self.now += (batch.stop - batch.start) / next(self._speeds)


def walked(samples, most, seconds, speeds):
    """The sizes of batches and their times."""
    client = Client(*speeds)
    sizes, ends = [], []
    for batch in client.walk(samples, most, seconds):
        sizes.append(batch.stop - batch.start)
        ends.append(client.now)
    return sizes, np.diff([*ends, client.now])


@given(
    st.integers(0, 300),
    st.integers(1, 90),
    st.floats(0, 10),
    st.lists(st.floats(0.01, 1e6), min_size=1, max_size=5),
)
def test_every_sample_is_in_one_batch_of_a_size_that_fits(samples, most, seconds, speeds):
    covered = []
    for batch in Client(*speeds).walk(samples, most, seconds):
        covered.extend(range(samples)[batch])
        assert 1 <= batch.stop - batch.start <= most
    assert covered == list(range(samples))


@given(st.floats(2.0, 1000.0), st.floats(0.5, 3.0))
def test_a_client_of_steady_speed_stays_within_its_budget(speed, seconds):
    sizes, times = walked(1000, 64, seconds, [speed])
    assert max(times[1:]) <= seconds * (1 + 1e-6) or max(sizes[1:]) == 1
    enough = min(64, int(speed * seconds))
    assert max(sizes[1:]) >= min(enough - 1, 63) or enough <= 1


def test_a_client_that_becomes_slow_uses_smaller_batches():
    sizes, _ = walked(400, 64, 1.0, [50.0] * 5 + [5.0] * 1000)
    assert sizes[:7] == [16, 32, 50, 50, 50, 50, 5]


def test_without_a_budget_batches_are_the_largest_and_no_clock_is_read():
    def clock():
        raise AssertionError("read")

    sizes = [b.stop - b.start for b in adaptive_batches(100, 40, 0.0, clock)]
    assert sizes == [40, 40, 20]


@pytest.mark.parametrize("name", ["fedacnnl", "pfedacnnl"])
def test_the_network_is_the_same_to_the_bit_at_any_speed(name, monkeypatch):
    """One clock stands still, the other is a second later at every look."""
    looks = itertools.count()
    clocks = {"fast": lambda: 0.0, "slow": lambda: float(next(looks))}
    found, batches = {}, {}
    everybody = {"a": trainable().take(slice(0, 60)), "b": trainable().take(slice(60, 100))}
    whole = run(create_method(name, CONV), federated(everybody))
    for speed, clock in clocks.items():
        seen = []
        monkeypatch.setattr(module, "CLOCK", clock)
        monkeypatch.setattr(
            "fedgram.layerwise.stack.adaptive_batches", recorded(adaptive_batches, seen)
        )
        method = create_method(name, {**CONV, "batch_seconds": 0.25})
        found[speed] = run(method, federated(everybody)).model_digest
        batches[speed] = len(seen)
    assert found["fast"] == found["slow"] == whole.model_digest
    assert batches["slow"] > 2 * batches["fast"]


def recorded(function, seen):
    def watched(*given):
        for batch in function(*given):
            seen.append(batch)
            yield batch

    return watched


def test_a_budget_of_none_changes_no_digest_of_earlier_runs():
    assert "batch_seconds" not in create_method("fedacnnl").settings()
    timed = create_method("fedacnnl", {"batch_seconds": 2.0})
    assert timed.settings()["batch_seconds"] == 2.0
    assert create_method("fedacnnl", timed.settings()) == timed
    assert create_method("fedacnnl", create_method("fedacnnl").settings()).batch_seconds == 0
    shared = run(create_method("fedacnnl", CONV), partitioned(clients=2)).shared
    assert shared_digest(create_method("fedacnnl", CONV), shared)


@pytest.mark.parametrize("wrong", [-1.0, np.inf, np.nan])
def test_a_budget_is_a_number_of_seconds(wrong):
    with pytest.raises(ConfigError, match="batch_seconds"):
        create_method("fedacnnl", {"batch_seconds": wrong})
