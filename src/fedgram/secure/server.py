"""The server's side of a secure sum: it forwards shares, adds, and removes the masks."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterable
from typing import Any

import numpy as np

from fedgram.errors import FedgramError, MismatchError, PrivacyError
from fedgram.secure import masks, shamir
from fedgram.secure.flatten import restore, words
from fedgram.secure.messages import (
    Commitment,
    Confirmation,
    Keys,
    Masked,
    Reveal,
    Roster,
    SealedShares,
    SessionStart,
    Shares,
    Survivors,
    binding,
    share_digest,
    unhex,
)
from fedgram.secure.party import (
    TWO_THIRDS,
    least_threshold,
    pair_mask,
    require_threshold,
    seed_commitment,
    self_mask,
)


class Server:
    """One secure sum. It holds one vector in memory, whatever the number of clients.

    Parameters
    ----------
    commitment
        What the sum is about; clients refuse to answer if it differs from what they are asked.
    share
        More than this fraction of the clients must stay to the end. From two thirds on, a server
        that sends clients different lists of survivors does not get both secrets of any client,
        even if a third of the clients collude with it.

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

    def __init__(self, commitment: Commitment | None = None, *, share: float = TWO_THIRDS) -> None:
        self.call = SessionStart(
            session=secrets.token_bytes(masks.KEY).hex(), commitment=commitment or Commitment()
        )
        self._share = share
        self._total = np.zeros(0, np.uint64)
        self._layout: dict[str, Any] = {}
        self._added: list[str] = []

    def threshold(self, clients: int) -> int:
        """Return the number of clients that must stay: more than the share, at least three."""
        return least_threshold(clients, self._share)

    def roster(self, keys: Iterable[Keys]) -> Roster:
        """End round 1: return the list of the clients, with their keys."""
        members = tuple(sorted(keys, key=lambda each: each.name))
        threshold = self.threshold(len(members))
        require_threshold(threshold, len(members), self._share)
        self._roster = Roster(session=self.call.session, threshold=threshold, members=members)
        self._binding = binding(self._roster, self.call.commitment)
        self._keys = {each.name: each for each in members}
        self._points = {name: point for point, name in enumerate(self._roster.names, 1)}
        return self._roster

    def parcels(self, shares: Iterable[Shares]) -> dict[str, SealedShares]:
        """End round 2: return, for each client that sent shares, the others' shares for it."""
        sent = {each.name: each for each in shares}
        for name, each in sent.items():
            _require_about(name, {name, *each.sealed}, self._keys)
            _require_about(name, each.digests, self._keys)
        self._require(len(sent), "shared their keys")
        self._sharing = sorted(sent)
        self._digests = {name: each.digests for name, each in sent.items()}
        return {name: self._parcel(name, sent) for name in self._sharing}

    def _parcel(self, name: str, sent: dict[str, Shares]) -> SealedShares:
        others = [sent[sender] for sender in self._sharing if sender != name]
        return SealedShares(
            sealed={each.name: each.sealed[name] for each in others},
            digests={each.name: each.digests[name] for each in others},
            signatures={each.name: each.signatures.get(name, "") for each in others},
        )

    def add(self, masked: Masked) -> None:
        """Add one contribution of round 3; only the sum is kept."""
        if masked.name not in self._sharing or masked.name in self._added:
            raise PrivacyError(f"client {masked.name}: unexpected, or added already; start again")
        if not self._added:
            self._layout = masked.layout
            self._total = np.zeros(words(masked.layout), np.uint64)
        elif masked.layout != self._layout:
            raise MismatchError(
                f"client {masked.name}: its layout (features, classes, sizes) differs from that of "
                f"{self._added[0]}; use the same settings everywhere"
            )
        vector, fits = masked.vector, (self._total.shape, self._total.dtype)
        if not isinstance(vector, np.ndarray) or (vector.shape, vector.dtype) != fits:
            raise MismatchError(f"client {masked.name}: its vector does not fit its layout")
        self._added.append(masked.name)
        self._total += vector

    def survivors(self, confirmations: Iterable[Confirmation] = ()) -> Survivors:
        """End round 3: return the clients in the sum, and their signatures of this list, if any."""
        self._require(len(self._added), "sent a contribution")
        signatures = {each.name: each.signature for each in confirmations}
        return Survivors(names=tuple(sorted(self._added)), signatures=signatures)

    def check(self, reveal: Reveal) -> None:
        """Raise unless a client has revealed what it should, as those who shared it announced it.

        Every client has published digests of the shares of its secrets. So a wrong share is that of
        the client that reveals it, not of the client whose secret it belongs to.
        """
        stayed = set(self._added)
        _require_about(reveal.name, reveal.seeds, stayed)
        _require_about(reveal.name, reveal.keys, set(self._sharing) - stayed)
        for place, shares in enumerate((reveal.keys, reveal.seeds)):
            for owner, share in shares.items():
                found = share_digest(self._binding, owner, reveal.name, unhex(share))
                if found != self._digests[owner][reveal.name][place]:
                    raise PrivacyError(
                        f"client {reveal.name}: it sent a wrong share of the secret of {owner}; "
                        "leave it out, or start again"
                    )

    def total(self, reveals: Iterable[Reveal]) -> Any:
        """End round 5: remove all masks and return the sum of the survivors."""
        said = {each.name: each for each in reveals}
        self._require(len(said), "helped to remove the masks")
        answers = list(said.values())[: self._roster.threshold]  # any set of this size suffices
        bound, total, stayed = self._binding, self._total, sorted(self._added)
        dropped = sorted(set(self._sharing) - set(stayed))
        for each in answers:
            self.check(each)
        for name in stayed:
            seed = self._recovered(name, {each.name: each.seeds for each in answers})
            if seed_commitment(name, seed) != self._keys[name].seed_commitment:
                raise _wrong(name)
            masks.add_mask(total, self_mask(bound, name, seed), negative=True)
        for name in dropped:
            private = self._recovered(name, {each.name: each.keys for each in answers})
            if masks.public(private).hex() != self._keys[name].mask:
                raise _wrong(name)
            for peer in stayed:  # as the dropped client would have added it
                public = unhex(self._keys[peer].mask)
                key, negative = pair_mask(bound, name, peer, private, public)
                masks.add_mask(total, key, negative=negative)
        return restore(self._layout, total)

    def _recovered(self, name: str, shares: dict[str, dict[str, str]]) -> bytes:
        held = {self._points[by]: unhex(given[name]) for by, given in shares.items()}
        try:
            return shamir.recover(held)
        except FedgramError as error:
            raise _wrong(name) from error

    def _require(self, count: int, what: str) -> None:
        if count < self._roster.threshold:
            raise PrivacyError(
                f"{count} of {len(self._keys)} clients {what}, and {self._roster.threshold} are "
                "needed; nothing was revealed: start again when more clients are connected"
            )


def _require_about(client: str, found: Collection[str], expected: Collection[str]) -> None:
    if set(found) != set(expected):
        raise PrivacyError(
            f"client {client}: it sent shares of other clients than asked; start again"
        )


def _wrong(name: str) -> PrivacyError:
    return PrivacyError(
        f"client {name}: the shares that it gave out do not fit its keys; start again without it"
    )
