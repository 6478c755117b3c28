"""Compression of messages by zstd, within limits that a receiver can check before it expands one.

Used where the server may see every message. Never under masks: there the length of a message must
not depend on the samples, and masked numbers cannot be compressed.
"""

from __future__ import annotations

import json
import struct

import zstandard

from fedgram.errors import DataError

MOST_RATIO = 64  # a message is expanded to at most this many times its bytes
_MAGIC = b"\x28\xb5\x2f\xfd"  # a message that is not compressed never starts like this
_LABELED = b"\x50\x2a\x4d\x18"  # a frame of zstd that decoders skip
_LONGEST_LABEL = 2**12  # bytes
_LEVEL = 1  # about as small as at level 3, and much faster; levels below save far fewer bytes
_LEAST = 1024  # bytes of a message that is compressed


def compress(content: bytes, *, label: bytes = b"") -> bytes:
    """Return a message compressed, or as it is if it is short or that saves nothing.

    Parameters
    ----------
    content
        The message.
    label
        Stands in front as it is, at most 4,096 bytes: a search of files for messages of a site
        finds it, see `client_label`.

    Examples
    --------
    >>> message = b"sums of samples " * 100
    >>> len(compress(message)) < len(message), expand(compress(message)) == message
    (True, True)
    """
    if not _LEAST <= len(content) <= 2**31:  # more than a transport carries in one message
        return content
    if len(label) > _LONGEST_LABEL:
        return content
    smaller = zstandard.ZstdCompressor(level=_LEVEL).compress(content)
    fits = len(smaller) + len(label) + 8 < len(content) <= MOST_RATIO * len(smaller)
    if not fits:
        return content
    return _LABELED + struct.pack("<I", len(label)) + label + smaller if label else smaller


def client_label(client: str, key: str = "client") -> bytes:
    r"""Return the text by which messages of a client are found: as the codec writes its name.

    Examples
    --------
    >>> print(client_label("north").decode())
    \"client\":\"north\"
    """
    return json.dumps(f'"{key}":{json.dumps(client)}')[1:-1].encode()


def expand(content: bytes, *, most: int | None = None, origin: str = "message") -> bytes:
    """Return the message that `compress` was given.

    Parameters
    ----------
    content
        The message, compressed or not.
    most
        Largest number of bytes of the expanded message.
    origin
        How errors name the message.
    """
    if content.startswith(_LABELED):
        content = _without_label(content, origin)
    elif not content.startswith(_MAGIC):
        return content
    try:
        size = zstandard.get_frame_parameters(content).content_size
        if not 0 < size <= MOST_RATIO * len(content):
            raise DataError(
                f"{origin}: {len(content)} bytes that expand to {_shown(size)}; the limit is "
                f"{MOST_RATIO} times its bytes"
            )
        if most is not None and size > most:
            raise DataError(f"{origin}: expands to {size} bytes; the limit is {most}")
        expanded = zstandard.ZstdDecompressor().decompress(content, read_across_frames=False)
    except zstandard.ZstdError as error:
        raise DataError(f"{origin}: damaged or foreign content, compressed ({error})") from error
    return expanded


def _without_label(content: bytes, origin: str) -> bytes:
    length = int.from_bytes(content[4:8], "little")
    if length > _LONGEST_LABEL or content[8 + length : 12 + length] != _MAGIC:
        raise DataError(f"{origin}: damaged or foreign content, with a label")
    return content[8 + length :]


def _shown(size: int) -> str:
    unknown = size in (zstandard.CONTENTSIZE_UNKNOWN, zstandard.CONTENTSIZE_ERROR)
    return "an unknown size" if unknown else f"{size} bytes"
