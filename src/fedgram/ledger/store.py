"""The file of a ledger: an SQLite database that survives a kill at any moment.

Every operation is one transaction, which is on disk before the operation returns: a killed process
leaves either the old state or the new one. Contributions have checksums. Deleted bytes are
overwritten. A file of format 1 is read as it is, and becomes one of format 2 at its first change.
"""

from __future__ import annotations

import getpass
import hashlib
import json
import os
import secrets
import sqlite3
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedgram.core import codec
from fedgram.core.statistics import Statistics
from fedgram.errors import DataError, FedgramError, LedgerError
from fedgram.ledger import history
from fedgram.ledger.contribution import Contribution
from fedgram.ledger.history import COHORT, CommitmentOpening, Entry, Event
from fedgram.ledger.signing import REMEDY, HistoryKey, available, fingerprint
from fedgram.runtime.parse import json_value

FORMAT = 2
_RANDOM = "random"  # before an id that nobody can guess, in the table `seen`
_ID = 16  # bytes
_READ = (1, 2)
_SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE total (id INTEGER PRIMARY KEY CHECK (id = 1), value BLOB NOT NULL);
CREATE TABLE contributions (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, client TEXT NOT NULL, id TEXT NOT NULL,
    member INTEGER NOT NULL, value BLOB NOT NULL, sha256 TEXT NOT NULL);
CREATE TABLE seen (client TEXT NOT NULL, id TEXT NOT NULL);
CREATE TABLE old_events (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, time TEXT NOT NULL, what TEXT NOT NULL, client TEXT,
    samples INTEGER, total_digest TEXT NOT NULL, detail TEXT NOT NULL)"""
_HISTORY = """
CREATE TABLE events (
    seq INTEGER PRIMARY KEY, body TEXT NOT NULL, signature TEXT NOT NULL, samples INTEGER,
    detail TEXT NOT NULL, salt TEXT NOT NULL);
CREATE TABLE openings (
    commitment TEXT PRIMARY KEY, salt TEXT NOT NULL, value TEXT NOT NULL)
"""


class LedgerFile:
    """Typed access to the tables of the database."""

    def __init__(
        self,
        path: Path,
        *,
        create: bool,
        classes: list[str] | None = None,
        key: Path | None = None,
    ) -> None:
        self.path = Path(path)
        if not create and not self.path.is_file():
            raise LedgerError(f"{path}: no such ledger; create one with 'fedgram ledger init'")
        if create:
            self._claim()
        try:
            self._db = _connect(self.path)
            if create:
                self._create(classes, key)
            found = self.get("format")
            if found in _READ:
                self.compact_if_due()
        except BaseException as error:
            self._abandon(create)
            if isinstance(error, sqlite3.Error | OSError | ValueError):
                raise _unusable(self.path, error) from error
            raise
        if found not in _READ:
            self._abandon(create)
            raise LedgerError(
                f"{path}: a ledger of format {found}; upgrade fedgram, which reads 1 to {FORMAT}"
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
            if old := kind == "IMMEDIATE" and self.get("format") == 1:
                self._migrate()
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
        if old:  # digests were deleted
            self.compact()

    def compact_if_due(self) -> None:
        """Shrink the file if something was deleted since the last time."""
        if self.get("compact"):
            self.compact()

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
        return None if self.get("classes") is None else self._names("classes")

    @property
    def cohorts(self) -> set[str]:
        """The clients that were in a secure sum here, now or earlier."""
        return set(self._names("cohorts"))

    @cohorts.setter
    def cohorts(self, names: Collection[str]) -> None:
        self.put("cohorts", sorted(names))

    @property
    def runs(self) -> list[str]:
        """The runs that used the stored total of a secure sum."""
        return self._names("runs")

    @runs.setter
    def runs(self, names: list[str]) -> None:
        self.put("runs", names)

    def _names(self, key: str) -> list[str]:
        found = self.get(key) or []
        if isinstance(found, list) and all(type(name) is str for name in found):
            return found
        raise self.unusable(TypeError(f"{key}: not a list of names"))

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
        name = contribution.id if contribution.guessable else f"{_RANDOM} {contribution.id}"
        found = self._run("SELECT 1 FROM seen WHERE id = ?", [name])
        if not found:
            self._run("INSERT INTO seen VALUES (?, ?)", [contribution.client, name])
        return bool(found)

    def store(self, contribution: Contribution) -> None:
        """Add a member's contribution."""
        value = codec.encode(contribution)
        self._run(
            "INSERT INTO contributions (client, id, member, value, sha256) VALUES (?, ?, 1, ?, ?)",
            [contribution.client, contribution.id, value, hashlib.sha256(value).hexdigest()],
        )

    def stored(self, client: str | None = None) -> Iterator[Statistics]:
        """Yield the statistics of members, and check their checksums."""
        return (each.statistics for each in self.contributions(client))

    def contributions(
        self, client: str | None = None, *, member: bool = True
    ) -> Iterator[Contribution]:
        """Yield the contributions of members (or of clients that left); check their checksums."""
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
            if contribution.client != row["client"]:
                raise LedgerError(
                    f"{self.path}: a contribution of client {contribution.client} is stored as one "
                    f"of client {row['client']}; restore the ledger from a backup"
                )
            yield contribution

    def retire(self, client: str) -> None:
        """Mark a member's contributions as those of a client that left."""
        self._run("UPDATE contributions SET member = 0 WHERE client = ?", [client])
        self._run("DELETE FROM seen WHERE client = ?", [client])

    def erase(self, client: str, *, seen: bool) -> None:
        """Delete a client's contributions, and what the history derived from them.

        The salts of all totals with this client are among it, those of models made from them, and
        the ids by which a repeated contribution is recognized. Without `seen`, ids that nobody can
        guess are kept.
        """
        members = self._members()
        self._run("DELETE FROM contributions WHERE client = ?", [client])
        for event in self._chained():
            if event.client == client and event.what in history.ADDING:
                self._clear_event(event.seq)
        self._erase_openings(client, members)
        self._erase_old(client)
        kept = "" if seen else f"{_RANDOM} %"
        self._run("DELETE FROM seen WHERE client = ? AND id NOT LIKE ?", [client, kept])
        self.put("compact", True)  # after the commit, or when the file is next opened

    def erase_earlier(self, client: str) -> None:
        """Delete the kept totals of secure sums with a client, and what was derived from them."""
        members = self._members()
        for kept in [*self.contributions(COHORT, member=False)]:
            if client in kept.tag.split("\n"):
                query = "DELETE FROM contributions WHERE client = ? AND id = ? AND member = 0"
                self._run(query, [COHORT, kept.id])
        for event in self._chained():
            if event.client == COHORT and client in history.clients_of(event):
                self._clear_event(event.seq)
        self._erase_openings(client, members)
        self.put("compact", True)

    def _members(self) -> dict[str, frozenset[str]]:
        try:
            return history.members(self.events())
        except (KeyError, TypeError) as error:
            raise self.unusable(error) from error

    def _erase_openings(self, client: str, members: dict[str, frozenset[str]]) -> None:
        """Delete the salts of all totals that a client was in."""
        for commitment in (each for each in members if client in members[each]):
            self._run("DELETE FROM openings WHERE commitment = ?", [commitment])

    def _clear_event(self, number: int) -> None:
        query = "UPDATE events SET samples = NULL, detail = '{}', salt = '' WHERE seq = ?"
        self._run(query, [number])

    def _erase_old(self, client: str, *, before: int | None = None) -> None:
        """Delete what events of format 1 derived from a client's contributions.

        With the number of an event, delete digests of totals and models before this event only.
        """
        within: set[str | None] = set()
        changed = False
        for event in self._old():
            if event.what in ("leave", "forget"):
                within.discard(event.client)
            elif event.what == "join":
                within.add(event.client)
            samples, detail, digest = old = (event.samples, event.detail, event.total_digest)
            if before is None and event.client == client and event.what in history.ADDING:
                samples, detail, digest = None, {}, ""
            elif before is None or event.seq < before:
                detail, digest = _without(detail, client), "" if client in within else digest
            else:
                detail = _without_listed(detail, client)
            if (samples, detail, digest) != old:
                changed = True
                query = (
                    "UPDATE old_events SET samples = ?, detail = ?, total_digest = ? WHERE seq = ?"
                )
                self._run(query, [samples, json.dumps(detail), digest, event.seq])
        for event in self._chained() if changed else ():
            if event.what == "migrated":  # its commitment is to what is gone now
                self._clear_event(event.seq)

    def _erase_gone(self) -> None:
        """Delete the digests that format 1 kept of what was forgotten, replaced or removed."""
        past = self._old()
        joined = {event.client for event in past if event.what == "join"}
        for event in past:
            if event.client and event.what in ("forget", "replace", "remove"):
                self._erase_old(event.client, before=event.seq)
                if event.client not in joined:  # it was within the total of a secure sum
                    self._erase_old("cohort", before=event.seq)

    # History.

    def add_event(
        self,
        what: str,
        total: Statistics,
        *,
        client: str | None = None,
        samples: int | None = None,
        detail: dict[str, Any] | None = None,
        key: str = "",
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
        key
            Public key that signs from now on.
        """
        last, signer, number = self._last(), self._signer(), self._count() + 1
        before = last.body["after"] if last else ""
        about = CommitmentOpening.of(history.about_text(samples, detail or {}))
        body = {
            "ledger": last.body["ledger"] if last else secrets.token_hex(_ID),
            "number": number,
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "what": what,
            "client": client,
            "by": _user(),
            "signer": fingerprint(signer.public) if signer else "",
            "before": before,
            "after": self._committed(history.total_text(total.digest(), total.count), before),
            "about": about.commitment,
            "key": key,
            "previous": last.digest if last else "",
        }
        signature = signer.sign(history.signed_bytes(body)) if signer else ""
        values = [history.canonical(body), signature, samples, json.dumps(detail or {}), about.salt]
        self._run("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?)", [number, *values])
        return number

    def commit(self, text: str) -> str:
        """Return a commitment to a text; its salt is erased with any client of today's total."""
        opening = CommitmentOpening.of(text)
        values = [opening.commitment, opening.salt, opening.text]
        self._run("INSERT INTO openings VALUES (?, ?, ?)", values)
        return opening.commitment

    def _committed(self, text: str, before: str) -> str:
        """Return the commitment to a total: the one before, if the total is the same."""
        found = self._run("SELECT value FROM openings WHERE commitment = ?", [before])
        return before if found and found[0]["value"] == text else self.commit(text)

    def events(self) -> list[Event]:
        """Return the history, oldest first."""
        return [*self._old(), *self._chained()]

    def entries(self) -> list[Entry]:
        """Return the chained events as they are stored, oldest first."""
        if self.get("format") == 1:
            return []
        return [self._entry(row) for row in self._run("SELECT * FROM events ORDER BY seq")]

    def openings(self) -> dict[str, CommitmentOpening]:
        """Return what is left of the openings, by commitment."""
        if self.get("format") == 1:
            return {}
        rows = self._run("SELECT commitment, salt, value FROM openings ORDER BY commitment")
        return {
            row["commitment"]: CommitmentOpening(salt=row["salt"], text=row["value"])
            for row in rows
        }

    def use_key(self, path: Path, *, lost: bool = False) -> None:
        """Sign with the key in a file from the next event on; create the key if it is missing.

        The key before signs this event, unless it is `lost`.
        """
        signer = HistoryKey.create(path)
        with self.transaction():
            if lost or not self.get("key"):  # the first key signs the event that names it
                self._keep_key(signer, path)
            what = history.LOST_KEY if lost else "key"
            self.add_event(what, self.total, key=signer.public)
            self._keep_key(signer, path)

    def replace_lost_key(self) -> None:
        """Begin a new key if the one that signs is lost: that must not prevent a deletion."""
        try:
            self._signer()
        except LedgerError:
            if not available():
                raise
            signer, path = self._new_key()
            self._keep_key(signer, path)
            self.add_event(history.LOST_KEY, self.total, key=signer.public)

    def _new_key(self) -> tuple[HistoryKey, Path]:
        """Return the key in the file of the lost one, or in a new file beside the ledger."""
        path = self.path.parent / str(self.get("key_file"))
        try:
            return HistoryKey.create(path), path
        except FedgramError:  # not a key, or nothing can be written there
            path = self.path.with_name(f"history-{self._count() + 1}.key")
            return HistoryKey.create(path), path

    def _keep_key(self, signer: HistoryKey, path: Path) -> None:
        file, folder = path.resolve(), self.path.parent.resolve()
        self.put("key_file", file.name if file.parent == folder else str(file))
        self.put("key", signer.public)

    def _signer(self) -> HistoryKey | None:
        """Return the key that signs the next event; None in a ledger without a key."""
        key = self.get("key")
        if not key:
            return None
        signer = HistoryKey(self.path.parent / str(self.get("key_file")))
        if signer.public != key:
            raise LedgerError(
                f"{self.path}: expected the key {fingerprint(key)} in {self.get('key_file')}, got "
                f"{fingerprint(signer.public)}; {REMEDY}"
            )
        return signer

    def _old(self) -> list[Event]:
        """Return the events that were written in format 1."""
        query = "SELECT * FROM old_events ORDER BY seq"
        if self.get("format") == 1:
            query = "SELECT * FROM events ORDER BY seq"
        more: dict[str, Any] = {"body": {}, "signature": "", "salt": ""}
        return [
            Event(**{**row, "detail": self._object(row["detail"])}, **more)
            for row in map(dict, self._run(query))
        ]

    def _chained(self) -> list[Event]:
        openings = self.openings()
        return [self._event(entry, openings) for entry in self.entries()]

    def _event(self, entry: Entry, openings: dict[str, CommitmentOpening]) -> Event:
        body, detail, samples = entry.body, dict(entry.detail), entry.samples
        try:
            opened = openings.get(body["after"])
            digest, count = opened.text.split() if opened else ("", "0")
            if body["what"] == "publish":
                shared = openings.get(detail["shared"])
                detail["shared_digest"] = shared.text if shared else ""
                samples = int(count) if opened else None
            return Event(
                seq=body["number"],
                time=body["time"],
                what=body["what"],
                client=body["client"],
                samples=samples,
                total_digest=digest,
                detail=detail,
                body=body,
                signature=entry.signature,
                salt=entry.salt,
            )
        except (KeyError, TypeError, ValueError) as error:
            raise _unusable(self.path, error) from error

    def _entry(self, row: sqlite3.Row) -> Entry:
        body = self._object(row["body"])
        if not {"ledger", "after"} <= body.keys():
            raise _unusable(self.path, ValueError("an event of another form"))
        return Entry(
            body=body,
            signature=row["signature"],
            samples=row["samples"],
            detail=self._object(row["detail"]),
            salt=row["salt"],
        )

    def _last(self) -> Entry | None:
        rows = self._run("SELECT * FROM events ORDER BY seq DESC LIMIT 1")
        return self._entry(rows[0]) if rows else None

    def _count(self) -> int:
        query = "SELECT max(seq) FROM (SELECT seq FROM events UNION ALL SELECT seq FROM old_events)"
        return int(self._run(query)[0][0] or 0)

    def _migrate(self) -> None:
        """Change a file of format 1 to format 2: the chain begins with a commitment to the past."""
        self._run("ALTER TABLE events RENAME TO old_events")
        for statement in _HISTORY.split(";"):
            self._run(statement)
        self.put("format", FORMAT)
        self._erase_gone()
        self.add_event("migrated", self.total, detail=history.past(self._old()))

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

    def _object(self, text: str) -> dict[str, Any]:
        found = self._json(text)
        if not isinstance(found, dict):
            raise _unusable(self.path, TypeError("an event of another form"))
        return found

    def _decoded(self, value: bytes) -> Any:
        try:
            return codec.decode(value, origin=str(self.path))
        except (DataError, TypeError) as error:
            raise _unusable(self.path, error) from error

    def _create(self, classes: list[str] | None, key: Path | None) -> None:
        signer = None if key is None else HistoryKey.create(key)
        with self.transaction("EXCLUSIVE"):
            for statement in f"{_SCHEMA};{_HISTORY}".split(";"):
                self._run(statement)
            self.put("format", FORMAT)
            self.put("classes", classes)
            if signer and key:
                self._keep_key(signer, key)
            self.total = Statistics.zero()
            self.add_event("init", Statistics.zero(), key=signer.public if signer else "")


def _without(detail: dict[str, Any], client: str) -> dict[str, Any]:
    """Return the detail of an event of format 1 without digests of models made with a client."""
    kept = _without_listed(detail, client)
    if client == "cohort" or {client, "cohort"} & {*detail.get("members", [])}:
        kept.pop("shared_digest", None)
    return kept


def _without_listed(detail: dict[str, Any], client: str) -> dict[str, Any]:
    """Return the detail of an event without those digests in the list of a deletion."""
    listed = [_without(each, client) for each in detail.get("published_with", [])]
    return {**detail, "published_with": listed} if listed else dict(detail)


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # an account without a name
        return ""


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
