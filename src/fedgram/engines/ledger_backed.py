"""A federation whose one sum is the total of a ledger."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedgram.core import codec
from fedgram.core.statistics import Statistics
from fedgram.engines.remote.validation import example
from fedgram.errors import ConfigError, PrivacyError
from fedgram.federation.method import Method, shared_digest
from fedgram.federation.protocol import Total
from fedgram.federation.shared import Published
from fedgram.federation.step import Reply, Step, step_name
from fedgram.ledger.ledger import Ledger
from fedgram.runtime import files


class Ledgered:
    """Fits a method that needs one sum of statistics on a stored total.

    Parameters
    ----------
    total
        The sum of the clients' statistics.
    members
        Names of the clients.
    """

    def __init__(self, total: Statistics, members: Sequence[str]) -> None:
        self._total = total
        self._members = members
        self._answered = False

    @property
    def clients(self) -> Sequence[str]:
        return sorted(self._members)

    @property
    def private(self) -> bool:
        return True

    @property
    def contributors(self) -> Sequence[str]:
        return self.clients if self._answered else ()

    @property
    def rng(self) -> np.random.Generator:
        return np.random.default_rng(0)

    def sum(
        self, step: Step[Total], broadcast: Any = None, *, clients: Iterable[str] | None = None
    ) -> Total:
        if self._answered or broadcast is not None or clients is not None:
            raise ConfigError(
                f"a ledger's total answers one sum over all members; expected no more, got "
                f'{step_name(step)}; give numbers for settings that are "auto", or use a ridge '
                "head (afl, or logistic with exchanges=0), which is valid at once; run logistic, "
                "auto and the like again with the sites present"
            )
        if self._total.count:
            like = example(step, None, self._total.space, self._total.classes)
            if type(like) is not type(self._total):
                raise ConfigError(
                    "a ledger holds Gram matrices and class sums; expected a method that sums "
                    f"these, got {step_name(step)} with a sum of another kind "
                    f"({type(like).__name__}); use a ridge head, such as afl"
                )
        self._answered = True
        return self._total  # type: ignore[return-value]  # it is the sum of such replies

    def gather(
        self, step: Step[Reply], broadcast: Any = None, *, clients: Iterable[str] | None = None
    ) -> Iterator[tuple[str, Reply]]:
        raise PrivacyError(
            f"a total holds no single client's reply to {step_name(step)}; use a method that "
            "needs sums only"
        )


def publish(ledger: Ledger, name: str, method: Method[Any], out: Path) -> dict[str, Any]:
    """Solve a ledger's total with a method, write the shared result, and record it.

    Parameters
    ----------
    ledger
        The ledger.
    name
        Name of the method.
    method
        The method.
    out
        File for the shared result.
    """
    total = ledger.total
    shared = next(iter(method.fit(Ledgered(total, ledger.members))))
    digest = shared_digest(method, shared)
    if digest is None:
        raise ConfigError(f"method {name!r} shares nothing; use afl, fedhip or apfl-linear")
    settings = method.settings()
    published = Published(method=name, settings=settings, shared=shared)
    with files.staged(out, codec.encode(published)):  # both or neither
        ledger.publish(shared_digest=digest, model=str(out), total_digest=total.digest())
    return {"method": name, "samples": total.count, "shared_digest": digest, "model": str(out)}
