"""The operator's key: an Ed25519 key in a private file, which signs the history of ledgers.

It needs the package `cryptography`. Without it a ledger works, and its history is chained but not
signed.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
from contextlib import suppress
from pathlib import Path
from typing import Self

from fedgram.errors import LedgerError
from fedgram.runtime import files

KEY = "history.key"  # file beside a ledger, unless another one is given
REMEDY = (
    "restore it from a backup, or begin a new one: fedgram ledger key LEDGER --change FILE --lost"
)


def available() -> bool:
    """Whether this Python can sign and check signatures."""
    return importlib.util.find_spec("cryptography") is not None


def fingerprint(key: str) -> str:
    """Return the fingerprint of a public key in hexadecimal digits; empty for no key."""
    return hashlib.sha256(bytes.fromhex(key)).hexdigest() if key else ""


def require_signed(key: str, signature: str, content: bytes) -> None:
    """Raise ValueError for a signature that is not by the owner of a public key."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        public = Ed25519PublicKey.from_public_bytes(bytes.fromhex(key))
        public.verify(bytes.fromhex(signature), content)
    except InvalidSignature as error:
        raise ValueError("wrong signature") from error


class HistoryKey:
    """A private key in a file that only its owner can read."""

    def __init__(self, path: Path) -> None:
        if not available():
            raise LedgerError(
                f"{path}: signatures need more packages; run: pip install 'fedgram[secure]'"
            )
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        try:
            key = load_pem_private_key(path.read_bytes(), None)
        except (OSError, ValueError, TypeError) as error:
            raise LedgerError(
                f"{path}: the key that signs this ledger's history cannot be read ({error}); "
                f"{REMEDY}"
            ) from error
        if not isinstance(key, Ed25519PrivateKey):
            raise LedgerError(f"{path}: expected an Ed25519 key, got another kind of key")
        self._key = key

    @classmethod
    def create(cls, path: Path) -> Self:
        """Return the key in a file; the file is created if there is none."""
        if available() and not path.exists():
            from cryptography.hazmat.primitives import serialization as as_bytes
            from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

            content = Ed25519PrivateKey.generate().private_bytes(
                as_bytes.Encoding.PEM, as_bytes.PrivateFormat.PKCS8, as_bytes.NoEncryption()
            )
            part = path.with_name(f"{path.name}.{os.getpid()}.part")
            files.write(part, content, private=True)
            try:
                with suppress(FileExistsError):  # another process was faster
                    os.link(part, path)
            except OSError as error:
                raise files.cannot_write(path, error) from error
            finally:
                part.unlink()
        return cls(path)

    @property
    def public(self) -> str:
        """The public key, in hexadecimal digits."""
        return str(self._key.public_key().public_bytes_raw().hex())

    def sign(self, content: bytes) -> str:
        """Return a signature in hexadecimal digits."""
        return str(self._key.sign(content).hex())
