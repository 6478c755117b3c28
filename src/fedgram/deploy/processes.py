"""Child processes that end with this process, however this process ends."""

from __future__ import annotations

import os
import re
import secrets
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

import psutil

from fedgram.deploy.flower.adapter import ERROR_LINE
from fedgram.errors import ConfigError, FederationError
from fedgram.runtime import files
from fedgram.runtime.processes import VARIABLE, end_processes, start_watch

_GRACE = 10.0  # seconds between SIGTERM and SIGKILL
_POLL = 0.2
# Below the ports that systems use for outgoing connections: such a connection could take a port
# before the program that needs it.
_PORTS = range(20000, 32768)
# Lines of a log that give the reason why a process ended, the most specific first.
_REASONS = (
    re.compile(r"^[\w.]*(?:Error|Exception)(?:: (?P<why>.*))?$"),
    ERROR_LINE,
    re.compile(r"[Ee]rror: (?P<why>.*)$"),
)
_TAIL = 100_000  # bytes at the end of a log that are searched for a reason
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True, kw_only=True)
class Child:
    """A process, and its log file from the byte `start` on."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    start: int
    stays: bool

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    def failure(self) -> FederationError:
        """Return the error to raise if the process should not have ended."""
        why = reason(self.log, self.start)
        return FederationError(
            f"{self.name} ended with code {self.process.poll()}{why and f' ({why})'}; "
            f"see {self.log}"
        )


class Processes:
    """Start processes, and end all of them when the block ends or this process dies.

    Parameters
    ----------
    logs
        Folder for the files NAME.log, one for each process.
    grace
        Seconds between SIGTERM and SIGKILL.

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

    def __init__(self, logs: Path, *, grace: float = _GRACE) -> None:
        if os.name != "posix":
            raise ConfigError("a federation runs on Linux and macOS only")
        self._logs = logs
        self._grace = grace
        self._token = secrets.token_hex(16)
        self._children: list[Child] = []
        self._handlers: dict[int, Callable[[int, FrameType | None], object] | int | None] = {}
        self._watch: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Processes:
        with suppress(ValueError):  # not the main thread, where signals are handled
            for number in (signal.SIGTERM, signal.SIGHUP):
                self._handlers[number] = signal.signal(number, _leave)
        self._watch = start_watch(self._token, grace=self._grace)
        return self

    def __exit__(self, *_: object) -> None:
        with _signals_ignored():
            self.stop()
            if self._watch is not None and self._watch.stdin is not None:
                with suppress(OSError):  # the watch may have been killed
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
        """Start a process in its own session; its output is appended to its log.

        Parameters
        ----------
        name
            Name of the process and of its log.
        command
            Program and arguments.
        environment
            Environment variables; by default those of this process.
        stays
            Whether it is an error if the process ends.
        """
        log = self._logs / f"{name}.log"
        try:
            files.write_folder(self._logs)
            file = files.append(log)
        except OSError as error:
            raise files.cannot_write(log, error) from error
        with file:
            file.write(f"--- {datetime.now(UTC):%Y-%m-%d %H:%M:%S} {' '.join(command)}\n".encode())
            file.flush()
            start = file.tell()
            process = subprocess.Popen(
                command,
                env={**(environment or os.environ), VARIABLE: self._token},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                umask=0o077,  # what Flower's programs and a site write is for the owner only
            )
        child = Child(name=name, process=process, log=log, start=start, stays=stays)
        self._children.append(child)
        self._report("+", child)
        return child

    def require_alive(self) -> None:
        """Raise FederationError if a process has ended that should stay."""
        for child in self._children:
            if child.stays and child.ended:
                raise child.failure()

    def wait_until(self, ready: Callable[[], bool], *, seconds: float, what: str) -> None:
        """Wait for a condition; raise FederationError if a process ends, or at the time limit.

        Parameters
        ----------
        ready
            The condition, called several times a second.
        seconds
            Time limit.
        what
            Name of the condition in the error, such as "the start of the server".
        """
        until = time.monotonic() + seconds
        while not ready():
            self.require_alive()
            if time.monotonic() > until:
                raise FederationError(f"{what} took more than {seconds:g} s; see {self._logs}")
            time.sleep(_POLL)

    def stop(self) -> None:
        """End all processes; the first one last, because it may be the server of the others."""
        for some in (self._children[1:], self._children[:1]):
            for child in some:
                if not child.ended:
                    child.process.terminate()
            until = time.monotonic() + self._grace
            while time.monotonic() < until and not all(child.ended for child in some):
                time.sleep(_POLL / 4)
        left = [psutil.Process(child.process.pid) for child in self._children if not child.ended]
        end_processes(self._token, left, grace=self._grace / 5)  # they had their time already
        for child in self._children:
            child.process.wait()
            self._report("-", child)
        self._children.clear()

    def _report(self, sign: str, child: Child) -> None:
        """Report to the watch that a process has started ("+") or ended ("-")."""
        if self._watch is not None and self._watch.stdin is not None:
            with suppress(OSError):
                self._watch.stdin.write(f"{sign}{child.process.pid}\n".encode())
                self._watch.stdin.flush()


def follow(child: Child, *, meanwhile: Callable[[], None] | None = None) -> Iterator[str]:
    """Yield the lines that a process writes to its log, until it ends.

    Parameters
    ----------
    child
        The process.
    meanwhile
        Called several times a second, also while there is no output.
    """
    begun = b""
    with child.log.open("rb") as file:
        file.seek(child.start)
        while True:
            ended = child.ended  # checked first: output may come between the two lines
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
    """Return the reason why a process ended, from its log; empty if the log gives none."""
    try:
        with log.open("rb") as file:
            file.seek(max(start, log.stat().st_size - _TAIL))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    lines = [_COLOURS.sub("", line).strip() for line in text.splitlines()]
    for pattern in _REASONS:
        matches = [match for line in lines if (match := pattern.search(line))]
        if matches:
            return (matches[-1]["why"] or matches[-1][0])[:300]
    return ""


def free_ports(count: int) -> list[int]:
    """Return a number of free ports of this machine.

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
    raise FederationError(f"fewer than {count} ports are free in {_PORTS[0]}-{_PORTS[-1]}")


@contextmanager
def _signals_ignored() -> Iterator[None]:
    """Ignore signals while processes are ended, which takes a few seconds at most."""
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
