"""End the processes of a parent that died.

`fedgram.deploy.processes` starts this file as a program of its own, with nothing but Python's
library, and tells it which processes there are. When the parent ends in whatever way, the pipe
between them closes, and what is left is ended: first asked to, then killed. Processes are also
known by a word in their environment, for Flower's own children leave their parent's group.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

VARIABLE = "FEDGRAM_PROCESSES"
GRACE = 10.0  # seconds to end by themselves
_POLL = 0.05


def processes_with_token(token: str) -> list[int]:
    """Return the processes whose environment has this word; none where there is no /proc."""
    mark = f"{VARIABLE}={token}".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):  # it ended meanwhile, or is somebody else's
            if mark in entry.read_bytes().split(b"\0"):
                found.append(int(entry.parent.name))
    return found


def end(leaders: Iterable[int], token: str, *, grace: float) -> None:
    """Ask the leaders to end, wait, and kill whatever is left of all that have the word.

    Parameters
    ----------
    leaders
        Processes that head a group of their own.
    token
        The word that they and their children have.
    grace
        Seconds between asking and killing.
    """
    leaders = list(leaders)
    for pid in leaders:
        _signal_group(pid, signal.SIGTERM)
    until = time.monotonic() + grace
    while time.monotonic() < until and (_alive(leaders) or processes_with_token(token)):
        time.sleep(_POLL)
    for pid in leaders:
        _signal_group(pid, signal.SIGKILL)
    until = time.monotonic() + grace  # bounded: one in the kernel's hands cannot be killed
    while (left := processes_with_token(token)) and time.monotonic() < until:
        for pid in left:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_POLL)


def _signal_group(pid: int, number: int) -> None:
    with suppress(OSError):
        os.killpg(pid, number)


def _alive(leaders: Iterable[int]) -> bool:
    for pid in leaders:
        with suppress(OSError):
            os.killpg(pid, 0)
            return True
    return False


def main() -> None:
    """Note who starts (+pid) and who has ended (-pid), and end the rest when nobody tells more."""
    alive: set[int] = set()
    for line in sys.stdin:
        pid = int(line[1:])
        alive = alive | {pid} if line[0] == "+" else alive - {pid}
    end(alive, token=sys.argv[1], grace=float(sys.argv[2]))


if __name__ == "__main__":
    main()
