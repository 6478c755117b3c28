"""Start the server and the sites of a federation, and runs on them, with Flower's programs."""

from __future__ import annotations

import hashlib
import json
import ssl
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any

from fedgram.data.partition import partition
from fedgram.deploy.flower import adapter, gate
from fedgram.deploy.flower.state import DATABASE, clean
from fedgram.deploy.folders import Address, Project, SiteFolder
from fedgram.deploy.processes import Child, Processes, follow, free_ports, reason
from fedgram.deploy.settings import NODES, found, read_federation
from fedgram.errors import ConfigError, FederationError, LedgerError
from fedgram.experiments.record import read_object
from fedgram.ledger.folder import unused
from fedgram.runtime import files
from fedgram.runtime.toml import written

READY = 300.0  # seconds until a server must answer
Say = Callable[[str], None]


class Operator:
    """Registers sites and starts runs on a server, from the server's machine.

    Parameters
    ----------
    project
        The federation.
    processes
        Where Flower's programs are started.
    root
        Certificate of the server's authority; None without encryption.
    address
        Address at which this machine reaches the server.
    folder
        Folder of the server, with its settings, ledgers and runs.
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
        self._environment = adapter.environment(self._home)
        files.write(self._home / "config.toml", adapter.configuration(str(address), root))

    def is_up(self) -> bool:
        """Whether the server answers."""
        return answers(self._address, self._root)

    def require_up(self) -> None:
        """Raise FederationError if the server does not answer."""
        if not self.is_up():
            raise FederationError(
                f"no server answers at {self._address}; start it with 'fedgram federation server "
                f"{self.project.folder}'"
            )

    def ask(self, name: str, *arguments: str) -> dict[str, Any]:
        """Run a command of ``flwr`` and return its answer.

        Parameters
        ----------
        name
            Name of the log.
        arguments
            Command and arguments.
        """
        child = self._start(name, *arguments, "--format", "json")
        output = "\n".join(follow(child))
        try:
            return adapter.read_answer(output)
        except ValueError:
            raise child.failure() from None

    def register(self, site: SiteFolder) -> int | None:
        """Register the public key of a site; return its node, None if the server has the key."""
        key, name = str(site.public_key), site.name
        answer = self.ask("register", "supernode", "register", key, adapter.SERVER, "--name", name)
        if answer.get("success"):
            return int(answer["node-id"])
        if adapter.is_registered_already(answer):
            return None
        why = adapter.error_message(answer)
        raise FederationError(f"{site.name}: cannot be registered ({why})")

    def unregister(self, node: int) -> None:
        """Make the server refuse the key of a node from now on."""
        answer = self.ask("register", "supernode", "unregister", str(node), adapter.SERVER)
        if not answer.get("success"):
            why = adapter.error_message(answer)
            raise FederationError(f"node {node}: cannot be unregistered ({why})")

    def run(self, say: Say, *options: str) -> None:
        """Start a run and wait for its end.

        Parameters
        ----------
        say
            Called with each line of output.
        options
            More options of ``flwr run``.

        Raises
        ------
        FederationError
            If the run fails.
        """
        read_federation(self._folder / "federation.toml")  # raises before anything is started
        server = f"server={adapter.quoted(self._folder)}"
        app = str(self.project.app)
        started = self.ask("run", "run", app, adapter.SERVER, "-c", server, *options)
        if not started.get("success"):
            raise FederationError(f"the run did not start: {adapter.error_message(started)}")
        number, log = str(started["run-id"]), self.project.logs / "run.log"
        start = log.stat().st_size
        try:
            status = self._followed(number, say)
        except BaseException:
            with suppress(FederationError):  # the first error is the one to report
                self.ask("run", "stop", number, adapter.SERVER)
            raise
        if status != adapter.COMPLETED:
            raise FederationError(f"the run failed ({reason(log, start) or status}); see {log}")

    def _followed(self, number: str, say: Say) -> str:
        """Pass on the output of a run, and return its last status."""
        while True:  # after a lost connection the output is repeated from the start
            stream = self._start("run", "log", number, adapter.SERVER, "--stream")
            for line in follow(stream, meanwhile=self._processes.require_alive):
                say(line)
            answer = self.ask("list", "list", adapter.SERVER, "--run-id", number)
            status = adapter.run_status(answer)
            if adapter.is_finished(status):
                return status
            time.sleep(1)

    def _start(self, name: str, *arguments: str) -> Child:
        command = [adapter.program("flwr"), *arguments]
        return self._processes.start(name, command, self._environment, stays=False)


def start_superlink(project: Project, processes: Processes) -> Child:
    """Start the server, and return when it answers."""
    for name in ("ca.crt", "server.pem", "server.key"):
        if not (project.server / name).is_file():
            raise ConfigError(
                f"{project.server / name}: missing; run 'fedgram federation keys {project.folder}'"
            )
    operator = operator_of(project, processes)
    if operator.is_up():
        raise FederationError(f"{project.address}: a server is running there; stop it first")
    # A run may have outlived its server: then its messages stay.
    with suppress(LedgerError), files.private(project.server), unused(project.server):
        clean(project.server / DATABASE)
    v6 = ":" in project.address.host
    anywhere = "::" if v6 else "0.0.0.0"  # noqa: S104 (sites connect from other machines)
    adapter.program("flower-superlink")  # raises where Flower is missing
    options = adapter.superlink_options(
        host=local(project.address).host if project.address.is_here else anywhere,
        port=project.address.port,
        certificates=project.server,
        database=project.server / DATABASE,
    )
    command = [sys.executable, "-m", gate.__name__, *options]
    # Only a proxy on this machine may state the address that a request comes from.
    trust = {"FORWARDED_ALLOW_IPS": "127.0.0.1"}
    home = project.home / "server"
    child = processes.start("server", command, adapter.environment(home) | trust)
    processes.wait_until(operator.is_up, seconds=READY, what="the start of the server")
    return child


def operator_of(project: Project, processes: Processes) -> Operator:
    """Return an operator for the server that runs on this machine."""
    root, address = project.server / "ca.crt", local(project.address)
    return Operator(project, processes, root=root, address=address, folder=project.server)


def start_site(
    site: SiteFolder, processes: Processes, *, server: Address | None = None, port: int = 0
) -> Child:
    """Start the process of a site, which connects to the server and stays connected.

    Parameters
    ----------
    site
        The site.
    processes
        Where Flower's program is started.
    server
        Address of the server; by default that of the site's ``connection.toml``.
    port
        Port for the site's own processes; 0 for a free one.
    """
    require_keys(site)
    options = adapter.supernode_options(
        server=str(server or site.server),
        root=site.root,
        key=site.key,
        port=port or free_ports(1)[0],
        settings=site.settings,
    )
    command = [adapter.program("flower-supernode"), *options]
    return processes.start(site.name, command, adapter.environment(site.folder / ".flwr"))


def require_keys(site: SiteFolder) -> None:
    """Raise ConfigError if a site lacks its private key or the certificate of the authority."""
    for path in (site.root, site.key):
        if not path.is_file():
            raise ConfigError(
                f"{path}: missing; 'fedgram federation keys' writes it to the server's folder"
            )


def register(operator: Operator, say: Say) -> None:
    """Register the public key of every site; a new key of a site replaces its old one.

    The file ``nodes.json``, beside the server's settings, holds the node of each site.
    """
    path = operator.project.server / NODES
    nodes: dict[str, Any] = read_object(path) if path.exists() else {}
    for site in operator.project.sites:
        if not site.public_key.is_file():
            raise ConfigError(
                f"{site.public_key}: missing; the site must send it, or run 'fedgram federation "
                f"keys {operator.project.folder}'"
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
    """Run a federation on this machine only, with the data that the server's settings name.

    Parameters
    ----------
    project
        The federation.
    processes
        Where Flower's programs are started.
    say
        Called with each line of output.
    cpus
        Number of processors for each simulated site.

    Returns
    -------
    Path
        The folder that replaces the server's, so that the ledgers of the real federation do not
        change.
    """
    folder = project.new_simulation()
    clients = _simulated(project, folder)
    (port,) = free_ports(1)
    address = Address(host="127.0.0.1", port=port)
    operator = Operator(project, processes, root=None, address=address, folder=folder)
    options = adapter.superlink_options(host=address.host, port=port)
    command = [adapter.program("flower-superlink"), *options]
    processes.start("simulation", command, adapter.environment(project.home / "simulation"))
    processes.wait_until(operator.is_up, seconds=READY, what="the start of the simulation")
    sizes = f"num-supernodes={clients} client-resources-num-cpus={cpus:g}"
    operator.run(say, "--federation-config", sizes)
    return folder


def _simulated(project: Project, folder: Path) -> int:
    """Write the settings of a simulation; return the number of its sites."""
    config, rules = read_federation(project.settings)
    name = found(config.data.source, project.server)
    data = replace(config.data, source=name)
    clients = sum(not share.holdout for share in partition(data.load(), data))
    settings = config.to_dict()
    settings["data"]["source"] = str(Path(name).resolve()) if Path(name).exists() else name
    # Simulated sites have other names than the real ones: all names are allowed.
    settings["federation"] = {**asdict(rules), "sites": [], "minimum": clients}
    files.write(folder / "federation.toml", written(settings))
    return clients


def answers(address: Address, root: Path | None) -> bool:
    """Whether the server of this federation answers at an address.

    Raises FederationError for another server, and for a server that any machine can operate.
    """
    try:
        if root is None:
            connection = HTTPConnection(address.host, address.port, timeout=5)
        else:
            context = ssl.create_default_context(cafile=str(root))
            connection = HTTPSConnection(address.host, address.port, timeout=5, context=context)
        try:
            connection.request("GET", adapter.HEALTH)
            answer = connection.getresponse()
        finally:
            connection.close()
    except ssl.SSLCertVerificationError as error:
        raise FederationError(
            f"{address}: a server answers that is not this federation's "
            f"({error.verify_message}); stop it, or choose another port"
        ) from error
    except (OSError, HTTPException):
        return False
    if root is not None and answer.getheader(gate.MARK[0].decode()) is None:
        raise FederationError(
            f"{address}: every machine can start runs on this server; start it with 'fedgram "
            "federation server', and with a version of Flower that fedgram supports"
        )
    return answer.status == 200


def local(address: Address) -> Address:
    """Return the address at which the server's own machine reaches the server."""
    if address.is_here:
        return address
    return Address(host="::1" if ":" in address.host else "127.0.0.1", port=address.port)


def latest(folder: Path) -> Path:
    """Return the folder of a server's last run."""
    found = sorted((folder / "runs").glob("*/"))
    if not found:
        raise FederationError(f"{folder}: no run is recorded; see the logs beside it")
    return found[-1]
