"""The server's side of a secure sum: it passes letters on, adds, and takes the masks off."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterable
from typing import Any

import numpy as np

from fedgram.errors import MismatchError, PrivacyError
from fedgram.secure import masks, shamir
from fedgram.secure.flatten import restore, words
from fedgram.secure.messages import (
    Confirmation,
    Keys,
    Masked,
    Reveal,
    Roster,
    SealedShares,
    SessionStart,
    Shares,
    Survivors,
    unhex,
)
from fedgram.secure.party import FEWEST, pair_mask, require_threshold, self_mask, stamp

TWO_THIRDS = 2 / 3


class Server:
    """One secure sum. It keeps one vector, whatever the number of clients.

    Parameters
    ----------
    share
        More than this share of the clients must stay to the end. From two thirds on, clients that
        are told different survivors still do not give a server both secrets of anybody, even if a
        third of them side with it.

    Examples
    --------
    >>> from fedgram.secure.party import Party
    >>> from fedgram.core.weighted import Weighted
    >>> server = Server()
    >>> parties = {name: Party(name, server.call) for name in ("a", "b", "c")}
    >>> roster = server.roster([party.keys() for party in parties.values()])
    >>> parcels = server.parcels([party.shares(roster) for party in parties.values()])
    >>> for name, party in parties.items():
    ...     server.add(party.masked(Weighted.of(np.ones(2), 1), parcels[name]))
    >>> survivors = server.survivors()
    >>> server.total([party.reveal(survivors) for party in parties.values()]).weight
    array([3])
    """

    def __init__(self, *, share: float = TWO_THIRDS) -> None:
        self.call = SessionStart(session=secrets.token_bytes(masks.KEY).hex())
        self._share = share
        self._total = np.zeros(0, np.uint64)
        self._layout: dict[str, Any] = {}
        self._added: list[str] = []

    def threshold(self, clients: int) -> int:
        """Return the number of clients that must stay: more than the share, and never only two.

        Examples
        --------
        >>> [Server().threshold(clients) for clients in (3, 4, 6, 50)]
        [3, 3, 5, 34]
        """
        return max(FEWEST, int(self._share * clients + 1e-9) + 1)

    def roster(self, keys: Iterable[Keys]) -> Roster:
        """End round 1: return the list of those who take part, with their keys."""
        members = tuple(sorted(keys, key=lambda each: each.name))
        threshold = self.threshold(len(members))
        require_threshold(threshold, len(members))
        self._roster = Roster(session=self.call.session, threshold=threshold, members=members)
        self._keys = {each.name: each for each in members}
        self._points = {name: point for point, name in enumerate(self._roster.names, 1)}
        return self._roster

    def parcels(self, shares: Iterable[Shares]) -> dict[str, SealedShares]:
        """End round 2: return what each client that sent shares is sent of the others'."""
        sent = {each.name: each.sealed for each in shares}
        for name, sealed in sent.items():
            _require_about(name, {name, *sealed}, self._keys)
        self._require(len(sent), "shared their keys")
        self._sharing = sorted(sent)
        return {
            name: SealedShares(sealed={s: sent[s][name] for s in self._sharing if s != name})
            for name in self._sharing
        }

    def add(self, masked: Masked) -> None:
        """Take one contribution of round 3 in; nothing of it is kept but the sum."""
        if masked.name not in self._sharing or masked.name in self._added:
            raise PrivacyError(f"client {masked.name}: not expected, or added already; start again")
        if not self._added:
            self._layout = masked.layout
            self._total = np.zeros(words(masked.layout), np.uint64)
        elif masked.layout != self._layout:
            raise MismatchError(
                f"client {masked.name}: differs from {self._added[0]} in what must be agreed on "
                "(features, classes, sizes); use the same settings everywhere"
            )
        vector, fits = masked.vector, (self._total.shape, self._total.dtype)
        if not isinstance(vector, np.ndarray) or (vector.shape, vector.dtype) != fits:
            raise MismatchError(f"client {masked.name}: its vector does not fit its layout")
        self._added.append(masked.name)
        self._total += vector

    def survivors(self, confirmations: Iterable[Confirmation] = ()) -> Survivors:
        """End round 3: return who is in the sum, with what they signed of it, if anything."""
        self._require(len(self._added), "sent a contribution")
        signatures = {each.name: each.signature for each in confirmations}
        return Survivors(names=tuple(sorted(self._added)), signatures=signatures)

    def total(self, reveals: Iterable[Reveal]) -> Any:
        """End round 4: take all masks off and return the sum of the survivors."""
        said = {each.name: each for each in reveals}
        self._require(len(said), "helped to take the masks off")
        answers = list(said.values())[: self._roster.threshold]  # any so many will do
        binding, total, stayed = self._roster.digest(), self._total, sorted(self._added)
        dropped = sorted(set(self._sharing) - set(stayed))
        for each in answers:
            _require_about(each.name, each.seeds, stayed)
            _require_about(each.name, each.keys, dropped)
        for name in stayed:
            seed = self._recovered(name, {each.name: each.seeds for each in answers})
            if stamp(name, seed) != self._keys[name].stamp:
                raise _wrong(name)
            masks.add_mask(total, self_mask(binding, name, seed), negative=True)
        for name in dropped:
            private = self._recovered(name, {each.name: each.keys for each in answers})
            if masks.public(private).hex() != self._keys[name].mask:
                raise _wrong(name)
            for peer in stayed:  # as the one who dropped out would have added it
                public = unhex(self._keys[peer].mask)
                key, negative = pair_mask(binding, name, peer, private, public)
                masks.add_mask(total, key, negative=negative)
        return restore(self._layout, total)

    def _recovered(self, name: str, shares: dict[str, dict[str, str]]) -> bytes:
        held = {self._points[by]: unhex(given[name]) for by, given in shares.items()}
        return shamir.recover(held)

    def _require(self, count: int, what: str) -> None:
        if count < self._roster.threshold:
            raise PrivacyError(
                f"{count} of {len(self._keys)} clients {what}, and {self._roster.threshold} are "
                "needed; nothing of the sum was revealed: ask again when more are there"
            )


def _require_about(client: str, told: Collection[str], wanted: Collection[str]) -> None:
    if set(told) != set(wanted):
        raise PrivacyError(
            f"client {client}: it sent shares of other clients than asked; ask again"
        )


def _wrong(name: str) -> PrivacyError:
    return PrivacyError(f"client {name}: a share of its secret is wrong; ask again")
