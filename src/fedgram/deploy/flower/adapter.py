"""Everything that fedgram assumes about Flower's programs and is not part of Flower's public API.

Options of commands, texts of answers, words of a status, paths of the HTTP API and one call inside
the SuperLink: all of them can change from version to version. ``constraints.txt`` pins the version
that ``tests/deploy/test_flower_adapter.py`` checks each of them against. This module can be
imported without Flower.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedgram.errors import ConfigError
from fedgram.runtime.parse import json_object
from fedgram.runtime.toml import written

SERVER = "fedgram"  # name of the server in Flower's configuration
FLEET, HEALTH = "/v1/fleet/", "/health"  # paths of the HTTP API that sites use
ERROR_LINE = re.compile(r"^ERROR *: *(?! *Exit Code)(?P<why>.*)$")  # of a log, without colours
COMPLETED = "finished:completed"
_KEY_IN_USE = "already in use"


def program(name: str) -> str:
    """Return the path of one of Flower's programs; this Python environment is searched first."""
    found = shutil.which(name, path=search_path())
    if found is None:
        raise ConfigError(f"{name} is not installed; run: pip install 'fedgram[flower]'")
    return found


def search_path() -> str:
    """Return the folders with programs, that of this Python first."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])


def environment(home: Path) -> dict[str, str]:
    """Return the environment variables of Flower's programs.

    They write to `home` only, send no usage data and install nothing.

    Parameters
    ----------
    home
        Folder for Flower's configuration and for the apps that Flower runs.
    """
    return {
        **os.environ,
        "PATH": search_path(),  # Flower finds its other programs there
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "PYTHONUNBUFFERED": "1",  # output is in the logs at once
    }


def configuration(address: str, root: Path | None) -> str:
    """Return the content of Flower's ``config.toml``; without `root` there is no encryption."""
    security = {"root-certificates": str(root)} if root else {"insecure": True}
    return written({"superlink": {SERVER: {"address": address, **security}}})


def superlink_options(
    *, host: str, port: int, certificates: Path | None = None, database: Path | None = None
) -> list[str]:
    """Return the options of ``flower-superlink``.

    Parameters
    ----------
    host, port
        Address to listen on.
    certificates
        Folder with ca.crt, server.pem and server.key, for TLS and sites that prove their keys;
        without it, a simulation without encryption.
    database
        File for the state of the SuperLink.
    """
    options = ["--host", host, "--port", str(port)]
    if certificates is None:
        options += ["--insecure", "--simulation"]
    else:
        options += ["--enable-supernode-auth"]
        options += ["--ssl-ca-certfile", str(certificates / "ca.crt")]
        options += ["--ssl-certfile", str(certificates / "server.pem")]
        options += ["--ssl-keyfile", str(certificates / "server.key")]
    return [*options, *(("--database", str(database)) if database else ())]


def supernode_options(
    *, server: str, root: Path, key: Path, port: int, settings: Path
) -> list[str]:
    """Return the options of ``flower-supernode``.

    Parameters
    ----------
    server
        Address of the server.
    root
        Certificate of the authority that signed the server's certificate.
    key
        The site's private key.
    port
        Port for the site's own processes.
    settings
        The site's ``site.toml``.
    """
    return [
        *("--superlink", server),
        *("--root-certificates", str(root)),
        *("--auth-supernode-private-key", str(key)),
        *("--port", str(port)),
        *("--node-config", f"site={quoted(settings)}"),
    ]


def quoted(path: Path) -> str:
    """Return a path as a value in the ``key=value`` options of Flower's command line."""
    text = str(path)
    if "'" in text or not text.isprintable():
        raise ConfigError(f"{text}: Flower does not accept this path; rename the folder")
    return f"'{text}'"


def read_answer(output: str) -> dict[str, Any]:
    r"""Return the JSON object that ``flwr ... --format json`` prints, possibly after warnings.

    Raises ValueError if there is none.

    Examples
    --------
    >>> read_answer('A new version is there.\n{"success": true}')
    {'success': True}
    """
    return json_object(output[output.index("{") :])


def error_message(answer: Mapping[str, Any]) -> str:
    """Return the reason why a command failed, in one line."""
    return " ".join(str(answer.get("error-message", "no reason given")).split())


def is_registered_already(answer: Mapping[str, Any]) -> bool:
    """Whether a command failed because the server has this public key already."""
    return _KEY_IN_USE in error_message(answer).lower()


def run_status(answer: Mapping[str, Any]) -> str:
    """Return the status of the first run in the answer of ``flwr list``."""
    runs = answer.get("runs") or [{}]
    return str(runs[0].get("status", "finished:unknown"))


def is_finished(status: str) -> bool:
    """Whether a run with this status has ended."""
    return status.startswith("finished")


def run_superlink(wrap: Callable[[Any], Any]) -> None:
    """Run ``flower-superlink`` with the arguments of this process, and `wrap` around its ASGI app.

    The SuperLink has no option for this. It calls ``uvicorn.run(app=...)``, which is replaced.
    """
    import uvicorn
    from flwr.superlink.cli import flower_superlink

    run = uvicorn.run

    def run_wrapped(*, app: Any, **settings: Any) -> None:
        run(app=wrap(app), **settings)

    uvicorn.run = run_wrapped
    flower_superlink()
