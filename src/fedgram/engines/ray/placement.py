"""Which client lives in which worker, and the bytes that bring its samples there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from fedgram.core import codec
from fedgram.core.samples import Samples, concatenate
from fedgram.federation.client import Site

_PARTS = ("train", "valid", "test")


def balanced(sites: Iterable[Site], shards: int) -> list[list[Site]]:
    """Return at most this number of groups of sites with about equally many samples.

    The largest sites are placed first, each into the smallest group so far.

    Examples
    --------
    >>> from fedgram.checks.federations import partitioned
    >>> [sum(len(site.train) for site in group) for group in balanced(partitioned().members, 3)]
    [442, 469, 436]
    """
    ordered = sorted(sites, key=lambda site: (-len(site.train), site.id))
    groups: list[list[Site]] = [[] for _ in range(min(shards, len(ordered)))]
    sizes = [0] * len(groups)
    for site in ordered:
        smallest = sizes.index(min(sizes))
        groups[smallest].append(site)
        sizes[smallest] += len(site.train) + 1  # a site without samples is some work too
    return [sorted(group, key=lambda site: site.id) for group in groups]


def pack(sites: Sequence[Site]) -> bytes:
    """Return sites without their state as bytes: three blocks of samples, and who has which rows.

    Examples
    --------
    >>> from fedgram.checks.federations import partitioned
    >>> sites = partitioned(clients=3).members
    >>> [len(site.train) for site in unpack(pack(sites))] == [len(site.train) for site in sites]
    True
    """
    blocks: dict[str, Any] = {}
    for part in _PARTS:
        samples = [getattr(site, part) for site in sites]
        lengths = np.array([len(each) for each in samples], np.int64)
        blocks[part] = {"samples": concatenate(samples), "lengths": lengths}
    return codec.encode(
        {
            "names": [site.id for site in sites],
            "reserve_valid": np.array([site.reserve_valid for site in sites]),
            **blocks,
        }
    )


def unpack(content: bytes) -> list[Site]:
    """Return the sites that `pack` was given; their samples are views of the blocks."""
    packed = codec.decode(content)
    train, valid, test = (_split(packed[part]) for part in _PARTS)
    return [
        Site(id=name, train=train[i], valid=valid[i], test=test[i], reserve_valid=bool(reserved))
        for i, (name, reserved) in enumerate(
            zip(packed["names"], packed["reserve_valid"], strict=True)
        )
    ]


def _split(block: dict[str, Any]) -> list[Samples]:
    samples: Samples = block["samples"]
    ends = np.concatenate([[0], np.cumsum(block["lengths"])]).tolist()
    return [samples.take(slice(start, end)) for start, end in pairwise(ends)]
