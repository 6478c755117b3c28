"""A ledger's reference in plain lists, drawn operations, and a process that performs them.

Every sample is a number, from which its features follow, and a class name. So what a ledger should
hold can be written down as lists of samples and summed at once, independently of the ledger.

Run as a script, this is a server that forks a worker per line it reads; see `serve`.
"""

import itertools
import os
import signal
import sqlite3
import sys
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from fedgram import Features, Labels, Space, Statistics
from fedgram.core import codec
from fedgram.ledger import store
from fedgram.ledger.ledger import Ledger

CLASSES = ("ant", "bee", "cat", "dog")
CLIENTS = ("east", "north", "south", "west")
BOUND = 127
MOST = 5000  # operations a server has in store
SLICE = 64  # bytes; long enough to be found by accident nowhere

Sample = tuple[int, str]


@cache
def row(number: int, width: int) -> np.ndarray:
    """Return the features of a sample, which follow from its number."""
    rng = np.random.default_rng([number, width])
    drawn = rng.integers(1, BOUND, width, endpoint=True)  # no zeros: they would be found anywhere
    return (drawn * rng.choice([-1, 1], width)).astype(np.int8)


def summed(samples: Sequence[Sample], classes: Sequence[str], width: int) -> Statistics:
    """Return the statistics of samples, summed at once over this class list."""
    rows = np.array([row(number, width) for number, _ in samples], np.int8).reshape(-1, width)
    codes = np.array([list(classes).index(name) for _, name in samples], np.int64)
    space = Space(width=width, bound=BOUND, steps=(f"input({width} features)",))
    return Statistics.of(Features(rows, space), Labels(codes, tuple(classes)))


@dataclass(frozen=True)
class Sent:
    """Samples that a client sent in one piece; the order of its class list is its own."""

    samples: tuple[Sample, ...]
    classes: tuple[str, ...]

    def statistics(self, width: int) -> Statistics:
        return summed(self.samples, self.classes, width)

    @cache  # noqa: B019  # few and small
    def traces(self, width: int) -> tuple[bytes, ...]:
        """Return pieces of its bytes by which it is found in a file; none of no samples."""
        if not self.samples:
            return ()
        gram = self.statistics(width).gram
        return (*pieces(codec.encode(gram)), *pieces(codec.encode(-gram)))


def pieces(message: bytes) -> Iterator[bytes]:
    """Yield some pieces of the numbers in a message, which follow its header."""
    data = message[8 + int.from_bytes(message[:8], "little") :]
    for start in range(0, len(data) - SLICE + 1, max(SLICE, len(data) // 5)):
        yield data[start : start + SLICE]


@dataclass(frozen=True)
class Operation:
    what: str
    client: str
    sent: Sent | None = None

    def apply(self, ledger: Ledger, width: int) -> Any:
        if self.sent is None:
            return getattr(ledger, self.what)(self.client)
        statistics = self.sent.statistics(width)
        if self.what in ("join", "replace"):
            return getattr(ledger, self.what)(self.client, statistics)
        return ledger.stream(self.client, -statistics if self.what == "remove" else statistics)


class Reference:
    """What a ledger should hold, in plain lists of samples."""

    def __init__(self, width: int, fixed: Sequence[str] | None = None) -> None:
        self.width = width
        self.fixed = fixed
        self.held: dict[str, list[Sent]] = {}
        self.left: dict[str, list[Sent]] = {}
        self.erased: list[Sent] = []
        self.history: list[tuple[str, str]] = []

    def apply(self, operation: Operation) -> None:
        client, sent = operation.client, operation.sent
        if operation.what == "join":
            self.erased += self.left.pop(client, [])
        if operation.what in ("join", "stream"):
            self.held.setdefault(client, []).append(sent)
        elif operation.what == "replace":
            self.erased += self.left.pop(client, []) + self.held[client]
            self.held[client] = [sent]
        elif operation.what == "leave":
            self.left.setdefault(client, []).extend(self.held.pop(client))
        elif operation.what == "forget":
            self.erased += self.left.pop(client, []) + self.held.pop(client, [])
        else:
            rest = [s for s in self.samples(client) if s not in set(sent.samples)]
            classes = dict.fromkeys((*self.classes(client), *sent.classes))
            self.erased += [sent, *self.held[client], *self.left.pop(client, [])]
            self.held[client] = [Sent(tuple(rest), tuple(classes))]
        self.history.append((operation.what, client))

    def samples(self, *clients: str) -> list[Sample]:
        return [s for client in clients for sent in self.held[client] for s in sent.samples]

    def classes(self, *clients: str) -> list[str]:
        return sorted({c for client in clients for sent in self.held[client] for c in sent.classes})

    @property
    def total(self) -> Statistics:
        """The surviving samples summed at once, over all survivors' classes."""
        if not self.held:
            return Statistics.zero()
        classes = sorted(self.fixed) if self.fixed else self.classes(*self.held)
        return summed(self.samples(*self.held), classes, self.width)

    def kept(self) -> list[Sent]:
        """Return all that must be in the file: of members, and of those who left."""
        return [sent for sents in (*self.held.values(), *self.left.values()) for sent in sents]

    def gone(self, since: int = 0) -> Iterator[Sent]:
        """Yield what must not be in the file, unless the very same is in it for another reason."""
        everything = tuple(self.samples(*self.held))
        legal = {frozenset(sent.samples) for sent in (*self.kept(), Sent(everything, ()))}
        return (sent for sent in self.erased[since:] if frozenset(sent.samples) not in legal)


def contents(path: Path) -> bytes:
    """Return the bytes of the ledger and of whatever lies beside it."""
    return b"".join(file.read_bytes() for file in sorted(path.parent.glob(path.name + "*")))


def found(sent: Sent, width: int, data: bytes) -> bool:
    return any(trace in data for trace in sent.traces(width))


def rows(path: Path, query: str, *values: Any) -> list[tuple[Any, ...]]:
    """Read or change a ledger's tables behind its back."""
    with sqlite3.connect(path) as db:
        answer = db.execute(query, values).fetchall()
    db.close()
    return answer


# A stream of operations, the same for all who know the seed.

_CHANCES = {
    "join": 0.25,
    "stream": 0.2,
    "replace": 0.15,
    "remove": 0.15,
    "leave": 0.1,
    "forget": 0.15,
}


def operations(seed: int) -> Iterator[Operation]:
    """Yield valid operations without end."""
    rng = np.random.default_rng(seed)
    numbers = itertools.count(1)
    state = Reference(0)

    def fresh() -> Sent:
        names = [str(name) for name in rng.permutation(CLASSES)[: rng.integers(1, 4)]]
        picked = [names[k] for k in rng.integers(len(names), size=rng.integers(2, 6))]
        return Sent(tuple((next(numbers), name) for name in picked), tuple(names))

    while True:
        what = str(rng.choice(list(_CHANCES), p=list(_CHANCES.values())))
        client = str(rng.choice(CLIENTS))
        sent = None
        member = client in state.held
        if not {"join": not member, "forget": member or client in state.left}.get(what, member):
            continue
        if what in ("join", "stream", "replace"):
            sent = fresh()
        elif what == "remove":
            own = state.samples(client)
            some = [own[k] for k in rng.permutation(len(own))[: len(own) // 2]]
            if not some:
                continue
            sent = Sent(tuple(some), tuple(state.classes(client))[::-1])
        operation = Operation(what, client, sent)
        state.apply(operation)
        yield operation


def serve(path: Path, seed: int, width: int, *, careless: bool) -> None:
    """Fork a worker for each line read: it goes on where the ledger is, until it is killed.

    Said on standard output are ``pid NUMBER``, ``done INDEX`` after each operation that returned,
    ``failed INDEX`` after one that did not, and ``gone STATUS`` when the worker is. A careless
    server keeps no journal: a planted mistake.
    """
    if careless:
        store._connect = _without_journal(store._connect)
    coming = list(itertools.islice(operations(seed), MOST))
    summed([(0, "ant")], CLASSES, width)  # all that is slow the first time
    for _ in sys.stdin:
        worker = os.fork()
        if not worker:
            _work(path, coming, width)
        _say(f"pid {worker}")
        _, status = os.waitpid(worker, 0)
        _say(f"gone {os.waitstatus_to_exitcode(status)}")


def _work(path: Path, coming: list[Operation], width: int) -> None:
    index = -1
    try:
        with Ledger.open(path) as ledger:
            for index in range(len(ledger.history()) - 1, len(coming)):
                coming[index].apply(ledger, width)
                _say(f"done {index}")
    except BaseException:
        traceback.print_exc()
        _say(f"failed {index}")
    signal.alarm(60)
    while True:
        signal.pause()  # a worker is there until it is killed, or forgotten


def _say(text: str) -> None:
    os.write(1, f"{text}\n".encode())  # in one piece, and not buffered


def _without_journal(connect: Any) -> Any:
    def careless(path: Path) -> sqlite3.Connection:
        db = connect(path)
        db.execute("PRAGMA journal_mode = OFF")
        db.execute("PRAGMA cache_size = 1")  # pages reach the file early: the harm shows soon
        return db

    return careless


if __name__ == "__main__":
    serve(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), careless=sys.argv[4] == "careless")
