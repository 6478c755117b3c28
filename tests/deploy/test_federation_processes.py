"""Processes end when the one that started them does, however it ends."""

import os
import signal
import stat
import subprocess
import sys
import time

import psutil
import pytest
from click.testing import CliRunner

from fedgram.cli import main
from fedgram.deploy.folders import Address, create
from fedgram.deploy.operator import answers, register, start_superlink
from fedgram.deploy.processes import Processes, follow, free_ports, reason
from fedgram.errors import ConfigError, FederationError
from fedgram.runtime.processes import processes_with_token

pytestmark = pytest.mark.skipif(os.name != "posix", reason="processes are for Linux and macOS")
DEADLINE = 60  # of things that take a moment, for machines that do much else

# A process as stubborn as can be: it does not end when asked to, and has a child in a session of
# its own, as Flower's programs do.
STUBBORN = """
import os, pathlib, signal, subprocess, sys, time
if sys.argv[2] == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
path = pathlib.Path(sys.argv[1])
path.with_suffix(".part").write_text(f"{os.getpid()} {child.pid}")
path.with_suffix(".part").rename(path)
time.sleep(1000)
"""

PARENT = """
import sys, time
from pathlib import Path
from fedgram.deploy.processes import Processes
folder = Path(sys.argv[1])
with Processes(folder / "logs", grace=0.5) as processes:
    for name in ("a", "b"):
        command = [sys.executable, str(folder / "child.py"), str(folder / f"{name}.pids"), name]
        processes.start(name, command)
    time.sleep(1000)
"""


def wait_for(condition):
    until = time.monotonic() + DEADLINE
    while not (found := condition()):
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.05)
    return found


def alive(pid):
    """Whether a process runs; a zombie does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def pids(folder, *names):
    def read():
        paths = [folder / f"{name}.pids" for name in names]
        return (
            [int(n) for p in paths for n in p.read_text().split()]
            if all(p.exists() for p in paths)
            else None
        )

    return wait_for(read)


@pytest.fixture
def script(tmp_path):
    (tmp_path / "child.py").write_text(STUBBORN)
    return tmp_path


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_nothing_survives_a_parent_that_is_ended(script, number):
    (script / "parent.py").write_text(PARENT.replace("name]", '"stubborn"]'))
    parent = subprocess.Popen(
        [sys.executable, str(script / "parent.py"), str(script)],
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # as on a terminal
    )
    started = pids(script, "a", "b")
    assert len(started) == 4
    assert all(map(alive, started))
    parent.send_signal(number)
    code = parent.wait(DEADLINE)
    wait_for(lambda: not any(map(alive, started)))
    expected = {signal.SIGTERM: 128 + signal.SIGTERM, signal.SIGHUP: 128 + signal.SIGHUP}
    assert code == expected.get(number, -number)


@pytest.mark.parametrize("how", ["stubborn", "willing"])
def test_nothing_survives_an_error(script, how):
    started = []

    def fail():
        with Processes(script / "logs", grace=0.5) as processes:
            command = [sys.executable, str(script / "child.py"), str(script / "a.pids"), how]
            processes.start("a", command)
            started.extend(pids(script, "a"))
            raise RuntimeError("planted")

    with pytest.raises(RuntimeError, match="planted"):
        fail()
    assert not any(map(alive, started))


def test_processes_of_others_are_left_alone(script):
    other = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    try:
        with Processes(script / "logs", grace=0.5) as processes:
            processes.start("a", ["sleep", "1000"])
            (ours,) = processes_with_token(processes._token)
            assert ours.pid == processes._children[0].process.pid
        assert alive(other.pid)
    finally:
        other.kill()
        other.wait()


def test_handlers_of_signals_are_given_back(tmp_path):
    before = [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)]
    with Processes(tmp_path):
        assert signal.getsignal(signal.SIGTERM) != before[0]
    assert [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)] == before


def test_an_end_that_was_not_meant_names_the_log_and_the_reason(tmp_path):
    text = "import sys; print('hello'); raise ValueError('the port is taken')"
    with Processes(tmp_path) as processes:
        child = processes.start("north", [sys.executable, "-c", text])
        with pytest.raises(FederationError) as caught:
            processes.wait_until(lambda: False, seconds=DEADLINE, what="nothing")
    assert str(caught.value) == (
        f"north ended with code 1 (the port is taken); see {tmp_path / 'north.log'}"
    )
    assert "hello" in child.log.read_text()


def test_what_processes_write_is_for_the_owner_only(tmp_path):
    """Also what Flower's programs write at a site: its state, its apps, its log."""
    code = (
        "import pathlib, sys; p = pathlib.Path(sys.argv[1]); p.mkdir(); (p / 'f').write_text('x')"
    )
    with Processes(tmp_path / "logs") as processes:
        child = processes.start("one", [sys.executable, "-c", code, str(tmp_path / "state")])
        child.process.wait(DEADLINE)
    for folder in ("logs", "state"):
        assert stat.S_IMODE((tmp_path / folder).stat().st_mode) == 0o700
        modes = {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / folder).iterdir()}
        assert modes == {0o600}


def test_a_wait_ends(tmp_path):
    with Processes(tmp_path, grace=0.5) as processes:
        processes.start("a", ["sleep", "1000"])
        with pytest.raises(FederationError, match="the start took more than 0 s"):
            processes.wait_until(lambda: False, seconds=0, what="the start")


def test_what_a_process_says_is_followed_to_its_end_and_not_from_before(tmp_path):
    with Processes(tmp_path) as processes:
        for word in ("one", "two"):
            child = processes.start("a", ["sh", "-c", f"echo {word}; echo done"], stays=False)
            assert list(follow(child)) == [word, "done"]
        processes.require_alive()  # an end that was expected is none to complain of
    assert (tmp_path / "a.log").read_text().count("--- ") == 2


def test_lines_are_whole_however_slowly_they_are_written(tmp_path):
    text = (
        "import time\nfor c in 'one\\ntwo\\nthree': print(c, end='', flush=True); time.sleep(.03)"
    )
    with Processes(tmp_path) as processes:
        child = processes.start("a", [sys.executable, "-c", text], stays=False)
        assert list(follow(child)) == ["one", "two", "three"]


def test_the_end_of_one_is_noticed_while_another_says_nothing(tmp_path):
    with Processes(tmp_path, grace=0.5) as processes:
        silent = processes.start("run", ["sleep", "1000"], stays=False)
        processes.start("north", ["sh", "-c", "echo error: no data; exit 3"])
        with pytest.raises(FederationError, match=r"north ended with code 3 \(no data\)"):
            list(follow(silent, meanwhile=processes.require_alive))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", ""),
        ("all is well\n", ""),
        ("fedgram.errors.DataError: no rows\n\x1b[91mERROR\x1b[0m :  Exit Code: 201\n", "no rows"),
        ("\x1b[91mERROR\x1b[0m :     cannot connect\nERROR :  Exit Code: 1\n", "cannot connect"),
        ("fedgram: error: bad file\n", "bad file"),
        ("Traceback\nKeyError\n", "KeyError"),
        ("ValueError: first\nValueError: second\n", "second"),
    ],
)
def test_the_reason_is_found_in_a_log(tmp_path, text, why):
    (tmp_path / "a.log").write_text(text)
    assert reason(tmp_path / "a.log") == why
    assert reason(tmp_path / "a.log", len(text.encode())) == ""  # what was before tells nothing


def test_ports_are_free_and_different():
    ports = free_ports(20)
    assert len(set(ports)) == 20
    assert not any(answers(Address(host="127.0.0.1", port=port), None) for port in ports[:3])


@pytest.fixture
def project(tmp_path):
    (port,) = free_ports(1)
    address = Address(host="127.0.0.1", port=port)
    return create(tmp_path / "study", sites=["north"], methods=["afl"], address=address)


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (["server", "study"], "run 'fedgram federation keys"),
        (["site", "study/sites/north"], "'fedgram federation keys' writes it"),
        (["site", "study", "--port", "1"], "no site.toml there"),
        (["site", "study/sites/north", "--server", "x"], "'x' is not an address"),
        (["run", "study"], "start it with 'fedgram federation server"),
        (["register", "study"], "start it with 'fedgram federation server"),
        (["run", "study/sites/north"], "create a federation with 'fedgram federation init'"),
        (["simulate", "study/sites/north"], "create a federation with 'fedgram federation init'"),
    ],
)
def test_what_is_missing_is_said_in_one_line(project, command, reason, monkeypatch):
    monkeypatch.chdir(project.folder.parent)
    (project.server / "ca.crt").touch() if command[0] == "run" else None
    done = CliRunner().invoke(main, ["federation", *command])
    assert done.exit_code in (2, 11)
    assert reason in done.stderr
    assert done.stderr.count("\n") == 1


class Told:
    """Stands for the operator, and notes what is asked of it."""

    def __init__(self, project, answers):
        self.project, self.answers, self.gone = project, list(answers), []

    def register(self, site):
        return self.answers.pop(0)

    def unregister(self, node):
        self.gone.append(node)


def test_a_site_reads_its_data_before_it_connects(project):
    site = project.site("north")
    site.root.touch()
    site.key.touch()
    done = CliRunner().invoke(main, ["federation", "site", str(site.folder)])
    assert done.exit_code == 3
    assert "features.npz" in done.stderr
    assert not (site.folder / "logs").exists()


def test_a_new_key_takes_the_place_of_the_old(project):
    site = project.site("north")
    said = []
    site.public_key.write_text("one")
    register(Told(project, [7]), said.append)
    again = Told(project, [None])
    register(again, said.append)
    assert again.gone == []
    site.public_key.write_text("two")
    renewed = Told(project, [8])
    register(renewed, said.append)
    assert renewed.gone == [7]
    lost = Told(project, [9])  # a server that lost its state, and knows no node
    register(lost, said.append)
    assert lost.gone == []
    assert said == [
        "north: registered as node 7",
        "north: registered already",
        "north: registered as node 8",
        "north: registered as node 9",
    ]


def test_a_site_without_a_key_is_named(project):
    with pytest.raises(ConfigError, match=r"node\.pub: missing; the site must send it"):
        register(Told(project, []), print)


def test_a_server_without_keys_is_refused(project, tmp_path):
    with Processes(tmp_path) as processes, pytest.raises(ConfigError, match=r"ca\.crt"):
        start_superlink(project, processes)
