"""A federation that has answered already: its sum is a ledger's total."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from fedgram.errors import ConfigError, PrivacyError
from fedgram.federation import Reply, Step, Total, step_name
from fedgram.stats import Statistics


class Ledgered:
    """Lets a method that asks for one sum of statistics be fitted on a total kept elsewhere.

    Parameters
    ----------
    total
        The sum that clients would have sent.
    members
        Their names.
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
    def rng(self) -> np.random.Generator:
        return np.random.default_rng(0)

    def sum(
        self, step: Step[Total], broadcast: Any = None, *, clients: Iterable[str] | None = None
    ) -> Total:
        if self._answered or broadcast is not None or clients is not None:
            raise ConfigError("a total answers one sum over all members; this method asks for more")
        self._answered = True
        return self._total  # type: ignore[return-value]  # a method's one sum is of statistics

    def gather(
        self, step: Step[Reply], broadcast: Any = None, *, clients: Iterable[str] | None = None
    ) -> Iterator[tuple[str, Reply]]:
        raise PrivacyError(
            f"a total holds no single client's reply to {step_name(step)}; use a method that "
            "needs sums only"
        )
