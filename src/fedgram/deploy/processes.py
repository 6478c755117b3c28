"""Processes that end when this one does, however it ends."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

from fedgram.deploy import process_watch
from fedgram.errors import ConfigError, FederationError
from fedgram.runtime.files import cannot_write

_POLL = 0.2
# Below the ports that systems give to outgoing connections, which could take one meanwhile.
_PORTS = range(20000, 32768)
# What the line of a log that tells why a process ended looks like, the best first.
_TELLING = (
    re.compile(r"^[\w.]*(?:Error|Exception)(?:: (?P<why>.*))?$"),
    re.compile(r"^ERROR *: *(?! *Exit Code)(?P<why>.*)$"),
    re.compile(r"[Ee]rror: (?P<why>.*)$"),
)
_TAIL = 100_000  # bytes of a log that are searched for one
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True, kw_only=True)
class Child:
    """A process that was started, and the file that has what it says, from a byte on."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    start: int
    stays: bool

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    def failure(self) -> FederationError:
        """Return the error to raise where it ended and should not have."""
        why = reason(self.log, self.start)
        return FederationError(
            f"{self.name} ended with code {self.process.poll()}{why and f' ({why})'}; "
            f"see {self.log}"
        )


class Processes:
    """Start processes, and end them all when the block is left or this process dies.

    Parameters
    ----------
    logs
        Folder with a file NAME.log for each of them.
    grace
        Seconds that they have to end by themselves.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, Processes(Path(folder)) as processes:
    ...     child = processes.start("sleeper", ["sleep", "60"])
    ...     child.ended
    False
    >>> child.ended
    True
    """

    def __init__(self, logs: Path, *, grace: float = process_watch.GRACE) -> None:
        if os.name != "posix":
            raise ConfigError("a federation's processes are run on Linux and macOS only")
        self._logs = logs
        self._grace = grace
        self._token = secrets.token_hex(16)
        self._children: list[Child] = []
        self._handlers: dict[int, Callable[[int, FrameType | None], object] | int | None] = {}
        self._watch: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Processes:
        with suppress(ValueError):  # not the main thread: signals are somebody else's business
            for number in (signal.SIGTERM, signal.SIGHUP):
                self._handlers[number] = signal.signal(number, _leave)
        command = [sys.executable, "-I", process_watch.__file__, self._token, str(self._grace)]
        self._watch = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        return self

    def __exit__(self, *_: object) -> None:
        with _undisturbed():
            self.stop()
            if self._watch is not None and self._watch.stdin is not None:
                self._watch.stdin.close()
                self._watch.wait()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def start(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
        *,
        stays: bool = True,
    ) -> Child:
        """Start a process in a group of its own; what it says is added to its log.

        Parameters
        ----------
        name
            Of the process and its log.
        command
            The program and its arguments.
        environment
            Its own; by default this process's.
        stays
            Whether its end is a failure.
        """
        log = self._logs / f"{name}.log"
        try:
            self._logs.mkdir(parents=True, exist_ok=True)
            file = log.open("ab")
        except OSError as error:
            raise cannot_write(log, error) from error
        with file:
            file.write(f"--- {datetime.now(UTC):%Y-%m-%d %H:%M:%S} {' '.join(command)}\n".encode())
            file.flush()
            start = file.tell()
            process = subprocess.Popen(
                command,
                env={**(environment or os.environ), process_watch.VARIABLE: self._token},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        child = Child(name=name, process=process, log=log, start=start, stays=stays)
        self._children.append(child)
        self._tell("+", child)
        return child

    def require_alive(self) -> None:
        """Raise if one that was to stay has ended."""
        for child in self._children:
            if child.stays and child.ended:
                raise child.failure()

    def wait_until(self, ready: Callable[[], bool], *, seconds: float, what: str) -> None:
        """Wait for something that the processes do; raise if one ends, or if it takes too long."""
        until = time.monotonic() + seconds
        while not ready():
            self.require_alive()
            if time.monotonic() > until:
                raise FederationError(f"{what} took more than {seconds:g} s; see {self._logs}")
            time.sleep(_POLL)

    def stop(self) -> None:
        """End all of them: first those that were started after the first, which serves them."""
        for some in (self._children[1:], self._children[:1]):
            for child in some:
                if not child.ended:
                    child.process.terminate()
            until = time.monotonic() + self._grace
            while time.monotonic() < until and not all(child.ended for child in some):
                time.sleep(_POLL / 4)
        left = [child.process.pid for child in self._children if not child.ended]
        process_watch.end(left, self._token, grace=self._grace / 5)  # it was asked already
        for child in self._children:
            child.process.wait()
            self._tell("-", child)
        self._children.clear()

    def _tell(self, sign: str, child: Child) -> None:
        """Tell the watch who is there, in case that this process dies."""
        if self._watch is not None and self._watch.stdin is not None:
            with suppress(OSError):
                self._watch.stdin.write(f"{sign}{child.process.pid}\n".encode())
                self._watch.stdin.flush()


def follow(child: Child, *, meanwhile: Callable[[], None] | None = None) -> Iterator[str]:
    """Yield what a process says, line by line, until it ends.

    Parameters
    ----------
    child
        The process.
    meanwhile
        Called now and then, also while it says nothing.
    """
    begun = b""
    with child.log.open("rb") as file:
        file.seek(child.start)
        while True:
            ended = child.ended  # before its last words are read
            *lines, begun = (begun + file.read()).split(b"\n")
            yield from (line.decode(errors="replace") for line in lines)
            if ended:
                break
            if meanwhile is not None:
                meanwhile()
            time.sleep(_POLL)
    if begun:
        yield begun.decode(errors="replace")


def reason(log: Path, start: int = 0) -> str:
    """Return what a log tells of why its process ended, in a line; nothing where it does not."""
    try:
        with log.open("rb") as file:
            file.seek(max(start, log.stat().st_size - _TAIL))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    lines = [_COLOURS.sub("", line).strip() for line in text.splitlines()]
    for pattern in _TELLING:
        told = [found for line in lines if (found := pattern.search(line))]
        if told:
            return (told[-1]["why"] or told[-1][0])[:300]
    return ""


def free_ports(count: int) -> list[int]:
    """Return so many ports of this machine that nobody listens on.

    Examples
    --------
    >>> len(set(free_ports(3)))
    3
    """
    found: list[int] = []
    for port in secrets.SystemRandom().sample(_PORTS, len(_PORTS)):
        if len(found) == count:
            return found
        with socket.socket() as listening, suppress(OSError):
            listening.bind(("127.0.0.1", port))
            found.append(port)
    raise FederationError(f"this machine has no {count} free ports in {_PORTS[0]}-{_PORTS[-1]}")


def program(name: str) -> str:
    """Return the path of one of Flower's programs, this environment's first."""
    found = shutil.which(name, path=search_path())
    if found is None:
        raise ConfigError(f"{name} is not installed; it needs: pip install 'fedgram[flower]'")
    return found


def search_path() -> str:
    """Return where programs are looked for: beside this Python first."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])


def environment(home: Path) -> dict[str, str]:
    """Return the environment of Flower's programs: they touch nothing outside, and call nobody.

    Parameters
    ----------
    home
        Where Flower keeps its configuration and the apps that it runs.
    """
    return {
        **os.environ,
        "PATH": search_path(),  # Flower looks there for its other programs
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",  # what is installed is what runs
        "RAY_USAGE_STATS_ENABLED": "0",  # what simulates calls nobody either
        "PYTHONUNBUFFERED": "1",  # logs say at once what happens
    }


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Let no second interruption keep processes from being ended; it takes seconds at most."""
    old = {}
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            old[number] = signal.signal(number, signal.SIG_IGN)
    except ValueError:  # not the main thread
        pass
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def _leave(number: int, _: FrameType | None) -> None:
    raise SystemExit(128 + number)
