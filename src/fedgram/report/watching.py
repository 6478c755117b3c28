"""A page that follows running runs: written again whenever their records have changed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path

from fedgram.errors import DataError
from fedgram.experiments.reader import read_runs, run_folders
from fedgram.experiments.run_record import RunRecord
from fedgram.report.page import page, waiting
from fedgram.runtime import files

PAUSE = 2.0  # seconds between two looks at the records
SHARE = 5  # a page that takes long to write is written less often
Stamp = tuple[tuple[str, int, int], ...]


def follow(
    folders: Sequence[Path],
    out: Path,
    *,
    title: str | None = None,
    pause: Callable[[float], None] = time.sleep,
) -> Iterator[str]:
    """Write the page, and again at every change; yield how far the runs are.

    The page loads itself again in a browser, from the disk: there is no server. It never ends by
    itself, since a study may go on at any time. Runs that cannot be read yet are waited for.

    Parameters
    ----------
    folders
        Of runs, or of a study; they need not exist yet.
    out
        The page.
    title
        Title of the page.
    pause
        Waits for a number of seconds.
    """
    before: Stamp | None = None
    while True:
        begun, stamp = time.monotonic(), _stamp(folders)
        if stamp != before:
            before = stamp
            state, content = _content(folders, title)
            files.write(out, content)
            yield state
        pause(max(PAUSE, SHARE * (time.monotonic() - begun)))


def _content(folders: Sequence[Path], title: str | None) -> tuple[str, str]:
    """Return how far the runs are, and the page."""
    now = datetime.now().astimezone().strftime("%H:%M:%S")
    try:
        runs = read_runs(folders)
    except DataError as error:
        state = "waiting for the first scored round"
        return state, waiting(title or "Federated runs", f"{state}, {now} ({error})")
    state = progress(runs)
    return state, page(runs, title=title, watched=f"{state}; last change {now}")


def progress(runs: Sequence[RunRecord]) -> str:
    """Return how far runs are: the number that have ended, and the rounds of the others.

    Examples
    --------
    >>> progress([])
    '0 of 0 runs have ended'
    """
    running = [run for run in runs if not run.finished]
    state = f"{len(runs) - len(running)} of {len(runs)} runs have ended"
    rounds = (f"{Path(run.method).stem} after round {run.last.round}" for run in running[:3])
    return "; ".join([state, *rounds])


def _stamp(folders: Sequence[Path]) -> Stamp:
    """Return what changes whenever a record does: names, sizes and times of its files."""
    found = []
    for folder in folders:
        for run in run_folders(folder):
            for path in sorted(run.glob("*.json*")):
                try:
                    state = path.stat()
                except OSError:
                    continue  # moved away in this moment
                found.append((str(path), state.st_size, state.st_mtime_ns))
    return tuple(found)
