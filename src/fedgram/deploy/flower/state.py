"""The messages in Flower's database: they hold contributions, and must not outlive a deletion.

The SuperLink deletes messages after use, but their bytes stay in free pages of the database and in
its write-ahead log. This module can be imported without Flower.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from fedgram.errors import FederationError
from fedgram.runtime import files

DATABASE = "state.db"
UNCLEANED = "state.db.uncleaned"  # there as long as messages wait for the end of the SuperLink
# Tables of Flower's database with content of messages; those that refer to others come first.
MESSAGES = (
    "object_push_session_pending",
    "object_push_session_roots",
    "object_push_sessions",
    "object_children",
    "run_objects",
    "objects",
    "message_res",
    "message_ins",
    "task_message",
)


def clean(database: Path) -> bool:
    """Erase all messages in the database of a SuperLink, and what is left of earlier ones.

    Returns False, and changes nothing, while a SuperLink uses the database. Then the file
    `UNCLEANED` says so until it is cleaned, which the next start of the server does.
    """
    done, marker = _cleaned(database), database.with_name(UNCLEANED)
    if done:
        marker.unlink(missing_ok=True)
    else:
        files.write(marker, b"", private=True, durable=True)
    return done


def _cleaned(database: Path) -> bool:
    if not database.is_file():
        return True
    database.chmod(0o600)
    try:
        with closing(sqlite3.connect(database, isolation_level=None, timeout=1)) as db:
            # Without other connections only: the log is written back and deleted.
            if db.execute("PRAGMA journal_mode = DELETE").fetchone()[0] != "delete":
                return False
            db.execute("PRAGMA secure_delete = ON")
            db.execute("BEGIN EXCLUSIVE")
            there = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
            for table in MESSAGES:
                if table in there:
                    db.execute(f"DELETE FROM {table}")  # noqa: S608 (a name from above)
            db.execute("COMMIT")
            db.execute("VACUUM")  # free pages of before are left out of the new file
    except sqlite3.OperationalError as error:
        if "locked" in str(error):
            return False
        raise FederationError(f"{database}: cannot be cleaned ({error})") from error
    except sqlite3.DatabaseError as error:
        raise FederationError(f"{database}: cannot be cleaned ({error})") from error
    return True
