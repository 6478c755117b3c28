"""The rounds of a secure sum, in their order, over any transport."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, Protocol

from fedgram.errors import MismatchError
from fedgram.secure import masks
from fedgram.secure.messages import Keys, Roster, Shares, Survivors, unhex
from fedgram.secure.server import Server

RoundName = Literal["keys", "shares", "masked", "confirm", "reveal"]


class Ask(Protocol):
    """Sends a message of the server to clients and returns their answers."""

    def __call__(
        self,
        round_: RoundName,
        names: Sequence[str],
        message: Any,
        *,
        needed: int,
        check: Callable[[Any], None],
    ) -> Iterable[Any]:
        """Yield the answers that pass the check.

        Parameters
        ----------
        round_
            Name of the round, which is the method of `Party` that answers.
        names
            The clients.
        message
            The message to all clients, or a dict with one message for each.
        needed
            Number of answers without which the sum fails.
        check
            Called once with each answer before the next one; raises for an invalid answer.
        """


def run_session(
    server: Server, names: Sequence[str], ask: Ask, *, confirm: bool = False
) -> tuple[Any, Survivors]:
    """Run all rounds of a secure sum; return the total, and the clients that are in it.

    Parameters
    ----------
    server
        The server's side of this sum.
    names
        The clients.
    ask
        The transport.
    confirm
        Whether clients sign the list of survivors, in a round before they reveal anything.
    """
    first = server.threshold(len(names))
    roster = server.roster(ask("keys", names, server.call, needed=first, check=_check_keys))
    needed = roster.threshold
    shares = ask("shares", roster.names, roster, needed=needed, check=_shares_check(roster))
    parcels = server.parcels(shares)
    for _ in ask("masked", list(parcels), parcels, needed=needed, check=server.add):
        pass  # added by the check: a contribution that does not fit is that client's error only
    survivors = server.survivors()
    if confirm:
        signed = ask("confirm", survivors.names, survivors, needed=needed, check=_no_check)
        survivors = server.survivors(signed)
    reveals = ask("reveal", survivors.names, survivors, needed=needed, check=server.check)
    return server.total(reveals), survivors


def _check_keys(keys: Keys) -> None:
    """Raise for keys that the other clients could not use: they would end the sum for all."""
    own = secrets.token_bytes(masks.KEY)
    for public in (keys.mask, keys.encryption):
        masks.agree(own, unhex(public))
    unhex(keys.seed_commitment)
    if keys.mask == keys.encryption:
        raise MismatchError("it has one key for two purposes")


def _shares_check(roster: Roster) -> Callable[[Shares], None]:
    def check(shares: Shares) -> None:
        peers = set(roster.names) - {shares.name}
        _check_shares(shares.sealed, peers)
        _check_shares(shares.signatures, peers)
        if not isinstance(shares.digests, dict) or set(shares.digests) != set(roster.names):
            raise MismatchError("it sent digests of other shares than asked")
        for pair in shares.digests.values():
            if len([unhex(digest) for digest in pair]) != 2:
                raise MismatchError("expected the digests of two shares for each client")

    return check


def _check_shares(shares: Any, names: set[str]) -> None:
    """Raise unless there is one hexadecimal text for each of these clients and no other."""
    if not isinstance(shares, dict) or set(shares) != names:
        raise MismatchError("it sent shares of other clients than asked")
    for share in shares.values():
        unhex(share)


def _no_check(_: Any) -> None:
    """Signatures are checked by the clients, who know each other's keys."""
