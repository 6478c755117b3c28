"""Pinned keys: what people have compared decides who is in a secure sum, not the server."""

import json
import os
import shutil
import stat
import subprocess
import sys
from dataclasses import replace

import pytest
from click.testing import CliRunner
from remote_support import StandIn, done, in_process

from fedgram.cli import main
from fedgram.core import codec
from fedgram.deploy.folders import Address, create, federation_digest
from fedgram.deploy.keys import make_keys, make_pair
from fedgram.deploy.pins import fingerprint, pin, pins, site_signer
from fedgram.deploy.server import run_federation
from fedgram.deploy.settings import read_federation, read_site
from fedgram.deploy.site import CACHE, office
from fedgram.engines.remote.messages import Refusal, Request, Round, commitment_of
from fedgram.engines.remote.policy import AnswerRecord
from fedgram.errors import DataError, FederationError, PrivacyError
from fedgram.secure.messages import NOTHING
from fedgram.secure.party import Party
from fedgram.secure.server import Server

SITES = ("north", "south", "west")


@pytest.fixture
def project(tmp_path):
    made = create(
        tmp_path / "study",
        sites=SITES,
        methods=("afl",),
        overrides=("engine.secure=true", "data.dirichlet=1.0"),
        source="digits",
        address=Address.read("127.0.0.1:8000"),
        demo=True,
    )
    make_keys(made)
    return made


def command(*arguments, **options):
    return CliRunner().invoke(main, ["federation", *map(str, arguments)], **options)


def stand_in(project, fault=None):
    there = {100 + k: office(read_site(site.settings)) for k, site in enumerate(project.sites)}
    return StandIn(there, fault)


def run(project, fault=None):
    return run_federation(stand_in(project, fault), project.server, lambda _: None)


def test_sites_that_pinned_each_other_sum_securely(project):
    out = run(project)
    config, _ = read_federation(project.settings)
    assert done(out, "afl")["shared_digest"] == in_process(config, "afl").shared_digest


def test_a_site_shows_what_it_has_answered(project):
    north = project.site("north").folder
    assert "0 answers that depend on its samples, in 0 runs; 0 secure" in (
        command("releases", north).output
    )
    run(project)
    said = command("releases", north).output
    # Two sums, and the delivery.
    assert "3 answers that depend on its samples, in 1 runs; 2 secure sums revealed" in said
    assert "x north, south, west" in said
    found = json.loads(command("releases", north, "--json").output)
    assert [entry["step"] for entry in found["sums"]] == ["statistics", "score"]
    assert {tuple(entry["members"]) for entry in found["sums"]} == {SITES}


def test_keys_made_on_one_machine_are_pinned_but_not_compared(project, tmp_path):
    for site in project.sites:
        assert set(pins(site)) == set(SITES) - {site.name}
        assert not any(each.compared for each in pins(site).values())
        if sys.platform != "win32":
            assert stat.S_IMODE(os.stat(site.pins).st_mode) == 0o600
    made = command("init", tmp_path / "new", "--site", "a", "--site", "b", "--site", "c")
    assert made.exit_code == 0
    said = command("keys", tmp_path / "new").output
    assert "without a comparison; this is for trying out" in said
    assert "NOT compared" in command("pins", project.site("north").folder).output


def test_a_key_is_pinned_if_the_read_out_fingerprint_is_its_own(project):
    north, west = project.site("north"), project.site("west")
    north.pins.unlink()
    own = command("pins", west.folder).output.split()[1].rstrip(",")
    assert own == fingerprint(west.public_key.read_text())
    for wrong in (
        own[:-1],
        own.swapcase(),
        "",
        "SHA256:",
        fingerprint(north.public_key.read_text()),
    ):
        refused = command("pin", north.folder, west.public_key, "--fingerprint", wrong)
        assert refused.exit_code == PrivacyError.exit_code
        assert "nothing is pinned" in refused.output
        assert not north.pins.exists()
    typed = command("pin", north.folder, west.public_key, input=f"{own}\n")
    assert typed.exit_code == 0, typed.output
    assert pins(north)["west"].compared
    assert f"west: {own}, compared" in command("pins", north.folder).output


def test_keys_that_nobody_has_compared_do_not_count_at_real_sites(project, tmp_path):
    made = create(tmp_path / "real", sites=SITES, overrides=("engine.secure=true",))
    assert all(read_site(site.settings).accept.compared for site in made.sites)
    assert all(read_site(site.settings).accept.secure for site in made.sites)
    for site in project.sites:
        text = site.settings.read_text()
        site.settings.write_text(text.replace("compared = false", "compared = true"))
    with pytest.raises(FederationError, match="or nobody has compared it"):
        run(project)
    for site in project.sites:
        for other in project.sites:
            if other.name != site.name:
                key = other.public_key
                pin(site, other.name, key, read_out=fingerprint(key.read_text()))
    run(project)


def test_one_key_is_not_pinned_under_two_names(project):
    north, west = project.site("north"), project.site("west")
    of_west, of_north = (fingerprint(site.public_key.read_text()) for site in (west, north))
    for key, read_out in ((west.public_key, of_west), (north.public_key, of_north)):
        with pytest.raises(PrivacyError, match="one site would count as two"):
            pin(north, "another", key, read_out=read_out)
    assert "another" not in pins(north)


def test_the_fingerprint_is_that_of_ssh(project):
    if shutil.which("ssh-keygen") is None:
        pytest.skip("ssh-keygen is not installed")
    path = project.site("north").public_key
    shown = subprocess.run(
        ["ssh-keygen", "-lf", str(path)], capture_output=True, text=True, check=True
    ).stdout
    assert shown.split()[1] == fingerprint(path.read_text())


def test_a_compared_key_is_replaced_only_on_request(project):
    north, west = project.site("north"), project.site("west")
    pin(north, "west", west.public_key, read_out=fingerprint(west.public_key.read_text()))
    before = pins(north)["west"]
    make_pair(west, renew=True)
    new = fingerprint(west.public_key.read_text())
    with pytest.raises(PrivacyError, match="another key of west is pinned"):
        pin(north, "west", west.public_key, read_out=new)
    command("keys", project.folder, "--renew", "--site", "south")
    assert pins(north)["west"] == before  # not by the commands of the leader either
    assert pins(north)["south"].fingerprint == fingerprint(
        project.site("south").public_key.read_text()
    )
    pin(north, "west", west.public_key, read_out=new, replace=True)
    assert pins(north)["west"].fingerprint == new


@pytest.mark.parametrize("text", ["", "ssh-ed25519 AAAA x", "ecdsa-sha2-nistp384", "a b c", "\0"])
def test_what_is_not_a_key_is_refused(project, tmp_path, text):
    path = tmp_path / "peer.pub"
    path.write_text(text)
    done = command(
        "pin", project.site("north").folder, path, "--name", "west", "--fingerprint", "x"
    )
    assert done.exit_code == DataError.exit_code


def test_a_signature_is_of_one_site_and_one_message(project):
    signers = {site.name: site_signer(site) for site in project.sites}
    signature = signers["north"].sign(b"yes")
    assert signers["west"].verify("north", b"yes", signature)
    assert signers["north"].verify("north", b"yes", signature)
    assert not signers["west"].verify("north", b"no", signature)
    assert not signers["west"].verify("south", b"yes", signature)
    assert not signers["west"].verify("north", b"yes", signature[:-1])
    assert not signers["west"].known("east")


@pytest.mark.parametrize("change", ["missing", "another key"])
def test_a_site_whose_key_is_not_pinned_is_refused(project, change):
    north, west = project.site("north"), project.site("west")
    if change == "missing":
        kept = json.loads(north.pins.read_text())
        del kept["west"]
        north.pins.write_text(json.dumps(kept))
        reason = "there is no pinned key of west here"
    else:
        make_pair(west, renew=True)
        reason = "the signature of west is invalid"
    with pytest.raises(FederationError, match=reason):
        run(project)


def test_a_skipped_greeting_and_two_parties_of_the_servers_own_unmask_nobody(project):
    """The server greets nobody, invents two parties, and asks one real site."""
    carrier, terms = stand_in(project), None

    def note(_, request, answer):
        nonlocal terms
        asked = codec.decode(request)
        terms = asked.terms if asked.terms.classes else terms
        return answer(request)

    run_federation(StandIn(carrier.offices, note), project.server, lambda _: None)
    victim = carrier.offices[100]
    AnswerRecord(project.sites[0].folder / CACHE).allow_others()  # pins alone must suffice
    about = commitment_of(terms, ask_number=7, step="statistics", federation="", broadcast=NOTHING)

    def ask(kind, content):
        session = Round(session=server.call.session, content=content)
        request = Request(
            terms=terms, kind=kind, serial=99, ask_number=7, step="statistics", broadcast=session
        )
        return codec.decode(victim.answer(codec.encode(request)))

    server = Server(about)
    said = ask("keys", server.call)
    assert isinstance(said, Refusal)
    assert "another federation" in said.text
    about = replace(about, federation=federation_digest(project.server / "ca.crt"))
    server = Server(about)
    keys = ask("keys", server.call).value
    invented = [Party(name, server.call) for name in ("x", "y")]
    roster = server.roster([keys, *(each.keys() for each in invented)])
    said = ask("shares", roster)
    assert isinstance(said, Refusal)
    assert "there is no pinned key of x here" in said.text
    # Nor in the names of real sites.
    server = Server(about)
    keys = ask("keys", server.call).value
    invented = [Party(name, server.call) for name in ("south", "west")]
    roster = server.roster([keys, *(each.keys() for each in invented)])
    said = ask("shares", roster)
    assert isinstance(said, Refusal)
    assert "the signature of south is invalid" in said.text
