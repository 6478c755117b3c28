"""What the line of a running method says: round, step, clients, time left."""

from __future__ import annotations

import time
from collections.abc import Callable

from fedgram.experiments.step_words import step_words
from fedgram.runtime.text import duration

SOON = 3.0  # seconds of a step before its time left is estimated


class MethodLine:
    """The texts of one method, as its run goes on.

    The time left is that of all rounds, from the second round on; of a method with one round, it
    is that of a long step. It is an estimate: a run may end early, without better validation.

    Parameters
    ----------
    name
        The method.
    rounds
        Number of rounds; 0 or 1 for a method that is solved at once.
    narrow
        For a terminal with few columns: shorter texts.
    clock
        Returns seconds.

    Examples
    --------
    >>> line = MethodLine(name="fedavg", rounds=30)
    >>> line.round(4)
    >>> line.reply("update", 3, 20)
    ('fedavg: round 5 of 30, local training', '3 of 20 clients', '')
    """

    def __init__(
        self,
        *,
        name: str,
        rounds: int,
        narrow: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name, self._rounds, self._narrow, self._clock = name, rounds, narrow, clock
        self._first: tuple[int, float] | None = None
        self._last: tuple[int, float] = (0, clock())
        self._step = ("", 0, clock())

    def round(self, number: int) -> None:
        """Note that a round has ended."""
        self._last = (number, self._clock())
        self._first = self._first or self._last

    def reply(self, step: str, done: int, total: int) -> tuple[str, str, str]:
        """Note that some clients have answered; return what to show of it."""
        known, before, _ = self._step
        begun = self._clock() if step != known or done < before else self._step[2]
        self._step = (step, done, begun)
        words = step_words(step)
        if self._narrow:
            where = f" {self._last[0] + 1}/{self._rounds}" if self._in_rounds else ""
            return f"{self._name}{where}: {words}", f"{done}/{total} clients", self._left(total)
        where = f"round {self._last[0] + 1} of {self._rounds}, " if self._in_rounds else ""
        return f"{self._name}: {where}{words}", f"{done} of {total} clients", self._left(total)

    @property
    def _in_rounds(self) -> bool:
        return 1 < self._rounds > self._last[0]

    def _left(self, total: int) -> str:
        now = self._clock()
        if self._rounds > 1:
            return self._left_of_rounds(now)
        _, done, begun = self._step
        if not done or now - begun < SOON:
            return ""
        return f"step: {self._written((now - begun) * (total - done) / done)} left"

    def _left_of_rounds(self, now: float) -> str:
        number, at = self._last
        if self._first is None or number == self._first[0] or number >= self._rounds:
            return ""
        each = (at - self._first[1]) / (number - self._first[0])
        return f"{self._written(max(each * (self._rounds - number) - (now - at), 0.0))} left"

    def _written(self, seconds: float) -> str:
        text = duration(seconds)
        return " ".join(text.split()[:2]) if self._narrow else text
