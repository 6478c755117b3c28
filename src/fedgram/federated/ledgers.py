"""The ledgers of a federation's server: one for each kind of contribution."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from fedgram.ledger import Ledger

_LETTERS = 12  # of the digest that tells kinds of contributions apart


class Ledgers:
    """Ledger files in a folder, each opened when it is first needed.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, Ledgers(Path(folder)) as ledgers:
    ...     ledgers.of("0123456789abcdef").members, [name for name, _ in ledgers]
    ([], ['ledger-0123456789ab.db'])
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open: dict[Path, Ledger] = {}
        self._stack = ExitStack()
        self.used: list[Ledger] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def __iter__(self) -> Iterator[tuple[str, Ledger]]:
        """Yield the ledgers that there are, with their file names."""
        for path in sorted(self._folder.glob("ledger-*.db")):
            yield path.name, self._opened(path)

    def of(self, kind: str) -> Ledger:
        """Return the ledger of a kind of contribution, new where there is none."""
        ledger = self._opened(self._folder / f"ledger-{kind[:_LETTERS]}.db")
        if ledger not in self.used:
            self.used.append(ledger)
        return ledger

    def shut_out(self) -> dict[str, str]:
        """Return who has left or was forgotten in any ledger, and was not admitted since."""
        return {name: how for _, ledger in self for name, how in ledger.shut_out().items()}

    def _opened(self, path: Path) -> Ledger:
        if path not in self._open:
            ledger = Ledger.open(path) if path.is_file() else Ledger.create(path)
            self._open[path] = self._stack.enter_context(ledger)
        return self._open[path]
