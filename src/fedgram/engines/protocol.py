"""What the runner needs of a federation, besides what methods use."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import numpy as np

from fedgram.core.shared import part_for
from fedgram.errors import ConfigError, PrivacyError
from fedgram.federation.client import Randomness
from fedgram.federation.protocol import Exchange, Federation
from fedgram.federation.scoring import ScoreTask, SiteScore
from fedgram.federation.step import step_name

SCORING = 0  # calls of a method are numbered from 1, so scoring does not change training
SERVER, DROPOUT = 0x5E, 0xD0  # keep the random numbers of the server apart from those of clients


class Engine(Federation, Protocol):
    """A federation that can also be scored."""

    asks: list[Exchange]

    def evaluate(self, step: ScoreTask, shared: Any) -> Iterable[tuple[str, SiteScore]]:
        """Return the score of each site, or the sum of all scores if the server sees only that.

        `UnionScores` are the scores of sites that were scored together.

        The exchanges of the scoring are appended to ``asks``.
        """

    def deliver(self, shared: Any, round_: int) -> None:
        """Send every client the final result, which is the result of this round."""


def client_rng(seed: int, client: str, ask: int) -> Randomness:
    """Return a client's random numbers, from the seed, its name and the number of the call."""
    name = int.from_bytes(hashlib.sha256(client.encode()).digest()[:8], "little")
    return Randomness([seed, name, ask])


def server_rng(seed: int, asked: int, purpose: int = SERVER) -> np.random.Generator:
    """Return the server's random generator after a number of calls of `sum` and `gather`."""
    return np.random.default_rng(np.random.SeedSequence([seed, asked, purpose]))


def resolve_clients(
    step: Callable[..., Any], clients: Iterable[str] | None, members: Sequence[str]
) -> Sequence[str]:
    """Return the names of the asked members, sorted; raise for none and for unknown names."""
    names = members if clients is None else sorted(set(clients))
    unknown = [] if clients is None else sorted(set(names) - set(members))
    if unknown or not names:
        missing = f"unknown clients: {', '.join(unknown)}" if unknown else "no clients"
        raise ConfigError(f"this federation cannot answer {step_name(step)}: {missing}")
    return names


def refusal(step: Callable[..., Any]) -> PrivacyError:
    """Return the error of `gather` in a private federation."""
    return PrivacyError(
        f"{step_name(step)} would show the server each client's reply, and this federation "
        "is private: it allows sums only"
    )


def require_one_broadcast(broadcast: Any, clients: Iterable[str]) -> None:
    """Raise PrivacyError if a secure sum would send clients different parts of a broadcast.

    A client's update can be read out of a sum in which only this client received a certain model.
    """
    if any(part_for(broadcast, name) is not broadcast for name in clients):
        raise PrivacyError(
            "in a secure sum all clients receive the same broadcast; this one has a part for each "
            "client"
        )
