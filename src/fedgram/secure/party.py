"""A client's side of a secure sum: its answers, and its checks before it reveals anything."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Self

from fedgram.core.additive import Additive
from fedgram.errors import FedgramError
from fedgram.secure import masks, shamir
from fedgram.secure.flatten import flatten
from fedgram.secure.messages import (
    NOTHING,
    Commitment,
    Confirmation,
    Digests,
    Keys,
    Masked,
    ProtocolError,
    Reveal,
    Roster,
    SealedShares,
    SessionStart,
    Shares,
    Signer,
    Survivors,
    binding,
    share_digest,
    unhex,
)

FEWEST = 3  # with two, each client can compute the other's part from the total
TWO_THIRDS = 2 / 3
ROUNDS = ("keys", "shares", "masked", "confirm", "reveal")


def least_threshold(clients: int, share: float = TWO_THIRDS) -> int:
    """Return the smallest number that is above this share of the clients, and at least three.

    Each honest client reveals for one list of survivors. So two lists can both be completed only if
    twice the threshold is at most the number of clients plus that of the colluding ones: above two
    thirds, never with a third of them.

    Examples
    --------
    >>> [least_threshold(clients) for clients in (3, 4, 6, 50)]
    [3, 3, 5, 34]
    """
    return max(FEWEST, int(share * clients + 1e-9) + 1)


def require_threshold(threshold: int, clients: int, share: float = TWO_THIRDS) -> None:
    """Raise ProtocolError if the number of clients or the threshold is too small to hide parts.

    Parameters
    ----------
    threshold
        Number of clients that must stay.
    clients
        Number of clients.
    share
        Fraction of the clients that the threshold must exceed.
    """
    if clients < FEWEST:
        raise ProtocolError(
            f"a secure sum over {clients} clients hides nothing: each can subtract its own part; "
            f"use at least {FEWEST}"
        )
    least = least_threshold(clients, max(share, 0.5))
    if not least <= threshold <= clients:
        raise ProtocolError(
            f"a threshold of {threshold} among {clients} clients is not safe; use at least {least}"
        )


class Party:
    """One client in one session. It answers every round once, in order; secrets are never reused.

    Parameters
    ----------
    name
        The client.
    call
        The message that started the session.
    signer
        Signs this client's messages and verifies those of others. Without a signer the server is
        trusted to pass public keys on unchanged.
    share
        Fraction of the clients that a threshold must exceed; no other one is accepted.
    """

    def __init__(
        self,
        name: str,
        call: SessionStart,
        *,
        signer: Signer | None = None,
        share: float = TWO_THIRDS,
    ) -> None:
        self.name = name
        self._call = call
        self._signer = signer
        self._share = share
        self._confirmed: tuple[str, ...] | None = None
        self._round = -1
        self._mask_key, self._encryption_key, self._seed = (self._secret() for _ in range(3))
        self._received: dict[str, tuple[bytes, bytes]] = {}  # shares of each sender's two secrets

    @property
    def commitment(self) -> Commitment:
        """What this session is about, as this client was asked."""
        return self._call.commitment

    def keys(self) -> Keys:
        """Answer round 1: public keys, for this session only."""
        self._enter("keys")
        keys = Keys(
            name=self.name,
            mask=masks.public(self._mask_key).hex(),
            encryption=masks.public(self._encryption_key).hex(),
            seed_commitment=seed_commitment(self.name, self._seed),
        )
        signature = self._signed(keys.signed_part(self._call))
        self._own = replace(keys, signature=signature)
        return self._own

    def shares(self, roster: Roster) -> Shares:
        """Answer round 2: shares of the mask key and of the seed, encrypted for each peer."""
        self._enter("shares")
        self._check(roster)
        self._join(roster)
        count = len(roster.members)
        made = zip(
            shamir.split(self._mask_key, roster.threshold, count),
            shamir.split(self._seed, roster.threshold, count),
            strict=True,
        )
        sealed, digests, signatures = {}, {}, {}
        for name, pair in zip(roster.names, made, strict=True):
            digests[name] = self._digests(self.name, name, pair)
            if name == self.name:
                self._received[name] = pair
            else:
                key, about = self._encryption(self.name, name)
                sealed[name] = masks.seal(key, b"".join(pair), about).hex()
                signatures[name] = self._signed(
                    SealedShares(
                        sealed={self.name: sealed[name]}, digests={self.name: digests[name]}
                    ).signed_part(self._binding, self.name, name)
                )
        return Shares(name=self.name, sealed=sealed, digests=digests, signatures=signatures)

    def masked(self, value: Additive, parcel: SealedShares, broadcast: str = NOTHING) -> Masked:
        """Answer round 3: the contribution, under a mask with each peer and a mask of its own.

        Parameters
        ----------
        value
            The contribution.
        parcel
            The shares of the others for this client.
        broadcast
            Digest of the broadcast that this client has received, and computed the value from.
        """
        self._enter("masked")
        self._open(parcel)
        self._require(len(self._received))
        self._check_broadcast(broadcast)
        # Masks of what was really received: they cancel with nobody who received something else.
        self._binding = binding(self._roster, replace(self.commitment, broadcast=broadcast))
        layout, vector = flatten(value, clients=len(self._received))
        for key, negative in self._masks():
            masks.add_mask(vector, key, negative=negative)
        return Masked(name=self.name, layout=layout, vector=vector)

    def confirm(self, survivors: Survivors) -> Confirmation:
        """Answer the round of signatures: sign the received list of survivors for the others."""
        self._enter("confirm")
        self._check_survivors(survivors)
        self._confirmed = survivors.names
        signature = self._signed(survivors.signed_part(self._binding))
        return Confirmation(name=self.name, signature=signature)

    def reveal(self, survivors: Survivors) -> Reveal:
        """Answer round 4: a share of each survivor's seed and of each dropped client's key."""
        if self._signer and self._round != ROUNDS.index("confirm"):
            raise ProtocolError(
                "the survivors were not confirmed; with signers the server must ask for that first"
            )
        self._enter("reveal")
        self._check_survivors(survivors)
        if self._confirmed is not None:
            self._check_confirmed(survivors)
        stayed = set(survivors.names)
        return Reveal(
            name=self.name,
            seeds={name: self._received[name][1].hex() for name in sorted(stayed)},
            keys={
                name: self._received[name][0].hex() for name in sorted(set(self._received) - stayed)
            },
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the state of this party for `codec`; whoever reads it can remove its masks."""
        return {
            "name": self.name,
            "call": self._call,
            "round": self._round,
            "secrets": [key.hex() for key in (self._mask_key, self._encryption_key, self._seed)],
            "held": {name: [a.hex(), b.hex()] for name, (a, b) in self._received.items()},
            "own": getattr(self, "_own", None),
            "roster": getattr(self, "_roster", None),
            "confirmed": self._confirmed,
        }

    @classmethod
    def restored(
        cls, plain: dict[str, Any], *, signer: Signer | None = None, share: float = TWO_THIRDS
    ) -> Self:
        """Return a party from the result of `to_dict`, also in another process.

        Parameters
        ----------
        plain
            The result of `to_dict`.
        signer, share
            As for the party that is restored.
        """
        party = cls(plain["name"], plain["call"], signer=signer, share=share)
        party._round = plain["round"]
        party._mask_key, party._encryption_key, party._seed = map(unhex, plain["secrets"])
        party._received = {name: (unhex(a), unhex(b)) for name, (a, b) in plain["held"].items()}
        party._confirmed = plain["confirmed"]
        if plain["own"] is not None:
            party._own = plain["own"]
        if plain["roster"] is not None:
            party._join(plain["roster"])
        return party

    def _join(self, roster: Roster) -> None:
        self._roster, self._binding = roster, binding(roster, self.commitment)
        self._peers = {keys.name: keys for keys in roster.members if keys.name != self.name}

    def _secret(self) -> bytes:
        """Return 32 random bytes; called for the mask key, the encryption key and the seed."""
        return secrets.token_bytes(masks.KEY)

    def _masks(self) -> Iterator[tuple[bytes, bool]]:
        """Yield the key of each mask and whether the mask is subtracted."""
        yield self_mask(self._binding, self.name, self._seed), False
        for name in sorted(set(self._received) - {self.name}):
            peer = unhex(self._peers[name].mask)
            yield pair_mask(self._binding, self.name, name, self._mask_key, peer)

    def _open(self, parcel: SealedShares) -> None:
        """Decrypt the shares for this client, and check them."""
        if strangers := sorted(set(parcel.sealed) - set(self._peers)):
            raise ProtocolError(
                f"shares of clients that are not in this sum: {', '.join(strangers)}"
            )
        for sender, sealed in parcel.sealed.items():
            if self._signer:
                signed = parcel.signed_part(self._binding, sender, self.name)
                self._verify(sender, signed, parcel.signatures.get(sender, ""))
            key, about = self._encryption(sender, self.name)
            try:
                both = masks.unseal(key, unhex(sealed), about)
            except ProtocolError as error:
                raise ProtocolError(f"of client {sender}: {error}") from error
            pair = both[: shamir.SHARE], both[shamir.SHARE :]
            if self._digests(sender, self.name, pair) != parcel.digests.get(sender):
                raise ProtocolError(
                    f"client {sender}: its shares are not those that it announced; leave it out"
                )
            self._received[sender] = pair

    def _digests(self, owner: str, holder: str, pair: tuple[bytes, bytes]) -> Digests:
        one, two = (share_digest(self._binding, owner, holder, share) for share in pair)
        return one, two

    def _check_broadcast(self, broadcast: str) -> None:
        if broadcast != self.commitment.broadcast:
            raise ProtocolError(
                "the broadcast is not the one that the session started with, and other clients may "
                "have received another one; do not trust this server"
            )

    def _encryption(self, sender: str, receiver: str) -> tuple[bytes, bytes]:
        """Return the key that encrypts shares from one to the other, and the associated data."""
        peer = self._peers[receiver if sender == self.name else sender]
        about = (b"letter", self._binding, sender.encode(), receiver.encode())
        agreed = masks.agree(self._encryption_key, unhex(peer.encryption))
        return masks.derive(agreed, *about), b"".join(about[:2])

    def _enter(self, round_: str) -> None:
        number = ROUNDS.index(round_)
        skipped = ROUNDS[self._round + 1 : number]
        if number <= self._round or any(name != "confirm" for name in skipped):
            raise ProtocolError(
                f"round {round_!r} was requested twice or out of order; it is not answered"
            )
        self._round = number

    def _check(self, roster: Roster) -> None:
        require_threshold(roster.threshold, len(roster.members), self._share)
        names, own = roster.names, [keys for keys in roster.members if keys.name == self.name]
        everything = [key for keys in roster.members for key in (keys.mask, keys.encryption)]
        if names != sorted(set(names)) or len(set(everything)) < len(everything):
            raise ProtocolError("the roster lists a client or a key twice; start again")
        if roster.session != self._call.session or own != [self._own]:
            raise ProtocolError(
                "the roster belongs to another session, or has other keys for this client"
            )
        for keys in roster.members if self._signer else ():
            self._verify(keys.name, keys.signed_part(self._call), keys.signature)

    def _check_survivors(self, survivors: Survivors) -> None:
        names = survivors.names
        if list(names) != sorted(set(names)) or not set(names) <= set(self._received):
            raise ProtocolError("the list of survivors has unknown clients, or a client twice")
        if self.name not in names:
            raise ProtocolError("this client is not in the list of survivors; it reveals nothing")
        self._require(len(names))

    def _check_confirmed(self, survivors: Survivors) -> None:
        if survivors.names != self._confirmed or not set(survivors.signatures) <= set(
            survivors.names
        ):
            raise ProtocolError("the list of survivors is not the one that was confirmed")
        if self._signer:
            for name, signature in survivors.signatures.items():
                self._verify(name, survivors.signed_part(self._binding), signature)
            self._require(len(survivors.signatures))

    def _require(self, count: int) -> None:
        if count < self._roster.threshold:
            raise ProtocolError(
                f"{count} clients are left, and {self._roster.threshold} are needed; start again "
                "when more clients are connected"
            )

    def _signed(self, message: bytes) -> str:
        return self._signer.sign(message).hex() if self._signer else ""

    def _verify(self, name: str, message: bytes, signature: str) -> None:
        if self._signer and not self._signer.known(name):
            raise ProtocolError(
                f"there is no pinned key of {name} here, or nobody has compared it; compare "
                "fingerprints with its people, and pin its key with 'fedgram federation pin'"
            )
        try:
            good = bool(self._signer and self._signer.verify(name, message, unhex(signature)))
        except FedgramError:
            good = False
        if not good:
            raise ProtocolError(
                f"the signature of {name} is invalid, by the key that is pinned here: it has "
                "another key, or was asked about something else; do not trust this server"
            )


def seed_commitment(name: str, seed: bytes) -> str:
    """Return the commitment to a seed, which does not reveal the mask."""
    return masks.derive(seed, b"stamp", name.encode()).hex()


def self_mask(bound: bytes, name: str, seed: bytes) -> bytes:
    """Return the key of a client's own mask."""
    return masks.derive(seed, b"self", bound, name.encode())


def pair_mask(
    bound: bytes, name: str, peer: str, private: bytes, public: bytes
) -> tuple[bytes, bool]:
    """Return the key of the mask of two clients, and whether `name` subtracts the mask.

    Parameters
    ----------
    bound
        Binding of the session.
    name, peer
        The two clients.
    private
        Private mask key of one of them.
    public
        Public mask key of the other.
    """
    first, second = sorted((name, peer))
    agreed = masks.agree(private, public)
    key = masks.derive(agreed, b"pair", bound, first.encode(), second.encode())
    return key, name == second
