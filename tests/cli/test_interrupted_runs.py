"""`fedgram run`, ended at any change of a file, goes on to the result of a whole run."""

import json
import sys
from contextlib import suppress

import pytest
from click.testing import CliRunner

from fedgram.cli import main
from fedgram.errors import DataError
from fedgram.experiments.reader import read_runs

WORDS = ("run", "digits", "-s", "data.clients=3", "-m", "local", "-m", "fedavg", "--seeds", "2")
MORE = ("-s", "method.fedavg.rounds=2", "-s", "method.fedavg.rate=0.1")
CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link"}


class Ended(BaseException):
    """The process has ended; nothing handles this."""


class Watch:
    """Counts the changes of files below a folder, and lets none happen from one of them on."""

    def __init__(self):
        self.folder, self.count, self.last = "", 0, None
        sys.addaudithook(self.hook)  # it cannot be removed

    def hook(self, event, args):
        if not self.folder or not self.changes(event, args):
            return
        self.count += 1
        if self.last is not None and self.count > self.last:
            raise Ended

    def changes(self, event, args):
        if event == "open":
            mode = args[1] if isinstance(args[1], str) else ""
            return str(args[0]).startswith(self.folder) and set(mode) & set("wax+")
        return event in CHANGES and str(args[0]).startswith(self.folder)

    def run(self, folder, last=None):
        """Run the command; return the number of changes."""
        self.folder, self.count, self.last = str(folder), 0, last
        try:
            done = CliRunner().invoke(main, [*WORDS, *MORE, "--out", str(folder)])
        except Ended:
            done = None
        finally:
            self.folder = ""
        if last is None:
            assert done.exit_code == 0, done.output
        return self.count, done


@pytest.fixture(scope="module")
def watch():
    return Watch()


def files(folder):
    """Return what is the same in every run: no times, no order of writing."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.suffix == ".safetensors":
            found[name] = path.read_bytes()
        elif path.suffix == ".md":
            found[name] = ""
    for run in read_runs([folder]):
        steps = [(each.step, each.phase) for each in run.exchanges]
        accuracy = [one.summary.accuracy for one in run.rounds]
        digests = (run.summary.shared_digest, run.summary.model_digest)
        name = f"{run.method} {run.config['data']['seed']}"
        found[name] = json.dumps([run.finished, steps, accuracy, digests])
    return found


def finished_in(folder):
    """Yield the record of the exchanges of each finished run."""
    for path in folder.glob("*/exchanges.jsonl"):
        with suppress(DataError):  # interrupted before anything was scored
            (run,) = read_runs([path.parent])
            if run.finished:
                yield path


def ended_at(watch, tmp_path, places):
    """End the command at each of these changes, and give it again."""
    changes, _ = watch.run(tmp_path / "whole")
    expected = files(tmp_path / "whole")
    assert changes > 60
    assert (
        sum(name.endswith("README.md") for name in expected) == 3
    )  # of the worse local nothing is left
    for place in places(changes):
        folder = tmp_path / f"ended{place}"
        watch.run(folder, last=place)
        finished = set(finished_in(folder))
        before = {path: path.read_bytes() for path in finished}
        for path in set(folder.glob("*/*.jsonl")):  # ended in the middle of a line
            if path.parent not in {each.parent for each in finished} and place % 2:
                path.write_text(path.read_text("utf-8") + '{"round": 1, "set": "mem', "utf-8")
        _, done = watch.run(folder)
        assert done.output.count("recorded already") == len(before), place
        for path, content in before.items():
            assert path.read_bytes() == content
        assert files(folder) == expected, place


def test_a_run_that_ends_at_some_changes_of_files_goes_on(watch, tmp_path):
    ended_at(watch, tmp_path, lambda changes: range(3, changes, changes // 6))


@pytest.mark.wide
def test_a_run_that_ends_at_any_change_of_a_file_goes_on(watch, tmp_path):
    ended_at(watch, tmp_path, range)
