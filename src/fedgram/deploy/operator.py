"""Run a federation: the server, its sites, and what is asked of them, by Flower's programs."""

from __future__ import annotations

import hashlib
import json
import ssl
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any

from fedgram.data.partition import partition
from fedgram.data.sources import load_dataset as load_data
from fedgram.deploy.folders import Address, Project, SiteFolder
from fedgram.deploy.processes import (
    Child,
    Processes,
    environment,
    follow,
    free_ports,
    program,
    reason,
)
from fedgram.deploy.settings import NODES, found, read_federation
from fedgram.errors import ConfigError, FederationError
from fedgram.experiments.record import read_object
from fedgram.runtime import files
from fedgram.runtime.toml import written

SERVER = "fedgram"  # how Flower's own configuration calls it
READY = 300.0  # seconds that a server may take to answer
Say = Callable[[str], None]


class Operator:
    """Who starts runs on a server, from the server's own machine.

    Parameters
    ----------
    project
        Whose federation it is.
    processes
        Where Flower's programs are started.
    root
        The server's authority; None where it does without encryption.
    address
        Where this machine reaches the server.
    folder
        Of the server: its settings, its ledgers and its runs.
    """

    def __init__(
        self,
        project: Project,
        processes: Processes,
        *,
        root: Path | None,
        address: Address,
        folder: Path,
    ) -> None:
        self.project = project
        self._folder = folder
        self._processes = processes
        self._root = root
        self._address = address
        self._home = project.home / ("server" if root else "simulation")
        self._environment = environment(self._home)
        secured = {"root-certificates": str(root)} if root else {"insecure": True}
        connection = {SERVER: {"address": str(address), **secured}}
        files.write(self._home / "config.toml", written({"superlink": connection}))

    def is_up(self) -> bool:
        """Whether the server answers."""
        return answers(self._address, self._root)

    def require_up(self) -> None:
        """Raise if the server does not answer."""
        if not self.is_up():
            raise FederationError(
                f"no server answers at {self._address}; start it with 'fedgram federation server "
                f"{self.project.folder}'"
            )

    def ask(self, name: str, *arguments: str) -> dict[str, Any]:
        """Return what Flower's command line answers."""
        child = self._start(name, *arguments, "--format", "json")
        said = "\n".join(follow(child))
        try:
            return dict(json.loads(said[said.index("{") :]))  # after warnings, if there are any
        except ValueError:
            raise child.failure() from None

    def register(self, site: SiteFolder) -> int | None:
        """Tell the server a site's public key; return the node's number, None if it is known."""
        command = ("supernode", "register", str(site.public_key), SERVER, "--name", site.name)
        answer = self.ask("register", *command)
        if answer.get("success"):
            return int(answer["node-id"])
        if "already in use" in str(answer.get("error-message", "")).lower():
            return None
        raise FederationError(f"{site.name}: cannot be registered ({_told(answer)})")

    def unregister(self, node: int) -> None:
        """Tell the server that a node's key is not to be used any more."""
        answer = self.ask("register", "supernode", "unregister", str(node), SERVER)
        if not answer.get("success"):
            raise FederationError(f"node {node}: cannot be unregistered ({_told(answer)})")

    def run(self, say: Say, *options: str) -> None:
        """Start a run, say what it says until its end, and raise if it failed."""
        read_federation(self._folder / "federation.toml")  # what is wrong with it is said here
        server = f"server={quoted(self._folder)}"
        started = self.ask("run", "run", str(self.project.app), SERVER, "-c", server, *options)
        if not started.get("success"):
            raise FederationError(f"the run was not started: {_told(started)}")
        number, log = str(started["run-id"]), self.project.logs / "run.log"
        start = log.stat().st_size
        try:
            status = self._followed(number, say)
        except BaseException:
            with suppress(FederationError):  # what was raised says more
                self.ask("run", "stop", number, SERVER)
            raise
        if status != "finished:completed":
            raise FederationError(f"the run failed ({reason(log, start) or status}); see {log}")

    def _followed(self, number: str, say: Say) -> str:
        """Say what a run says, and return how it ended."""
        while True:  # should the connection break, what was said is said again
            stream = self._start("run", "log", number, SERVER, "--stream")
            for line in follow(stream, meanwhile=self._processes.require_alive):
                say(line)
            found = self.ask("list", "list", SERVER, "--run-id", number).get("runs") or [{}]
            status = str(found[0].get("status", "finished:unknown"))
            if status.startswith("finished"):
                return status
            time.sleep(1)

    def _start(self, name: str, *arguments: str) -> Child:
        command = [program("flwr"), *arguments]
        return self._processes.start(name, command, self._environment, stays=False)


def start_superlink(project: Project, processes: Processes) -> Child:
    """Start the server, and return when it answers."""
    for name in ("ca.crt", "server.pem", "server.key"):
        if not (project.server / name).is_file():
            raise ConfigError(
                f"{project.server / name}: is not there; run 'fedgram federation keys "
                f"{project.folder}'"
            )
    operator = operator_of(project, processes)
    if operator.is_up():
        raise FederationError(f"{project.address}: a server answers there already; stop it first")
    v6 = ":" in project.address.host
    anywhere = "::" if v6 else "0.0.0.0"  # noqa: S104 (sites come from outside)
    program("flower-superlink")  # which the gate stands before
    command = [
        *(sys.executable, "-m", "fedgram.deploy.flower.gate", "--enable-supernode-auth"),
        *("--host", local(project.address).host if project.address.is_here else anywhere),
        *("--port", str(project.address.port)),
        *("--ssl-ca-certfile", str(project.server / "ca.crt")),
        *("--ssl-certfile", str(project.server / "server.pem")),
        *("--ssl-keyfile", str(project.server / "server.key")),
        *("--database", str(project.server / "state.db")),
    ]
    # Whose word is taken for where a request comes from: a proxy's on this machine, no other's.
    trust = {"FORWARDED_ALLOW_IPS": "127.0.0.1"}
    home = project.home / "server"
    child = processes.start("server", command, environment(home) | trust)
    processes.wait_until(operator.is_up, seconds=READY, what="the start of the server")
    return child


def operator_of(project: Project, processes: Processes) -> Operator:
    """Return who asks things of the server that runs on this machine."""
    root, address = project.server / "ca.crt", local(project.address)
    return Operator(project, processes, root=root, address=address, folder=project.server)


def start_site(
    site: SiteFolder, processes: Processes, *, server: Address | None = None, port: int = 0
) -> Child:
    """Start a site's process, which connects to the server and stays."""
    require_keys(site)
    command = [
        *(program("flower-supernode"), "--superlink", str(server or site.server)),
        *("--root-certificates", str(site.root)),
        *("--auth-supernode-private-key", str(site.key)),
        *("--port", str(port or free_ports(1)[0])),
        *("--node-config", f"site={quoted(site.settings)}"),
    ]
    return processes.start(site.name, command, environment(site.folder / ".flwr"))


def require_keys(site: SiteFolder) -> None:
    """Raise if a site lacks what it needs to know the server, or to be known."""
    for path in (site.root, site.key):
        if not path.is_file():
            raise ConfigError(
                f"{path}: is not there; the server's folder has it after 'fedgram federation keys'"
            )


def register(operator: Operator, say: Say) -> None:
    """Tell the server every site's public key; a site's old key is not to be used any more.

    Which node is which site is noted in ``nodes.json``, beside the server's settings.
    """
    path = operator.project.server / NODES
    nodes: dict[str, Any] = read_object(path) if path.exists() else {}
    for site in operator.project.sites:
        if not site.public_key.is_file():
            raise ConfigError(
                f"{site.public_key}: is not there; the site must send it, or run 'fedgram "
                f"federation keys {operator.project.folder}'"
            )
        node = operator.register(site)
        if node is None:
            say(f"{site.name}: registered already")
            continue
        old = nodes.get(site.name, {}).get("node")
        digest = hashlib.sha256(site.public_key.read_bytes()).hexdigest()
        if old is not None and nodes[site.name]["key"] != digest:
            operator.unregister(old)
        nodes[site.name] = {"node": node, "key": digest}
        files.write(path, json.dumps(nodes, indent=2) + "\n")
        say(f"{site.name}: registered as node {node}")


def simulate(project: Project, processes: Processes, say: Say, *, cpus: float = 1) -> Path:
    """Run a federation on this machine alone, with the data that the server's settings name.

    Return the folder that takes the place of the server's, so that the ledgers of the real
    federation know nothing of it.
    """
    folder = project.new_simulation()
    clients = _simulated(project, folder)
    (port,) = free_ports(1)
    address = Address(host="127.0.0.1", port=port)
    operator = Operator(project, processes, root=None, address=address, folder=folder)
    command = [
        *(program("flower-superlink"), "--insecure", "--simulation"),
        *("--host", address.host, "--port", str(port)),
    ]
    processes.start("simulation", command, environment(project.home / "simulation"))
    processes.wait_until(operator.is_up, seconds=READY, what="the start of the simulation")
    sizes = f"num-supernodes={clients} client-resources-num-cpus={cpus:g}"
    operator.run(say, "--federation-config", sizes)
    return folder


def _simulated(project: Project, folder: Path) -> int:
    """Write the settings of a simulation, where sites go by other names; return how many."""
    config, rules = read_federation(project.settings)
    name = found(config.data.source, project.server)
    clients = sum(not share.holdout for share in partition(load_data(name), config.data))
    settings = config.to_dict()
    settings["data"]["source"] = str(Path(name).resolve()) if Path(name).exists() else name
    settings["federation"] = {**asdict(rules), "sites": [], "minimum": clients}
    files.write(folder / "federation.toml", written(settings))
    return clients


def answers(address: Address, root: Path | None) -> bool:
    """Whether a server answers at an address."""
    try:
        if root is None:
            connection = HTTPConnection(address.host, address.port, timeout=5)
        else:
            context = ssl.create_default_context(cafile=str(root))
            connection = HTTPSConnection(address.host, address.port, timeout=5, context=context)
        try:
            connection.request("GET", "/health")
            answer = connection.getresponse()
        finally:
            connection.close()
    except ssl.SSLCertVerificationError as error:
        raise FederationError(
            f"{address}: the server that answers is not this federation's "
            f"({error.verify_message}); stop it, or choose another port"
        ) from error
    except (OSError, HTTPException):
        return False
    if root is not None and answer.getheader("fedgram-gate") is None:
        raise FederationError(
            f"{address}: the server lets anybody start runs; start it with 'fedgram federation "
            "server', and a Flower that fedgram knows"
        )
    return answer.status == 200


def local(address: Address) -> Address:
    """Return where the server's own machine reaches it."""
    if address.is_here:
        return address
    return Address(host="::1" if ":" in address.host else "127.0.0.1", port=address.port)


def quoted(path: Path) -> str:
    """Return a path as a value that Flower's command line reads."""
    text = str(path)
    if "'" in text or not text.isprintable():
        raise ConfigError(f"{text}: Flower cannot be told of this path; rename the folder")
    return f"'{text}'"


def latest(folder: Path) -> Path:
    """Return where a server's last run is recorded."""
    found = sorted((folder / "runs").glob("*/"))
    if not found:
        raise FederationError(f"{folder}: no run was recorded; see the logs beside it")
    return found[-1]


def _told(answer: dict[str, Any]) -> str:
    return " ".join(str(answer.get("error-message", "no reason given")).split())
