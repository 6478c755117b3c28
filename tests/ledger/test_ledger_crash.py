"""A ledger whose process is killed at any moment: what was acknowledged is there, and once."""

import contextlib
import itertools
import os
import signal
import sqlite3
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import ledger_support
import numpy as np
import pytest
from ledger_support import (
    CLASSES,
    CLIENTS,
    Reference,
    Sent,
    contents,
    found,
    operations,
    rows,
    summed,
)

from fedgram.core import codec
from fedgram.errors import FedgramError, LedgerError
from fedgram.ledger import store
from fedgram.ledger.contribution import Contribution, merged
from fedgram.ledger.ledger import Ledger

FEW, MANY = 30, 200  # kills; many where faults are asked for
WIDTH = 200  # a contribution of 80 kB, so that writing takes a moment
SEED = 20

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and SIGKILL"),
    pytest.mark.xdist_group("kills"),
]


class Workers:
    """Processes that work on a ledger, one after the other, each killed in its turn."""

    def __init__(self, server: subprocess.Popen) -> None:
        self._server = server
        self._pace = [0.01]
        self._failed = False
        self.done: set[int] = set()

    def kill_one(self, rng: np.random.Generator) -> None:
        """Start a worker and kill it at a random moment after a random number of operations."""
        print("go", file=self._server.stdin, flush=True)
        worker = int(self._until("pid"))
        try:
            for _ in range(rng.integers(4)):
                before = time.perf_counter()
                self._until("done")
                self._pace.append(time.perf_counter() - before)
            time.sleep(rng.uniform(0, 1.2 * statistics.median(self._pace)))
        finally:
            os.kill(worker, signal.SIGKILL)
        assert self._until("gone") == str(-signal.SIGKILL)
        assert not self._failed, "the worker failed by itself"

    def _until(self, word: str) -> str:
        for line in self._server.stdout:
            said, value = line.split()
            if said == "done":
                self.done.add(int(value))
            if said == word:
                return value
            self._failed |= said == "failed"
            assert not (self._failed and word == "done"), "the worker failed by itself"
        raise RuntimeError("the server is gone")


@contextlib.contextmanager
def workers(path: Path, *, careless: bool = False) -> Iterator[Workers]:
    Ledger.create(path, key=path.with_name("history.key")).__exit__(None, None, None)
    server = subprocess.Popen(
        [
            *(sys.executable, ledger_support.__file__, path, str(SEED), str(WIDTH)),
            "careless" if careless else "careful",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
    )
    with server:
        yield Workers(server)
        server.stdin.close()


class Check:
    """Compares a ledger with the operations that were acknowledged."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._coming = operations(SEED)
        self._reference = Reference(WIDTH)
        self._searched = 0

    def __call__(self, done: set[int], *, in_flight: int) -> None:
        """Check a ledger in which `done` are the numbers of the acknowledged operations."""
        with Ledger.open(self._path) as ledger:
            digest = ledger.verify()
            total, members = ledger.total, ledger.members
            history = [(event.what, event.client) for event in ledger.history()[1:]]
        reference = self._reference
        known = max(len(reference.history), *(number + 1 for number in done), 0)
        assert known <= len(history) <= known + in_flight
        for operation in itertools.islice(self._coming, len(history) - len(reference.history)):
            reference.apply(operation)
        assert history == reference.history
        assert members == sorted(reference.held)
        expected = reference.total
        assert codec.encode(total) == codec.encode(expected)
        assert digest == expected.digest()
        self._check_stored()
        self.search(since=self._searched)

    def search(self, *, since: int = 0) -> None:
        """Look for the bytes of what is kept, and of what was erased since."""
        reference, data = self._reference, contents(self._path)
        assert all(found(sent, WIDTH, data) for sent in reference.kept() if sent.samples)
        assert not any(found(sent, WIDTH, data) for sent in reference.gone(since))
        self._searched = len(reference.erased)

    def _check_stored(self) -> None:
        reference = self._reference
        stored = rows(self._path, "SELECT client, member, value FROM contributions")
        for member, expected in enumerate((reference.left, reference.held)):
            assert sorted({c for c, m, _ in stored if m == member}) == sorted(expected)
            for client, sents in expected.items():
                parts = [codec.decode(v) for c, m, v in stored if (c, m) == (client, member)]
                assert all(isinstance(part, Contribution) for part in parts)
                samples = [sample for sent in sents for sample in sent.samples]
                classes = sorted({name for sent in sents for name in sent.classes})
                assert len(parts) == len(sents)
                assert merged(p.statistics for p in parts) == summed(samples, classes, WIDTH)


def killed_over_and_over(path: Path, times: int) -> int:
    """Kill workers and check the ledger after each; return how many left a journal behind."""
    rng, interrupted, check = np.random.default_rng(SEED), 0, Check(path)
    with workers(path) as team:
        for _ in range(times):
            kills = rng.choice([1, 2], p=[0.8, 0.2])  # the second may hit the recovery
            for _ in range(kills):
                team.kill_one(rng)
            interrupted += path.with_name("ledger-journal").exists()
            check(team.done, in_flight=kills)
    check.search()
    assert max(team.done) > times
    return interrupted


def test_a_kill_loses_no_acknowledged_operation_and_does_none_by_halves(tmp_path):
    killed_over_and_over(tmp_path / "ledger", FEW)


@pytest.mark.faults
def test_many_kills_lose_no_acknowledged_operation_and_do_none_by_halves(tmp_path):
    interrupted = killed_over_and_over(tmp_path / "ledger", MANY)
    assert interrupted > MANY / 20  # or the kills would show nothing


def test_without_a_journal_the_kills_are_seen_to_do_harm(tmp_path):
    path, rng = tmp_path / "ledger", np.random.default_rng(SEED)
    check = Check(path)

    def work():
        with workers(path, careless=True) as team:
            for _ in range(MANY):  # until the first harm
                team.kill_one(rng)
                check(team.done, in_flight=1)

    with pytest.raises((AssertionError, FedgramError, sqlite3.Error)):
        work()


def performed(path: Path, count: int) -> None:
    with Ledger.create(path) as ledger:
        for operation in itertools.islice(operations(SEED), count):
            operation.apply(ledger, WIDTH)


def test_the_check_would_notice_a_lost_operation(tmp_path):
    performed(tmp_path / "ledger", 6)
    Check(tmp_path / "ledger")(set(range(6)), in_flight=0)
    with pytest.raises(AssertionError):
        Check(tmp_path / "ledger")({6}, in_flight=1)


def test_the_check_would_notice_an_operation_done_twice(tmp_path):
    performed(tmp_path / "ledger", 6)
    with Ledger.open(tmp_path / "ledger") as ledger:
        client = ledger.members[0]
        ledger.stream(client, summed([(1, "ant")], CLASSES, WIDTH))
    with pytest.raises(AssertionError):
        Check(tmp_path / "ledger")({6}, in_flight=0)


class Killed(BaseException):
    """Ends everything at once, as a kill does."""


def test_what_killed_compactions_leave_behind_is_erased_when_the_ledger_is_opened(
    tmp_path, monkeypatch
):
    path = tmp_path / "ledger"
    sent = {name: Sent(((number, "ant"),), CLASSES) for number, name in enumerate(CLIENTS)}
    with Ledger.create(path) as ledger:
        for name in CLIENTS:
            ledger.join(name, sent[name].statistics(WIDTH))
    first, *_, last = CLIENTS
    before = path.read_bytes()
    with Ledger.open(path) as ledger:
        ledger.forget(first)
    after = path.read_bytes()
    # SQLite shortens the file after the commit: a kill in between leaves the old end as it was.
    assert found(sent[last], WIDTH, before[len(after) :])
    path.write_bytes(after + before[len(after) :])

    def killed(self):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(store.LedgerFile, "compact", killed)
        with pytest.raises(Killed), Ledger.open(path) as ledger:
            ledger.forget(last)
    with Ledger.open(path) as ledger:
        assert last not in ledger.members
        ledger.verify()
    assert not found(sent[last], WIDTH, contents(path))


@pytest.mark.parametrize("key", ["format", "classes"])
def test_a_kill_while_a_ledger_is_made_leaves_none_without_its_fixed_classes(
    tmp_path, monkeypatch, key
):
    put = store.LedgerFile.put

    def killed_at(self, name, value):
        if name == key:
            raise Killed
        put(self, name, value)

    with monkeypatch.context() as patch:
        patch.setattr(store.LedgerFile, "put", killed_at)
        with pytest.raises(Killed):
            Ledger.create(tmp_path / "ledger", classes=["ant", "bee"])
    with pytest.raises(LedgerError), Ledger.open(tmp_path / "ledger"):
        pass
