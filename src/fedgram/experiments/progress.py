"""One line of progress, in a notebook or on standard error."""

from __future__ import annotations

import importlib
import sys
import time
from typing import Any

from fedgram.experiments.step_words import step_words

_SECONDS = 0.2  # between two drawings


class ProgressLine:
    """Draws the step and the number of clients that have answered.

    `reply` and `round` are the callbacks ``on_reply`` and ``on_round`` of `run`.

    Parameters
    ----------
    name
        The method.
    rounds
        Number of rounds.
    """

    def __init__(self, name: str, rounds: int) -> None:
        self._name, self._rounds = name, rounds
        self._round, self._drawn = 0, 0.0
        self._shown: Any = None

    def reply(self, step: str, done: int, total: int) -> None:
        """Note that some clients have answered."""
        now = time.monotonic()
        if now - self._drawn < _SECONDS and done < total:
            return
        self._drawn = now
        where = f"round {self._round + 1} of {self._rounds}, " if self._rounds > 1 else ""
        self._draw(f"{self._name}: {where}{step_words(step)}, {done} of {total} clients")

    def round(self, number: int) -> None:
        """Note that a round has ended."""
        self._round = number

    def end(self, text: str) -> None:
        """Draw the last line."""
        self._draw(f"{self._name}: {text}")
        if not in_notebook():
            sys.stderr.write("\n")

    def _draw(self, text: str) -> None:
        if not in_notebook():
            sys.stderr.write(f"\r{text:<78}")
            sys.stderr.flush()
            return
        content = {"text/plain": text}
        if self._shown is None:
            display = importlib.import_module("IPython.display")
            self._shown = display.display(content, raw=True, display_id=True)
        else:
            self._shown.update(content, raw=True)


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    shell = sys.modules.get("IPython")
    found = shell.get_ipython() if shell is not None and hasattr(shell, "get_ipython") else None
    return found is not None and type(found).__name__ == "ZMQInteractiveShell"
