"""Who is in a federation's totals: forgotten, admitted, withdrawn, and what can be shown of it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sqlite3

import pytest
from click.testing import CliRunner
from cryptography.hazmat.primitives.asymmetric.utils import (
    decode_dss_signature,
    encode_dss_signature,
)
from remote_support import StandIn, federation, served

from fedgram.cli import main
from fedgram.core import codec
from fedgram.core.statistics import Statistics
from fedgram.deploy.flower.state import DATABASE, clean
from fedgram.deploy.folders import Address, Project, create
from fedgram.deploy.keys import make_keys
from fedgram.deploy.membership import Membership
from fedgram.deploy.server import run_federation
from fedgram.deploy.settings import read_site
from fedgram.deploy.site import office
from fedgram.engines.remote.messages import Answer
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
    _, config, _, _ = served(tmp_path, "apfl-linear")
    membership = Membership(folder=tmp_path / "server")
    (path,) = membership.forget("c2")
    certificate = json.loads(path.read_text())

    never = tmp_path / "never"
    never.mkdir()
    served(never, "apfl-linear", rules={"sites": ["c0", "c1", "c3"], "minimum": 3})
    with ledger_of(never / "server") as ledger:
        assert certificate["total_digest"] == ledger.total.digest()
    assert certificate["members"] == ["c0", "c1", "c3"]
    assert membership.verify(path)
    assert membership.status()["out"]["c2"].startswith("was forgotten")

    out, _, carrier, said = again(tmp_path, config, minimum=3)  # the next run leaves it out
    assert asked(carrier) == []  # everybody else is in the ledger
    assert any("c2 was forgotten" in text for text in said)
    expected = json.loads((never / "server/runs/0001/apfl-linear.done").read_text())
    assert (
        json.loads((out / "apfl-linear.done").read_text())["shared_digest"]
        == expected["shared_digest"]
    )

    membership.admit("c2")
    _, _, carrier, _ = again(tmp_path, config)
    assert asked(carrier) == [102]
    with pytest.raises(LedgerError, match="neither left nor been forgotten"):
        membership.admit("c2")


def test_publish_solves_without_asking_anybody(tmp_path):
    out, _, _, _ = served(tmp_path, "apfl-linear")
    done = json.loads((out / "apfl-linear.done").read_text())
    membership = Membership(folder=tmp_path / "server")
    made = membership.publish(None, tmp_path / "shared.safetensors")
    assert made["shared_digest"] == done["shared_digest"]
    first = (out / "apfl-linear/shared.safetensors").read_bytes()
    assert (tmp_path / "shared.safetensors").read_bytes() == first


def test_a_certificate_that_was_changed_is_refused(tmp_path):
    served(tmp_path, "afl")
    membership = Membership(folder=tmp_path / "server")
    (path,) = membership.forget("c1")
    path.write_text(path.read_text().replace('"samples": ', '"samples": 1', 1))
    with pytest.raises(LedgerError, match="belongs to no ledger here"):
        membership.verify(path)
    with pytest.raises(LedgerError, match="no contributions of this client"):
        membership.forget("nobody")


def test_a_certificate_is_issued_again_after_a_kill_before_it_is_written(tmp_path, monkeypatch):
    served(tmp_path, "afl")
    membership = Membership(folder=tmp_path / "server")

    def killed(self, certificate):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Membership, "certify", killed)
        with pytest.raises(KeyboardInterrupt):
            membership.forget("c1")
    membership.require_no_residue()
    with pytest.raises(LedgerError, match="'fedgram federation certificate' writes"):
        membership.forget("c1")
    (path,) = membership.certificates("c1")
    written = path.read_bytes()
    assert membership.verify(path)
    assert membership.certificates("c1") == [path]
    assert path.read_bytes() == written
    with pytest.raises(LedgerError, match="was not forgotten here"):
        membership.certificates("c2")


# What is left of a site that was forgotten


def flower_database(path, *messages):
    """Write messages to a database as a SuperLink does, delete some, and return the connection."""
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA secure_delete = OFF")
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("CREATE TABLE objects (object_id TEXT, content BLOB)")
    db.execute("CREATE TABLE message_res (message_id TEXT, content BLOB)")
    db.execute("CREATE TABLE node (node_id INTEGER)")
    db.execute("INSERT INTO node VALUES (7)")
    for number, message in enumerate(messages):
        db.execute("INSERT INTO objects VALUES (?, ?)", [str(number), message])
        db.execute("INSERT INTO message_res VALUES (?, ?)", [str(number), message])
    db.execute("DELETE FROM objects")  # the bytes stay
    return db


def answers_of(carrier, client):
    """Return the answers of a client that hold its contribution."""
    decoded = [(content, codec.decode(content)) for content in carrier.answered]
    return [c for c, a in decoded if a.client == client and isinstance(a.value, Statistics)]


def found_in(folder, content):
    """Whether a part of a message is in a file of a folder."""
    traces = [content[-3000:-2900], content[-1000:-900]]
    data = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
    return any(trace in each for trace in traces for each in data)


@pytest.mark.parametrize("running", [False, True])
def test_forgetting_cleans_the_database_of_flower_or_says_that_it_is_in_use(tmp_path, running):
    _, _, carrier, _ = served(tmp_path, "afl")
    server, membership = tmp_path / "server", Membership(folder=tmp_path / "server")
    (message,) = answers_of(carrier, "c1")
    others = [m for name in ("c0", "c2") for m in answers_of(carrier, name)]
    db = flower_database(server / DATABASE, *others, message)
    if not running:
        db.close()
    assert found_in(server, message)
    membership.forget("c1")
    if running:
        assert membership.residue() == [("c1", server / f"{DATABASE}-wal")]
        refused = command("verify", tmp_path)
        assert refused.exit_code == LedgerError.exit_code
        assert "messages of forgotten sites remain: c1 in" in refused.stderr
        db.close()
        assert clean(server / DATABASE)  # at the next start of the server
    assert not found_in(server, message)
    assert membership.residue() == []
    verified = command("verify", tmp_path)
    assert verified.exit_code == 0, verified.output
    with contextlib.closing(sqlite3.connect(server / DATABASE)) as db:
        assert db.execute("SELECT * FROM node").fetchall() == [(7,)]
    assert not (server / f"{DATABASE}-wal").exists()


def test_a_database_that_was_in_use_is_reported_although_no_message_is_found(tmp_path):
    """Bytes without the header of a message are not found by searching."""
    served(tmp_path, "afl")
    server, membership = tmp_path / "server", Membership(folder=tmp_path / "server")
    db = flower_database(server / DATABASE, b"a part of a message of c1")
    membership.forget("c1")
    assert membership.residue() == []
    refused = command("verify", tmp_path)
    assert refused.exit_code == LedgerError.exit_code
    assert "in use when a site was forgotten" in refused.stderr
    db.close()
    assert clean(server / DATABASE)  # at the next start of the server
    assert command("verify", tmp_path).exit_code == 0


def test_a_site_that_was_forgotten_and_tries_to_connect_is_no_residue(tmp_path):
    _, config, carrier, _ = served(tmp_path, "afl")
    membership = Membership(folder=tmp_path / "server")
    membership.forget("c1")
    _, _, carrier, _ = again(tmp_path, config, minimum=3)
    flower_database(membership.folder / DATABASE, *carrier.answered).close()
    assert membership.residue() == []


def test_forgetting_erases_the_answers_of_an_unfinished_run(tmp_path):
    def killed(request, answer):
        raise KeyboardInterrupt

    folder, _ = federation(tmp_path, "afl", "fedpcl", method={"fedpcl": {"rounds": 2, "rate": 0.1}})
    with pytest.raises(KeyboardInterrupt):
        served(
            tmp_path,
            "afl",
            "fedpcl",
            method={"fedpcl": {"rounds": 2, "rate": 0.1}},
            fault=lambda node, request, answer: fedpcl_killed(node, request, answer, killed),
        )
    membership = Membership(folder=folder)
    (log,) = folder.glob("runs/*/*.journal")
    values = [path for path in log.rglob("value-*") if codec.load(path)["name"] == "c1"]
    assert values
    membership.forget("c1")
    assert not log.exists()
    membership.require_no_residue()


def fedpcl_killed(node, request, answer, kill):
    asked = codec.decode(request)
    late = asked.terms.method == "fedpcl" and asked.kind == "step" and asked.serial > 2
    return kill(request, answer) if late and node == 102 else answer(request)


def test_the_files_that_hold_digests_of_totals_with_a_forgotten_site_are_listed(tmp_path):
    out, _, _, _ = served(tmp_path, "afl")
    membership = Membership(folder=tmp_path / "server")
    (first,) = membership.forget("c2")
    membership.forget("c1")
    assert membership.holding_digests("c1") == sorted(
        [first, out / "afl.done", out / "afl/scores.jsonl", out / "afl/shared.safetensors"]
    )
    digest = json.loads((out / "afl.done").read_text())["shared_digest"]
    holding = [p for p in (tmp_path / "server").rglob("*") if p.is_file()]
    holding = {p for p in holding if digest.encode() in p.read_bytes()}
    assert holding <= {*membership.holding_digests("c1")}


@pytest.mark.skipif(os.name == "nt", reason="no such modes")
def test_what_a_server_writes_is_for_its_owner_alone(tmp_path):
    before = os.umask(0o022)
    try:
        served(tmp_path, "afl", "fedpcl", method={"fedpcl": {"rounds": 1, "rate": 0.1}})
        server, membership = tmp_path / "server", Membership(folder=tmp_path / "server")
        flower_database(server / DATABASE).close()
        membership.forget("c1")
    finally:
        os.umask(before)
    (server / "federation.toml").unlink()  # written by the test
    modes = {path: path.stat().st_mode & 0o777 for path in [server, *server.rglob("*")]}
    assert {path for path, mode in modes.items() if mode & 0o077} == set()
    assert modes[server / "runs"] == modes[server / "certificates"] == 0o700


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
        site.settings.write_text(text.replace('difference = "same"', "difference = 0"))
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
    message = codec.encode(Answer(client="west", request_digest="", value=codec.load(file)))
    flower_database(project.server / DATABASE, message).close()
    accepted = command("accept", project.folder, file)
    assert accepted.exit_code == 0, accepted.output
    assert command("verify", project.folder).exit_code == 0
    with ledger_of(project.server) as ledger:
        remaining = ledger.total
        assert ledger.tag("cohort").split("\n") == ["east", "north", "south"]
        assert ledger.verify()
    status = json.loads(command("status", project.folder, "--json").output)
    assert status["ledgers"][0]["members"] == ["east", "north", "south"]
    assert "west" in status["out"]

    certificate = json.loads(accepted.stdout)
    assert certificate["members"] == ["east", "north", "south"]
    (path,) = (project.server / "certificates").iterdir()
    assert path in Membership(folder=project.server).holding_digests("north")
    assert command("verify", project.folder, path).exit_code == 0

    twice = command("accept", project.folder, file)  # it is not taken off twice
    assert twice.exit_code == LedgerError.exit_code

    run(project)  # the others, summed again, give the same
    with ledger_of(project.server) as ledger:
        assert ledger.total == remaining


ORDER = int(  # of the group of the curve P-384
    "ffffffffffffffffffffffffffffffffffffffffffffffffc7634d81f4372ddf581a0db248b0a77aecec196accc52973",
    16,
)


def malleated(signature):
    """Return another valid signature, as anybody can make it from a valid one."""
    r, s = decode_dss_signature(bytes.fromhex(signature))
    return encode_dss_signature(r, ORDER - s).hex()


def test_an_old_withdrawal_is_refused_after_the_site_joined_again_with_more_samples(
    tmp_path, secure_project
):
    project, old, new = secure_project, tmp_path / "old", tmp_path / "new"
    site = project.site("west")
    all_samples = site.settings.read_text()
    site.settings.write_text(all_samples.replace("[data]", "[data]\ntest_fraction = 0.5"))
    run(project)
    assert command("withdraw", site.folder, "-m", "afl", "-o", old).exit_code == 0
    assert command("accept", project.folder, old).exit_code == 0
    assert command("admit", project.folder, "west").exit_code == 0
    withdrawal = codec.load(old)
    site.settings.write_text(all_samples)
    run(project)
    with ledger_of(project.server) as ledger:
        total = ledger.total.digest()
    assert malleated(withdrawal.signature) != withdrawal.signature
    for signature in (withdrawal.signature, malleated(withdrawal.signature)):
        codec.save(old, dataclasses.replace(withdrawal, signature=signature))
        refused = command("accept", project.folder, old)
        assert refused.exit_code == PrivacyError.exit_code
        assert "is from an earlier sum" in refused.output
    with ledger_of(project.server) as ledger:
        assert ledger.total.digest() == total
    assert command("withdraw", site.folder, "-m", "afl", "-o", new).exit_code == 0
    assert codec.load(new).statistics.count > withdrawal.statistics.count
    accepted = command("accept", project.folder, new)
    assert accepted.exit_code == 0, accepted.output


def test_of_two_withdrawals_of_one_content_the_second_is_not_kept_for_later(
    tmp_path, secure_project
):
    """Else the server could take the site out again after it has joined with the same samples."""
    project, one, two = secure_project, tmp_path / "one", tmp_path / "two"
    site = project.site("west")
    for file in (one, two):
        assert command("withdraw", site.folder, "-m", "afl", "-o", file).exit_code == 0
    assert codec.load(one).statistics == codec.load(two).statistics
    assert codec.load(one).signature != codec.load(two).signature
    assert command("accept", project.folder, one).exit_code == 0
    assert command("accept", project.folder, two).exit_code == LedgerError.exit_code
    assert command("admit", project.folder, "west").exit_code == 0
    run(project)
    refused = command("accept", project.folder, two)
    assert refused.exit_code == PrivacyError.exit_code
    assert "is from an earlier sum" in refused.output
    assert command("withdraw", site.folder, "-m", "afl", "-o", two).exit_code == 0
    run(project)  # the same sum again
    assert command("accept", project.folder, two).exit_code == 0


def test_a_signature_of_anything_is_refused_without_a_traceback(tmp_path, secure_project):
    file = tmp_path / "west.withdrawal"
    folder = secure_project.site("west").folder
    assert command("withdraw", folder, "-m", "afl", "-o", file).exit_code == 0
    for signature in ("", "zz", "00" * 96):
        codec.save(file, dataclasses.replace(codec.load(file), signature=signature))
        refused = command("accept", secure_project.folder, file)
        assert refused.exit_code == PrivacyError.exit_code


@pytest.mark.parametrize("kept", [False, True])
def test_a_site_of_an_earlier_sum_only_can_be_forgotten_by_name(secure_project, kept):
    project = secure_project
    with ledger_of(project.server) as ledger:
        first = codec.encode(ledger.total)[-2000:-1900]
    settings = project.server / "federation.toml"
    rule = f"keep_replaced = {str(kept).lower()}"
    settings.write_text(settings.read_text().replace("keep_replaced = false", rule))
    run(project, without=["west"])
    with ledger_of(project.server) as ledger:
        total = ledger.total.digest()
        path = ledger._file.path
    assert (first in path.read_bytes()) == kept
    forgotten = command("forget", project.folder, "west")
    assert forgotten.exit_code == 0, forgotten.output
    certificate = json.loads(forgotten.stdout)
    assert certificate["total_digest"] == total  # it was without west
    assert certificate["members"] == ["east", "north", "south"]
    assert [model["members"] for model in certificate["published_with"]] == [
        ["east", "north", "south", "west"]
    ]
    assert first not in path.read_bytes()
    (file,) = (project.server / "certificates").iterdir()
    assert command("verify", project.folder, file).exit_code == 0
    _, said = run(project)
    assert any("west was forgotten" in text for text in said)
    assert command("forget", project.folder, "west").exit_code == LedgerError.exit_code
    with ledger_of(project.server) as ledger:
        assert ledger.total.digest() == total
        ledger.verify()


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


@pytest.mark.parametrize("name", ["../sites/west", "unknown", "", "\0", "x" * 10_000])
def test_a_withdrawal_of_a_name_that_is_no_site_is_refused(tmp_path, secure_project, name):
    file = tmp_path / "west.withdrawal"
    folder = secure_project.site("west").folder
    assert command("withdraw", folder, "-m", "afl", "-o", file).exit_code == 0
    codec.save(file, dataclasses.replace(codec.load(file), client=name))
    refused = command("accept", secure_project.folder, file)
    assert refused.exit_code == PrivacyError.exit_code
    assert "a site whose key is not here" in refused.output


def test_forgetting_a_member_of_a_secure_sum_needs_a_new_sum(secure_project):
    project = secure_project
    forgotten = command("forget", project.folder, "west")
    assert forgotten.exit_code == 0
    certificate = json.loads(forgotten.stdout)
    assert certificate["client"] == "west"
    (model,) = certificate["published_with"]
    assert model["members"] == ["east", "north", "south", "west"]
    again = command("certificate", project.folder, "west")
    assert json.loads(again.stdout) == certificate
    with ledger_of(project.server) as ledger:
        assert ledger.members == []
        assert [e.client for e in ledger.history() if e.what == "forget"] == ["west"]
    run(project)
    with ledger_of(project.server) as ledger:
        assert ledger.tag("cohort").split("\n") == ["east", "north", "south"]


def test_the_demo_project_is_what_the_settings_read(secure_project):
    config = configuration.load(None)
    assert Project.open(secure_project.folder).server == secure_project.server
    assert read_site(secure_project.site("north").settings).grid == config.grid
