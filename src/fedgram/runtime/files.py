"""Files that are either whole or not there."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from fedgram.errors import DataError

if sys.platform == "win32":  # pragma: no cover
    import msvcrt
else:
    import fcntl


def write(path: Path, data: bytes | str, *, private: bool = False) -> None:
    """Write a file in one step: whoever looks finds the old content or the new, never a part.

    A private file can be read by its owner alone, from its first byte on.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write(Path(folder) / "a" / "b.txt", "hello")
    ...     (Path(folder) / "a" / "b.txt").read_text()
    'hello'
    """
    with staged(path, data, private=private):
        pass


@contextmanager
def staged(path: Path, data: bytes | str, *, private: bool = False) -> Iterator[None]:
    """Prepare a file beside its place, and move it there if the body succeeds."""
    part = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if private:
            part.unlink(missing_ok=True)  # one that was left behind may be open to others
            part.touch(mode=0o600, exist_ok=False)
        part.write_bytes(data.encode() if isinstance(data, str) else data)
        yield
        part.replace(path)
    except OSError as error:
        raise cannot_write(path, error) from error
    finally:
        if os.path.isfile(part):  # never raises, however odd the name
            part.unlink()


def locked(file: IO[str]) -> bool:
    """Lock an open file against other processes until it is closed; return whether that worked."""
    try:
        if sys.platform == "win32":  # pragma: no cover
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def require_writable(path: Path) -> None:
    """Raise now where `write` to this path would fail later."""
    there = os.path.isfile(path)
    write(path, path.read_bytes() if there else b"")
    if not there:
        path.unlink()


def cannot_write(path: Path, error: OSError) -> DataError:
    """Return the error to raise where a file or folder cannot be written."""
    return DataError(f"{path}: cannot be written ({error.strerror}); choose another place")
