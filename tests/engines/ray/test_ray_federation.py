"""Clients in Ray workers: the same totals, bytes and scores as in one process, also after kills."""

import json
import os
import signal
from dataclasses import replace

import numpy as np
import pytest

from fedgram.checks.federations import partitioned
from fedgram.core import codec
from fedgram.engines.in_process import InProcess
from fedgram.engines.ray import cluster as ray_connection
from fedgram.engines.ray import shard as ray_shard
from fedgram.engines.ray.federation import RayFederation
from fedgram.errors import ConfigError, DataError, FederationError, PrivacyError
from fedgram.experiments.config import read
from fedgram.experiments.record import Record
from fedgram.experiments.runner import run
from fedgram.federation.federated_dataset import federate
from fedgram.federation.method import create_method, find_method, shared_digest
from fedgram.methods.afl import AFL
from fedgram.methods.fedavg import FedAvg

pytestmark = [
    pytest.mark.ray,
    pytest.mark.xdist_group("ray"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.usefixtures("ray_cluster"),
]

CLIENTS = 7
NODE = {"num_cpus": 4, "object_store_memory": 100 << 20, "include_dashboard": False}
METHODS = {
    "fedhip": {},
    "auto": {},
    "fedavg": {"rounds": 2, "pilot": 1},
    "scaffold": {"rounds": 3, "rate": 0.1},
    "ditto": {"rounds": 2, "rate": 0.1},
    "deepafl": {"blocks": 1},
}


def actors():
    """Return the processes of the living Ray workers, and the nodes they are on."""
    from ray._private.state import actors

    alive = [actor for actor in actors().values() if actor["State"] == "ALIVE"]
    return {actor["Pid"]: actor["Address"]["NodeID"] for actor in alive}


def described(result):
    """Return what must be the same in one process and on Ray."""
    rows = result.scores.rows
    return {
        "shared": result.shared_digest,
        "models": result.model_digest,
        "accuracy": result.accuracy,
        "clients": [(r.client, r.samples, r.correct, r.model_digest) for r in rows],
        "held": [
            (r.client, r.correct, r.model_digest)
            for r in (result.holdout.rows if result.holdout else ())
        ],
        "bytes": [
            (e.step, e.phase, e.clients, e.bytes_up, e.bytes_down) for e in result.record.exchanges
        ],
        "kept": {name: codec.digest(model) for name, model in result.predictors.items()},
    }


def test_any_number_of_workers_gives_the_result_of_one_process():
    sites = partitioned(clients=CLIENTS, holdout_clients=1)
    alone = described(run(AFL(), sites))
    assert len(alone["held"]) == 1
    for workers in (1, 2, 4):
        assert described(run(AFL(), sites, workers=workers, ray="auto")) == alone, workers


@pytest.mark.parametrize("name", METHODS)
def test_every_kind_of_method_gives_the_result_of_one_process(name):
    method = create_method(name, METHODS[name])
    sites = partitioned(clients=CLIENTS)
    assert described(run(method, sites, workers=2, ray="auto")) == described(run(method, sites))


@pytest.mark.parametrize("fetched_every", [2, 100])
def test_states_of_a_lost_worker_are_fetched_or_made_again(fetched_every, monkeypatch):
    monkeypatch.setattr(ray_shard, "LOGGED", fetched_every)
    method = create_method("scaffold", {"rounds": 5, "rate": 0.1})
    sites = partitioned(clients=CLIENTS).members
    expected = [shared_digest(method, shared) for shared in method.fit(InProcess(sites_of(sites)))]
    with RayFederation(sites_of(sites), method=method, workers=2) as spread:
        found = []
        for round_, shared in enumerate(method.fit(spread), 1):
            found.append(shared_digest(method, shared))
            if round_ == 3:
                kill(min(actors()))
        assert spread.losses == 1
    assert found == expected


DYING = '''
import os, signal
from dataclasses import dataclass
from pathlib import Path
from fedgram.methods.{module} import {base}

@dataclass(frozen=True, kw_only=True)
class Dying({base}):
    """Its worker is killed in the middle of a step, as long as there are files to remove."""

    folder: str = ""
    round: int = 1

    def {hook}(self, client, *rest):
        now = getattr(rest[0], "round", self.deadly) if rest else self.deadly
        if client.id == "c3" and now == self.deadly:
            for path in list(Path(self.folder).glob("kill*"))[:1]:
                path.unlink()
                os.kill(os.getpid(), signal.SIGKILL)
        return super().{hook}(client, *rest)
'''.replace("round: int = 1", "deadly: int = 1")


@pytest.mark.parametrize(
    ("module", "base", "hook", "settings"),
    [
        ("scaffold", "Scaffold", "rows", METHODS["scaffold"]),
        ("fedavg", "FedAvg", "rows", {"rounds": 3, "rate": 0.1}),
        ("afl", "AFL", "statistics", {}),
    ],
)
def test_a_request_that_kills_its_worker_is_repeated_and_counts_once(
    module, base, hook, settings, tmp_path
):
    path = tmp_path / "dying.py"
    path.write_text(DYING.format(module=module, base=base, hook=hook))
    method = find_method(str(path))(**settings, folder=str(tmp_path))
    sites = partitioned(clients=CLIENTS)
    alone = described(run(method, sites))
    (tmp_path / "kill").touch()
    record = Record(tmp_path / "run")
    spread = run(method, sites, name=str(path), workers=2, ray="auto", record=record)
    assert not (tmp_path / "kill").exists()
    assert described(spread) == alone
    (note,) = (tmp_path / "run" / "notes.jsonl").read_text().splitlines()
    assert "Ray worker was lost" in json.loads(note)["text"]


def test_a_request_that_kills_every_worker_is_given_up(tmp_path):
    path = tmp_path / "dying.py"
    path.write_text(DYING.format(module="afl", base="AFL", hook="statistics"))
    for number in range(10):
        (tmp_path / f"kill{number}").touch()
    method = find_method(str(path))(folder=str(tmp_path))
    with (
        RayFederation(partitioned().members, method=method, name=str(path), workers=2) as spread,
        pytest.raises(FederationError, match="statistics: the Ray worker of 4 clients was lost 3"),
    ):
        spread.sum(method.statistics)


def test_samples_are_placed_once_per_worker_and_workers_are_on_both_nodes(monkeypatch):
    placed = []
    pack = ray_shard.pack
    monkeypatch.setattr(
        ray_shard, "pack", lambda sites: placed.append([s.id for s in sites]) or pack(sites)
    )
    method = create_method("fedavg", {"rounds": 3, "rate": 0.1})
    with RayFederation(partitioned(clients=CLIENTS).members, method=method, workers=4) as spread:
        list(method.fit(spread))
        assert sorted(name for names in placed for name in names) == sorted(spread.clients)
        assert len(placed) == 4
        assert len(set(actors().values())) == 2
        kill(min(actors()))
        spread.sum(method.opening)
        assert len(placed) == 5
    assert not actors()


def test_a_lost_machine_is_replaced(ray_cluster):
    method = create_method("scaffold", {"rounds": 4, "rate": 0.1})
    sites = partitioned(clients=CLIENTS).members
    expected = [shared_digest(method, shared) for shared in method.fit(InProcess(sites_of(sites)))]
    found = []
    with RayFederation(sites_of(sites), method=method, workers=2) as spread:
        for round_, shared in enumerate(method.fit(spread), 1):
            found.append(shared_digest(method, shared))
            if round_ == 2:
                ray_cluster.remove_node(ray_cluster.list_all_nodes()[-1])
        assert spread.losses >= 1
    ray_cluster.add_node(**NODE)
    assert found == expected


def test_floats_are_added_in_the_order_of_names(clusters):
    from fedgram import Grid, PartitionPlan

    data = federate(clusters(300, 40), PartitionPlan(clients=40), Grid(bits="off"))
    method = AFL()
    expected = InProcess(data.members).sum(method.statistics)
    with RayFederation(data.members, method=method, workers=3) as spread:
        assert spread.sum(method.statistics).digest() == expected.digest()


def test_dropout_seeds_and_privacy_are_those_of_one_process():
    sites = partitioned(clients=CLIENTS).members
    method = FedAvg(rounds=2, rate=0.1)
    options = {"seed": 5, "dropout": 0.4, "private": True}
    alone = InProcess(sites_of(sites), **options)
    with RayFederation(sites_of(sites), method=method, workers=2, **options) as spread:
        for ours, theirs in zip(method.fit(spread), method.fit(alone), strict=True):
            assert np.array_equal(ours.theta, theirs.theta)
        assert spread.contributors == alone.contributors
        assert [e.clients for e in spread.asks] == [e.clients for e in alone.asks]
        with pytest.raises(PrivacyError):
            spread.gather(method.opening)


def test_the_error_of_a_client_names_it_and_keeps_its_type(gridded):
    sites = partitioned(clients=CLIENTS).members
    bad = [replace(s, train=s.train.take([])) if s.id in ("c2", "c5") else s for s in sites]
    method = FedAvg(rounds=2, rate=0.1)
    with (
        RayFederation(bad, method=method, workers=3) as spread,
        pytest.raises(DataError, match="client c2: no training samples"),
    ):
        list(method.fit(spread))


def test_settings_choose_ray(tmp_path):
    sites = partitioned(clients=CLIENTS)
    settings = read(
        {"engine": {"kind": "ray", "workers": 2, "address": "auto"}, "methods": ["afl"]}
    )
    result = settings.run("afl", sites, record=Record())
    assert result.shared_digest == run(AFL(), sites).shared_digest
    assert read({"engine": "ray"}).engine.kind == "ray"
    with pytest.raises(ConfigError, match="secure sums run in one process"):
        read({"engine": {"kind": "ray", "secure": True}})


def test_a_method_without_a_name_is_refused():
    from dataclasses import dataclass

    @dataclass(frozen=True, kw_only=True)
    class Mine(AFL):
        pass

    with pytest.raises(ConfigError, match=r"give the \.py file"):
        RayFederation(partitioned().members, method=Mine())


def test_without_ray_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(ConfigError, match=r"pip install 'fedgram\[ray\]'"):
        ray_connection.Cluster()


def sites_of(sites):
    return [replace(site, state={}) for site in sites]


def kill(pid):
    os.kill(pid, signal.SIGKILL)
