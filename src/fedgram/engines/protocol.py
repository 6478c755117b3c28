"""What the runner asks of a federation, beyond what methods may."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from fedgram.errors import ConfigError, PrivacyError
from fedgram.federation.protocol import Exchange, Federation
from fedgram.federation.scoring import ScoreTask, SiteScore
from fedgram.federation.step import step_name

SCORING = 0  # asks are numbered from 1: scoring, however often, changes nothing in training
SERVER, DROPOUT = 0x5E, 0xD0  # set the server's randomness apart from any client's


class Engine(Federation, Protocol):
    """A federation that can be scored too."""

    asks: list[Exchange]

    def evaluate(self, step: ScoreTask, shared: Any) -> Iterator[tuple[str, SiteScore]]:
        """Yield the score of each site, or one of all together where only their sum is seen.

        What is added to ``asks`` meanwhile is the scoring.
        """

    def deliver(self, shared: Any, round_: int) -> None:
        """Hand every client the final result, which is that of this round."""


def client_rng(seed: int, client: str, ask: int) -> np.random.Generator:
    """Return a client's randomness for one ask: from the seed, its name and the ask's number."""
    name = int.from_bytes(hashlib.sha256(client.encode()).digest()[:8], "little")
    return np.random.default_rng(np.random.SeedSequence([seed, name, ask]))


def server_rng(seed: int, asked: int, purpose: int = SERVER) -> np.random.Generator:
    """Return the server's randomness after so many asks."""
    return np.random.default_rng(np.random.SeedSequence([seed, asked, purpose]))


def resolve_clients(
    step: Callable[..., Any], clients: Iterable[str] | None, members: Sequence[str]
) -> Sequence[str]:
    """Return which of the members are asked, sorted; there must be some, and no strangers."""
    names = members if clients is None else sorted(set(clients))
    unknown = sorted(set(names) - set(members))
    if unknown or not names:
        missing = f"{', '.join(unknown)} not in it" if unknown else "nobody to ask"
        raise ConfigError(f"this federation cannot answer {step_name(step)}: {missing}")
    return names


def refusal(step: Callable[..., Any]) -> PrivacyError:
    """Return why a private federation does not gather."""
    return PrivacyError(
        f"{step_name(step)} would show the server each client's reply, and this federation "
        "is private: only sums may be asked for"
    )
