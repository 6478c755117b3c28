"""The ledgers of a federation's server: one for each kind of contribution."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Self

from fedgram.errors import LedgerError
from fedgram.ledger.history import COHORT
from fedgram.ledger.ledger import Ledger
from fedgram.ledger.signing import KEY, available
from fedgram.runtime import files

LOCK = "serving.lock"  # locked while a run uses the ledgers of this folder

_LETTERS = 12  # of the digest that identifies a kind of contribution
_COHORT = "-cohort"


class Ledgers:
    """Ledger files in a folder, each opened at its first use.

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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def __iter__(self) -> Iterator[tuple[str, Ledger]]:
        """Yield the existing ledgers, with their file names."""
        for path in sorted(self._folder.glob("ledger-*.db")):
            yield path.name, self._opened(path)

    def of(self, kind: str, *, cohort: bool = False) -> Ledger:
        """Return the ledger of a kind of contribution; it is created if there is none.

        Totals of secure sums (`cohort`) have separate ledgers: their clients must not be added
        again.
        """
        name = f"ledger-{kind[:_LETTERS]}{_COHORT if cohort else ''}.db"
        return self._opened(self._folder / name)

    def cohorts(self, *, there: bool) -> list[Ledger]:
        """Return the ledgers of secure sums, or the others."""
        return [ledger for name, ledger in self if (_COHORT in name) == there]

    def shut_out(self) -> dict[str, str]:
        """Return the clients that left or were forgotten in a ledger and are not admitted again."""
        out = {name: how for _, ledger in self for name, how in ledger.shut_out().items()}
        out.pop(COHORT, None)
        return out

    def _opened(self, path: Path) -> Ledger:
        if path not in self._open:
            if not path.is_file():
                _make(path)
            self._open[path] = self._stack.enter_context(Ledger.open(path))
        return self._open[path]


@contextmanager
def unused(folder: Path) -> Iterator[None]:
    """Lock the folder of a server against runs; raise LedgerError if a run is using it.

    A run computes, delivers and records a model from one total: members change before or after it.
    """
    if not (folder / LOCK).is_file():  # no run has ever been here
        yield
        return
    with (folder / LOCK).open("a") as file:
        if not files.locked(file):
            raise LedgerError(
                f"{folder}: a run is using this folder; wait until it ends, or stop it, and repeat "
                "the command"
            )
        yield


def _make(path: Path) -> None:
    """Create an empty ledger under another name and rename it: a kill leaves no partial one."""
    part = path.with_name(f"{path.name}.part")
    for left in (part, part.with_name(f"{part.name}-journal")):
        left.unlink(missing_ok=True)
    key = path.with_name(KEY) if available() else None
    with Ledger.create(part, key=key):
        pass
    part.replace(path)
