"""The file behind a ledger: an SQLite database that survives a kill at any moment.

Every operation is one transaction, on the disk before it is acknowledged: a killed process leaves
either the old state or the new one. Contributions carry checksums. Deleted bytes are overwritten.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedgram import codec
from fedgram.contribution import Contribution
from fedgram.errors import LedgerError
from fedgram.stats import Statistics

FORMAT = 1
_SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE total (id INTEGER PRIMARY KEY CHECK (id = 1), value BLOB NOT NULL);
CREATE TABLE contributions (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, client TEXT NOT NULL, id TEXT NOT NULL,
    member INTEGER NOT NULL, value BLOB NOT NULL, sha256 TEXT NOT NULL);
CREATE TABLE events (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, time TEXT NOT NULL, what TEXT NOT NULL, client TEXT,
    samples INTEGER, total_digest TEXT NOT NULL, detail TEXT NOT NULL)
"""


@dataclass(frozen=True, kw_only=True)
class Event:
    """One line of the ledger's history."""

    seq: int
    time: str
    what: str
    client: str | None
    samples: int | None
    total_digest: str
    detail: dict[str, Any]


class LedgerFile:
    """Typed access to the tables; it knows nothing of what operations mean."""

    def __init__(self, path: Path, *, create: bool) -> None:
        self.path = Path(path)
        if create and self.path.exists():
            raise LedgerError(f"{path}: is there already; choose another name")
        if not create and not self.path.is_file():
            raise LedgerError(f"{path}: there is no ledger; make one with 'fedgram ledger init'")
        try:
            if create:
                self.path.parent.mkdir(parents=True, exist_ok=True)
            self._db = _connect(self.path)
            if create:
                self._create()
            found = self.get("format")
        except (sqlite3.Error, OSError) as error:
            raise LedgerError(f"{path}: not a ledger, or not usable ({error})") from error
        if found != FORMAT:
            raise LedgerError(
                f"{path}: a ledger of format {found}, this fedgram reads {FORMAT}; upgrade fedgram"
            )

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All or nothing, and on the disk at the end."""
        try:
            self._db.execute("BEGIN IMMEDIATE")
            yield
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            raise LedgerError(f"{self.path}: nothing was changed ({error})") from error
        finally:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")

    def compact(self) -> None:
        """Give back the space of what was deleted; its bytes are overwritten already."""
        try:
            self._db.execute("VACUUM")
        except sqlite3.Error as error:
            raise LedgerError(
                f"{self.path}: the change is made, but the file could not be compacted ({error})"
            ) from error

    def check(self) -> None:
        """Refuse a file whose structure is damaged."""
        try:
            problem = self._db.execute("PRAGMA integrity_check").fetchone()[0]
        except sqlite3.Error as error:
            problem = str(error)
        if problem != "ok":
            raise LedgerError(f"{self.path}: damaged ({problem}); restore it from a copy")

    # Settings.

    def get(self, key: str) -> Any:
        """Return a setting, None where it is not there."""
        row = self._db.execute("SELECT value FROM meta WHERE key = ?", [key]).fetchone()
        return None if row is None else json.loads(row[0])

    def put(self, key: str, value: Any) -> None:
        """Keep a setting."""
        self._db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", [key, json.dumps(value)])

    # The total.

    @property
    def total(self) -> Statistics:
        """The stored total."""
        (value,) = self._db.execute("SELECT value FROM total").fetchone()
        total: Statistics = codec.decode(value, origin=f"{self.path}: total")
        return total

    @total.setter
    def total(self, value: Statistics) -> None:
        self._db.execute("INSERT OR REPLACE INTO total VALUES (1, ?)", [codec.encode(value)])

    # Contributions.

    def clients(self, *, members_only: bool) -> list[str]:
        """Return the names of clients of which something is stored, sorted."""
        query = "SELECT DISTINCT client FROM contributions WHERE member >= ? ORDER BY client"
        return [row[0] for row in self._db.execute(query, [int(members_only)])]

    def ids(self) -> set[str]:
        """Return the ids of the members' contributions."""
        return {row[0] for row in self._db.execute("SELECT id FROM contributions WHERE member")}

    def store(self, contribution: Contribution) -> None:
        """Add a member's contribution."""
        value = codec.encode(contribution)
        self._db.execute(
            "INSERT INTO contributions (client, id, member, value, sha256) VALUES (?, ?, 1, ?, ?)",
            [contribution.client, contribution.id, value, hashlib.sha256(value).hexdigest()],
        )

    def stored(self, client: str | None = None, *, member: bool = True) -> Iterator[Statistics]:
        """Yield the statistics of members (or of those who left), after checking each checksum."""
        query = (
            "SELECT client, value, sha256 FROM contributions "
            "WHERE member = ? AND (? IS NULL OR client = ?) ORDER BY seq"
        )
        for row in self._db.execute(query, [int(member), client, client]):
            if hashlib.sha256(row["value"]).hexdigest() != row["sha256"]:
                raise LedgerError(
                    f"{self.path}: a contribution of client {row['client']} is damaged; restore "
                    "the ledger from a copy"
                )
            contribution: Contribution = codec.decode(row["value"], origin=str(self.path))
            yield contribution.statistics

    def retire(self, client: str) -> None:
        """Keep a member's contributions, but no longer as a member's."""
        self._db.execute("UPDATE contributions SET member = 0 WHERE client = ?", [client])

    def erase(self, client: str, *, members_only: bool = False) -> None:
        """Delete a client's contributions, and in the history what was derived from them."""
        self._db.execute(
            "DELETE FROM contributions WHERE client = ? AND member >= ?",
            [client, int(members_only)],
        )
        self._db.execute(
            "UPDATE events SET samples = NULL, detail = '{}' WHERE client = ? "
            "AND what IN ('join', 'stream', 'remove')",
            [client],
        )

    # History.

    def add_event(
        self,
        what: str,
        total: Statistics,
        *,
        client: str | None = None,
        samples: int | None = None,
        detail: dict[str, Any] | None = None,
    ) -> int:
        """Add a line to the history; return its number."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        cursor = self._db.execute(
            "INSERT INTO events (time, what, client, samples, total_digest, detail) "
            "VALUES (?, ?, ?, ?, ?, ?)",
            [now, what, client, samples, total.digest(), json.dumps(detail or {})],
        )
        return int(cursor.lastrowid or 0)

    def events(self) -> list[Event]:
        """Return the history, oldest first."""
        rows = map(dict, self._db.execute("SELECT * FROM events ORDER BY seq"))
        return [Event(**{**row, "detail": json.loads(row["detail"])}) for row in rows]

    def _create(self) -> None:
        with self.transaction():
            for statement in _SCHEMA.split(";"):
                self._db.execute(statement)
            self.put("format", FORMAT)
            self.total = Statistics.zero()
            self.add_event("init", Statistics.zero())


def _connect(path: Path) -> sqlite3.Connection:
    # isolation_level None: transactions are begun and ended by us alone.
    db = sqlite3.connect(path, isolation_level=None, timeout=60)
    db.row_factory = sqlite3.Row
    db.execute("PRAGMA journal_mode = DELETE")
    db.execute("PRAGMA synchronous = EXTRA")  # also the folder entry of the journal
    db.execute("PRAGMA secure_delete = ON")  # what is deleted is overwritten with zeros
    return db
