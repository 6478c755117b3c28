"""Files that are either complete or missing, and locks."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

from fedgram.errors import DataError

if sys.platform == "win32":  # pragma: no cover
    import msvcrt
else:
    import fcntl


_PART = 1 << 20
MOST_TEXT = 1 << 30  # bytes of a text that is read at once: records of runs grow with the rounds


def write(path: Path, data: bytes | str, *, private: bool = False, durable: bool = False) -> None:
    """Write a file in one step: readers see the old content or the new, never a part.

    Only the owner can read a private file, from its first byte on, and enter the folders that are
    created for it.

    Parameters
    ----------
    path
        The file; missing folders are created.
    data
        Its content.
    private
        Whether only the owner may read it.
    durable
        Whether the content must outlive a power failure right after this call.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write(Path(folder) / "a" / "b.txt", "hello")
    ...     (Path(folder) / "a" / "b.txt").read_text()
    'hello'
    """
    with staged(path, data, private=private, durable=durable):
        pass


def write_secret(path: Path, data: bytes) -> None:
    """Write a private, durable file, and overwrite what it held before with zeros.

    Where files in use cannot be replaced (Windows), what it held is deleted only.
    """
    with ExitStack() as stack:
        before = None
        if sys.platform != "win32" and os.path.isfile(path):
            before = stack.enter_context(path.open("r+b"))
        write(path, data, private=True, durable=True)
        if before is not None:
            _overwrite(before)


def read_text(path: Path, *, most: int = MOST_TEXT) -> str:
    """Return a text file; raise ValueError if it is longer than `most` bytes, or not UTF-8."""
    content = bytearray()  # a single read would reserve `most` bytes
    with path.open("rb") as file:
        while part := file.read(_PART):
            content += part
            if len(content) > most:
                raise ValueError(f"longer than {most} bytes")
    return content.decode("utf-8")


@contextmanager
def staged(
    path: Path, data: bytes | str, *, private: bool = False, durable: bool = False
) -> Iterator[None]:
    """Prepare a file beside its place, and move it there if the body succeeds."""
    part = path.with_name(path.name + ".part")
    try:
        changed = _make_folders(path.parent, 0o700 if private else 0o777)
        if private:
            part.unlink(missing_ok=True)  # an old one may be readable by others
            part.touch(mode=0o600, exist_ok=False)
        part.write_bytes(data.encode() if isinstance(data, str) else data)
        if durable:
            _sync(part)
        yield
        part.replace(path)
        for folder in (*changed, path.parent) if durable else ():
            _sync(folder)
    except OSError as error:
        raise cannot_write(path, error) from error
    finally:
        if os.path.isfile(part):  # never raises, also for invalid names
            part.unlink()


def write_folder(folder: Path) -> None:
    """Create a folder that only its owner can enter, with its missing parents."""
    try:
        _make_folders(folder, 0o700)
    except OSError as error:
        raise cannot_write(folder, error) from error


def append(path: Path) -> IO[bytes]:
    """Open a file at its end; a new one is for the owner only, and a link is not followed."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0)
    return os.fdopen(os.open(path, flags, 0o600), "ab")


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Run the body while no other process or thread runs one with the same lock file; wait."""
    write_folder(path.parent)
    try:
        opened = append(path)
    except OSError as error:
        raise cannot_write(path, error) from error
    with opened as file:
        while not locked(file):
            time.sleep(0.02)
        yield  # closing the file ends the lock, as the end of this process does


def _make_folders(folder: Path, mode: int) -> list[Path]:
    """Create missing folders, all with this mode; `Path.mkdir` has it for the last one only.

    Returns the folders with new entries.
    """
    if folder.is_dir():
        return []
    changed = _make_folders(folder.parent, mode)
    folder.mkdir(mode=mode, exist_ok=True)
    return [*changed, folder.parent]


def _sync(path: Path) -> None:
    """Wait until a file, or the entries of a folder, are on the disk."""
    if path.is_dir() and sys.platform == "win32":  # pragma: no cover
        return  # folders cannot be opened there
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _overwrite(file: IO[bytes]) -> None:
    """Overwrite an open file with zeros, on the disk."""
    file.write(bytes(os.fstat(file.fileno()).st_size))
    file.flush()
    os.fsync(file.fileno())


@contextmanager
def private(folder: Path) -> Iterator[None]:
    """Let only the owner enter a folder, and read what this process writes in the body."""
    with suppress(PermissionError):  # a folder of another owner
        folder.chmod(0o700)
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def erase(path: Path) -> None:
    """Overwrite a file with zeros and delete it; a link is deleted only."""
    with suppress(FileNotFoundError):
        if not path.is_symlink():
            with path.open("r+b") as file:
                _overwrite(file)
        path.unlink()


def locked(file: IO[str] | IO[bytes]) -> bool:
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
    """Raise DataError now if `write` to this path would fail later."""
    there = os.path.isfile(path)
    write(path, path.read_bytes() if there else b"")
    if not there:
        path.unlink()


def cannot_write(path: Path, error: OSError) -> DataError:
    """Return the error for a file or folder that cannot be written."""
    return DataError(f"{path}: cannot be written ({error.strerror}); choose another place")
