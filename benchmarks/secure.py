"""Secure sums: bytes and seconds of a client and the server, beside an open sum of the same.

Every client signs with a key of its own, as sites do. Seconds are those of the processor, so that
other programs on the machine change them little.

python -m benchmarks.secure [--quick]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from cryptography.hazmat.primitives import serialization

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
    for line in lines(quick=parser.parse_args().quick):
        print(line, flush=True)


def lines(*, quick: bool) -> Iterator[str]:
    yield mask_line(2**18 if quick else 2**23)
    yield "clients dropped features | per client: open MB  up MB  down MB  s | server s"
    for clients, dropped, width in (
        ((10, 2, 256), (50, 10, 64)) if quick else ((10, 2, 1024), (50, 10, 1024), (10, 2, 4096))
    ):
        yield sum_line(clients, dropped, width)


def mask_line(words: int) -> str:
    """Compare the expansion of a mask with copying as many bytes."""
    vector, other = np.zeros(words, np.uint64), np.ones(words, np.uint64)
    mask = min(timed(lambda: masks.add_mask(vector, bytes(32))) for _ in range(5))
    copy = min(timed(lambda: np.copyto(vector, other)) for _ in range(5))
    rate = 8 * words / mask / 1e9
    return f"mask of {8 * words / 1e6:.0f} MB: {rate:.2f} GB/s, {mask / copy:.1f} times a copy"


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


def sum_line(clients: int, dropped: int, width: int) -> str:
    value = statistics(width)
    meter, server = Meter(), Server()
    known = signers([f"c{number:03d}" for number in range(clients)])
    parties = [Party(name, server.call, signer=signer) for name, signer in known.items()]
    at_server = 0.0
    roster = server.roster([meter.answer(party, "keys") for party in parties])
    parcels = server.parcels([meter.answer(party, "shares", roster) for party in parties])
    stayed = parties[dropped:]
    for party in stayed:
        masked = meter.answer(party, "masked", value, parcels[party.name])
        at_server += timed(lambda masked=masked: server.add(masked))
    survivors = server.survivors()
    survivors = server.survivors([meter.answer(party, "confirm", survivors) for party in stayed])
    reveals = [meter.answer(party, "reveal", survivors) for party in stayed]
    start = time.process_time()
    total = server.total(reveals)
    at_server += time.process_time() - start
    if total.digest() != sum([value] * len(stayed)).digest():
        raise SystemExit("the secure sum is wrong")
    took = np.mean([meter.seconds[party.name] for party in stayed])
    sizes = [codec.size(value), meter.up / len(stayed), meter.down / len(stayed)]
    opened, up, down = (f"{size / 1e6:.3f}" for size in sizes)
    return (
        f"{clients:7d} {dropped:7d} {width:8d} | {opened:>18} {up:>7} {down:>8} {took:.3f} "
        f"| {at_server:.3f}"
    )


def signers(names: list[str]) -> dict[str, KeySigner]:
    pairs = {name: node_pair(name) for name in names}
    public = {name: pair[1].decode() for name, pair in pairs.items()}
    private = {
        name: serialization.load_ssh_private_key(pair[0], None) for name, pair in pairs.items()
    }
    return {name: KeySigner(name, lambda name=name: private[name], public) for name in names}


def statistics(width: int) -> Statistics:
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
