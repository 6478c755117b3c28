"""Processes are found by their token and by their parents, and ended."""

import os
import secrets
import subprocess
import sys
import time

import psutil
import pytest

from fedgram.runtime import processes
from fedgram.runtime.processes import VARIABLE, end_processes, processes_with_token, start_watch

pytestmark = pytest.mark.skipif(os.name != "posix", reason="starts sleep")
DEADLINE = 60

# A process whose child is in a session of its own; the child says its number, as its environment
# cannot be read for a moment after it was started.
PARENT = """
import subprocess, sys, time
child = "import os, time; print(os.getpid(), flush=True); time.sleep(1000)"
subprocess.Popen([sys.executable, "-c", child], start_new_session=True)
time.sleep(1000)
"""


@pytest.fixture
def token():
    return secrets.token_hex(16)


@pytest.fixture
def parent(token):
    """Start a process with a child; return both."""
    with subprocess.Popen(
        [sys.executable, "-c", PARENT],
        env={**os.environ, VARIABLE: token},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        both = psutil.Process(process.pid), psutil.Process(int(process.stdout.readline()))
        try:
            yield both
        finally:
            for each in both:
                if each.is_running():
                    each.kill()


def alive(process):
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_until_ended(*some):
    until = time.monotonic() + DEADLINE
    while any(map(alive, some)):
        assert time.monotonic() < until
        time.sleep(0.02)


def test_children_are_found_by_the_token_of_their_parent(parent, token):
    assert set(processes_with_token(token)) == set(parent)
    end_processes(token, grace=0.5)
    assert not any(map(alive, parent))


def test_children_are_found_where_the_system_hides_environments(parent, token, monkeypatch):
    monkeypatch.setattr(processes, "processes_with_token", lambda token: [])
    end_processes(token, parent[:1], grace=0.5)
    assert not any(map(alive, parent))


def test_a_leader_that_has_ended_is_no_error(token):
    process = subprocess.Popen(["true"])
    leader = psutil.Process(process.pid)
    process.wait()
    end_processes(token, [leader])


def test_the_exit_code_of_a_child_is_left_to_its_parent(token):
    with subprocess.Popen(["sleep", "1000"]) as process:
        end_processes(token, [psutil.Process(process.pid)], grace=DEADLINE)
        assert process.wait() == -15


def test_the_watch_starts_without_the_packages_of_its_parent(parent, token, tmp_path, monkeypatch):
    """It must run as it is, whatever PYTHONPATH holds."""
    (tmp_path / "sitecustomize.py").write_text("raise SystemExit(1)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with start_watch("another token", grace=0.5) as watch:
        watch.stdin.write(f"+{parent[0].pid}\n".encode())
        watch.stdin.flush()
        assert all(map(alive, parent))
        watch.stdin.close()
        assert watch.wait(DEADLINE) == 0
    wait_until_ended(*parent)


def test_the_watch_spares_what_was_reported_as_ended(parent, token):
    with start_watch("another token", grace=0.5) as watch:
        watch.stdin.write(f"+{parent[0].pid}\n-{parent[0].pid}\n".encode())
        watch.stdin.close()
        assert watch.wait(DEADLINE) == 0
    assert all(map(alive, parent))
