"""No site goes by another's name: it is known by its key."""

import json

import pytest
from remote_support import StandIn, federation, offices

from fedgram.deploy.server import run_federation
from fedgram.deploy.settings import registered
from fedgram.errors import DataError, FederationError


def run(tmp_path, nodes, *, clients=3, **rules):
    """Run AFL where c0, c1, ... are the nodes 100, 101, ...; return who came, and what was said."""
    folder, config = federation(tmp_path, "afl", clients=clients, rules={"wait": 1, **rules})
    plain = {name: {"node": node, "key": "of no matter here"} for name, node in nodes.items()}
    (folder / "nodes.json").write_text(json.dumps(plain))
    said = []
    out = run_federation(StandIn(offices(config, tmp_path / "sites")), folder, said.append)
    done = json.loads((out / "afl.done").read_text())
    return done, said


def test_sites_with_their_own_keys_come(tmp_path):
    _, said = run(tmp_path, {"c0": 100, "c1": 101, "c2": 102})
    assert sum("connected, as node" in line for line in said) == 3


def test_a_site_that_is_not_noted_comes_by_its_own_name(tmp_path):
    _, said = run(tmp_path, {"c0": 100})
    assert sum("connected, as node" in line for line in said) == 3


@pytest.mark.parametrize(
    ("nodes", "owner"),
    [({"c0": 100, "c1": 7}, "an unknown site"), ({"c0": 100, "other": 101}, "other")],
)
def test_a_site_with_anothers_name_is_not_admitted(tmp_path, nodes, owner):
    with pytest.raises(FederationError):
        run(tmp_path, nodes)
    _, said = run(tmp_path, nodes, minimum=2)
    assert sum("connected, as node" in line for line in said) == 2
    (refused,) = {line for line in said if "not admitted" in line}
    assert f"a node with the name c1 has the key of {owner}" in refused


def test_where_keys_are_not_asked_for_nothing_is_noted(tmp_path):
    assert registered(tmp_path) == {}


@pytest.mark.parametrize("text", ['{"a": 3}', '{"a": {}}', '{"a": {"node": "x"}}', "[]", "{"])
def test_a_damaged_note_is_refused(tmp_path, text):
    (tmp_path / "nodes.json").write_text(text)
    with pytest.raises(DataError):
        registered(tmp_path)
