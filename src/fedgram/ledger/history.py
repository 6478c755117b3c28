"""The history of a ledger: events that are chained by hashes and signed.

An event hashes salted commitments only, never a digest of what was contributed. When a client is
forgotten, the salts of all totals with it are erased: the chain stays valid, but nobody can check a
guess of what was forgotten against it. `docs/history-format.md` describes the format, and
`examples/check_history.py` checks it without fedgram.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

from fedgram.errors import LedgerError
from fedgram.ledger import signing

_PREFIX = b"fedgram history\n"
_SALT = 32  # bytes
ADDING = ("join", "replace", "stream", "remove")  # events that store a contribution
COHORT = "cohort"  # the member that holds the total of a secure sum; its tag lists the clients
LOST_KEY = "lost-key"  # event that begins a new key, which the key before has not signed


@dataclass(frozen=True, kw_only=True)
class Event:
    """One entry of the ledger's history.

    Parameters
    ----------
    seq
        Number of the event, from 1.
    time, what, client
        When, what, and about which client.
    samples, detail
        More about the event; None and empty once they are erased.
    total_digest
        Digest of the total after the event; empty once its salt is erased.
    body
        What is hashed and signed; empty for events of a ledger of format 1.
    signature
        Signature of the body, as hexadecimal digits; empty in a ledger without a key.
    salt
        Opens the commitment to `samples` and `detail`; empty once it is erased.
    """

    seq: int
    time: str
    what: str
    client: str | None
    samples: int | None
    total_digest: str
    detail: dict[str, Any]
    body: dict[str, Any]
    signature: str
    salt: str


@dataclass(frozen=True, kw_only=True)
class Entry:
    """An event as it is stored, with the parts that can be erased."""

    body: dict[str, Any]
    signature: str
    samples: int | None
    detail: dict[str, Any]
    salt: str

    @property
    def digest(self) -> str:
        """The hash by which the next event refers to this one."""
        return hashlib.sha256(signed_bytes(self.body)).hexdigest()

    def to_dict(self) -> dict[str, Any]:
        """Return the entry for JSON."""
        return {
            "body": self.body,
            "signature": self.signature,
            "samples": self.samples,
            "detail": self.detail,
            "salt": self.salt,
        }

    @classmethod
    def read(cls, plain: Mapping[str, Any]) -> Self:
        """Return an entry from the result of `to_dict`."""
        return cls(**plain)


@dataclass(frozen=True, kw_only=True)
class CommitmentOpening:
    """Opens a commitment: its salt and the text that was committed to."""

    salt: str
    text: str

    @classmethod
    def of(cls, text: str) -> Self:
        """Return an opening with a new random salt."""
        return cls(salt=secrets.token_hex(_SALT), text=text)

    @property
    def commitment(self) -> str:
        """The salted hash of the text."""
        return hashlib.sha256(bytes.fromhex(self.salt) + self.text.encode()).hexdigest()


def total_text(digest: str, samples: int) -> str:
    """Return the text that a commitment to a total hides."""
    return f"{digest} {samples}"


def about_text(samples: int | None, detail: Mapping[str, Any]) -> str:
    """Return the text that the commitment to an event's samples and detail hides."""
    return canonical({"detail": detail, "samples": samples})


def canonical(value: Any) -> str:
    """Return JSON with sorted keys, without spaces, in ASCII."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def signed_bytes(body: Mapping[str, Any]) -> bytes:
    """Return the bytes of an event that are hashed and signed."""
    return _PREFIX + canonical(body).encode()


def contributed(events: Iterable[Event]) -> Counter[tuple[str, str, bool]]:
    """Return what the history says is stored: client, id, and whether it is in the total.

    A contribution and the id in its event are erased together.
    """
    within: dict[str, list[str]] = {}
    stored: Counter[tuple[str, str, bool]] = Counter()
    for event in events:
        client = event.client or ""
        if event.what in ("leave", "replace"):  # what is replaced may be kept
            stored.update((client, each, False) for each in within.pop(client, []))
        if event.what in ADDING and "id" in event.detail:
            within.setdefault(client, []).append(str(event.detail["id"]))
    stored.update((client, each, True) for client, ids in within.items() for each in ids)
    return stored


def clients_of(event: Event) -> set[str]:
    """Return the clients in the contribution of an event: several in that of a secure sum."""
    tag = event.detail.get("tag", "") if event.client == COHORT else ""
    return {event.client or "", *str(tag).split("\n")} - {""}


def members(events: Iterable[Event]) -> dict[str, frozenset[str]]:
    """Return who was in the total when each commitment was made, by the names in the events.

    Clients within a secure sum are named beside `COHORT`, as long as its tag is not erased.
    """
    within: dict[str, set[str]] = {}
    found: dict[str, frozenset[str]] = {}
    for event in events:
        client = event.client or ""
        if event.what == "replace" or client == COHORT:
            within.pop(client, None)
        if event.what in ADDING:
            within.setdefault(client, set()).update(clients_of(event))
        elif event.what == "leave":
            within.pop(client, None)
        elif event.what == "forget" and event.body:
            within.pop(event.detail.get("erased", client), None)
        elif event.what == "forget":
            within = {name: within[name] for name in within.keys() & set(event.detail["members"])}
        for commitment in (event.body.get("after"), event.detail.get("shared")):
            if commitment:
                found.setdefault(commitment, frozenset().union(*within.values()))
    return found


def past(events: Iterable[Event]) -> dict[str, Any]:
    """Return what the first event of a chain commits to: number and digest of earlier events."""
    plain = [asdict(event) for event in events]
    return {"events": len(plain), "digest": hashlib.sha256(canonical(plain).encode()).hexdigest()}


def check_past(first: Entry, events: Sequence[Event]) -> None:
    """Raise LedgerError if events of format 1 are not those that a chain began with.

    Once the digest is erased with what it was computed from, only their number is checked.
    """
    committed = first.body["what"] == "migrated" and first.detail
    if len(events) != first.body["number"] - 1 or (committed and first.detail != past(events)):
        raise LedgerError("the history was changed: the events of format 1 are others")


def check(entries: Iterable[Entry], openings: Mapping[str, CommitmentOpening]) -> str:
    """Check chain, signatures and all commitments that can be opened; return the last key.

    Signatures are not checked without the package `cryptography`.

    Parameters
    ----------
    entries
        All events, oldest first.
    openings
        What is left of the openings, by commitment.

    Raises
    ------
    LedgerError
        If the history was changed.
    """
    last: Entry | None = None
    key = ""
    for entry in entries:
        number = entry.body.get("number")
        if not _follows(entry, last):
            raise LedgerError(f"the history was changed: event {number} does not follow the last")
        key = _checked_signature(entry, key)
        if not _opens(entry):
            raise LedgerError(f"the history was changed: event {number} has another content")
        last = entry
    for commitment, opening in openings.items():
        if opening.commitment != commitment:
            raise LedgerError("the history was changed: the opening of a commitment is wrong")
    return key


def lost_keys(entries: Iterable[Entry]) -> dict[int, str]:
    """Return the events that began a new key because the one before was lost.

    Returns the fingerprint of each new key by the number of its event. Anybody could have written
    such an event: people must compare the fingerprint.
    """
    return {
        entry.body["number"]: signing.fingerprint(entry.body["key"])
        for entry in entries
        if entry.body["what"] == LOST_KEY
    }


def _follows(entry: Entry, last: Entry | None) -> bool:
    body = entry.body
    if last is None:
        return not body["previous"] and not body["before"]
    expected = (last.body["ledger"], last.body["number"] + 1, last.digest, last.body["after"])
    return expected == (body["ledger"], body["number"], body["previous"], body["before"])


def _checked_signature(entry: Entry, key: str) -> str:
    """Return the key that signs the next event."""
    new, lost = str(entry.body["key"]), entry.body["what"] == LOST_KEY
    signer = new if lost or not key else key  # the first key signs the event that names it
    if lost and not new:
        raise LedgerError(f"the history was changed: event {entry.body['number']} names no key")
    if bool(signer) != bool(entry.signature) or entry.body["signer"] != signing.fingerprint(signer):
        raise LedgerError(f"the history was changed: event {entry.body['number']} is not signed")
    if signer and signing.available():
        try:
            signing.require_signed(signer, entry.signature, signed_bytes(entry.body))
        except ValueError as error:
            raise LedgerError(
                f"the history was changed: event {entry.body['number']} has a wrong signature"
            ) from error
    return new or key


def _opens(entry: Entry) -> bool:
    """Whether samples and detail are those that an event commits to, or are erased."""
    if not entry.salt:
        erasable = entry.body["what"] in (*ADDING, "migrated")
        return erasable and entry.samples is None and not entry.detail
    about = CommitmentOpening(salt=entry.salt, text=about_text(entry.samples, entry.detail))
    return about.commitment == str(entry.body["about"])
