"""Certificates of deletion."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from typing import Any, Self

from fedgram.errors import DataError
from fedgram.ledger.history import CommitmentOpening, Entry, about_text, total_text

_MARK = 12  # characters
_KINDS = {format_: f"fedgram certificate of deletion, format {format_}" for format_ in (1, 2)}


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """The certificate that a client was deleted.

    ``total_digest`` is the digest of the remaining total. It equals that of a ledger that never had
    the client, and can be recomputed from the remaining contributions. ``salt`` opens the
    commitment to it in ``entry``, the signed event of the history. Certificates of format 1 have
    neither. Digest, number of samples and salt are empty in a certificate that is issued again
    after another client of the remaining total was forgotten.
    """

    client: str
    time: str
    event: int
    total_digest: str
    samples: int | None
    members: list[str]
    published_with: list[dict[str, Any]]
    salt: str = ""
    entry: dict[str, Any] | None = None

    @property
    def mark(self) -> str:
        """A short text that distinguishes this deletion from all others."""
        if self.entry is not None:
            return Entry.read(self.entry).digest[:_MARK]
        about = f"{self.client}\n{self.time}\n{self.event}"
        return hashlib.sha256(about.encode()).hexdigest()[:_MARK]

    def is_consistent(self) -> bool:
        """Whether all that it states is what its event commits to."""
        if self.entry is None:
            return False
        try:
            entry = Entry.read(self.entry)
            body, detail = entry.body, entry.detail
            stated = [body[name] for name in ("what", "client", "time", "number")]
            same = stated == ["forget", self.client, self.time, self.event]
            same = same and detail["members"] == self.members
            same = same and detail["published_with"] == self.published_with
            about = CommitmentOpening(salt=entry.salt, text=about_text(entry.samples, detail))
            return same and about.commitment == body["about"] and self._opens(body["after"])
        except (KeyError, TypeError, ValueError):
            return False

    def _opens(self, commitment: str) -> bool:
        if not self.salt:
            return not self.total_digest and self.samples is None
        text = total_text(self.total_digest, self.samples or 0)
        return CommitmentOpening(salt=self.salt, text=text).commitment == commitment

    def to_dict(self) -> dict[str, Any]:
        """Return the certificate for JSON."""
        plain = asdict(self)
        if self.entry is None:
            del plain["salt"], plain["entry"]
        return {"kind": _KINDS[1 if self.entry is None else 2], **plain}

    @classmethod
    def read(cls, plain: Any) -> Self:
        """Return a certificate from the result of `to_dict`."""
        try:
            if plain["kind"] not in _KINDS.values():
                raise KeyError
            read = cls(**{key: value for key, value in plain.items() if key != "kind"})
            if read.to_dict() != plain:
                raise KeyError
        except (AttributeError, KeyError, TypeError) as error:
            raise DataError("not a certificate of deletion, or one of a newer fedgram") from error
        return read
