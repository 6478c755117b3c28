"""A site whose contribution the server holds is not asked for it again, and misses nothing."""

import shutil
from collections import Counter

import pytest
from remote_support import StandIn, federation, kind, offices, require_same, served

from fedgram.core import codec
from fedgram.deploy import server
from fedgram.deploy.server import run_federation
from fedgram.engines.remote import site
from fedgram.engines.remote.server import RemoteFederation
from fedgram.federation.step import step_name

FEW = {"clients": 4, "dirichlet": 0.3, "valid_fraction": 0.1, "test_fraction": 0.6}
CHOOSING = {
    "auto": {"exchanges": 1},
    "prior": {},
    "closed-ditto": {},
    "fedhip": {"alpha": "auto"},
    "apfl-linear": {"refinement_ridge": "auto", "balance": "auto"},
}


def asked(carrier):
    return Counter(kind(request) for _, request in carrier.sent)


def test_choices_after_another_method_are_those_of_one_process(tmp_path):
    """Samples that are left out must leave the sum too, whoever asked for it before."""
    out, config, carrier, _ = served(tmp_path, "afl", *CHOOSING, method=CHOOSING, data=FEW)
    steps = Counter(codec.decode(sent).step for _, sent in carrier.sent if kind(sent) == "step")
    assert steps["statistics"] == 4  # once for all methods, then the choices
    assert steps["left_out"] == 4 * len(CHOOSING)
    for name in CHOOSING:
        require_same(out, config, name)


def test_choices_among_sites_of_which_some_were_asked_and_some_were_not(tmp_path):
    folder, config = federation(tmp_path, "prior", data=FEW, rules={"minimum": 2})
    everybody = offices(config, tmp_path / "sites")
    run_federation(StandIn({node: everybody[node] for node in (100, 102)}), folder, print)
    carrier = StandIn(everybody)
    out = run_federation(carrier, folder, print)
    assert asked(carrier)["step"] == 2 + 4
    require_same(out, config, "prior")


def test_a_restarted_server_asks_nobody_again_where_some_were_not_asked(tmp_path):
    folder, config = federation(tmp_path, "prior", data=FEW, rules={"minimum": 2})
    everybody = offices(config, tmp_path / "sites")
    run_federation(StandIn({node: everybody[node] for node in (100, 102)}), folder, print)

    def killed(node, request, answer):
        if kind(request) == "score":
            raise KeyboardInterrupt
        return answer(request)

    with pytest.raises(KeyboardInterrupt):
        run_federation(StandIn(everybody, killed), folder, print)
    carrier = StandIn(everybody)
    out = run_federation(carrier, folder, print)
    assert asked(carrier)["step"] == 0
    require_same(out, config, "prior")


def test_a_restored_server_asks_those_again_whose_contributions_it_lacks(tmp_path):
    folder, config = federation(tmp_path, "prior", data=FEW, rules={"minimum": 2})
    everybody = offices(config, tmp_path / "sites")
    run_federation(StandIn({node: everybody[node] for node in (100, 102)}), folder, print)
    backup = shutil.copytree(folder, tmp_path / "backup")
    run_federation(StandIn(everybody), folder, print)
    shutil.rmtree(folder)
    shutil.copytree(backup, folder)
    carrier = StandIn(everybody)
    out = run_federation(carrier, folder, print)
    assert asked(carrier)["step"] == 2 + 4  # two contributions, and the choices of all
    require_same(out, config, "prior")


def test_after_a_change_of_version_no_contribution_is_asked_for_again(tmp_path, monkeypatch):
    folder, config = federation(tmp_path, "afl", data=FEW)
    run_federation(StandIn(offices(config, tmp_path / "sites")), folder, print)
    for module in (server, site):
        monkeypatch.setattr(module, "own_version", lambda: "99.0.0")
    carrier = StandIn(offices(config, tmp_path / "sites"))
    out = run_federation(carrier, folder, print)
    assert asked(carrier)["step"] == 0
    assert asked(carrier)["greet"] > 0
    require_same(out, config, "afl")


@pytest.fixture
def contributors(monkeypatch):
    """Return the contributors after each sum, by the name of its step."""
    found, ask = [], RemoteFederation.sum

    def watched(self, step, *args, **options):
        assert not self.asks or self.contributors
        total = ask(self, step, *args, **options)
        found.append((step_name(step), self.contributors))
        return total

    monkeypatch.setattr(RemoteFederation, "sum", watched)
    return found


def test_contributors_include_members_of_the_ledger_that_are_absent(tmp_path, contributors):
    folder, config = federation(tmp_path, "afl", data=FEW, rules={"minimum": 2})
    everybody = offices(config, tmp_path / "sites")
    for nodes in ((100, 102), (101, 103)):
        run_federation(StandIn({node: everybody[node] for node in nodes}), folder, print)
    both = ["c0", "c2"], ["c0", "c1", "c2", "c3"]
    assert contributors == [("statistics", names) for names in both]


def test_contributors_are_the_same_when_a_restarted_server_replays(tmp_path, contributors):
    folder, config = federation(tmp_path, "prior", data=FEW)
    everybody = offices(config, tmp_path / "sites")

    def killed(node, request, answer):
        if kind(request) == "score":
            raise KeyboardInterrupt
        return answer(request)

    with pytest.raises(KeyboardInterrupt):
        run_federation(StandIn(everybody, killed), folder, print)
    first = contributors.copy()
    contributors.clear()
    run_federation(StandIn(everybody), folder, print)
    assert contributors == first
    assert [step for step, _ in first] == ["statistics", "left_out"]
    assert all(names == ["c0", "c1", "c2", "c3"] for _, names in first)
