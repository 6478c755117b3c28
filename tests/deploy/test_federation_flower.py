"""Federations of real processes: servers and sites by Flower's own programs, on this machine."""

import json
import os
import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

pytest.importorskip("flwr")
pytest.importorskip("ray")

from federation_support import project, served

from fedgram.deploy.flower.state import DATABASE
from fedgram.deploy.folders import Project, create
from fedgram.deploy.keys import make_keys
from fedgram.deploy.operator import answers, latest, register, start_site
from fedgram.deploy.processes import Processes, free_ports
from fedgram.errors import FederationError
from fedgram.experiments.reader import read_runs
from fedgram.runtime.processes import VARIABLE

pytestmark = [pytest.mark.flower, pytest.mark.xdist_group("flower programs")]
ROOT = Path(__file__).parents[2]
DEADLINE = 900


def environment(**more):
    """Return the environment of a shell in which the commands of this one are found first."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return {**os.environ, "PATH": path, **more}


def command(*arguments, check=True):
    done = subprocess.run(
        [sys.executable, "-m", "fedgram.cli", *map(str, arguments)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done


def mentioning(text):
    """Return the processes that were started with a text in a command line or environment."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            known = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
        except OSError:
            continue
        if text.encode() in known and int(entry.name) != os.getpid():
            found.append(known.replace(b"\0", b" ")[:200])
    return found


@pytest.fixture(scope="module")
def in_process():
    """The digest of what is shared, where everything is done in one process."""
    done = command("run", "-m", "apfl-linear", "-s", "data.clients=3", "--json")
    return json.loads(done.stdout)["runs"][0]["shared_digest"]


def digest(folder):
    (run,) = read_runs([folder])
    return run.to_dict()["shared_digest"]


def test_what_is_told_of_federations_works_and_ends_where_one_process_does(tmp_path, in_process):
    """The demo and the simulation, by the page's own commands."""
    text = (ROOT / "docs" / "federation.md").read_text(encoding="utf-8")
    script = "\n".join(re.findall(r"```bash\n(.*?)```", text, re.DOTALL))
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=tmp_path,
        env=environment(),
        timeout=DEADLINE,
        check=True,
        capture_output=True,
        text=True,
    )
    lines = done.stdout.splitlines()
    assert any(re.fullmatch(r"north: connected, as node \d+", line) for line in lines), done.stdout
    assert not re.search(r"\x1b|\\x1b|^INFO", done.stdout + done.stderr, re.MULTILINE)
    assert digest(tmp_path / "try" / "server" / "runs" / "0001") == in_process
    assert "apfl-linear" in (tmp_path / "try" / "report.html").read_text(encoding="utf-8")
    logs = {path.stem for path in (tmp_path / "try" / "logs").iterdir()}
    assert {"server", "north", "west", "south", "run", "register"} <= logs
    assert digest(tmp_path / "sim" / "simulations" / "0001" / "server" / "runs" / "0001") == (
        in_process
    )
    assert not (tmp_path / "sim" / "server" / "runs").exists()  # the real federation knows nothing
    assert "apfl-linear" in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert mentioning(str(tmp_path)) == []


def test_the_separate_commands_of_real_sites_end_where_one_process_does(tmp_path, in_process):
    (port,) = free_ports(1)
    subprocess.run(
        ["bash", ROOT / "examples" / "federation.sh", tmp_path / "real", str(port)],
        env=environment(),
        timeout=DEADLINE,
        check=True,
    )
    server = tmp_path / "real" / "study" / "server"
    assert digest(server / "runs" / "0001") == in_process
    for path in (server, server / "runs", server / DATABASE, *server.glob("ledger-*.db")):
        assert path.stat().st_mode & 0o077 == 0, path
    assert (tmp_path / "real" / "report.html").stat().st_size > 10_000
    assert mentioning(str(tmp_path / "real")) == []


def study(folder):
    """Return a federation of three sites, with keys, that waits for them but a moment."""
    return project(folder / "study", "federation.wait=5", sites=("north", "west", "south"))


@pytest.fixture
def federation(tmp_path):
    return study(tmp_path)


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    """A federation whose server runs, for tests that do it no harm; its sites are not there."""
    made = study(tmp_path_factory.mktemp("running"))
    with served(made) as (operator, processes):
        yield made, operator, processes


def test_strangers_are_refused(running, tmp_path):
    """A site whose key nobody registered, and a site that trusts another authority."""
    federation, _, _ = running
    other = create(tmp_path / "other", sites=["east"], methods=["afl"])
    make_keys(other)
    east = other.site("east")
    with Processes(tmp_path / "logs") as processes:
        east.root.write_bytes((federation.server / "ca.crt").read_bytes())
        unknown = start_site(east, processes, server=federation.address)
        refused = "Failed to activate SuperNode"
        processes.wait_until(
            lambda: refused in unknown.log.read_text() or unknown.ended,
            seconds=DEADLINE,
            what="the refusal",
        )
        assert refused in unknown.log.read_text()
        with pytest.raises(FederationError, match="not this federation's"):
            answers(federation.address, other.server / "ca.crt")


def test_a_run_that_fails_says_why_and_goes_on_when_the_sites_are_there(running):
    federation, operator, processes = running
    failed = command("federation", "run", federation.folder, check=False)
    assert failed.returncode == FederationError.exit_code
    (line,) = failed.stderr.splitlines()
    assert re.match(r"fedgram: error: the run failed \(.*3.*\); see .*run\.log$", line)
    for site in federation.sites:
        start_site(site, processes)
    settings = federation.settings.read_text(encoding="utf-8")
    patient = settings.replace("wait = 5.0", f"wait = {DEADLINE}.0")
    assert patient != settings
    federation.settings.write_text(patient, encoding="utf-8")
    command("federation", "run", federation.folder)
    assert [run.method for run in read_runs([latest(federation.server)])] == ["afl"]
    register(operator, lambda said: pytest.fail(said) if "as node" in said else None)


def test_a_server_that_is_interrupted_takes_everything_with_it(federation):
    server = subprocess.Popen(
        [sys.executable, "-m", "fedgram.cli", "federation", "server", str(federation.folder)],
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # as on a terminal
    )
    with server:
        assert "the server is up" in server.stdout.readline()
        assert len(mentioning(str(federation.folder))) >= 2
        server.send_signal(signal.SIGINT)
        server.stdout.read()
        assert server.wait(DEADLINE) == 130
    assert mentioning(str(federation.folder)) == []


def test_the_demo_that_is_killed_leaves_nothing(tmp_path):
    demo = subprocess.Popen(
        [sys.executable, "-m", "fedgram.cli", "federation", "demo", str(tmp_path / "try")],
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    with demo:
        for line in demo.stdout:
            if "Starting logstream" in line:
                break
        started = mentioning(str(tmp_path / "try"))
        assert sum(b"flower-supernode" in process for process in started) >= 3
        demo.kill()
        demo.wait(DEADLINE)
    for _ in range(DEADLINE):
        if not mentioning(str(tmp_path / "try")):
            break
        subprocess.run(["sleep", "1"], check=True)
    assert mentioning(str(tmp_path / "try")) == []


def test_the_app_is_what_flower_takes(federation):
    from flwr.cli.config_utils import load_and_validate

    config, warnings = load_and_validate(federation.app / "pyproject.toml", check_module=False)
    assert warnings == []
    assert config == tomllib.loads((federation.app / "pyproject.toml").read_text())
    assert Project.open(federation.folder).address == federation.address
    assert VARIABLE not in os.environ
