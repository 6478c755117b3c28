"""Steps in stacks: the same replies as one by one, errors that name the client, progress."""

import numpy as np
import pytest

from fedgram.checks.federations import partitioned
from fedgram.core.tally import Tally
from fedgram.engines.in_process import InProcess
from fedgram.errors import DataError
from fedgram.federation import sites
from fedgram.federation.stacked_step import StackedStep, stacked_step
from fedgram.federation.step import declared_steps, step_name


class Counting:
    def __init__(self, faulty=()):
        self.faulty, self.groups = set(faulty), []

    @stacked_step
    def count(self, clients, broadcast):
        """Count samples."""
        self.groups.append([client.id for client in clients])
        for client in clients:
            client.remember(asked=broadcast)
            if client.id in self.faulty:
                raise DataError("faulty samples")
        return [Tally(clients=1, samples=len(client.samples)) for client in clients]


def test_a_stacked_step_is_a_step():
    assert declared_steps(Counting) == ["count"]
    step = Counting().count
    assert isinstance(step, StackedStep)
    assert step_name(step) == "count"
    assert Counting.count.__doc__ == "Count samples."


@pytest.mark.parametrize("workers", [1, 2])
def test_clients_are_asked_in_stacks_in_order(monkeypatch, workers):
    monkeypatch.setattr(sites, "_STACK_CLIENTS", 3)
    told = []
    members = partitioned(clients=8).members
    engine = InProcess(members, workers=workers, on_reply=lambda *each: told.append(each))
    method = Counting()
    replies = dict(engine.gather(method.count, 7))
    assert list(replies) == list(engine.clients)
    assert sorted(map(len, method.groups)) == [2, 3, 3]
    assert told == [("count", k + 1, 8) for k in range(8)]
    assert engine.asks[-1].clients == 8
    assert [reply.samples for reply in replies.values()] == [len(m.train) for m in members]
    some = list(engine.clients)[2:5]
    assert engine.sum(method.count, 7, clients=some).clients == 3


def test_stacks_have_a_bounded_number_of_samples(monkeypatch):
    monkeypatch.setattr(sites, "_STACK_ROWS", 60)
    method, members = Counting(), partitioned(clients=8).members
    total = InProcess(members).sum(method.count)
    sizes = {member.id: len(member.train) for member in members}
    assert total.samples == sum(sizes.values())
    for group in method.groups:
        assert len(group) == 1 or sum(sizes[name] for name in group) <= 120


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_names_its_client(workers):
    engine = InProcess(partitioned(clients=5).members, workers=workers)
    bad = engine.clients[3]
    with pytest.raises(DataError, match=rf"{bad}.*faulty samples"):
        engine.sum(Counting(faulty=[bad]).count)
    assert np.isfinite(engine.asks[-1].seconds)
