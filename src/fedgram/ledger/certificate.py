"""What can be shown after a deletion."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Self

from fedgram.errors import DataError

_KIND = "fedgram certificate of deletion, format 1"


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """What can be shown after a deletion.

    ``total_digest`` is the digest of the total that remains. It equals that of a ledger that never
    had the client, which anybody with the remaining contributions can recompute.
    """

    client: str
    time: str
    event: int
    total_digest: str
    samples: int
    members: list[str]
    published_with: list[dict[str, Any]]

    def to_dict(self) -> dict[str, Any]:
        """Return the certificate for JSON."""
        return {"kind": _KIND, **asdict(self)}

    @classmethod
    def read(cls, plain: Any) -> Self:
        """Return the certificate that `to_dict` gave."""
        try:
            if plain["kind"] != _KIND:
                raise KeyError
            return cls(**{key: value for key, value in plain.items() if key != "kind"})
        except (AttributeError, KeyError, TypeError) as error:
            raise DataError("not a certificate of deletion that this fedgram reads") from error
