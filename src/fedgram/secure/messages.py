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


class ProtocolError(PrivacyError):
    """A message that the protocol does not allow; its text is about messages, never about data."""


class Signer(Protocol):
    """Signs for a client, and verifies the others by keys that did not come from the server."""

    def known(self, name: str) -> bool:
        """Whether there is a key of the client with this name."""

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


NOTHING = codec.digest(None)  # of the broadcast, if there is none


@codec.register("Commitment/1")
@dataclass(frozen=True, kw_only=True)
class Commitment:
    """What a session is about. All masks depend on it: they cancel only between equal ones.

    Parameters
    ----------
    federation
        Digest that names the federation; empty in one process.
    run, ask_number, step
        The run, the number of the sum in it, and the step that is summed.
    method
        The method.
    settings
        Digest of the settings of the method and of the run.
    classes
        Digest of the class list.
    broadcast
        Digest of the argument of the step.
    state
        The session whose state the step uses at every member; empty for a step without state.
    totals
        Digest of the members of earlier totals.
    """

    federation: str = ""
    run: str = ""
    ask_number: int = 0
    step: str = ""
    method: str = ""
    settings: str = NOTHING
    classes: str = NOTHING
    broadcast: str = NOTHING
    state: str = ""
    totals: str = NOTHING

    def digest(self) -> str:
        """Return the digest of all fields."""
        return codec.digest(self)


@codec.register("Call/2")
@dataclass(frozen=True, kw_only=True)
class SessionStart:
    """Server to clients, round 1: a session starts, about one commitment."""

    session: str
    commitment: Commitment = Commitment()


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
        The client's signature of the session, its commitment and all of the above; empty without a
        `Signer`.
    """

    name: str
    mask: str
    encryption: str
    seed_commitment: str
    signature: str = ""

    def signed_part(self, start: SessionStart) -> bytes:
        """Return the bytes that are signed."""
        keys = self.mask, self.encryption, self.seed_commitment
        return packed("keys", start.session, start.commitment.digest(), self.name, *keys)


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


def binding(roster: Roster, commitment: Commitment) -> bytes:
    """Return the digest that all keys of a session are derived from.

    Clients with another roster, or another commitment, have other masks, and cannot open each
    other's shares.
    """
    return packed("binding", roster.digest().hex(), commitment.digest())


Digests = tuple[str, str]  # of a share of the mask key, and of a share of the seed


@codec.register("Shares/2")
@dataclass(frozen=True, kw_only=True)
class Shares:
    """Client to server, round 2: shares of a client's two secrets, for each member.

    Parameters
    ----------
    name
        The client.
    sealed
        The two shares, encrypted for each peer.
    digests
        Digests of the two shares of each member, itself included: they show who changes a share.
    signatures
        The signatures of what each peer receives; empty texts without a `Signer`.
    """

    name: str
    sealed: dict[str, str]
    digests: dict[str, Digests] = field(default_factory=dict)
    signatures: dict[str, str] = field(default_factory=dict)


@codec.register("Parcel/2")
@dataclass(frozen=True, kw_only=True)
class SealedShares:
    """Server to a client, round 3: what the others have sent to this client, by sender."""

    sealed: dict[str, str]
    digests: dict[str, Digests] = field(default_factory=dict)
    signatures: dict[str, str] = field(default_factory=dict)

    def signed_part(self, bound: bytes, sender: str, receiver: str) -> bytes:
        """Return the bytes that the sender signs.

        Parameters
        ----------
        bound
            The binding of the session.
        sender, receiver
            The two clients.
        """
        parts = self.sealed.get(sender, ""), *self.digests.get(sender, ())
        return packed("shares", bound.hex(), sender, receiver, *parts)


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
    """Server to clients, rounds 4 and 5: the clients in the sum, and who has signed this list."""

    names: tuple[str, ...]
    signatures: dict[str, str] = field(default_factory=dict)

    def signed_part(self, bound: bytes) -> bytes:
        """Return the bytes that a confirmation signs: the list, and the binding of the session."""
        return packed("survivors", bound.hex(), *self.names)


@codec.register("Confirmation/1")
@dataclass(frozen=True, kw_only=True)
class Confirmation:
    """Client to server, round 4: the list of survivors, signed."""

    name: str
    signature: str


@codec.register("Reveal/1")
@dataclass(frozen=True, kw_only=True)
class Reveal:
    """Client to server, round 5: shares of survivors' seeds and of dropped clients' mask keys."""

    name: str
    seeds: dict[str, str]
    keys: dict[str, str]


def share_digest(bound: bytes, owner: str, holder: str, share: bytes) -> str:
    """Return the digest of one member's share of a secret; a share is as random as a key.

    Parameters
    ----------
    bound
        The binding of the session.
    owner, holder
        Whose secret it is a share of, and who holds it.
    share
        The share.
    """
    return packed("share", bound.hex(), owner, holder, share.hex()).hex()


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
        raise ProtocolError(
            "a key, share or signature is not hexadecimal text; start again"
        ) from error
