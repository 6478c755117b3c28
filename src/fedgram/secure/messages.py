"""Messages between the parties of a secure sum and the server.

Keys, shares and signatures are hexadecimal texts. The size of a message depends only on the number
of clients and the length of the vector, not on the summed values.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from fedgram.core import codec
from fedgram.errors import PrivacyError

if TYPE_CHECKING:  # messages can be decoded without the extra [secure]
    from fedgram.secure.masks import Words


class Signer(Protocol):
    """Signs for a client and verifies the others: a hook for node keys or a fixed list of keys."""

    def sign(self, message: bytes) -> bytes:
        """Return this client's signature of the message."""

    def verify(self, name: str, message: bytes, signature: bytes) -> bool:
        """Whether the client with this name has signed the message.

        Parameters
        ----------
        name
            The client.
        message, signature
            The message and its signature.
        """


@codec.register("Call/1")
@dataclass(frozen=True, kw_only=True)
class SessionStart:
    """Server to clients, round 1: a session starts."""

    session: str


@codec.register("Keys/1", fields={"encryption": "letter", "seed_commitment": "stamp"})
@dataclass(frozen=True, kw_only=True)
class Keys:
    """Client to server, round 1: a client's public keys for this session.

    Parameters
    ----------
    name
        The client.
    mask, encryption
        Public keys: for the masks that it shares with peers, and for encrypting shares to it.
    seed_commitment
        Commitment to the seed of its own mask: it shows whether a recovered seed is right.
    signature
        The client's signature of the session and all of the above; empty without a `Signer`.
    """

    name: str
    mask: str
    encryption: str
    seed_commitment: str
    signature: str = ""

    def signed_part(self, session: str) -> bytes:
        """Return the bytes that are signed."""
        keys = self.mask, self.encryption, self.seed_commitment
        return packed("keys", session, self.name, *keys)


@codec.register("Roster/1")
@dataclass(frozen=True, kw_only=True)
class Roster:
    """Server to clients, round 2: the keys of all clients, sorted by name, and the threshold."""

    session: str
    threshold: int
    members: tuple[Keys, ...]

    @property
    def names(self) -> list[str]:
        """Names of the members, sorted."""
        return [keys.name for keys in self.members]

    def digest(self) -> bytes:
        """Return the digest that all masks depend on: another roster gives other masks."""
        return bytes.fromhex(codec.digest(self))


@codec.register("Shares/1")
@dataclass(frozen=True, kw_only=True)
class Shares:
    """Client to server, round 2: shares of a client's two secrets, encrypted for each peer."""

    name: str
    sealed: dict[str, str]


@codec.register("Parcel/1")
@dataclass(frozen=True, kw_only=True)
class SealedShares:
    """Server to a client, round 3: the encrypted shares for this client, by sender."""

    sealed: dict[str, str]


@codec.register("Masked/1")
@dataclass(frozen=True, eq=False, kw_only=True)
class Masked:
    """Client to server, round 3: a contribution under all its masks, and its public layout."""

    name: str
    layout: dict[str, Any]
    vector: Words = field(default_factory=lambda: np.zeros(0, np.uint64))


@codec.register("Survivors/1")
@dataclass(frozen=True, kw_only=True)
class Survivors:
    """Server to clients, round 4: the clients in the sum, and their signatures of this list."""

    names: tuple[str, ...]
    signatures: dict[str, str] = field(default_factory=dict)

    def signed_part(self, roster: bytes) -> bytes:
        """Return the bytes that a confirmation signs."""
        return packed("survivors", roster.hex(), *self.names)


@codec.register("Confirmation/1")
@dataclass(frozen=True, kw_only=True)
class Confirmation:
    """Client to server, before round 4 if there are signers: the signed list of survivors."""

    name: str
    signature: str


@codec.register("Reveal/1")
@dataclass(frozen=True, kw_only=True)
class Reveal:
    """Client to server, round 4: shares of survivors' seeds and of dropped clients' mask keys."""

    name: str
    seeds: dict[str, str]
    keys: dict[str, str]


def packed(*parts: str) -> bytes:
    """Return a digest of texts; other texts, or texts split in another way, have other digests."""
    total = hashlib.sha256()
    for part in parts:
        data = part.encode()
        total.update(len(data).to_bytes(8, "big") + data)
    return total.digest()


def unhex(text: str) -> bytes:
    """Return the bytes of a hexadecimal text."""
    try:
        return bytes.fromhex(text)
    except (ValueError, TypeError) as error:
        raise PrivacyError(
            "a key, share or signature is not hexadecimal text; start again"
        ) from error
