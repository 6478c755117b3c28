"""The runs of a study in Ray workers: the same files and results as in local processes."""

import json
from pathlib import Path

import pytest

from fedgram.experiments.study.make import make
from fedgram.experiments.study.settings import read

pytestmark = [
    pytest.mark.ray,
    pytest.mark.xdist_group("ray"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.usefixtures("ray_cluster"),
]

MINE = '''
import os, signal
from dataclasses import dataclass
from pathlib import Path
from fedgram.methods.afl import AFL

@dataclass(frozen=True, kw_only=True)
class Mine(AFL):
    """Its process is killed as long as there are files to remove.

    Parameters
    ----------
    folder
        Where these files are.
    fails
        Whether it fails.
    """

    folder: str = ""
    fails: bool = False

    def fit(self, federation):
        for path in list(Path(self.folder).glob("kill*"))[:1]:
            path.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        if self.fails:
            raise RuntimeError("on purpose")
        yield from super().fit(federation)
'''
TIMES = ("seconds", "microseconds")


def settings(path: Path, **mine):
    (path / "mine.py").write_text(MINE)
    source = str(path / "mine.py")
    return read(
        {
            "table": {"methods": ["afl", "scaffold", source], "seeds": 2},
            "data": {"clients": 3},
            "method": {
                "scaffold": {"rounds": 3, "rate": 0.1},
                source: {"folder": str(path / "flags"), **mine},
            },
        }
    )


def content(folder: Path):
    """Return all files of the runs without times: names, lines of JSON, and other bytes."""
    found = {}
    for path in sorted((folder / "runs").rglob("*")):
        if path.is_file():
            name, text = str(path.relative_to(folder)), path.read_bytes()
            if path.suffix in (".json", ".jsonl"):
                found[name] = [timeless(json.loads(line)) for line in documents(path)]
            else:
                found[name] = text
    return found


def documents(path: Path):
    text = path.read_text()
    return text.splitlines() if path.suffix == ".jsonl" else [text]


def timeless(value):
    if isinstance(value, dict):
        return {key: timeless(item) for key, item in value.items() if key not in TIMES}
    return [timeless(item) for item in value] if isinstance(value, list) else value


def last(states):
    return list(states)[-1]


def test_a_study_on_ray_writes_the_files_of_one_in_local_processes_also_after_a_kill(tmp_path):
    flags = tmp_path / "flags"
    flags.mkdir()
    study = settings(tmp_path)
    local = last(make(study, tmp_path / "local", jobs=1))
    (flags / "kill").touch()
    spread = last(make(study, tmp_path / "ray", jobs=2, ray="auto"))
    assert not list(flags.iterdir())
    assert (local.done, local.code) == (spread.done, spread.code) == (6, 0)
    ours, theirs = content(tmp_path / "ray"), content(tmp_path / "local")
    assert len(theirs) > 20
    assert ours == theirs
    again = last(make(study, tmp_path / "ray", jobs=1))
    assert again.done == 6
    tables = [(tmp_path / name / "table.csv").read_text() for name in ("local", "ray")]
    assert len(tables[0].splitlines()) == len(tables[1].splitlines()) > 3


def test_a_run_that_fails_or_kills_every_worker_is_reported_and_others_go_on(tmp_path):
    flags = tmp_path / "flags"
    flags.mkdir()
    failed = last(make(settings(tmp_path, fails=True), tmp_path / "fails", jobs=2, ray="auto"))
    assert (failed.done, failed.code) == (4, 1)
    errors = list((tmp_path / "fails" / "runs").rglob("error.txt"))
    assert len(errors) == 2
    assert all("on purpose" in path.read_text() for path in errors)
    for number in range(20):
        (flags / f"kill{number}").touch()
    lost = last(make(settings(tmp_path), tmp_path / "lost", jobs=2, ray="auto"))
    assert (lost.done, lost.code) == (4, 11)
