"""Tables as they are made: processes, kills, locks, errors, and what the command line says."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from click.testing import CliRunner

from fedgram.cli import main
from fedgram.data.sources import load_dataset
from fedgram.errors import ConfigError
from fedgram.experiments.study import folder as folder_module
from fedgram.experiments.study.cells import digest_of
from fedgram.experiments.study.folder import Folder
from fedgram.experiments.study.make import make
from fedgram.experiments.study.settings import presets, read
from fedgram.experiments.study.worker_pool import MODULE

SMALL = {"clients": 3, "partition": "iid"}
METHOD = '''
import os, sys, time
from dataclasses import dataclass
from pathlib import Path
from fedgram import Linear, Method


@dataclass(frozen=True, kw_only=True)
class Mine(Method[Linear]):
    """A method of one's own.

    Parameters
    ----------
    ridge
        A ridge.
    rounds
        How many.
    """

    ridge: float = 30.0
    rounds: int = 1

    def number_of_rounds(self):
        return self.rounds

    def fit(self, federation):
        print("a method may print")
{body}
        for _ in range(self.rounds):
            yield None

    def personalize(self, client, shared):
        samples = client.samples
        return Linear.fitted(samples, samples.labels.onehot(), ridge=self.ridge)
'''


def method(path, body="        pass", name="mine.py"):
    file = path / name
    file.write_text(METHOD.replace("{body}", body), encoding="utf-8")
    return str(file)


def made(found, path, **options):
    return list(make(found, path, **{"jobs": 1, **options}))


def table(*methods, seeds=2, **settings):
    return read({"table": {"methods": list(methods), "seeds": seeds}, "data": SMALL, **settings})


def seen(path):
    """Return the bytes and times of all files of the recorded runs."""
    files = (path / "runs").rglob("*")
    return {f: (f.read_bytes(), f.stat().st_mtime_ns) for f in files if f.is_file()}


def cli(*arguments):
    return CliRunner().invoke(main, list(map(str, arguments)))


def process(*arguments, **options):
    return subprocess.Popen(
        [sys.executable, "-m", "fedgram.cli", *map(str, arguments)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # as on a terminal
        **options,
    )


def until(condition, patience=120.0):
    limit = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < limit, "waited in vain"
        time.sleep(0.02)


def is_free(path):
    """Tell whether nobody holds the lock: neither the table's process nor any of its children."""
    import fcntl

    with (path / "lock").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True


def timeless(path):
    """Return the five files of a table, without the seconds in the JSON."""
    texts = {f.name: f.read_text(encoding="utf-8") for f in path.glob("table.*")}
    texts["table.json"] = re.sub(r'"seconds": [\d.e-]+', "", texts["table.json"])
    assert len(texts) == 5
    return texts


# Finished runs


def test_a_second_time_nothing_is_run(tmp_path):
    states = made(table("local", "afl"), tmp_path)
    assert (states[-1].done, states[-1].total, states[-1].code) == (4, 4, 0)
    before, files = seen(tmp_path), timeless(tmp_path)
    states = made(table("local", "afl"), tmp_path)
    assert (states[0].done, len(states)) == (4, 1)
    assert seen(tmp_path) == before
    assert timeless(tmp_path) == files


def test_runs_are_ordinary_ones_without_models_unless_asked_for(tmp_path):
    made(table("afl", seeds=1), tmp_path)
    (run,) = (tmp_path / "runs").iterdir()
    assert {f.name for f in run.iterdir()} >= {"run.json", "exchanges.jsonl", "scores.jsonl"}
    assert not list(run.rglob("*.safetensors"))
    shown = json.loads(cli("compare", run, "--json").output)["runs"][0]
    number = json.loads((tmp_path / "table.json").read_text())["numbers"][0]
    assert number["mean"] == pytest.approx(100 * shown["accuracy"]["client_mean"])
    kept = read({"table": {"methods": ["afl"], "seeds": 1, "keep_models": True}, "data": SMALL})
    made(kept, tmp_path / "kept")
    assert len(list((tmp_path / "kept").rglob("models/*.safetensors"))) == 3


def test_a_changed_setting_makes_new_runs_beside_the_old(tmp_path):
    made(table("afl"), tmp_path)
    before = seen(tmp_path)
    states = made(table("afl", method={"afl": {"ridge": 1.0}}), tmp_path)
    assert (states[0].done, states[-1].done) == (0, 2)
    assert len(list((tmp_path / "runs").iterdir())) == 4
    assert {path: seen(tmp_path)[path] for path in before} == before


def test_unfinished_and_damaged_runs_are_moved_away_and_run_again(tmp_path):
    found = table("local", "afl")
    made(found, tmp_path)
    files = timeless(tmp_path)
    cut, garbled, unscored, whole = sorted((tmp_path / "runs").iterdir())
    asks = cut / "exchanges.jsonl"
    asks.write_text("".join(asks.read_text().splitlines(keepends=True)[:-1]))
    (garbled / "run.json").write_text("{")
    (unscored / "scores.jsonl").unlink()
    left = {run.name: {f.name: f.read_bytes() for f in run.iterdir()} for run in (cut, garbled)}
    before = {f: state for f, state in seen(tmp_path).items() if f.parent == whole}
    (tmp_path / "interrupted" / cut.name).mkdir(parents=True)  # in the way: it is replaced
    states = made(found, tmp_path)
    assert (states[0].done, states[-1].done) == (1, 4)
    for name, content in left.items():
        moved = tmp_path / "interrupted" / name
        assert {f.name: f.read_bytes() for f in moved.iterdir()} == content
    assert {f: state for f, state in seen(tmp_path).items() if f.parent == whole} == before
    assert timeless(tmp_path) == files


# Errors


def test_a_run_that_fails_does_not_stop_the_others_and_is_tried_again(tmp_path):
    mine = method(tmp_path, '        raise ValueError("two\\nlines")')
    states = made(table("local", mine), tmp_path / "t")
    assert (states[-1].done, states[-1].code) == (2, 1)
    told = [state.message for state in states if state.message]
    assert len(told) == 2
    assert all("ValueError: two lines" in said for said in told)
    body = (tmp_path / "t" / "table.txt").read_text()
    assert "2 of 4 runs are missing (mine 2)" in body
    assert "ValueError: two lines; see" in " ".join(body.split())  # lines are broken
    (error, _) = (tmp_path / "t").rglob("error.txt")
    assert 'raise ValueError("two\\nlines")' in error.read_text()
    states = made(table("local", mine), tmp_path / "t")
    assert (states[0].done, sum(bool(s.message) for s in states)) == (2, 2)


def test_fedgrams_own_errors_keep_their_exit_code(tmp_path):
    found = table("local", seeds=1, data={**SMALL, "holdout_clients": 3})
    (*_, last) = made(found, tmp_path)
    assert last.code == 2
    assert "failed" in last.message


def test_a_process_that_is_killed_is_told_and_replaced(tmp_path):
    body = "        if self.ridge == 1: os.kill(os.getpid(), 9)"
    mine = method(tmp_path, body)
    rows = [{"name": f"row {r}", "method": mine, "ridge": float(r)} for r in (3, 1, 2)]
    states = made(table(*rows, seeds=1), tmp_path / "t", jobs=1)
    assert states[-1].done == 2
    assert sum("killed by signal 9" in (state.message or "") for state in states) == 1


# Starts a process in a session of its own, which nobody waits for.
LEAVING = """\
        import subprocess
        left = subprocess.Popen(["sleep", "1000"], start_new_session=True)
        Path(__file__).with_suffix(".part").write_text(str(left.pid))
        Path(__file__).with_suffix(".part").rename(Path(__file__).with_suffix(".pid"))
"""


def left_behind(path):
    """Return whether the process that the method `LEAVING` has started still runs."""
    pid = int((path / "mine.pid").read_text())
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


@pytest.mark.parametrize("then", ["pass", "os.kill(os.getpid(), 9)"])
@pytest.mark.skipif(os.name != "posix", reason="starts sleep")
def test_what_methods_have_started_ends_with_the_table(tmp_path, then):
    made(table(method(tmp_path, f"{LEAVING}        {then}"), seeds=1), tmp_path / "t")
    assert not left_behind(tmp_path)


def test_one_folder_is_used_by_one_process_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(folder_module, "PATIENCE", 0.0)
    with (
        Folder(tmp_path),
        pytest.raises(ConfigError, match=rf"running in this folder \(process {os.getpid()}\)"),
    ):
        made(table("local"), tmp_path)
    assert made(table("local", seeds=1), tmp_path)[-1].done == 1


def test_data_that_change_under_way_are_refused(tmp_path, clusters):
    data, file = clusters(), tmp_path / "x.npz"
    np.savez(file, x=data.x, y=data.y)
    found = read(
        {"table": {"datasets": str(file), "methods": ["local"], "seeds": 1}, "data": SMALL}
    )
    making = make(found, tmp_path / "t")
    next(making)
    np.savez(file, x=data.x + 1, y=data.y)
    (*_, last) = making
    assert last.code == 3
    assert "changed since the study was started" in last.message


# Estimates


def test_long_runs_are_timed_before_the_table_begins(tmp_path):
    mine = method(tmp_path)
    states = made(table(mine, "local", every={"rounds": 25}), tmp_path / "t")
    said = [state.message for state in states if state.message]
    assert said[0] == "timing mine, local: a run each, the long ones cut short"
    begun = next(i for i, s in enumerate(states) if i and "timing" not in "".join(s.running))
    assert states[begun].left is not None
    assert states[begun].done == 0
    assert states[-1].done == 4
    rounds = [n for s in states for n in re.findall(r"round (\d+) of 25", "".join(s.running))]
    assert set(rounds) == {str(n) for n in range(1, 26)}
    assert len(list((tmp_path / "t" / "runs").iterdir())) == 4
    more = made(table(mine, "local", every={"rounds": 25}, seeds=3), tmp_path / "t")
    assert not any("timing" in (state.message or "") for state in more)


def test_an_estimate_says_what_it_stands_on_and_records_nothing(tmp_path):
    mine = method(tmp_path)
    toml = tmp_path / "t.toml"
    toml.write_text(f'[table]\nmethods = ["{mine}"]\n[every]\nrounds = 100\n', encoding="utf-8")
    done = cli("table", toml, "-o", tmp_path / "t", "--estimate")
    assert done.exit_code == 0
    assert re.search(
        r"3 of 3 runs to go: about .* estimated from short runs of 1 method", done.stderr
    )
    assert not (tmp_path / "t" / "runs").exists()
    cli("table", toml, "-o", tmp_path / "t", "-s", "table.seeds=1")
    done = cli("table", toml, "-o", tmp_path / "t", "--estimate")
    assert re.search(r"2 of 3 runs to go: about .* estimated from 1 finished run\n", done.stderr)


# Kills

GATED = '        while not Path(os.environ["GATE"]).exists(): time.sleep(0.01)'


@pytest.fixture(scope="module")
def gated(tmp_path_factory):
    """Return the command of a table whose method waits at a gate, and the gate."""
    path = tmp_path_factory.mktemp("gated")
    mine = method(path, GATED, name="gated.py")
    (path / "t.toml").write_text(
        f'[table]\nmethods = ["local", "afl", "{mine}"]\nseeds = 2\n'
        '[data]\nclients = 3\n[sweep]\nparameter = "ridge"\nvalues = [10.0, 100.0]\n',
        encoding="utf-8",
    )
    return ["table", path / "t.toml", "-j", "2", "-o"], path / "gate"


@pytest.fixture(scope="module")
def undisturbed(gated, tmp_path_factory):
    command, gate = gated
    path = tmp_path_factory.mktemp("undisturbed")
    gate.touch()
    whole = process(*command, path, env={**os.environ, "GATE": str(gate)})
    whole.communicate()
    assert whole.returncode == 0
    return timeless(path)


@pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")
@pytest.mark.xdist_group("kills")
@pytest.mark.parametrize(
    "sent", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.faults)]
)
def test_a_killed_table_goes_on_where_it_stopped(tmp_path, gated, undisturbed, sent):
    command, gate = gated
    gate.unlink()
    environment = {**os.environ, "GATE": str(gate)}
    begun = process(*command, tmp_path, env=environment)

    def at_the_gate():
        return len(list(tmp_path.glob("runs/*gated*/run.json"))) == 2

    until(lambda: at_the_gate() or begun.poll() is not None)
    os.kill(begun.pid, sent)
    error = begun.communicate()[1]
    assert begun.returncode == (130 if sent == signal.SIGINT else -sent)
    assert ("what was recorded is kept" in error) == (sent == signal.SIGINT)
    until(lambda: is_free(tmp_path))  # so no child is left
    finished = {name for name in os.listdir(tmp_path / "runs") if "gated" not in name}
    assert len(finished) == len((tmp_path / "times.jsonl").read_text().splitlines()) >= 2
    assert "runs are missing" in (tmp_path / "table.txt").read_text()
    before = {f: state for f, state in seen(tmp_path).items() if f.parent.name in finished}

    gate.touch()
    again = process(*command, tmp_path, env=environment)
    again.communicate()
    assert again.returncode == 0
    assert {f: seen(tmp_path)[f] for f in before} == before
    assert len((tmp_path / "times.jsonl").read_text().splitlines()) == 12
    lost = os.listdir(tmp_path / "interrupted")
    assert len(lost) == 2
    assert all("gated" in name for name in lost)
    assert timeless(tmp_path) == undisturbed


def test_processes_end_with_their_input_in_the_middle_of_a_run(tmp_path):
    job = {
        "config": {"methods": [method(tmp_path, f"{LEAVING}{' ' * 8}time.sleep(1000)")]},
        "folder": str(tmp_path / "run"),
        "data": digest_of(load_dataset("digits")),
        "keep_models": False,
    }
    worker = subprocess.Popen(
        [sys.executable, "-m", MODULE], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    worker.stdin.write(json.dumps(job) + "\n")
    worker.stdin.flush()
    until((tmp_path / "mine.pid").is_file)
    worker.communicate()
    assert worker.returncode == 0
    until(lambda: not left_behind(tmp_path))


# Command line


def test_presets_are_listed_and_printed():
    assert [line.split()[0] for line in cli("table").output.splitlines()] == presets()
    for name in presets():
        assert cli("table", name, "--print").output.startswith("# ")
    wrong = cli("table", "efficency", "--print")
    assert wrong.exit_code == 2
    assert "did you mean 'efficiency'?" in wrong.stderr


def test_a_preset_runs_on_a_file_of_ones_own(tmp_path, clusters):
    data = clusters(400)
    np.savez(tmp_path / "mine.npz", x=data.x, y=data.y)
    options = ["-s", "table.seeds=1", "-s", "table.clients=4", "-s", "sweep.values=[0.1, 0.5]"]
    out = ["--source", f"CIFAR-100={tmp_path / 'mine.npz'}", "-o", tmp_path / "t"]
    done = cli("table", "lambda-ablation", *options, *out, "--json")
    assert done.exit_code == 0, done.stderr
    content = json.loads(done.stdout)
    assert content["complete"]
    assert {n["dataset"] for n in content["numbers"]} == {"CIFAR-100"}
    assert len(content["numbers"]) == 3 * 2 * 2
    shown = cli("table", "lambda-ablation", *options, *out)
    assert shown.stdout == (tmp_path / "t" / "table.txt").read_text()
    assert Path(tmp_path / "t" / "table.tex").is_file()
    drawn = (tmp_path / "t" / "table-balance-cifar-100.svg").read_text()
    assert drawn.startswith("<svg")
    assert all(name in drawn for name in ("balance (lambda)", "dual", "dirichlet 0.5"))


def test_costs_are_drawn_where_they_are_asked_for(tmp_path):
    toml = tmp_path / "t.toml"
    toml.write_text(
        '[table]\nmethods = ["local", "afl"]\nseeds = 1\ncurves = ["rounds", "bytes"]\n'
        "[data]\nclients = 3\n",
        encoding="utf-8",
    )
    assert cli("table", toml, "-o", tmp_path / "t").exit_code == 0
    names = sorted(path.name for path in (tmp_path / "t").glob("*.svg"))
    assert names == [f"table-{a}-digits-3-clients-dirichlet-0.1.svg" for a in ("bytes", "rounds")]


def test_the_exit_code_is_that_of_the_first_failure(tmp_path):
    toml = tmp_path / "t.toml"
    toml.write_text(
        '[table]\nmethods = ["local"]\nseeds = 1\n[data]\nclients = 3\nholdout_clients = 3\n',
        encoding="utf-8",
    )
    done = cli("table", toml, "-o", tmp_path / "t")
    assert done.exit_code == 2
    assert "1 of 1 runs are missing" in done.stdout
    assert done.stderr.startswith("failed: ")
