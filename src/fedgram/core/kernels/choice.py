"""The choice among the ways: the best one that this machine has and that is exact on it.

A way is tried once per process, when it is first wanted. One that cannot be used, or that is wrong
by one bit in the self-test, is dropped, with a reason that `fedgram info` shows. All ways give the
same bytes; so the choice is a matter of time alone.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
from dataclasses import dataclass

from fedgram.core.kernels.proof import flaw
from fedgram.core.kernels.way import Way
from fedgram.errors import ConfigError, ExactnessError
from fedgram.runtime import flops

VARIABLE = "FEDGRAM_KERNEL"
# Best first: the module, and the library that it imports if that takes long.
WAYS = {
    "vnni": ("vnni", ""),
    "torch": ("torch_int8", "torch"),
    "onnxruntime": ("onnx_int8", "onnxruntime"),
    "blas": ("blas", ""),
}
# Multiplications that take about as long as importing torch.
WORTH_AN_IMPORT = 10**12


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """A way that is usable and exact here, or the reason why there is none."""

    way: Way | None = None
    reason: str = ""


def chosen(multiplications: int = 0) -> Way:
    """Return the best exact way for a problem of this size.

    Nothing that takes long to import is imported for a small problem. The environment variable
    ``FEDGRAM_KERNEL`` forces a way by its name.
    """
    forced = os.environ.get(VARIABLE, "")
    if forced:
        return _forced(forced)
    for name, (_, heavy) in WAYS.items():
        if heavy and multiplications < WORTH_AN_IMPORT and heavy not in sys.modules:
            continue
        way = tried(name).way
        if way is not None:
            return way
    raise ExactnessError(
        f"no way of multiplying integers is exact on this machine: {tried('blas').reason}; "
        "set grid.bits = 'off' for sums that are not exact"
    )


@functools.cache
def tried(name: str) -> Verdict:
    """Try a way by its name: import it and run its self-test."""
    before = flops.total()
    try:
        way: Way = importlib.import_module(f"fedgram.core.kernels.{WAYS[name][0]}").made()
        wrong = flaw(way)
    except ImportError as error:
        return Verdict(reason=f"not installed ({error})")
    except Exception as error:  # whatever a foreign library raises: the way is not usable
        return Verdict(reason=f"not usable: {error}")
    finally:
        flops.add(before - flops.total())  # the self-test does not count as a client's work
    if wrong:
        return Verdict(reason=f"dropped: {wrong}")
    return Verdict(way=way)


def _forced(name: str) -> Way:
    if name not in WAYS:
        known = ", ".join(WAYS)
        raise ConfigError(f"{VARIABLE} = {name!r}: expected one of {known}")
    verdict = tried(name)
    if verdict.way is None:
        raise ConfigError(f"{VARIABLE} = {name!r}: {verdict.reason}; use another way, or none")
    return verdict.way
