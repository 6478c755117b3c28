"""Files are either whole or not there, whatever fails while they are written."""

import errno
import os
from pathlib import Path

import pytest

from fedgram.core import codec
from fedgram.errors import DataError
from fedgram.runtime import files


@pytest.fixture
def path(tmp_path):
    return tmp_path / "a.txt"


def left(path):
    return {found.name: found.read_bytes() for found in path.parent.iterdir()}


def full(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def cut_short(part, data):
    """Write half and then find the disk full."""
    with part.open("wb") as file:
        file.write(data[: len(data) // 2])
    full()


@pytest.mark.parametrize(("data", "expected"), [("höher", "höher".encode()), (b"\xff", b"\xff")])
def test_texts_and_bytes_are_written_as_they_are(path, data, expected):
    files.write(path, data)
    assert left(path) == {"a.txt": expected}


def test_folders_on_the_way_are_made(tmp_path):
    files.write(tmp_path / "b" / "c" / "a.txt", "new")
    assert (tmp_path / "b" / "c" / "a.txt").read_text() == "new"


def test_the_old_content_is_replaced(path):
    path.write_text("old and longer")
    files.write(path, "new")
    assert left(path) == {"a.txt": b"new"}


def test_whoever_looks_before_the_end_finds_the_old_content(path, monkeypatch):
    path.write_text("old")
    seen = []
    replace = Path.replace

    def look(part, target):
        seen.append(path.read_text())
        return replace(part, target)

    monkeypatch.setattr(Path, "replace", look)
    files.write(path, "new")
    assert (seen, path.read_text()) == (["old"], "new")


@pytest.mark.parametrize("failing", ["write_bytes", "replace"])
@pytest.mark.parametrize("old", [None, "old"])
def test_a_write_that_fails_leaves_the_old_content_and_no_part(path, monkeypatch, old, failing):
    if old:
        path.write_text(old)
    before = left(path)
    monkeypatch.setattr(Path, failing, cut_short if failing == "write_bytes" else full)
    with pytest.raises(DataError, match=r"a\.txt: cannot be written \(No space left on device\)"):
        files.write(path, "something new")
    assert left(path) == before


def test_a_write_that_is_interrupted_leaves_the_old_content_and_no_part(path, monkeypatch):
    path.write_text("old")

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        files.write(path, "new")
    assert left(path) == {"a.txt": b"old"}


def test_a_part_that_somebody_left_behind_does_no_harm(path):
    path.with_name("a.txt.part").write_text("left by a kill")
    files.write(path, "new")
    assert left(path) == {"a.txt": b"new"}


def test_a_place_below_a_file_is_refused_and_the_file_kept(path):
    path.write_text("old")
    with pytest.raises(DataError, match="cannot be written"):
        files.write(path / "below", "new")
    assert left(path) == {"a.txt": b"old"}


def test_a_folder_in_the_way_is_refused_and_kept(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    with pytest.raises(DataError, match="cannot be written"):
        files.write(tmp_path / "a", "new")
    assert sorted(found.name for found in tmp_path.rglob("*")) == ["a", "b"]


def test_values_are_saved_in_the_same_way(path, monkeypatch):
    codec.save(path, {"n": 3})
    before = left(path)
    monkeypatch.setattr(Path, "write_bytes", cut_short)
    with pytest.raises(DataError, match="cannot be written"):
        codec.save(path, {"n": 4})
    assert left(path) == before
    assert codec.load(path) == {"n": 3}


def test_the_error_says_why_and_where():
    error = files.cannot_write(Path("a/b"), OSError(errno.EROFS, os.strerror(errno.EROFS)))
    assert str(error).startswith("a/b: cannot be written (Read-only file system)")
