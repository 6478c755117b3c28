"""Who is in a federation's totals: forgotten, admitted, withdrawn, and what can be shown of it."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from remote_support import StandIn, served

from fedgram.cli import main
from fedgram.core import codec
from fedgram.deploy.folders import Address, Project, create
from fedgram.deploy.keys import make_keys
from fedgram.deploy.membership import Membership
from fedgram.deploy.server import run_federation
from fedgram.deploy.settings import read_site
from fedgram.deploy.site import office
from fedgram.errors import LedgerError, PrivacyError
from fedgram.experiments import config as configuration
from fedgram.ledger.ledger import Ledger


def ledger_of(folder):
    (path,) = folder.glob("ledger-*.db")
    return Ledger.open(path)


def asked(carrier, kind="step"):
    return [node for node, request in carrier.sent if codec.decode(request).kind == kind]


def again(tmp_path, config, **rules):
    """Run the same federation once more, with sites that remember."""
    return served(tmp_path, *config.methods, clients=config.data.clients, rules=rules)


def test_forgetting_gives_the_total_of_a_federation_that_never_had_it(tmp_path):
    _, config, _, _ = served(tmp_path, "apfl")
    membership = Membership(folder=tmp_path / "server")
    (path,) = membership.forget("c2")
    certificate = json.loads(path.read_text())

    never = tmp_path / "never"
    never.mkdir()
    served(never, "apfl", rules={"sites": ["c0", "c1", "c3"], "minimum": 3})
    with ledger_of(never / "server") as ledger:
        assert certificate["total_digest"] == ledger.total.digest()
    assert certificate["members"] == ["c0", "c1", "c3"]
    assert membership.verify(path)
    assert membership.status()["out"]["c2"].startswith("was forgotten")

    out, _, carrier, said = again(tmp_path, config, minimum=3)  # the next run leaves it out
    assert asked(carrier) == []  # everybody else is in the ledger
    assert any("c2 was forgotten" in text for text in said)
    expected = json.loads((never / "server/runs/0001/apfl.done").read_text())
    assert json.loads((out / "apfl.done").read_text())["shared_digest"] == expected["shared_digest"]

    membership.admit("c2")
    _, _, carrier, _ = again(tmp_path, config)
    assert asked(carrier) == [102]
    with pytest.raises(LedgerError, match="neither left nor been forgotten"):
        membership.admit("c2")


def test_publish_solves_without_asking_anybody(tmp_path):
    out, _, _, _ = served(tmp_path, "apfl")
    done = json.loads((out / "apfl.done").read_text())
    membership = Membership(folder=tmp_path / "server")
    made = membership.publish(None, tmp_path / "shared.safetensors")
    assert made["shared_digest"] == done["shared_digest"]
    first = (out / "apfl/shared.safetensors").read_bytes()
    assert (tmp_path / "shared.safetensors").read_bytes() == first


def test_a_certificate_that_was_changed_is_refused(tmp_path):
    served(tmp_path, "afl")
    membership = Membership(folder=tmp_path / "server")
    (path,) = membership.forget("c1")
    path.write_text(path.read_text().replace('"samples": ', '"samples": 1'))
    with pytest.raises(LedgerError, match="belongs to no ledger here"):
        membership.verify(path)
    with pytest.raises(LedgerError, match="no contributions of this client"):
        membership.forget("nobody")


@pytest.fixture
def secure_project(tmp_path):
    """A secure federation of four real site folders, run once."""
    project = create(
        tmp_path / "study",
        sites=("north", "south", "west", "east"),
        methods=("afl",),
        overrides=("engine.secure=true", "data.dirichlet=1.0", "federation.minimum=3"),
        source="digits",
        address=Address.read("127.0.0.1:8000"),
        demo=True,
    )
    make_keys(project)
    for site in project.sites:  # these tests take out one site at a time
        text = site.settings.read_text()
        site.settings.write_text(text.replace("difference = 3", "difference = 0"))
    run(project)
    return project


def run(project, *, without=()):
    names = [site.name for site in project.sites if site.name not in without]
    offices = {
        100 + k: office(read_site(project.site(name).settings)) for k, name in enumerate(names)
    }
    said = []
    return run_federation(StandIn(offices), project.server, said.append), said


def command(*arguments):
    return CliRunner().invoke(main, ["federation", *map(str, arguments)])


def test_a_site_withdraws_from_a_secure_sum(tmp_path, secure_project):
    project = secure_project
    file = tmp_path / "west.withdrawal"
    made = command("withdraw", project.site("west").folder, "-m", "afl", "-o", file)
    assert made.exit_code == 0, made.output
    accepted = command("accept", project.folder, file)
    assert accepted.exit_code == 0, accepted.output
    with ledger_of(project.server) as ledger:
        remaining = ledger.total
        assert ledger.tag("cohort").split("\n") == ["east", "north", "south"]
        assert ledger.verify()
    status = json.loads(command("status", project.folder, "--json").output)
    assert status["ledgers"][0]["members"] == ["east", "north", "south"]
    assert "west" in status["out"]

    twice = command("accept", project.folder, file)  # it is not taken off twice
    assert twice.exit_code == LedgerError.exit_code

    run(project)  # the others, summed again, give the same
    with ledger_of(project.server) as ledger:
        assert ledger.total == remaining


def test_a_withdrawal_that_somebody_else_signed_is_refused(tmp_path, secure_project):
    project = secure_project
    (project.site("west").folder / "node").write_bytes(
        (project.site("north").folder / "node").read_bytes()
    )
    file = tmp_path / "west.withdrawal"
    assert command("withdraw", project.site("west").folder, "-m", "afl", "-o", file).exit_code == 0
    refused = command("accept", project.folder, file)
    assert refused.exit_code == PrivacyError.exit_code
    assert "not signed by west" in refused.output


def test_forgetting_a_member_of_a_secure_sum_needs_a_new_sum(secure_project):
    project = secure_project
    assert command("forget", project.folder, "west").exit_code == 0
    with ledger_of(project.server) as ledger:
        assert ledger.members == []
    run(project)
    with ledger_of(project.server) as ledger:
        assert ledger.tag("cohort").split("\n") == ["east", "north", "south"]


def test_the_demo_project_is_what_the_settings_read(secure_project):
    config = configuration.load(None)
    assert Project.open(secure_project.folder).server == secure_project.server
    assert read_site(secure_project.site("north").settings).grid == config.grid
