"""Keys, masks and encrypted shares: all cryptography, by the package `cryptography`."""

from __future__ import annotations

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from fedgram.secure.messages import ProtocolError

Words = NDArray[np.uint64]
KEY = 32  # bytes of every secret, key and digest here
_BLOCK = 16  # bytes of the cipher's block
_PIECE = 2**15  # words generated at a time, so that they stay in the cache
# Every key encrypts one stream or one message only, so counters and nonces may start at zero.
_START, _NONCE = bytes(_BLOCK), bytes(12)
_ZEROS = bytes(8 * _PIECE)


def public(private: bytes) -> bytes:
    """Return the X25519 public key of a private key, which may be any 32 bytes."""
    key = X25519PrivateKey.from_private_bytes(private).public_key()
    return bytes(key.public_bytes_raw())


def agree(private: bytes, public: bytes) -> bytes:
    """Return the shared secret of two X25519 key pairs, which only their owners can compute.

    Examples
    --------
    >>> import secrets
    >>> one, two = secrets.token_bytes(KEY), secrets.token_bytes(KEY)
    >>> from fedgram.secure.masks import public
    >>> agree(one, public(two)) == agree(two, public(one))
    True
    """
    try:
        peer = X25519PublicKey.from_public_bytes(public)
        return bytes(X25519PrivateKey.from_private_bytes(private).exchange(peer))
    except ValueError as error:  # a key of the wrong length, or one of the few that give zeros
        raise ProtocolError("a public key is invalid; start again") from error


def derive(secret: bytes, *purpose: bytes) -> bytes:
    """Return a key for one purpose; keys for different purposes are independent."""
    info = b"".join(len(part).to_bytes(4, "big") + part for part in (b"fedgram 1", *purpose))
    return bytes(HKDF(algorithm=SHA256(), length=KEY, salt=None, info=info).derive(secret))


def add_mask(vector: Words, key: bytes, *, negative: bool = False) -> None:
    """Add the key's pseudorandom stream to a vector modulo 2^64, in place, or subtract it.

    Examples
    --------
    >>> vector = np.arange(3, dtype=np.uint64)
    >>> add_mask(vector, bytes(KEY))
    >>> add_mask(vector, bytes(KEY), negative=True)
    >>> vector
    array([0, 1, 2], dtype=uint64)
    """
    stream = Cipher(AES(key), CTR(_START)).encryptor()
    buffer = bytearray(
        min(8 * len(vector), len(_ZEROS)) + _BLOCK
    )  # the size that `update_into` needs
    combine = np.subtract if negative else np.add
    for start in range(0, len(vector), _PIECE):
        piece = vector[start : start + _PIECE]
        stream.update_into(memoryview(_ZEROS)[: 8 * len(piece)], buffer)
        combine(piece, np.frombuffer(buffer, "<u8", len(piece)), out=piece)


def seal(key: bytes, content: bytes, about: bytes) -> bytes:
    """Return encrypted content.

    Parameters
    ----------
    key
        The only key that decrypts it; to be used once.
    content
        The content.
    about
        Associated data, which is authenticated but not part of the result.
    """
    return bytes(AESGCM(key).encrypt(_NONCE, content, about))


def unseal(key: bytes, sealed: bytes, about: bytes) -> bytes:
    """Return decrypted content.

    Parameters
    ----------
    key, about
        The key and the associated data of `seal`.
    sealed
        The result of `seal`.

    Raises
    ------
    ProtocolError
        If the content or the associated data was changed.
    """
    try:
        return bytes(AESGCM(key).decrypt(_NONCE, sealed, about))
    except InvalidTag as error:
        raise ProtocolError(
            "an encrypted share was changed in transit, or clients received different keys; start "
            "again, and do not trust this server if it happens again"
        ) from error
