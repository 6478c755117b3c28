"""Compression of messages by zstd, within limits that a receiver can check before it expands one.

Used where the server may see every message. Never under masks: there the length of a message must
not depend on the samples, and masked numbers cannot be compressed.
"""

from __future__ import annotations

import zstandard

from fedgram.errors import DataError

MOST_RATIO = 64  # a message is expanded to at most this many times its bytes
_MAGIC = b"\x28\xb5\x2f\xfd"  # a message that is not compressed never starts like this
_LEVEL = 1  # about as small as at level 3, and much faster; levels below save far fewer bytes
_LEAST = 1024  # bytes of a message that is compressed


def compress(content: bytes) -> bytes:
    """Return a message compressed, or as it is if it is short or that saves nothing.

    Examples
    --------
    >>> message = b"sums of samples " * 100
    >>> len(compress(message)) < len(message), expand(compress(message)) == message
    (True, True)
    """
    if not _LEAST <= len(content) <= 2**31:  # more than a transport carries in one message
        return content
    smaller = zstandard.ZstdCompressor(level=_LEVEL).compress(content)
    fits = len(smaller) < len(content) <= MOST_RATIO * len(smaller)
    return smaller if fits else content


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
    if not content.startswith(_MAGIC):
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


def _shown(size: int) -> str:
    unknown = size in (zstandard.CONTENTSIZE_UNKNOWN, zstandard.CONTENTSIZE_ERROR)
    return "an unknown size" if unknown else f"{size} bytes"
