"""What a site keeps of a secure sum: until the next one, and across a power failure."""

import os
from pathlib import Path

import pytest
from remote_support import StandIn, federation, members, notes, office_of, served
from secure_sites_support import Remote, loads, node, silent  # noqa: F401

from fedgram.core import codec
from fedgram.deploy.server import run_federation
from fedgram.engines.remote.messages import Answer, Round
from fedgram.engines.remote.policy import AnswerRecord, SitePolicy
from fedgram.errors import FederationError
from fedgram.runtime import files


def party_of(folder, name):
    (path,) = (folder / name / "runs").glob("*/party-*")
    return path


def unfinished(folder, kinds="confirm", **options):
    """Let a sum fail late; return a site's file of it, and its secrets."""
    remote = Remote(folder, 3, silent(["c01", "c02"], kinds), **options)
    with pytest.raises(FederationError):
        remote.sum()
    path = party_of(folder, "c00")
    kept = codec.load(path)["party"]
    return path, [*kept["secrets"], *(share for pair in kept["held"].values() for share in pair)]


def holds(folder, secrets):
    everything = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    return [secret for secret in secrets if secret.encode() in everything]


@pytest.mark.parametrize("run", ["0", "1"])
def test_a_newer_sum_erases_the_secrets_of_an_unfinished_one(tmp_path, loads, run):  # noqa: F811
    path, secrets = unfinished(tmp_path)
    assert holds(tmp_path / "c00", secrets) == secrets
    with path.open("rb") as file:  # the same bytes of the disk, whatever becomes of the name
        remote = Remote(tmp_path, 3, run=run)
        remote.engine._replay_log = type(remote.engine._replay_log)(tmp_path / "another log")
        remote.engine._serial = 1
        remote.sum()
        assert set(file.read()) <= {0}
    assert not holds(tmp_path / "c00", secrets)
    assert not [*tmp_path.glob("c*/runs/*/party-*")]


def test_every_round_overwrites_the_secrets_of_the_one_before(tmp_path, loads, monkeypatch):  # noqa: F811
    opened = []
    write = files.write_secret

    def watched(path, data):
        opened.extend([path.open("rb")] if path.is_file() else [])
        write(path, data)

    monkeypatch.setattr(files, "write_secret", watched)
    Remote(tmp_path, 3).sum()
    assert len(opened) == 3 * 3  # keys, shares and masked of three sites
    for file in opened:
        with file:
            assert set(file.read()) == {0}


@pytest.mark.parametrize(("hours", "there"), [(23, True), (25, False)])
def test_after_a_day_any_request_erases_them(tmp_path, loads, hours, there):  # noqa: F811
    path, _ = unfinished(tmp_path)
    old = path.stat().st_mtime - 3600 * hours
    os.utime(path, (old, old))
    part = path.with_name(f"{path.name}.part")  # a kill has left it
    part.write_bytes(b"secret")
    os.utime(part, (old, old))
    remote = Remote(tmp_path, 3)
    request = remote.engine._request("shares", "statistics", Round(session="0" * 64, content=None))
    assert not isinstance(codec.decode(remote.carrier.offices[node("c00")].answer(request)), Answer)
    assert (path.is_file(), part.is_file()) == (there, there)


def test_an_ended_session_is_not_started_again(tmp_path, loads):  # noqa: F811
    asked = []

    def fault(at, request, answer):
        asked.append((at, request))
        return silent(["c01", "c02"], "confirm")(at, request, answer)

    with pytest.raises(FederationError):
        Remote(tmp_path, 3, fault).sum()
    Remote(tmp_path, 3, run="1").sum()
    for path in tmp_path.glob("c00/runs/*/answer-*"):
        path.unlink()
    remote = Remote(tmp_path, 3)
    for at, request in asked:
        said = codec.decode(remote.carrier.offices[at].answer(request))
        if at == node("c00"):
            assert "it is not answered" in said.text


# A power failure.

GUARDS = ("party-", "ended-", "answers.json")


class Disk:
    """Files that may be gone, or empty, if the power fails now."""

    def __init__(self, patch):
        self.unsafe = {}  # whether its content is on the disk, by file
        synced, replace, sync = set(), Path.replace, files._sync

        def moved(part, target):
            done = replace(part, target)
            self.unsafe[target] = part in synced
            return done

        def on_disk(path):
            sync(path)
            synced.add(path)
            self.unsafe = {
                file: whole
                for file, whole in self.unsafe.items()
                if not (whole and file.parent == path)
            }

        patch.setattr(Path, "replace", moved)
        patch.setattr(files, "_sync", on_disk)


def test_no_round_is_answered_before_the_disk_knows(tmp_path, loads, monkeypatch):  # noqa: F811
    """Else a site would answer the last round again after a power failure."""
    disk, guards = Disk(monkeypatch), set()

    def fault(at, request, answer):
        said = answer(request)
        found = {path for path in tmp_path.glob("c*/**/*") if path.name.startswith(GUARDS)}
        assert not disk.unsafe.keys() & found
        guards.update(path.name.split("-")[0] for path in found)
        return said

    Remote(tmp_path, 3, fault).sum()
    assert guards == {"party", "ended", "answers.json"}
    assert disk.unsafe  # stored answers: without them a round is not answered again


def test_a_durable_file_is_on_the_disk_before_it_is_in_its_place(tmp_path, monkeypatch):
    calls = []
    replace_, sync = Path.replace, files._sync
    monkeypatch.setattr(
        Path, "replace", lambda part, target: (calls.append("move"), replace_(part, target))[1]
    )
    monkeypatch.setattr(files, "_sync", lambda path: (calls.append(path.name), sync(path))[1])
    files.write(tmp_path / "a" / "b" / "c", b"d", durable=True)
    assert calls == ["c.part", "move", tmp_path.name, "a", "b"]
    calls.clear()
    files.write(tmp_path / "a" / "b" / "c", b"e")
    assert calls == ["move"]


# A delivery is an answer: whether a model can be made may depend on the samples.


def counts(folder):
    return {
        path.parent.parent.name: AnswerRecord(path.parent).to_dict()["answers"]
        for path in folder.rglob("answers.json")
    }


def test_a_delivery_is_counted(tmp_path):
    served(tmp_path, "afl", clients=3)
    assert {*counts(tmp_path).values()} == {3}  # statistics, scores, delivery


def test_beyond_the_limit_nothing_is_delivered(tmp_path):
    folder, config = federation(tmp_path, "afl", clients=3)
    policy = SitePolicy(questions=2)
    there = {
        100 + n: office_of(site, config, tmp_path / site.id, accept=policy)
        for n, site in enumerate(members(config))
    }
    out = run_federation(StandIn(there), folder, [].append)
    assert sum("its limit is 2" in text for _, text in notes(out, "afl")) == 3
    assert not [*tmp_path.glob("c*/models/*")]
