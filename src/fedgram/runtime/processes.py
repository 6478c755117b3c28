"""Find and end processes, also those whose parent is gone.

A process that is started with the environment variable ``FEDGRAM_PROCESSES`` passes it on to its
children. The value of this variable, a random token, identifies all of them, whatever group or
session they are in.

This file is also a program, the watch: it waits until the process that started it has ended in any
way, and then ends the processes that this process has left behind. The watch imports nothing of
fedgram, so that it is running at once.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

import psutil

VARIABLE = "FEDGRAM_PROCESSES"
_POLL = 0.05


def processes_with_token(token: str) -> list[psutil.Process]:
    """Return the processes whose environment has this token."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):  # it has just ended, or belongs to another user
            if process.environ().get(VARIABLE) == token:
                found.append(process)
    return found


def end_processes(
    token: str, leaders: Collection[psutil.Process] = (), *, grace: float = 0.0
) -> None:
    """Terminate processes, and kill those that are left after some time.

    Parameters
    ----------
    token
        Processes with this token in their environment are ended.
    leaders
        Processes that are ended together with their children. They are found even where the system
        hides their environment, as macOS does for its own programs.
    grace
        Seconds between SIGTERM and SIGKILL.
    """
    known = {*leaders, *processes_with_token(token)}
    for leader in leaders:
        with suppress(psutil.Error):
            known.update(leader.children(recursive=True))
    for process in known:
        with suppress(psutil.Error):
            process.terminate()
    until = time.monotonic() + grace
    while any(map(_is_alive, known)) and time.monotonic() < until:
        time.sleep(_POLL)
    until = time.monotonic() + max(grace, 1.0)  # a process inside the kernel may stay longer
    while left := set(filter(_is_alive, {*known, *processes_with_token(token)})):
        for process in left:
            with suppress(psutil.Error):
                process.kill()
        if time.monotonic() > until:
            return
        time.sleep(_POLL)


def kill_children() -> None:
    """Kill all processes that this process has started, and their children."""
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            child.kill()


def start_watch(token: str, *, grace: float) -> subprocess.Popen[bytes]:
    """Start the watch of this process.

    Write a line ``+PID`` to its standard input for each leader that is started, and ``-PID`` for
    each one that has ended. When the input ends, the watch ends the processes that are left.
    """
    return subprocess.Popen(  # noqa: S603 (this file)
        [sys.executable, "-P", __file__, token, str(grace)],
        env={**os.environ, "PYTHONPATH": str(Path(psutil.__file__).parents[1])},
        stdin=subprocess.PIPE,
        start_new_session=True,
    )


def _is_alive(process: psutil.Process) -> bool:
    """Whether a process still runs; a zombie does not."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def main() -> None:
    """Run the watch."""
    leaders: dict[int, psutil.Process] = {}
    for line in sys.stdin:
        pid = int(line[1:])
        leaders.pop(pid, None)
        if line[0] == "+":
            with suppress(psutil.NoSuchProcess):
                leaders[pid] = psutil.Process(pid)
    end_processes(sys.argv[1], leaders.values(), grace=float(sys.argv[2]))


if __name__ == "__main__":
    main()
