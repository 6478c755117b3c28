"""Search the folder of a server for messages of sites that were forgotten."""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterator
from pathlib import Path

from fedgram.core.compression import client_label

_NEAR = 200  # bytes before and after a name, in which the kind of a message stands
# A site that was forgotten may still try to connect.
_HARMLESS = (rb"\"$\":\"Greeting\"", rb"\"$\":\"Refusal\"")


def residue(folder: Path, clients: list[str]) -> list[tuple[str, Path]]:
    """Return the clients whose messages are in files of a folder, with the files.

    A message, a contribution and an entry of a replay log begin with the name of the site, also
    compressed ones. They are
    found in files of any kind, also in free pages and logs of databases, and in unfinished files.

    Parameters
    ----------
    folder
        Folder of the server.
    clients
        Names of the clients that were forgotten.
    """
    found = []
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        for client in clients:
            if any(_traces(path, client)):
                found.append((client, path))
    return found


def _traces(path: Path, client: str) -> Iterator[bool]:
    """Yield True for each message of a client in a file."""
    names = [client_label(client, key) for key in ("client", "name")]
    pattern = re.compile(b"|".join(map(re.escape, names)))
    with path.open("rb") as file:
        if not path.stat().st_size:  # nothing to map
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            for match in pattern.finditer(data):
                near = data[max(0, match.start() - _NEAR) : match.end() + _NEAR]
                if not any(kind in near for kind in _HARMLESS):
                    yield True
