"""Requests and answers as Flower messages, each with one array of bytes."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator

from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.serverapp import Grid

ASK = "ask"
_CONTENT = "content"
_BYTES = "fedgram"


class FlowerTransport:
    """Sends messages of the type ``query.ask`` and pulls replies one at a time.

    Replies are matched to requests by message id. A reply with an error comes from Flower, not from
    the site.
    """

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def nodes(self) -> Collection[int]:
        return list(self._grid.get_node_ids())

    def send(self, node: int, request: bytes, *, patience: float) -> str:
        message = Message(
            content=packed(request),
            message_type=f"query.{ASK}",
            dst_node_id=node,
            ttl=max(patience, 1.0),
        )
        (ticket,) = self._grid.push_messages([message])
        return str(ticket)

    def receive(self, tickets: Collection[str]) -> Iterator[tuple[str, bytes | str]]:
        for ticket in tickets:  # one by one, so that only one contribution is in memory
            for reply in self._grid.pull_messages([ticket]):
                if reply.has_error():
                    yield ticket, f"{reply.error.reason or 'no reason given'} ({reply.error.code})"
                else:
                    yield ticket, unpacked(reply.content)

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)

    def now(self) -> float:
        return time.monotonic()


def packed(content: bytes) -> RecordDict:
    """Return bytes in a Flower record: an array, which Flower sends in pieces and checks."""
    array = Array(dtype="uint8", shape=(len(content),), stype=_BYTES, data=content)
    return RecordDict({_CONTENT: ArrayRecord({_CONTENT: array})})


def unpacked(records: RecordDict) -> bytes:
    """Return the bytes of a record that `packed` made; empty for other records."""
    record = records.get(_CONTENT)
    if not isinstance(record, ArrayRecord) or _CONTENT not in record:
        return b""
    array = record[_CONTENT]
    return bytes(array.data) if array.stype == _BYTES else b""
