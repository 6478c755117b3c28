"""Flower's grid as a carrier: a request is one array of bytes, and so is an answer."""

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

    Replies are matched by the message they answer: an error comes from Flower itself, not from the
    node.
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
        for ticket in tickets:  # each alone, so that one contribution is in memory at a time
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
    """Return bytes as Flower carries them: as an array, which it cuts and checks."""
    array = Array(dtype="uint8", shape=(len(content),), stype=_BYTES, data=content)
    return RecordDict({_CONTENT: ArrayRecord({_CONTENT: array})})


def unpacked(records: RecordDict) -> bytes:
    """Return the bytes that `packed` wrapped; none where there are none."""
    record = records.get(_CONTENT)
    if not isinstance(record, ArrayRecord) or _CONTENT not in record:
        return b""
    array = record[_CONTENT]
    return bytes(array.data) if array.stype == _BYTES else b""
