"""Hostile inputs read in a forked process with little memory and processor time."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import io
import json
import os
import random
import resource
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from fedgram.errors import FedgramError

from .readers import Prepared, Reader

MEMORY = 1 << 29  # bytes that a reader may take beyond those of the process
SECONDS = 10.0  # of the processor, for one small input
HANGS = 300  # seconds after which a process that waits for nothing is ended
MOST_FINDINGS = 20
QUICK = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # a folder in memory


class TooLong(BaseException):
    """An input has taken more processor time than any small input may."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """An input on which a reader fails otherwise than by an error of fedgram."""

    number: int
    problem: str
    trace: str
    data: str

    def __str__(self) -> str:
        return f"input {self.number}: {self.problem}\n{self.trace}\n{self.data[:2000]}"


def inputs(name: str, reader: Reader, corpus: Prepared, seed: int, numbers: Iterable[int]):
    """Yield the number and the bytes of each input; the number and the seed give it again."""
    for number in numbers:
        yield number, reader.mutate(random.Random(f"{seed} {name} {number}"), corpus[1])


def fuzz(name: str, reader: Reader, *, seed: int, numbers: range) -> list[Finding]:
    """Return the findings of a reader among these inputs.

    Parameters
    ----------
    name
        Name of the reader.
    reader
        The reader.
    seed
        Seed of all inputs.
    numbers
        Numbers of the inputs to try.
    """
    return forked(lambda read: _tried(name, reader, read, seed, numbers), name, reader)


def forked(tried, name: str, reader: Reader) -> list[Finding]:
    """Prepare a reader, and return the findings of `tried` on it, in a process with limits."""
    with tempfile.TemporaryFile() as said, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # forks of a process with threads
        sys.stdout.flush()
        child = os.fork()
        if not child:
            gc.freeze()  # what other tests left, sessions with threads that are not here among it
            _work(tried, reader, said.fileno())
        _, status = os.waitpid(child, 0)
        said.seek(0)
        lines = said.read().decode().splitlines()
    findings = [Finding(**json.loads(line)) for line in lines if line.startswith("{")]
    last = [line for line in lines if not line.startswith("{")][-1:]
    if os.waitstatus_to_exitcode(status) or last != ["done"]:
        problem = f"{name}: the process ended with {os.waitstatus_to_exitcode(status)} after {last}"
        findings.append(Finding(number=-1, problem=problem, trace="", data=""))
    return findings


def _work(tried, reader: Reader, out: int) -> None:
    """Write findings to a file, then end the process; nothing of it goes back to the tests."""
    code = 1
    try:
        os.environ.pop("FEDGRAM_DATA", None)
        with (
            tempfile.TemporaryDirectory(dir=QUICK) as folder,
            contextlib.redirect_stdout(io.StringIO()),
        ):
            os.chdir(folder)
            prepared = reader.prepare(Path(folder))
            prepared[0](prepared[1][0])  # is read; what is slow at first is done
            for data in prepared[1]:
                with contextlib.suppress(FedgramError):
                    prepared[0](data)
            _limit()
            for finding in tried(prepared):
                text = finding if isinstance(finding, str) else json.dumps(asdict(finding))
                os.write(out, f"{text}\n".encode())
            os.write(out, b"done\n")
        code = 0
    except BaseException:
        os.write(out, f"failed {traceback.format_exc()[-1500:]}".replace("\n", " ").encode())
    finally:
        os._exit(code)


def _limit() -> None:
    warnings.simplefilter("ignore")
    faulthandler.disable()  # the tests say how the process ended
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGPROF, _too_long)


def _too_long(*_: object) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (1, 1))  # if C does not give way, the process ends
    raise TooLong


def _tried(name: str, reader: Reader, prepared: Prepared, seed: int, numbers: range):
    found: set[str] = set()
    for number, data in inputs(name, reader, prepared, seed, numbers):
        if number % 256 == 0:
            yield f"at {number}"
        finding = attempt(prepared[0], number, data)
        if finding is not None and finding.problem not in found and len(found) < MOST_FINDINGS:
            found.add(finding.problem)
            yield finding


def attempt(read, number: int, data: bytes) -> Finding | None:
    """Return what is wrong with reading these bytes; None if they are read or refused."""
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    signal.alarm(HANGS)
    try:
        read(data)
    except FedgramError:
        return None
    except (Exception, TooLong) as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(last.filename).name}:{last.lineno}"
        problem = f"{type(error).__name__} at {where}: {str(error)[:200]}"
        lines = traceback.format_tb(error.__traceback__)[-6:]
        return Finding(number=number, problem=problem, trace="".join(lines), data=repr(data))
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)
    return None
