"""What the parties of a secure sum and the server write to each other.

Keys, shares and signatures are texts in base 16. Every message has a size that depends on the
number of clients and the length of the vector only, not on what is summed.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from fedgram.core import codec
from fedgram.errors import PrivacyError

if TYPE_CHECKING:  # messages can be read without the extra
    from fedgram.secure.masks import Words


class Signer(Protocol):
    """Who a client is, and how it knows the others: a hook for node keys or a pinned list."""

    def sign(self, message: bytes) -> bytes:
        """Return this client's signature."""

    def verify(self, name: str, message: bytes, signature: bytes) -> bool:
        """Whether the client of this name has signed the message."""


@codec.register("Call/1")
@dataclass(frozen=True, kw_only=True)
class SessionStart:
    """Down, round 1: a session begins."""

    session: str


@codec.register("Keys/1")
@dataclass(frozen=True, kw_only=True)
class Keys:
    """Up, round 1: a client's public keys for this session.

    Parameters
    ----------
    name
        The client.
    mask, letter
        Public keys: for masks that it shares with peers, and for letters to it.
    stamp
        By which a recovered seed of its self-mask is known to be the right one.
    signature
        The client's, over the session and all of the above; empty without a `Signer`.
    """

    name: str
    mask: str
    letter: str
    stamp: str
    signature: str = ""

    def signed_part(self, session: str) -> bytes:
        """Return what the signature is about."""
        return packed("keys", session, self.name, self.mask, self.letter, self.stamp)


@codec.register("Roster/1")
@dataclass(frozen=True, kw_only=True)
class Roster:
    """Down, round 2: everybody's keys, sorted by name, and how many must stay to the end."""

    session: str
    threshold: int
    members: tuple[Keys, ...]

    @property
    def names(self) -> list[str]:
        """Names of the members, sorted."""
        return [keys.name for keys in self.members]

    def digest(self) -> bytes:
        """Return what all keys are bound to: a client shown another roster has other masks."""
        return bytes.fromhex(codec.digest(self))


@codec.register("Shares/1")
@dataclass(frozen=True, kw_only=True)
class Shares:
    """Up, round 2: a client's shares of its two secrets, sealed for each peer."""

    name: str
    sealed: dict[str, str]


@codec.register("Parcel/1")
@dataclass(frozen=True, kw_only=True)
class SealedShares:
    """Down, round 3: the sealed shares for one client, by sender."""

    sealed: dict[str, str]


@codec.register("Masked/1")
@dataclass(frozen=True, eq=False, kw_only=True)
class Masked:
    """Up, round 3: a contribution under all its masks, and its public layout."""

    name: str
    layout: dict[str, Any]
    vector: Words = field(default_factory=lambda: np.zeros(0, np.uint64))


@codec.register("Survivors/1")
@dataclass(frozen=True, kw_only=True)
class Survivors:
    """Down, round 4: whose contributions are in the sum; with signatures, what others were told."""

    names: tuple[str, ...]
    signatures: dict[str, str] = field(default_factory=dict)

    def signed_part(self, roster: bytes) -> bytes:
        """Return what a confirmation signs."""
        return packed("survivors", roster.hex(), *self.names)


@codec.register("Confirmation/1")
@dataclass(frozen=True, kw_only=True)
class Confirmation:
    """Up, between rounds 3 and 4 if there are signatures: the list of survivors was seen."""

    name: str
    signature: str


@codec.register("Reveal/1")
@dataclass(frozen=True, kw_only=True)
class Reveal:
    """Up, round 4: shares of survivors' seeds and of dropped clients' mask keys."""

    name: str
    seeds: dict[str, str]
    keys: dict[str, str]


def packed(*parts: str) -> bytes:
    """Return the digest of some texts, of which no other texts have the same."""
    total = hashlib.sha256()
    for part in parts:
        data = part.encode()
        total.update(len(data).to_bytes(8, "big") + data)
    return total.digest()


def unhex(text: str) -> bytes:
    """Return the bytes of a text in base 16."""
    try:
        return bytes.fromhex(text)
    except (ValueError, TypeError) as error:
        raise PrivacyError("a key, share or signature is damaged; start again") from error
