"""The file of a ledger: an SQLite database that survives a kill at any moment.

Every operation is one transaction, which is on disk before the operation returns: a killed process
leaves either the old state or the new one. Contributions have checksums. Deleted bytes are
overwritten.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedgram.core import codec
from fedgram.core.statistics import Statistics
from fedgram.errors import DataError, LedgerError
from fedgram.ledger.contribution import Contribution
from fedgram.runtime.parse import json_value

FORMAT = 1
_SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE total (id INTEGER PRIMARY KEY CHECK (id = 1), value BLOB NOT NULL);
CREATE TABLE contributions (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, client TEXT NOT NULL, id TEXT NOT NULL,
    member INTEGER NOT NULL, value BLOB NOT NULL, sha256 TEXT NOT NULL);
CREATE TABLE seen (client TEXT NOT NULL, id TEXT NOT NULL);
CREATE TABLE events (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, time TEXT NOT NULL, what TEXT NOT NULL, client TEXT,
    samples INTEGER, total_digest TEXT NOT NULL, detail TEXT NOT NULL)
"""


@dataclass(frozen=True, kw_only=True)
class Event:
    """One entry of the ledger's history."""

    seq: int
    time: str
    what: str
    client: str | None
    samples: int | None
    total_digest: str
    detail: dict[str, Any]


class LedgerFile:
    """Typed access to the tables of the database."""

    def __init__(self, path: Path, *, create: bool, classes: list[str] | None = None) -> None:
        self.path = Path(path)
        if not create and not self.path.is_file():
            raise LedgerError(f"{path}: no such ledger; create one with 'fedgram ledger init'")
        if create:
            self._claim()
        try:
            self._db = _connect(self.path)
            if create:
                self._create(classes)
            found = self.get("format")
            if found == FORMAT and self.get("compact"):
                self.compact()
        except BaseException as error:
            self._abandon(create)
            if isinstance(error, sqlite3.Error | OSError | ValueError):
                raise _unusable(self.path, error) from error
            raise
        if found != FORMAT:
            self._abandon(create)
            raise LedgerError(
                f"{path}: a ledger of format {found}; upgrade fedgram, which reads {FORMAT}"
            )

    def _claim(self) -> None:
        """Create the empty file; raise LedgerError if the file exists."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.touch(mode=0o600, exist_ok=False)
        except FileExistsError as error:
            if self.path.exists():
                raise LedgerError(f"{self.path}: exists already; choose another name") from error
            raise _unusable(self.path, error) from error
        except OSError as error:
            raise _unusable(self.path, error) from error

    def _abandon(self, create: bool) -> None:
        """Close the file; delete it if it was to be created."""
        if hasattr(self, "_db"):
            self._db.close()
        for suffix in ("", "-journal") if create else ():
            with suppress(OSError):
                Path(f"{self.path}{suffix}").unlink()

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    @contextmanager
    def transaction(self, kind: str = "IMMEDIATE") -> Iterator[None]:
        """Run the body in one transaction; DEFERRED is for reading one consistent state."""
        try:
            self._db.execute(f"BEGIN {kind}")
            yield
            self._db.execute("COMMIT")
        except (sqlite3.Error, LedgerError) as error:
            cause = error.__cause__ if isinstance(error, LedgerError) else error
            if not isinstance(cause, sqlite3.Error):
                raise
            raise LedgerError(
                f"{self.path}: nothing was changed ({cause}); free space on the disk, or restore "
                "the ledger from a backup"
            ) from error
        finally:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")

    def compact(self) -> None:
        """Shrink the file after a deletion; deleted bytes are overwritten already."""
        try:
            self._db.execute("VACUUM")
            with self.transaction(
                kind="EXCLUSIVE"
            ):  # no other process writes to the file meanwhile
                pages = self._run("PRAGMA page_count")[0][0]
                size = pages * self._run("PRAGMA page_size")[0][0]
                if self.path.stat().st_size > size:  # an old end, left by a kill
                    os.truncate(self.path, size)
                self.put("compact", False)
        except (sqlite3.Error, OSError, LedgerError) as error:
            raise LedgerError(
                f"{self.path}: the change is saved, but the file could not be compacted ({error}); "
                "it will be when there is space on the disk"
            ) from error

    def check(self) -> None:
        """Raise LedgerError if the structure of the file is damaged."""
        try:
            problem = self._db.execute("PRAGMA integrity_check").fetchone()[0]
        except sqlite3.Error as error:
            problem = str(error)
        if problem != "ok":
            raise LedgerError(f"{self.path}: damaged ({problem}); restore it from a backup")

    # Settings.

    def get(self, key: str) -> Any:
        """Return a setting; None if it is missing."""
        rows = self._run("SELECT value FROM meta WHERE key = ?", [key])
        return self._json(rows[0][0]) if rows else None

    def put(self, key: str, value: Any) -> None:
        """Store a setting."""
        self._run("INSERT OR REPLACE INTO meta VALUES (?, ?)", [key, json.dumps(value)])

    @property
    def classes(self) -> list[str] | None:
        """The fixed class list, None without one."""
        found = self.get("classes")
        if found is None or (isinstance(found, list) and all(type(c) is str for c in found)):
            return found
        raise self.unusable(TypeError("the class list is not a list of names"))

    def unusable(self, error: Exception) -> LedgerError:
        """Return the error for content that fedgram does not write."""
        return _unusable(self.path, error)

    # The total.

    @property
    def total(self) -> Statistics:
        """The stored total."""
        rows = self._run("SELECT value FROM total")
        total = self._decoded(rows[0]["value"]) if rows else None
        if not isinstance(total, Statistics):
            raise self.unusable(TypeError("no total"))
        return total

    @total.setter
    def total(self, value: Statistics) -> None:
        self._run("INSERT OR REPLACE INTO total VALUES (1, ?)", [codec.encode(value)])

    # Contributions.

    def clients(self, *, members_only: bool) -> list[str]:
        """Return the names of the clients with stored contributions, sorted."""
        query = "SELECT DISTINCT client FROM contributions WHERE member >= ? ORDER BY client"
        return [row[0] for row in self._run(query, [int(members_only)])]

    def seen(self, contribution: Contribution) -> bool:
        """Whether this contribution was added before; from now on it was."""
        found = self._run("SELECT 1 FROM seen WHERE id = ?", [contribution.id])
        if not found:
            self._run("INSERT INTO seen VALUES (?, ?)", [contribution.client, contribution.id])
        return bool(found)

    def store(self, contribution: Contribution) -> None:
        """Add a member's contribution."""
        value = codec.encode(contribution)
        self._run(
            "INSERT INTO contributions (client, id, member, value, sha256) VALUES (?, ?, 1, ?, ?)",
            [contribution.client, contribution.id, value, hashlib.sha256(value).hexdigest()],
        )

    def stored(self, client: str | None = None, *, member: bool = True) -> Iterator[Statistics]:
        """Yield the statistics of members (or of clients that left), and check their checksums."""
        query = (
            "SELECT seq FROM contributions "
            "WHERE member = ? AND (? IS NULL OR client = ?) ORDER BY seq"
        )
        one = "SELECT client, value, sha256 FROM contributions WHERE seq = ?"
        for number in self._run(query, [int(member), client, client]):
            (row,) = self._run(one, [number["seq"]])
            value = row["value"] if isinstance(row["value"], bytes) else b""
            if hashlib.sha256(value).hexdigest() != row["sha256"]:
                raise LedgerError(
                    f"{self.path}: a contribution of client {row['client']} is damaged; restore "
                    "the ledger from a backup"
                )
            contribution = self._decoded(value)
            if not isinstance(contribution, Contribution):
                raise self.unusable(TypeError("not a contribution"))
            yield contribution.statistics

    def retire(self, client: str) -> None:
        """Mark a member's contributions as those of a client that left."""
        self._run("UPDATE contributions SET member = 0 WHERE client = ?", [client])
        self._run("DELETE FROM seen WHERE client = ?", [client])

    def erase(self, client: str, *, seen: bool) -> None:
        """Delete a client's contributions, and what the history derived from them.

        With `seen`, also delete the ids by which a repeated contribution is recognized.
        """
        self._run("DELETE FROM contributions WHERE client = ?", [client])
        self._run(
            "UPDATE events SET samples = NULL, detail = '{}' WHERE client = ? "
            "AND what IN ('join', 'stream', 'remove')",
            [client],
        )
        if seen:
            self._run("DELETE FROM seen WHERE client = ?", [client])
        self.put("compact", True)  # after the commit, or when the file is next opened

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
        """Add an event to the history; return its number.

        Parameters
        ----------
        what
            Kind of the event.
        total
            The total after the event.
        client
            The client, if the event is about one.
        samples
            Number of samples added.
        detail
            More about the event, for JSON.
        """
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self._run(
            "INSERT INTO events (time, what, client, samples, total_digest, detail) "
            "VALUES (?, ?, ?, ?, ?, ?)",
            [now, what, client, samples, total.digest(), json.dumps(detail or {})],
        )
        return int(self._run("SELECT max(seq) FROM events")[0][0])

    def events(self) -> list[Event]:
        """Return the history, oldest first."""
        rows = map(dict, self._run("SELECT * FROM events ORDER BY seq"))
        return [Event(**{**row, "detail": self._json(row["detail"])}) for row in rows]

    def _run(self, query: str, values: Sequence[Any] = ()) -> list[sqlite3.Row]:
        """Run one statement; every sign of a damaged file raises the same LedgerError."""
        try:
            return self._db.execute(query, values).fetchall()
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise _unusable(self.path, error) from error

    def _json(self, text: str) -> Any:
        try:
            return json_value(text)
        except (ValueError, TypeError, AttributeError) as error:
            raise _unusable(self.path, error) from error

    def _decoded(self, value: bytes) -> Any:
        try:
            return codec.decode(value, origin=str(self.path))
        except (DataError, TypeError) as error:
            raise _unusable(self.path, error) from error

    def _create(self, classes: list[str] | None) -> None:
        with self.transaction():
            for statement in _SCHEMA.split(";"):
                self._run(statement)
            self.put("format", FORMAT)
            self.put("classes", classes)
            self.total = Statistics.zero()
            self.add_event("init", Statistics.zero())


def _unusable(path: Path, error: Exception) -> LedgerError:
    return LedgerError(
        f"{path}: not a ledger, damaged, or the disk is full ({error}); restore it from a backup"
    )


def _connect(path: Path) -> sqlite3.Connection:
    # isolation_level None: sqlite3 starts no transactions by itself.
    db = sqlite3.connect(path, isolation_level=None, timeout=60)
    try:
        db.row_factory = sqlite3.Row
        db.execute("PRAGMA journal_mode = DELETE")
        db.execute("PRAGMA synchronous = EXTRA")  # also the directory entry of the journal
        db.execute("PRAGMA secure_delete = ON")  # what is deleted is overwritten with zeros
    except BaseException:
        db.close()
        raise
    return db
