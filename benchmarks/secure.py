"""Secure sums: bytes and seconds of a client and the server, beside an open sum of the same.

Clients sign with keys of their own, as sites do, or not, as in one process. Seconds are those of
the processor, so that other programs change them little; of three turns the median.

python -m benchmarks.secure [--quick] [--store secure-sums]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from cryptography.hazmat.primitives import serialization

from benchmarks import lab
from fedgram.core import codec
from fedgram.core.samples import Space
from fedgram.core.statistics import Statistics
from fedgram.deploy.pins import KeySigner
from fedgram.deploy.tls import node_pair
from fedgram.secure import masks
from fedgram.secure.party import Party
from fedgram.secure.server import Server

CLASSES = tuple(str(c) for c in range(10))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, to try the script")
    lab.add_store(parser)
    given = parser.parse_args()
    lab.report(rows(quick=given.quick), given.store)


def rows(*, quick: bool) -> Iterator[lab.Row]:
    yield mask_row(2**18 if quick else 2**23)
    for clients, dropped, width in (
        ((10, 2, 256), (50, 10, 64)) if quick else ((10, 2, 1024), (50, 10, 1024), (10, 2, 4096))
    ):
        turns: dict[bool, list[lab.Row]] = {False: [], True: []}
        for _ in range(1 if quick else 3):
            for signed, found in turns.items():
                found.append(sum_row(clients, dropped, width, signed=signed))
        for found in turns.values():
            seconds = {
                name: statistics.median(turn[name] for turn in found)
                for name in ("client_seconds", "server_seconds")
            }
            yield {**found[0], **seconds}


def mask_row(words: int) -> lab.Row:
    """Compare the expansion of a mask with copying as many bytes."""
    vector, other = np.zeros(words, np.uint64), np.ones(words, np.uint64)
    mask = min(timed(lambda: masks.add_mask(vector, bytes(32))) for _ in range(5))
    copy = min(timed(lambda: np.copyto(vector, other)) for _ in range(5))
    return {"mask_megabytes": 8 * words / 1e6, "times_a_copy": mask / copy}


@dataclass
class Meter:
    """Seconds of each client, and bytes of all."""

    seconds: dict[str, float] = field(default_factory=dict)
    up: int = 0
    down: int = 0

    def answer(self, party: Party, what: str, *sent: Any) -> Any:
        start = time.process_time()
        message = getattr(party, what)(*sent)
        took = time.process_time() - start
        self.seconds[party.name] = self.seconds.get(party.name, 0.0) + took
        self.up += codec.size(message)
        self.down += codec.size(sent[-1]) if sent else 0
        return message


def sum_row(clients: int, dropped: int, width: int, *, signed: bool) -> lab.Row:
    value = of_width(width)
    meter, server = Meter(), Server()
    names = [f"c{number:03d}" for number in range(clients)]
    known = signers(names) if signed else dict.fromkeys(names)
    parties = [Party(name, server.call, signer=signer) for name, signer in known.items()]
    at_server = 0.0
    roster = server.roster([meter.answer(party, "keys") for party in parties])
    parcels = server.parcels([meter.answer(party, "shares", roster) for party in parties])
    stayed = parties[dropped:]
    for party in stayed:
        masked = meter.answer(party, "masked", value, parcels[party.name])
        at_server += timed(lambda masked=masked: server.add(masked))
    survivors = server.survivors()
    if signed:
        confirmed = [meter.answer(party, "confirm", survivors) for party in stayed]
        survivors = server.survivors(confirmed)
    reveals = [meter.answer(party, "reveal", survivors) for party in stayed]
    start = time.process_time()
    total = server.total(reveals)
    at_server += time.process_time() - start
    if total.digest() != sum([value] * len(stayed)).digest():
        raise SystemExit("the secure sum is wrong")
    took = np.mean([meter.seconds[party.name] for party in stayed])
    sizes = [codec.size(value), meter.up / len(stayed), meter.down / len(stayed)]
    opened, up, down = (size / 1e6 for size in sizes)
    return {
        "signed": "yes" if signed else "no",
        "clients": clients,
        "dropped": dropped,
        "features": width,
        "open": opened,
        "up": up,
        "down": down,
        "client_seconds": float(took),
        "server_seconds": at_server,
    }


def signers(names: list[str]) -> dict[str, KeySigner]:
    pairs = {name: node_pair(name) for name in names}
    public = {name: pair[1].decode() for name, pair in pairs.items()}
    private = {
        name: serialization.load_ssh_private_key(pair[0], None) for name, pair in pairs.items()
    }
    return {name: KeySigner(name, lambda name=name: private[name], public) for name in names}


def of_width(width: int) -> Statistics:
    rng = np.random.default_rng(0)
    return Statistics(
        count=100,
        gram=rng.integers(-(2**20), 2**20, width * (width + 1) // 2),
        moment=rng.integers(-(2**12), 2**12, (width, len(CLASSES))),
        energy=100,
        space=Space(width=width, bound=127),
        classes=CLASSES,
    )


def timed(work: Any) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


if __name__ == "__main__":
    main()
