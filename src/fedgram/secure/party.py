"""A client's side of a secure sum: what it sends, and what it refuses to say."""

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

FEWEST = 3  # among two, the total less one's own part is the other's
ROUNDS = ("keys", "shares", "masked", "confirm", "reveal")


def require_threshold(threshold: int, clients: int) -> None:
    """Refuse a sum of so few that one of them, or a lying server, could tell them apart."""
    if clients < FEWEST:
        raise PrivacyError(
            f"a secure sum over {clients} clients hides nothing: each can take its own part off; "
            f"use at least {FEWEST}"
        )
    if not max(FEWEST, clients // 2 + 1) <= threshold <= clients:
        raise PrivacyError(
            f"a threshold of {threshold} among {clients} clients is not safe; use more than half "
            f"of them, at least {FEWEST}"
        )


class Party:
    """One client in one session. Every round is answered once, in order; secrets are never reused.

    Parameters
    ----------
    name
        The client.
    call
        The message that began the session.
    signer
        Signs this client's keys and checks the others'; without one the server is trusted to
        pass public keys on as they are.
    """

    def __init__(self, name: str, call: SessionStart, *, signer: Signer | None = None) -> None:
        self.name = name
        self._session = call.session
        self._signer = signer
        self._round = -1
        self._mask_key, self._letter_key, self._seed = (self._secret() for _ in range(3))
        self._held: dict[str, tuple[bytes, bytes]] = {}  # shares of each sender's two secrets

    def keys(self) -> Keys:
        """Answer round 1: public keys, made for this session only."""
        self._enter("keys")
        keys = Keys(
            name=self.name,
            mask=masks.public(self._mask_key).hex(),
            letter=masks.public(self._letter_key).hex(),
            stamp=stamp(self.name, self._seed),
        )
        signature = self._signed(keys.signed_part(self._session))
        self._own = replace(keys, signature=signature)
        return self._own

    def shares(self, roster: Roster) -> Shares:
        """Answer round 2: shares of the mask key and of the seed, sealed for each peer."""
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
                self._held[name] = pair
            else:
                key, about = self._letter(self.name, name)
                sealed[name] = masks.seal(key, b"".join(pair), about).hex()
        return Shares(name=self.name, sealed=sealed)

    def masked(self, value: Additive, parcel: SealedShares) -> Masked:
        """Answer round 3: the contribution, under a mask with each peer and one of one's own."""
        self._enter("masked")
        if strangers := sorted(set(parcel.sealed) - set(self._peers)):
            raise PrivacyError(f"shares of {', '.join(strangers)}, who are not in this sum")
        for sender, letter in parcel.sealed.items():
            key, about = self._letter(sender, self.name)
            try:
                both = masks.unseal(key, unhex(letter), about)
            except PrivacyError as error:
                raise PrivacyError(f"of client {sender}: {error}") from error
            self._held[sender] = both[: shamir.SHARE], both[shamir.SHARE :]
        self._require(len(self._held))
        layout, vector = flatten(value, clients=len(self._held))
        for key, negative in self._masks():
            masks.add_mask(vector, key, negative=negative)
        return Masked(name=self.name, layout=layout, vector=vector)

    def confirm(self, survivors: Survivors) -> Confirmation:
        """Answer the round of signatures: say to the others which survivors one was told of."""
        self._enter("confirm")
        self._check_survivors(survivors)
        self._told = survivors.names
        signature = self._signed(survivors.signed_part(self._binding))
        return Confirmation(name=self.name, signature=signature)

    def reveal(self, survivors: Survivors) -> Reveal:
        """Answer round 4: of every client one share, of its seed if it stayed, else of its key."""
        if self._signer and self._round != ROUNDS.index("confirm"):
            raise PrivacyError("survivors were not confirmed; a server with signatures asks first")
        self._enter("reveal")
        self._check_survivors(survivors)
        if self._signer:
            self._check_confirmed(survivors)
        stayed = set(survivors.names)
        return Reveal(
            name=self.name,
            seeds={name: self._held[name][1].hex() for name in sorted(stayed)},
            keys={name: self._held[name][0].hex() for name in sorted(set(self._held) - stayed)},
        )

    def to_dict(self) -> dict[str, Any]:
        """Return all that this side remembers, for `codec`; whoever reads it can unmask."""
        return {
            "name": self.name,
            "session": self._session,
            "round": self._round,
            "secrets": [key.hex() for key in (self._mask_key, self._letter_key, self._seed)],
            "held": {name: [a.hex(), b.hex()] for name, (a, b) in self._held.items()},
            "own": getattr(self, "_own", None),
            "roster": getattr(self, "_roster", None),
        }

    @classmethod
    def restored(cls, plain: dict[str, Any], *, signer: Signer | None = None) -> Self:
        """Return the party that `to_dict` gave, in another process.

        With signatures a party must stay in one: what it has confirmed is not among this.
        """
        party = cls(plain["name"], SessionStart(session=plain["session"]), signer=signer)
        party._round = plain["round"]
        party._mask_key, party._letter_key, party._seed = map(unhex, plain["secrets"])
        party._held = {name: (unhex(a), unhex(b)) for name, (a, b) in plain["held"].items()}
        if plain["own"] is not None:
            party._own = plain["own"]
        if plain["roster"] is not None:
            party._join(plain["roster"])
        return party

    def _join(self, roster: Roster) -> None:
        self._roster, self._binding = roster, roster.digest()
        self._peers = {keys.name: keys for keys in roster.members if keys.name != self.name}

    def _secret(self) -> bytes:
        """Return 32 fresh bytes; in turn the mask key, the letter key and the seed."""
        return secrets.token_bytes(masks.KEY)

    def _masks(self) -> Iterator[tuple[bytes, bool]]:
        """Yield the keys of all masks and whether they are taken off."""
        yield self_mask(self._binding, self.name, self._seed), False
        for name in sorted(set(self._held) - {self.name}):
            peer = unhex(self._peers[name].mask)
            yield pair_mask(self._binding, self.name, name, self._mask_key, peer)

    def _letter(self, sender: str, receiver: str) -> tuple[bytes, bytes]:
        """Return the key of letters from one to the other, and what they say they are about."""
        peer = self._peers[receiver if sender == self.name else sender]
        about = (b"letter", self._binding, sender.encode(), receiver.encode())
        agreed = masks.agree(self._letter_key, unhex(peer.letter))
        return masks.derive(agreed, *about), b"".join(about[:2])

    def _enter(self, round_: str) -> None:
        number = ROUNDS.index(round_)
        skipped = ROUNDS[self._round + 1 : number]
        if number <= self._round or any(name != "confirm" for name in skipped):
            raise PrivacyError(f"{round_} was asked for twice or out of turn; nothing is said")
        self._round = number

    def _check(self, roster: Roster) -> None:
        require_threshold(roster.threshold, len(roster.members))
        names, own = roster.names, [keys for keys in roster.members if keys.name == self.name]
        everything = [key for keys in roster.members for key in (keys.mask, keys.letter)]
        if names != sorted(set(names)) or len(set(everything)) < len(everything):
            raise PrivacyError("the roster names a client or a key twice; start again")
        if roster.session != self._session or own != [self._own]:
            raise PrivacyError("the roster is of another session, or has other keys of this client")
        for keys in roster.members if self._signer else ():
            self._verify(keys.name, keys.signed_part(self._session), keys.signature)

    def _check_survivors(self, survivors: Survivors) -> None:
        names = survivors.names
        if list(names) != sorted(set(names)) or not set(names) <= set(self._held):
            raise PrivacyError("the list of survivors names strangers, or somebody twice")
        if self.name not in names:
            raise PrivacyError("this client is said to have dropped out; it says nothing then")
        self._require(len(names))

    def _check_confirmed(self, survivors: Survivors) -> None:
        if survivors.names != self._told or not set(survivors.signatures) <= set(survivors.names):
            raise PrivacyError("the list of survivors is not the one that was confirmed")
        for name, signature in survivors.signatures.items():
            self._verify(name, survivors.signed_part(self._binding), signature)
        self._require(len(survivors.signatures))

    def _require(self, count: int) -> None:
        if count < self._roster.threshold:
            raise PrivacyError(
                f"{count} clients are left, and {self._roster.threshold} are needed; ask again "
                "when more are there"
            )

    def _signed(self, message: bytes) -> str:
        return self._signer.sign(message).hex() if self._signer else ""

    def _verify(self, name: str, message: bytes, signature: str) -> None:
        try:
            good = bool(self._signer and self._signer.verify(name, message, unhex(signature)))
        except FedgramError:
            good = False
        if not good:
            raise PrivacyError(
                f"{name} has not signed what the server says it did; do not trust this server"
            )


def stamp(name: str, seed: bytes) -> str:
    """Return by what a seed is known to be the right one; it tells nothing of the mask."""
    return masks.derive(seed, b"stamp", name.encode()).hex()


def self_mask(binding: bytes, name: str, seed: bytes) -> bytes:
    """Return the key of a client's own mask."""
    return masks.derive(seed, b"self", binding, name.encode())


def pair_mask(
    binding: bytes, name: str, peer: str, private: bytes, public: bytes
) -> tuple[bytes, bool]:
    """Return the key of the mask of two clients, and whether `name` takes it off."""
    first, second = sorted((name, peer))
    agreed = masks.agree(private, public)
    key = masks.derive(agreed, b"pair", binding, first.encode(), second.encode())
    return key, name == second
