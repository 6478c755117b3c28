"""Shamir's secret sharing of 32 bytes: any `threshold` shares give the secret, fewer tell nothing.

Python's integers do not compute in constant time. Shares are made and put together once in a
session, from fresh secrets, so there is little to time; it is an assumption all the same.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping

from fedgram.errors import DataError

PRIME = 2**256 + 297  # the smallest above 2^256, so that every 32 bytes are in the field
SECRET, SHARE = 32, 33  # bytes


def split(secret: bytes, threshold: int, count: int) -> list[bytes]:
    """Return `count` shares, those of the points 1 to `count`.

    Examples
    --------
    >>> shares = split(bytes(range(32)), 2, 3)
    >>> recover({1: shares[0], 3: shares[2]}) == bytes(range(32))
    True
    """
    if len(secret) != SECRET:
        raise ValueError(f"a secret has {SECRET} bytes, not {len(secret)}")
    if not 1 <= threshold <= count:
        raise ValueError(f"{count} shares of which {threshold} suffice cannot be made")
    polynomial = [secrets.randbelow(PRIME) for _ in range(threshold - 1)]
    polynomial.append(int.from_bytes(secret, "big"))
    return [_value(polynomial, point).to_bytes(SHARE, "big") for point in range(1, count + 1)]


def recover(shares: Mapping[int, bytes]) -> bytes:
    """Return the secret of these shares by point; as many as the threshold must be given."""
    secret = 0
    for point, share in shares.items():
        above = below = 1
        for other in shares:
            if other != point:
                above = above * other % PRIME
                below = below * (other - point) % PRIME
        secret += int.from_bytes(share, "big") * above * pow(below, -1, PRIME)
    secret %= PRIME
    if secret >= 2 ** (8 * SECRET):
        raise DataError("the shares do not fit together; a client sent a wrong one")
    return secret.to_bytes(SECRET, "big")


def _value(polynomial: list[int], point: int) -> int:
    """Return a polynomial's value, the leading coefficient first."""
    value = 0
    for coefficient in polynomial:
        value = (value * point + coefficient) % PRIME
    return value
