"""A server that is killed at any of its writes: a process that forks one for each line it reads.

Run as a script. A line says at which event to kill, and the folder of the federation. Events are
files that are opened for writing, renamed or removed, the folders that are made or removed, and the
statements of ledgers; the kill comes before the one of that number, or never at 0. Said on standard
output is ``killed``, ``done`` or ``failed``, and how many events there were. Careless servers write
files in two parts: a planted mistake.
"""

import os
import signal
import sys
import traceback
from pathlib import Path

from remote_support import StandIn, offices

from fedgram.deploy.server import run_federation
from fedgram.deploy.settings import read_federation
from fedgram.ledger import store
from fedgram.runtime import files

EVENTS = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate"}


class Clock:
    """Counts what touches the disk, and kills this process when it is time."""

    def __init__(self, folder: Path, end: int) -> None:
        self.count = 0
        self._folder, self._end = str(folder), end

    def tick(self) -> None:
        self.count += 1
        if self.count == self._end:
            os.kill(os.getpid(), signal.SIGKILL)

    def audit(self, event: str, arguments: tuple) -> None:
        writes = event == "open" and str(arguments[1])[:1] in ("w", "a", "x")
        # What removes a tree names what is in it without the folder.
        within = event in ("os.rmdir", "os.remove") or str(arguments[0]).startswith(self._folder)
        if within and (writes or event in EVENTS):
            self.tick()

    def careless(self, path: Path, data: bytes | str, *, private: bool = False) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        content = data.encode() if isinstance(data, str) else data
        path.write_bytes(content[: len(content) // 2])
        self.tick()
        path.write_bytes(content)

    def start(self, *, careless: bool) -> None:
        if careless:
            files.write = self.careless
        connect = store._connect

        def traced(path):
            db = connect(path)
            db.set_trace_callback(lambda _: self.tick())  # before each statement
            return db

        store._connect = traced
        sys.addaudithook(self.audit)


def work(folder: Path, end: int, *, careless: bool) -> None:
    """Serve in this process, to the end or until it is killed."""
    clock = Clock(folder, end)
    try:
        config, _ = read_federation(folder / "server" / "federation.toml")
        there = offices(config, folder / "sites")
        clock.start(careless=careless)
        run_federation(StandIn(there), folder / "server", lambda text: None)
        said = "done"
    except BaseException:
        traceback.print_exc()
        said = "failed"
    os.write(1, f"{said} {clock.count}\n".encode())
    os._exit(0)


def main() -> None:
    for line in sys.stdin:
        end, folder = line.rstrip("\n").split(" ", 1)
        child = os.fork()
        if not child:
            work(Path(folder), int(end), careless="careless" in sys.argv)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            os.write(1, b"killed 0\n")


if __name__ == "__main__":
    main()
