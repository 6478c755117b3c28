"""Faults of real processes: servers and sites by Flower's programs, killed on this machine.

All of it happens to one federation. Each test asks for statistics of another lift, which nobody
has sent before.
"""

import json
import os
import threading
import time

import pytest

pytest.importorskip("flwr", reason="needs the extra [flower]")

from federation_support import project

from fedgram.core.samples import Samples
from fedgram.core.statistics import Statistics
from fedgram.deploy.membership import Membership
from fedgram.deploy.operator import latest, operator_of, register, start_site, start_superlink
from fedgram.deploy.processes import Processes
from fedgram.deploy.settings import read_federation, read_site
from fedgram.deploy.site import site_of
from fedgram.errors import FederationError
from fedgram.experiments import config as configuration
from fedgram.experiments.record import read_lines
from fedgram.ledger.folder import Ledgers
from fedgram.runtime.toml import written

pytestmark = [pytest.mark.faults, pytest.mark.xdist_group("flower faults")]
DEADLINE = 900
SITES = ("north", "west", "south")

# Every process of Flower's imports this as it starts. It kills itself when it is about to write a
# file of the name that stands in `kill`, once; a server's may write no longer files than `limit`.
HOOK = """
import os, signal, sys
folder = os.environ["FAULTS"]

def watch(event, arguments):
    if event != "open" or str(arguments[1])[:1] not in ("w", "a", "x"):
        return
    try:
        with open(os.path.join(folder, "kill")) as file:
            name = file.read()
    except OSError:
        return
    if name in str(arguments[0]):
        os.rename(os.path.join(folder, "kill"), os.path.join(folder, "killed"))
        os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(watch)
if "serverapp" in " ".join(sys.orig_argv) and os.path.exists(os.path.join(folder, "limit")):
    import resource
    with open(os.path.join(folder, "limit")) as file:
        most = int(file.read())
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
"""


class Federation:
    """Three sites and a server, in processes that can be killed one by one."""

    def __init__(self, folder):
        rules = ["federation.wait=300", "federation.timeout=300", "federation.grace=20"]
        self.project = project(folder / "study", *rules, sites=SITES)
        self.faults = folder / "faults"
        self.logs = self.project.logs
        self.server = Processes(self.logs, grace=3)
        self.places = {name: Processes(self.logs, grace=3) for name in SITES}
        self.nodes = {}

    def start(self):
        for processes in (self.server, *self.places.values()):
            processes.__enter__()
        start_superlink(self.project, self.server)
        with Processes(self.logs) as processes:
            register(operator_of(self.project, processes), print)
        for name in SITES:
            self.attend(name)

    def attend(self, name):
        self.nodes[name] = start_site(self.project.site(name), self.places[name])

    def restart(self):
        """Kill the server at once, and start it again with what it has on the disk."""
        self.server._children[0].process.kill()
        self.server.stop()
        start_superlink(self.project, self.server)

    def stop(self):
        for processes in (*self.places.values(), self.server):
            processes.__exit__(None, None, None)

    def ask_for(self, width, **rules):
        """Let the next run want statistics of a lift of this width."""
        settings = configuration.read_toml(self.project.settings)
        settings["method"] = {"afl": {"lift": {"width": width}}}
        settings["federation"].update(rules)
        self.project.settings.write_text(written(settings))
        for name in ("kill", "killed", "limit"):
            (self.faults / name).unlink(missing_ok=True)

    def kill_at(self, name):
        (self.faults / "killed").unlink(missing_ok=True)
        (self.faults / "kill.part").write_text(name)
        (self.faults / "kill.part").rename(self.faults / "kill")

    def killed(self):
        return (self.faults / "killed").exists()

    def run(self):
        with Processes(self.logs) as processes:
            operator_of(self.project, processes).run(print)

    def fails(self):
        with pytest.raises(FederationError, match="the run failed"):
            self.run()

    @property
    def out(self):
        return latest(self.project.server)

    def members(self):
        """Return who is in the ledger of the last lift."""
        config, _ = read_federation(self.project.settings)
        width = config.make("afl").lift.width
        with Ledgers(self.project.server) as ledgers:
            return next((x.members for _, x in ledgers if x.space.width == width + 1), [])

    def notes(self):
        lines = read_lines(self.out / "afl" / "notes.jsonl")
        return [(note["client"], note["text"]) for note in lines]

    def samples(self, *names):
        for name in names:
            site = site_of(read_site(self.project.site(name).settings))
            yield site.train + site.valid

    def require_result(self, *names):
        """Check that the last model is that of these sites' samples, summed at once."""
        config, _ = read_federation(self.project.settings)
        method = config.make("afl")

        def lifted(samples: Samples):
            return method.lift(samples.features), samples.labels

        total = Statistics.over(lifted(samples) for samples in self.samples(*names))
        done = json.loads((self.out / "afl.done").read_text())
        from fedgram.federation.method import shared_digest
        from fedgram.models.linear import Linear

        expected = Linear.of(total, ridge=method.ridge, lift=method.lift)
        assert done["shared_digest"] == shared_digest(method, expected)
        assert total.digest() in Membership(folder=self.project.server).verify().values()
        return total


def wait_for(condition):
    until = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.3)


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    folder = tmp_path_factory.mktemp("federation")
    (folder / "faults").mkdir()
    (folder / "hook").mkdir()
    (folder / "hook" / "sitecustomize.py").write_text(HOOK)
    paths = [str(folder / "hook"), os.environ.get("PYTHONPATH", "")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FAULTS", str(folder / "faults"))
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
        federation = Federation(folder)
        try:
            federation.start()
            yield federation
        finally:
            federation.stop()


def test_a_server_killed_while_it_receives_solves_and_publishes_finishes(federation):
    federation.ask_for(16)
    before = []
    for moment in (
        "afl.journal/000001/value-",
        "exchanges.jsonl",
        "shared.safetensors.part",
        ".done",
    ):
        federation.kill_at(moment)
        federation.fails()
        assert federation.killed()
        assert set(before) <= set(federation.members())  # nothing that was sent is lost
        before = federation.members()
        assert moment != "exchanges.jsonl" or sorted(before) == sorted(SITES)
    federation.run()
    assert federation.out.name == "0001"
    federation.require_result(*SITES)


def test_sites_killed_before_and_during_their_upload_are_asked_again(federation):
    federation.ask_for(17)
    federation.kill_at("north/cache/statistics")
    thread = threading.Thread(target=federation.run)
    thread.start()
    wait_for(federation.killed)
    federation.kill_at("west/cache/runs")
    thread.join(DEADLINE)
    assert not thread.is_alive()
    federation.require_result(*SITES)
    again = [client for client, text in federation.notes() if "asked again" in text]
    assert "north" in again


def test_a_full_disk_refuses_keeps_what_there_is_and_is_no_harm_later(federation):
    federation.ask_for(400)
    (federation.faults / "limit").write_text(str(1_100_000))
    federation.fails()
    kept = federation.members()
    assert 0 < len(kept) < 3
    assert Membership(folder=federation.project.server).verify()
    (federation.faults / "limit").unlink()
    federation.run()
    federation.require_result(*SITES)
    asks = read_lines(federation.out / "afl" / "exchanges.jsonl")
    assert asks[0]["step"] == "statistics"


def test_a_superlink_that_is_killed_is_started_again_on_its_database(federation):
    federation.ask_for(18)
    failed = []

    def run():
        try:
            federation.run()
        except FederationError as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    wait_for(federation.members)
    kept = federation.members()
    federation.restart()
    thread.join(DEADLINE)
    assert not thread.is_alive()
    if failed:  # the run is lost with the program that served it; what was sent is not
        assert set(kept) <= set(federation.members())
        federation.run()
    federation.require_result(*SITES)


def test_a_site_killed_after_its_upload_is_in_and_forgetting_takes_it_out(federation):
    federation.ask_for(19, quorum=0.6, timeout=120)
    thread = threading.Thread(target=federation.run)
    thread.start()
    wait_for(lambda: "south" in federation.members())
    federation.nodes["south"].process.kill()
    thread.join(DEADLINE)
    assert not thread.is_alive()
    whole = federation.require_result(*federation.members())
    assert "south" in federation.members()
    certificates = Membership(folder=federation.project.server).forget("south")
    shown = [json.loads(path.read_text())["total_digest"] for path in certificates]
    config, _ = read_federation(federation.project.settings)
    lift, rest = config.make("afl").lift, [n for n in federation.members() if n != "south"]
    never = Statistics.over((lift(s.features), s.labels) for s in federation.samples(*rest))
    assert never.digest() in shown
    assert whole.digest() not in shown
    federation.places["south"].stop()
    federation.attend("south")  # it is back, under the same key, and stays out
    federation.ask_for(19, minimum=2, wait=60)

    def is_refused():
        federation.run()
        federation.require_result("north", "west")
        return any("south was forgotten" in text for _, text in federation.notes())

    wait_for(is_refused)  # Flower may count a restarted site as absent for a minute
    federation.restart()  # it cleans Flower's database
    Membership(folder=federation.project.server).require_no_residue()
