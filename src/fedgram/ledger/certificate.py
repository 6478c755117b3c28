"""Certificates of deletion."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from typing import Any, Self

from fedgram.errors import DataError

_MARK = 12  # characters
_KIND = "fedgram certificate of deletion, format 1"


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """The certificate that a client was deleted.

    ``total_digest`` is the digest of the remaining total. It equals that of a ledger that never had
    the client, and can be recomputed from the remaining contributions.
    """

    client: str
    time: str
    event: int
    total_digest: str
    samples: int
    members: list[str]
    published_with: list[dict[str, Any]]

    @property
    def mark(self) -> str:
        """A short text that distinguishes this deletion from all others."""
        about = f"{self.client}\n{self.time}\n{self.event}\n{self.total_digest}"
        return hashlib.sha256(about.encode()).hexdigest()[:_MARK]

    def to_dict(self) -> dict[str, Any]:
        """Return the certificate for JSON."""
        return {"kind": _KIND, **asdict(self)}

    @classmethod
    def read(cls, plain: Any) -> Self:
        """Return a certificate from the result of `to_dict`."""
        try:
            if plain["kind"] != _KIND:
                raise KeyError
            return cls(**{key: value for key, value in plain.items() if key != "kind"})
        except (AttributeError, KeyError, TypeError) as error:
            raise DataError("not a certificate of deletion, or one of a newer fedgram") from error
