"""Shamir's secret sharing of 32 bytes: `threshold` shares give the secret, fewer reveal nothing.

Python's integers do not compute in constant time. Each session shares fresh secrets once, so there
is little to measure for an attacker; that this suffices is an assumption.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping

from fedgram.errors import DataError

PRIME = 2**256 + 297  # the smallest above 2^256, so that every 32 bytes are in the field
SECRET, SHARE = 32, 33  # bytes


def split(secret: bytes, threshold: int, count: int) -> list[bytes]:
    """Return the shares of a secret at the points 1 to `count`.

    Parameters
    ----------
    secret
        32 bytes.
    threshold
        Number of shares that give the secret.
    count
        Number of shares.

    Examples
    --------
    >>> shares = split(bytes(range(32)), 2, 3)
    >>> recover({1: shares[0], 3: shares[2]}) == bytes(range(32))
    True
    """
    if len(secret) != SECRET:
        raise ValueError(f"expected a secret of {SECRET} bytes, got {len(secret)}")
    if not 1 <= threshold <= count:
        raise ValueError(f"expected a threshold from 1 to {count}, got {threshold}")
    polynomial = [secrets.randbelow(PRIME) for _ in range(threshold - 1)]
    polynomial.append(int.from_bytes(secret, "big"))
    return [_value(polynomial, point).to_bytes(SHARE, "big") for point in range(1, count + 1)]


def recover(shares: Mapping[int, bytes]) -> bytes:
    """Return the secret from shares by point; their number must be at least the threshold."""
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
        raise DataError("the shares do not belong together; a client sent a wrong one")
    return secret.to_bytes(SECRET, "big")


def _value(polynomial: list[int], point: int) -> int:
    """Return a polynomial's value, the leading coefficient first."""
    value = 0
    for coefficient in polynomial:
        value = (value * point + coefficient) % PRIME
    return value
