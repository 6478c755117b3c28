"""Files that are either whole or not there."""

from __future__ import annotations

from pathlib import Path

from fedgram.errors import DataError


def write(path: Path, data: bytes | str) -> None:
    """Write a file in one step: whoever looks finds the old content or the new, never a part.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write(Path(folder) / "a" / "b.txt", "hello")
    ...     (Path(folder) / "a" / "b.txt").read_text()
    'hello'
    """
    part = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(data.encode() if isinstance(data, str) else data)
        part.replace(path)
    except OSError as error:
        raise cannot_write(path, error) from error
    finally:
        if part.is_file():
            part.unlink()


def cannot_write(path: Path, error: OSError) -> DataError:
    """Return the error to raise where a file or folder cannot be written."""
    return DataError(f"{path}: cannot be written ({error.strerror}); nothing else was changed")
