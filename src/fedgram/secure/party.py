"""A client's side of a secure sum: its answers, and its checks before it reveals anything."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Self

from fedgram.core.additive import Additive
from fedgram.errors import FedgramError, PrivacyError
from fedgram.secure import masks, shamir
from fedgram.secure.flatten import flatten
from fedgram.secure.messages import (
    Confirmation,
    Keys,
    Masked,
    Reveal,
    Roster,
    SealedShares,
    SessionStart,
    Shares,
    Signer,
    Survivors,
    unhex,
)

FEWEST = 3  # with two, each client can compute the other's part from the total
ROUNDS = ("keys", "shares", "masked", "confirm", "reveal")


def require_threshold(threshold: int, clients: int) -> None:
    """Raise PrivacyError if the number of clients or the threshold is too small to hide parts."""
    if clients < FEWEST:
        raise PrivacyError(
            f"a secure sum over {clients} clients hides nothing: each can subtract its own part; "
            f"use at least {FEWEST}"
        )
    if not max(FEWEST, clients // 2 + 1) <= threshold <= clients:
        raise PrivacyError(
            f"a threshold of {threshold} among {clients} clients is not safe; use more than half "
            f"of them, at least {FEWEST}"
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
        Signs this client's keys and verifies those of others. Without a signer the server is
        trusted to pass public keys on unchanged.
    """

    def __init__(self, name: str, call: SessionStart, *, signer: Signer | None = None) -> None:
        self.name = name
        self._session = call.session
        self._signer = signer
        self._round = -1
        self._mask_key, self._encryption_key, self._seed = (self._secret() for _ in range(3))
        self._received: dict[str, tuple[bytes, bytes]] = {}  # shares of each sender's two secrets

    def keys(self) -> Keys:
        """Answer round 1: public keys, for this session only."""
        self._enter("keys")
        keys = Keys(
            name=self.name,
            mask=masks.public(self._mask_key).hex(),
            encryption=masks.public(self._encryption_key).hex(),
            seed_commitment=seed_commitment(self.name, self._seed),
        )
        signature = self._signed(keys.signed_part(self._session))
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
        sealed = {}
        for name, pair in zip(roster.names, made, strict=True):
            if name == self.name:
                self._received[name] = pair
            else:
                key, about = self._encryption(self.name, name)
                sealed[name] = masks.seal(key, b"".join(pair), about).hex()
        return Shares(name=self.name, sealed=sealed)

    def masked(self, value: Additive, parcel: SealedShares) -> Masked:
        """Answer round 3: the contribution, under a mask with each peer and a mask of its own."""
        self._enter("masked")
        if strangers := sorted(set(parcel.sealed) - set(self._peers)):
            raise PrivacyError(
                f"shares of clients that are not in this sum: {', '.join(strangers)}"
            )
        for sender, sealed in parcel.sealed.items():
            key, about = self._encryption(sender, self.name)
            try:
                both = masks.unseal(key, unhex(sealed), about)
            except PrivacyError as error:
                raise PrivacyError(f"of client {sender}: {error}") from error
            self._received[sender] = both[: shamir.SHARE], both[shamir.SHARE :]
        self._require(len(self._received))
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
            raise PrivacyError(
                "the survivors were not confirmed; with signers the server must ask for that first"
            )
        self._enter("reveal")
        self._check_survivors(survivors)
        if self._signer:
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
            "session": self._session,
            "round": self._round,
            "secrets": [key.hex() for key in (self._mask_key, self._encryption_key, self._seed)],
            "held": {name: [a.hex(), b.hex()] for name, (a, b) in self._received.items()},
            "own": getattr(self, "_own", None),
            "roster": getattr(self, "_roster", None),
        }

    @classmethod
    def restored(cls, plain: dict[str, Any], *, signer: Signer | None = None) -> Self:
        """Return a party from the result of `to_dict`, also in another process.

        With a signer a party must stay in one process: its confirmation is not part of the state.
        """
        party = cls(plain["name"], SessionStart(session=plain["session"]), signer=signer)
        party._round = plain["round"]
        party._mask_key, party._encryption_key, party._seed = map(unhex, plain["secrets"])
        party._received = {name: (unhex(a), unhex(b)) for name, (a, b) in plain["held"].items()}
        if plain["own"] is not None:
            party._own = plain["own"]
        if plain["roster"] is not None:
            party._join(plain["roster"])
        return party

    def _join(self, roster: Roster) -> None:
        self._roster, self._binding = roster, roster.digest()
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
            raise PrivacyError(
                f"round {round_!r} was requested twice or out of order; it is not answered"
            )
        self._round = number

    def _check(self, roster: Roster) -> None:
        require_threshold(roster.threshold, len(roster.members))
        names, own = roster.names, [keys for keys in roster.members if keys.name == self.name]
        everything = [key for keys in roster.members for key in (keys.mask, keys.encryption)]
        if names != sorted(set(names)) or len(set(everything)) < len(everything):
            raise PrivacyError("the roster lists a client or a key twice; start again")
        if roster.session != self._session or own != [self._own]:
            raise PrivacyError(
                "the roster belongs to another session, or has other keys for this client"
            )
        for keys in roster.members if self._signer else ():
            self._verify(keys.name, keys.signed_part(self._session), keys.signature)

    def _check_survivors(self, survivors: Survivors) -> None:
        names = survivors.names
        if list(names) != sorted(set(names)) or not set(names) <= set(self._received):
            raise PrivacyError("the list of survivors has unknown clients, or a client twice")
        if self.name not in names:
            raise PrivacyError("this client is not in the list of survivors, so it reveals nothing")
        self._require(len(names))

    def _check_confirmed(self, survivors: Survivors) -> None:
        if survivors.names != self._confirmed or not set(survivors.signatures) <= set(
            survivors.names
        ):
            raise PrivacyError("the list of survivors is not the one that was confirmed")
        for name, signature in survivors.signatures.items():
            self._verify(name, survivors.signed_part(self._binding), signature)
        self._require(len(survivors.signatures))

    def _require(self, count: int) -> None:
        if count < self._roster.threshold:
            raise PrivacyError(
                f"{count} clients are left, and {self._roster.threshold} are needed; start again "
                "when more clients are connected"
            )

    def _signed(self, message: bytes) -> str:
        return self._signer.sign(message).hex() if self._signer else ""

    def _verify(self, name: str, message: bytes, signature: str) -> None:
        try:
            good = bool(self._signer and self._signer.verify(name, message, unhex(signature)))
        except FedgramError:
            good = False
        if not good:
            raise PrivacyError(f"the signature of {name} is invalid; do not trust this server")


def seed_commitment(name: str, seed: bytes) -> str:
    """Return the commitment to a seed, which does not reveal the mask."""
    return masks.derive(seed, b"stamp", name.encode()).hex()


def self_mask(binding: bytes, name: str, seed: bytes) -> bytes:
    """Return the key of a client's own mask."""
    return masks.derive(seed, b"self", binding, name.encode())


def pair_mask(
    binding: bytes, name: str, peer: str, private: bytes, public: bytes
) -> tuple[bytes, bool]:
    """Return the key of the mask of two clients, and whether `name` subtracts the mask.

    Parameters
    ----------
    binding
        Digest of the roster.
    name, peer
        The two clients.
    private
        Private mask key of one of them.
    public
        Public mask key of the other.
    """
    first, second = sorted((name, peer))
    agreed = masks.agree(private, public)
    key = masks.derive(agreed, b"pair", binding, first.encode(), second.encode())
    return key, name == second
