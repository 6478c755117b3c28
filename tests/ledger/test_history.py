"""The history of a ledger: chained, signed, and silent about what was forgotten."""

import contextlib
import copy
import hashlib
import importlib.util
import itertools
import json
import shutil
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ledger_support import CLASSES, contents, operations, rows, summed

from fedgram.core import codec
from fedgram.errors import LedgerError
from fedgram.ledger import signing, store
from fedgram.ledger.certificate import Certificate
from fedgram.ledger.contribution import Contribution, merged, random_tag
from fedgram.ledger.history import (
    CommitmentOpening,
    Entry,
    about_text,
    check,
    lost_keys,
    signed_bytes,
    total_text,
)
from fedgram.ledger.ledger import Ledger

EXAMPLE = Path(__file__).parents[2] / "examples" / "check_history.py"
STORED = Path(__file__).parents[1] / "stored"
WIDTH = 9

_spec = importlib.util.spec_from_file_location("check_history", EXAMPLE)
auditor = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(auditor)


def of(number, *names):
    return summed([(number + k, name) for k, name in enumerate(names)], CLASSES, WIDTH)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger"


@pytest.fixture
def ledger(path):
    with Ledger.create(path, key=path.with_name("history.key")) as ledger:
        ledger.join("north", of(10, "ant", "bee"))
        ledger.join("south", of(20, "cat"))
        yield ledger


def published(ledger, name):
    ledger.publish(shared_digest=name * 64, model=f"{name}.safetensors")


def varied(folder):
    """Return the export of a history with every kind of event, its fingerprint, a certificate."""
    path = folder / "ledger"
    with Ledger.create(path, key=folder / "history.key") as ledger:
        first = ledger.signed_by
        ledger.join("north", of(10, "ant", "bee"))
        ledger.join("south", of(20, "cat", "cat"))
        ledger.stream("south", of(30, "dog"))
        ledger.stream("south", -of(20, "cat"))
        ledger.replace("north", of(11, "bee"))
        published(ledger, "a")
        ledger.change_key(folder / "second.key")
        ledger.leave("south")
        ledger.admit("south")
        certificate = ledger.forget("south")
        history = ledger.export()
        assert [event.what for event in ledger.history()] == [
            *("init", "join", "join", "stream", "remove", "replace", "publish", "key", "leave"),
            *("admit", "forget", "export"),
        ]
    return first, history, certificate.to_dict()


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    return varied(tmp_path_factory.mktemp("history"))


def require_valid(history):
    """Check an exported history as `verify` does."""
    openings = {key: CommitmentOpening(**plain) for key, plain in history["openings"].items()}
    key = check([Entry.read(plain) for plain in history["events"]], openings)
    last = history["events"][-1]["body"]["after"]
    if last not in openings or not key:
        raise LedgerError("the last total is not opened")


# Altered histories


def test_an_honest_history_is_valid_for_fedgram_and_for_an_auditor_without_it(exported, tmp_path):
    first, history, certificate = exported
    require_valid(history)
    auditor.check_certificate(auditor.check_history(first, history), certificate)
    for name, content in {"history": history, "certificate": certificate}.items():
        (tmp_path / name).write_text(json.dumps(content))
    ledger = history["events"][0]["body"]["ledger"]
    for fingerprint in (first, first.upper()):
        done = checked(fingerprint, tmp_path / "history", tmp_path / "certificate")
        expected = f"ledger {ledger}: 12 events, chained and signed\n1 certificates, valid\n"
        assert (done.returncode, done.stdout, done.stderr) == (0, expected, "")
    assert "usage: python check_history.py FINGERPRINT" in checked().stderr


def checked(*words):
    """Run the auditor's script."""
    return subprocess.run([sys.executable, EXAMPLE, *words], capture_output=True, text=True)


def test_the_script_says_in_one_line_what_is_not_valid(exported, tmp_path):
    first, history, certificate = copy.deepcopy(exported)
    files = [tmp_path / "history", tmp_path / "certificate"]

    def said(history, certificate):
        for path, content in zip(files, (history, certificate), strict=True):
            path.write_text(json.dumps(content))
        done = checked(first, *files)
        assert (done.returncode, done.stdout) == (1, "")
        return done.stderr

    history["events"][3]["signature"] = history["events"][4]["signature"]
    assert said(history, certificate) == f"NOT VALID: event 4: wrong signature ({files[0]})\n"
    del history["events"][3]["body"]["before"]
    assert said(history, certificate) == f"NOT VALID: event 4: KeyError: 'before' ({files[0]})\n"
    assert said([], certificate).startswith("NOT VALID: TypeError: ")
    forged = {**certificate, "client": "north"}
    assert said(exported[1], forged) == f"NOT VALID: another client ({files[1]})\n"
    assert checked(first, tmp_path / "missing").stderr.startswith("NOT VALID: FileNotFoundError")


def altered_body(draw, history):
    body = draw(st.sampled_from(history["events"]))["body"]
    name = draw(st.sampled_from(sorted(body)))
    new = draw(st.sampled_from([None, 0, 7, "", "east", "forget", "0" * 64, "2001-01-01T00:00"]))
    if body[name] == new:
        new = "another"
    body[name] = new


def dropped(draw, history):
    events = history["events"]
    del events[draw(st.integers(0, len(events) - 2))]


def dropped_and_numbered_again(draw, history):
    dropped(draw, history)
    for number, event in enumerate(history["events"], start=1):
        event["body"]["number"] = number


def reordered(draw, history):
    events = history["events"]
    k = draw(st.integers(0, len(events) - 2))
    events[k], events[k + 1] = events[k + 1], events[k]


def repeated(draw, history):
    events = history["events"]
    k = draw(st.integers(0, len(events) - 1))
    events.insert(k, copy.deepcopy(events[k]))


def forged_signature(draw, history):
    event = draw(st.sampled_from(history["events"]))
    last = int(event["signature"][-2:], 16)
    near = f"{event['signature'][:-2]}{last ^ 1:02x}"
    event["signature"] = draw(st.sampled_from(["", "00" * 64, near]))


def altered_detail(draw, history):
    event = draw(st.sampled_from(history["events"]))
    event["detail"] = {**event["detail"], "members": ["nobody"]}
    if draw(st.booleans()):
        event["salt"] = ""


def altered_increment(draw, history):
    event = draw(st.sampled_from(history["events"]))
    event["samples"] = (event["samples"] or 0) + draw(st.integers(1, 9))
    if draw(st.booleans()):
        event["salt"] = ""


def altered_opening(draw, history):
    opening = draw(st.sampled_from(sorted(history["openings"].values(), key=str)))
    opening[draw(st.sampled_from(["salt", "text"]))] = "00" * 32


def hidden_detail(draw, history):
    """Erase the detail of an event of which nothing is ever erased."""
    kept = [event for event in history["events"] if event["body"]["what"] in ("forget", "publish")]
    draw(st.sampled_from(kept)).update(detail={}, samples=None, salt="")


def last_opening_gone(draw, history):
    del history["openings"][history["events"][-1]["body"]["after"]]


ALTERATIONS = [
    *(altered_body, dropped, dropped_and_numbered_again, reordered, repeated, forged_signature),
    *(altered_detail, altered_increment, altered_opening, hidden_detail, last_opening_gone),
]


@pytest.mark.parametrize("alteration", ALTERATIONS, ids=lambda each: each.__name__)
@given(data=st.data())
def test_an_altered_history_is_found_by_fedgram_and_by_the_auditor(exported, alteration, data):
    first, history, _ = copy.deepcopy(exported)
    alteration(data.draw, history)
    with pytest.raises((LedgerError, KeyError, TypeError, ValueError)):
        require_valid(history)
    with pytest.raises(Exception):  # noqa: B017, PT011  # whatever stops the script
        auditor.check_history(first, history)


def signed_again(history, key, start):
    """Return a history whose chain and signatures are made anew from an event on, by a key."""
    history = copy.deepcopy(history)
    link = None
    for event in history["events"]:
        body = event["body"]
        if body["number"] >= start:
            body["previous"] = link or body["previous"]
            body["signer"] = signing.fingerprint(key.public)
            event["signature"] = key.sign(signed_bytes(body))
        link = hashlib.sha256(signed_bytes(body)).hexdigest()
    return history


@pytest.mark.parametrize("start", [1, 2, 9])
def test_a_chain_that_somebody_else_signed_is_found(exported, tmp_path, start):
    first, history, _ = exported
    forged = signed_again(history, signing.HistoryKey.create(tmp_path / "other"), start)
    with pytest.raises(LedgerError, match="is not signed"):
        require_valid(forged)
    with pytest.raises(ValueError, match="signed by another key"):
        auditor.check_history(first, forged)


def test_a_history_with_another_first_key_is_found_by_its_fingerprint(exported, tmp_path):
    other, history, _ = varied(tmp_path)
    require_valid(history)
    auditor.check_history(other, history)
    with pytest.raises(ValueError, match="another first key"):
        auditor.check_history(exported[0], history)


def test_a_history_that_ends_before_a_certificate_is_found_by_the_certificate(exported):
    first, history, certificate = copy.deepcopy(exported)
    forget = history["events"][-2]["body"]
    assert forget["what"] == "forget"
    history["events"] = history["events"][:-2]
    history["openings"][history["events"][-1]["body"]["after"]] = {"salt": "", "text": ""}
    with pytest.raises(ValueError, match="wrong opening"):
        auditor.check_history(first, history)
    events = {event["body"]["number"]: event for event in history["events"]}
    with pytest.raises(ValueError, match="not in the history"):
        auditor.check_certificate(events, certificate)


def test_ledgers_with_the_same_key_are_distinguished_by_their_ids(ledger, path):
    with Ledger.create(path.with_name("other"), key=path.with_name("history.key")) as other:
        other.join("north", of(10, "ant", "bee"))
        other.join("south", of(20, "cat"))
        assert other.signed_by == ledger.signed_by
        assert other.id != ledger.id
        certificate, history = ledger.forget("south"), ledger.export()
        other.forget("south")
        for events in (history["events"], [certificate.entry]):
            assert {event["body"]["ledger"] for event in events} == {ledger.id}
        foreign = other.export()
        with pytest.raises(ValueError, match="not in the history"):
            auditor.check_certificate(
                auditor.check_history(other.signed_by, foreign), certificate.to_dict()
            )
        with pytest.raises(LedgerError, match="belongs to another ledger"):
            other.verify(certificate)


def test_events_of_another_ledger_do_not_continue_a_history(exported, tmp_path):
    """Not even if the owner of the key signs them."""
    history = copy.deepcopy(exported[1])
    key = signing.HistoryKey.create(tmp_path / "key")
    history["events"] = history["events"][:7]  # before the key is changed
    history["events"][0]["body"]["key"] = key.public
    history["events"][-1]["body"]["ledger"] = "0" * 32
    history = signed_again(history, key, 1)
    with pytest.raises(ValueError, match="event 7: of another ledger"):
        auditor.check_history(signing.fingerprint(key.public), history)
    with pytest.raises(LedgerError, match="event 7 does not follow"):
        check([Entry.read(plain) for plain in history["events"]], {})


CERTIFICATE = [
    {"client": "north"},
    {"event": 1},
    {"total_digest": "0" * 64},
    {"samples": 9},
    {"time": "2001-01-01T00:00:00+00:00"},
    {"members": []},
    {"published_with": []},
    {"salt": "00" * 32},
    {"total_digest": "", "salt": "", "samples": 123456},
    {"salt": "", "samples": None},
    {"kind": "fedgram certificate of deletion, format 1"},
    {"kind": "x"},
    {"extra": 1},
]


@pytest.mark.parametrize("change", CERTIFICATE, ids=str)
def test_an_altered_certificate_is_found_by_the_auditor(exported, change):
    first, history, certificate = exported
    events = auditor.check_history(first, history)
    with pytest.raises(ValueError, match=r"\w"):
        auditor.check_certificate(events, {**certificate, **change})


# Altered ledgers


@pytest.mark.parametrize(
    "statements",
    [
        ["UPDATE events SET body = replace(body, 'north', 'south') WHERE seq = 2"],
        ["UPDATE events SET signature = '' WHERE seq = 2"],
        ["UPDATE events SET samples = 9 WHERE seq = 2"],
        ["UPDATE events SET samples = 9, salt = '' WHERE seq = 2"],
        ["UPDATE events SET detail = '{}' WHERE seq = 2"],
        ["DELETE FROM events WHERE seq = 2"],
        [
            "UPDATE events SET seq = 9 WHERE seq = 2",
            "UPDATE events SET seq = 2 WHERE seq = 3",
            "UPDATE events SET seq = 3 WHERE seq = 9",
        ],
        ["UPDATE openings SET salt = '00'"],
        ["UPDATE meta SET value = '\"\"' WHERE key = 'key'"],
    ],
    ids=lambda each: each[0],
)
def test_an_altered_history_in_a_ledger_is_found(ledger, path, statements):
    for statement in statements:
        rows(path, statement)
    found = r"the history was changed|not the last of its history|the total is not the sum"
    with pytest.raises(LedgerError, match=found):
        ledger.verify()


def test_altered_increments_are_found_even_if_all_else_agrees_with_them(ledger, path):
    more = of(10, "ant", "bee", "dog")
    value = codec.encode(Contribution(client="north", statistics=more))
    total = of(20, "cat") + more
    change = "UPDATE contributions SET value = ?, sha256 = ? WHERE client = 'north'"
    rows(path, change, value, hashlib.sha256(value).hexdigest())
    rows(path, "UPDATE total SET value = ?", codec.encode(total))
    with pytest.raises(LedgerError, match="the total is not the sum of its contributions"):
        ledger.verify()
    last = ledger.history()[-1].body["after"]
    text = total_text(total.digest(), total.count)
    rows(path, "UPDATE openings SET value = ? WHERE commitment = ?", text, last)
    with pytest.raises(LedgerError, match="the opening of a commitment is wrong"):
        ledger.verify()


def put_in_place(path, client, statistics, *, of_client=None):
    """Replace what is stored of a client behind the ledger's back, with the right checksum."""
    value = codec.encode(Contribution(client=of_client or client, statistics=statistics))
    change = "UPDATE contributions SET value = ?, sha256 = ? WHERE client = ?"
    rows(path, change, value, hashlib.sha256(value).hexdigest(), client)


def swapped_values(ledger, path):
    put_in_place(path, "north", of(20, "cat"))
    put_in_place(path, "south", of(10, "ant", "bee"))


def swapped_values_with_their_names(ledger, path):
    put_in_place(path, "north", of(20, "cat"), of_client="south")
    put_in_place(path, "south", of(10, "ant", "bee"), of_client="north")


def swapped_names(ledger, path):
    other = "CASE client WHEN 'north' THEN 'south' ELSE 'north' END"
    rows(path, f"UPDATE contributions SET client = {other}")


def another_value_of_a_client_that_left(ledger, path):
    ledger.leave("north")
    put_in_place(path, "north", of(50, "dog"))


def another_rest_after_a_removal(ledger, path):
    ledger.stream("north", -of(10, "ant"))
    ledger.leave("north")
    put_in_place(path, "north", of(50, "dog"))


def another_rest_after_a_withdrawal(ledger, path):
    ledger.withdraw("a", of(10, "ant"), within="north", tag="b", mark="c")
    ledger.leave("north")
    put_in_place(path, "north", of(50, "dog"))


def a_client_that_left_gone_without_an_event(ledger, path):
    ledger.leave("north")
    rows(path, "DELETE FROM contributions WHERE client = 'north'")


@pytest.mark.parametrize(
    "alteration",
    [
        *(swapped_values, swapped_values_with_their_names, swapped_names),
        *(another_value_of_a_client_that_left, another_rest_after_a_removal),
        *(another_rest_after_a_withdrawal, a_client_that_left_gone_without_an_event),
    ],
    ids=lambda each: each.__name__,
)
def test_altered_contributions_are_found_even_if_the_total_is_the_same(ledger, path, alteration):
    alteration(ledger, path)
    with pytest.raises(LedgerError, match=r"that its history names|is stored as one of client"):
        ledger.verify()


# Guesses of what was forgotten


def confirms(path, text):
    """Whether the bytes of a ledger confirm a guess, by a digest or by a salt and a commitment."""
    data = contents(path)
    salts = [
        salt for (salt,) in rows(path, "SELECT salt FROM openings UNION SELECT salt FROM events")
    ]
    guesses = [CommitmentOpening(salt=salt, text=text).commitment for salt in salts]
    return any(guess.encode() in data for guess in [*guesses, text.split()[0]])


@pytest.mark.parametrize(
    ("how", "tag"),
    [("forget", ""), ("replace", ""), ("remove", ""), ("remove", random_tag("May"))],
    ids=["forget", "replace", "remove", "remove, random tag"],
)
def test_a_guess_of_what_was_erased_cannot_be_confirmed(ledger, path, how, tag):
    published(ledger, "a")
    total, alone = ledger.total, of(10, "ant", "bee")
    guesses = [total_text(total.digest(), total.count), total_text(alone.digest(), alone.count)]
    assert all(confirms(path, text) for text in (*guesses, "a" * 64))
    ids = [Contribution(client="north", statistics=alone).id]
    assert ids[0].encode() in contents(path)
    if how == "forget":
        ledger.forget("north")
    elif how == "replace":
        ledger.replace("north", of(11, "bee"))
    else:
        ledger.stream("north", -of(10, "ant"), tag=tag)
        ids.append(Contribution(client="north", statistics=-of(10, "ant")).id)
    assert not any(confirms(path, text) for text in (*guesses, "a" * 64))
    assert not any(each.encode() in contents(path) for each in ids)
    ledger.verify()
    require_valid(ledger.export())


@pytest.mark.parametrize("seed", range(3))
def test_exactly_the_totals_with_an_erased_client_cannot_be_opened(path, seed):
    """Who was in a total follows from the events: nothing else in the file can be altered."""
    totals = []
    with Ledger.create(path) as ledger:
        for operation in itertools.islice(operations(seed), 30):
            operation.apply(ledger, WIDTH)
            with contextlib.suppress(sqlite3.OperationalError):
                rows(path, "UPDATE openings SET members = '[]'")
            if operation.what in ("forget", "replace", "remove", "join"):  # or joined again
                gone = [text for members, text in totals if operation.client in members]
                assert not any(confirms(path, text) for text in gone)
                totals = [each for each in totals if operation.client not in each[0]]
            assert all(confirms(path, text) for _, text in totals)
            total = ledger.total
            totals.append((ledger.members, total_text(total.digest(), total.count)))
        assert totals
        ledger.verify()


def test_a_total_of_a_secure_sum_that_was_erased_is_not_taken_for_a_later_one(path):
    with Ledger.create(path) as ledger:
        ledger.replace("cohort", of(10, "ant", "bee"), tag="north\nsouth")
        ledger.forget("south", within="cohort")
        ledger.join("east", of(30, "dog"))
        text = total_text(ledger.total.digest(), ledger.total.count)
        ledger.leave("east")
        ledger.replace("cohort", of(10, "ant"), tag="north")
        ledger.forget("north", within="cohort")
        assert confirms(path, text)
        ledger.verify()


def test_totals_without_the_forgotten_client_stay_open(ledger):
    ledger.leave("north")
    ledger.join("east", of(30, "dog"))
    without = ledger.total.digest()
    ledger.forget("north")
    digests = [event.total_digest for event in ledger.history()]
    assert digests == [digests[0], "", "", of(20, "cat").digest(), without, without]


def test_a_certificate_issued_again_opens_no_total_of_a_client_forgotten_since(ledger, tmp_path):
    ledger.join("east", of(30, "dog"))
    published(ledger, "a")
    first = ledger.forget("east")
    ledger.forget("north")
    (again,) = ledger.certificates("east")
    assert (again.total_digest, again.samples, again.salt) == ("", None, "")
    assert (again.mark, again.published_with) == (first.mark, first.published_with)
    for certificate in (first, again):
        ledger.verify(Certificate.read(json.loads(json.dumps(certificate.to_dict()))))
    events = auditor.check_history(ledger.signed_by, ledger.export())
    for certificate in (first, again):
        auditor.check_certificate(events, certificate.to_dict())
    with pytest.raises(LedgerError, match="or was changed"):
        ledger.verify(replace(first, total_digest="0" * 64))
    (current,) = ledger.certificates("north")
    hidden = replace(current, total_digest="", samples=None, salt="")
    with pytest.raises(LedgerError, match="or was changed"):
        ledger.verify(hidden)


# Keys


def test_the_key_is_private_and_its_fingerprint_is_the_same_each_time(ledger, path):
    key = path.with_name("history.key")
    assert key.stat().st_mode & 0o777 == 0o600
    assert ledger.signed_by == signing.fingerprint(signing.HistoryKey(key).public)
    with Ledger.create(path.with_name("another"), key=key) as other:
        assert other.signed_by == ledger.signed_by


@pytest.mark.parametrize("wrong", ["missing", "another key", "no key at all"])
def test_without_the_key_a_signed_ledger_is_read_but_not_changed(ledger, path, wrong):
    key = path.with_name("history.key")
    key.unlink()
    if wrong == "another key":
        signing.HistoryKey.create(key)
    elif wrong == "no key at all":
        key.write_text("a text")
    before = path.read_bytes()
    with pytest.raises(LedgerError, match="restore"):
        ledger.leave("north")
    assert path.read_bytes() == before
    ledger.verify()


def test_a_ledger_without_a_key_is_chained_and_may_get_one_later(path):
    with Ledger.create(path) as ledger:
        ledger.join("north", of(10, "ant"))
        assert ledger.signed_by == ""
        ledger.verify()
        first = ledger.change_key(path.with_name("history.key"))
        ledger.join("south", of(20, "cat"))
        ledger.verify()
        auditor.check_history(first, ledger.export())


def test_without_cryptography_a_ledger_is_chained_and_a_signed_one_is_read(
    ledger, path, monkeypatch
):
    monkeypatch.setattr(signing, "available", lambda: False)
    with Ledger.create(path.with_name("plain")) as plain:
        plain.join("north", of(10, "ant"))
        plain.forget("north")
        plain.verify()
    ledger.verify()
    with pytest.raises(LedgerError, match=r"pip install 'fedgram\[secure\]'"):
        ledger.leave("north")


# Ledgers of format 1


@pytest.fixture
def old(tmp_path):
    shutil.copy(STORED / "study.ledger", tmp_path / "ledger")
    return tmp_path / "ledger"


def test_a_ledger_of_format_1_is_read_without_a_change(old):
    before = old.read_bytes()
    certificate = Certificate.read(json.loads((STORED / "west.certificate").read_text()))
    with Ledger.open(old) as ledger:
        ledger.verify(certificate)
        assert ledger.history()
        assert (ledger.signed_by, ledger.id, ledger.chained) == ("", "", False)
    assert old.read_bytes() == before


def test_a_ledger_of_format_1_goes_on_with_a_chain_that_commits_to_its_past(old):
    certificate = Certificate.read(json.loads((STORED / "west.certificate").read_text()))
    with Ledger.open(old) as ledger:
        earlier, digest = ledger.history(), ledger.total.digest()
        first = ledger.change_key(old.with_name("history.key"))
        assert ledger.chained
        history = ledger.history()
        facts = [(event.time, event.what, event.client, event.samples) for event in earlier]
        kept = history[: len(earlier)]
        assert [(event.time, event.what, event.client, event.samples) for event in kept] == facts
        assert [event.what for event in history[len(earlier) :]] == ["migrated", "key"]
        assert history[-1].seq == len(earlier) + 2
        ledger.verify(certificate)
        exported = ledger.export()
        auditor.check_history(first, exported)
        text = json.dumps(exported["earlier"], sort_keys=True, separators=(",", ":"))
        committed = exported["events"][0]["detail"]["digest"]
        assert committed == hashlib.sha256(text.encode()).hexdigest()
        assert ledger.total.digest() == digest


def test_forgetting_erases_what_format_1_derived_from_a_client(old):
    stored = json.loads((STORED / "west.certificate").read_text())
    certificate = Certificate.read(stored)
    with Ledger.open(old) as ledger:
        digests = {event.total_digest for event in ledger.history()[1:] if event.total_digest}
        shared = {m["shared_digest"] for m in stored["published_with"]}
        member = ledger.members[0]
        before = contents(old)
        assert all(digest.encode() in before for digest in digests)
        for client in ledger.members:
            ledger.forget(client)
        after = contents(old)
        assert not any(digest.encode() in after for digest in (*digests, *shared))
        ledger.verify(certificate)
        assert ledger.certificates(member)


def test_a_guess_of_what_was_forgotten_in_format_1_cannot_be_confirmed_after_the_change(old):
    west = codec.load(STORED / "west.contribution").statistics
    shared = json.loads((STORED / "west.certificate").read_text())["published_with"][0]
    with Ledger.open(old) as ledger:
        guesses = [merged([ledger.total, west]).digest(), shared["shared_digest"]]
        assert all(guess.encode() in contents(old) for guess in guesses)
        without = ledger.total.digest()
        ledger.change_key(old.with_name("history.key"))
        exported = json.dumps(ledger.export())
        for guess in guesses:
            assert guess.encode() not in contents(old)
            assert guess not in exported
        assert without in exported
        ledger.verify()


def test_the_tag_of_a_secure_sum_survives_the_change_and_digests_with_a_withdrawn_site_do_not(old):
    """A history as format 1 wrote it: a cohort was published, and a site withdrew from it."""
    with Ledger.open(old) as ledger:
        rest, whole = ledger.total.digest(), "a" * 64
    rows(old, "DELETE FROM contributions WHERE client = 'south'")
    rows(old, "DELETE FROM events WHERE seq > 1")
    add = "INSERT INTO events VALUES (?, '2026', ?, ?, NULL, ?, ?)"
    names = ["east", "north", "west"]
    model = {"shared_digest": "b" * 64, "model": "m", "members": names}
    rows(old, add, 2, "join", "cohort", whole, "{}")
    rows(old, add, 3, "publish", None, whole, json.dumps(model))
    rows(old, add, 4, "replace", "cohort", rest, json.dumps({"tag": "east\nnorth"}))
    listed = {"samples": 1, "members": ["cohort"], "published_with": [{"time": "2026", **model}]}
    rows(old, add, 5, "forget", "west", rest, json.dumps(listed))
    with Ledger.open(old) as ledger:
        ledger.change_key(old.with_name("history.key"))
        assert ledger.tag("cohort") == "east\nnorth"
        data = contents(old)
        assert whole.encode() not in data
        assert b"b" * 64 not in data
        assert ledger.history()[4].total_digest == rest


@pytest.mark.parametrize(
    ("statement", "erased"),
    [
        ("UPDATE old_events SET client = 'nobody', time = '1999' WHERE what = 'join'", False),
        ("DELETE FROM old_events", False),
        ("DELETE FROM old_events WHERE seq = 5", False),
        ("DELETE FROM old_events WHERE seq = 5", True),  # their number is known even then
    ],
)
def test_altered_events_of_format_1_are_found(old, statement, erased):
    with Ledger.open(old) as ledger:
        first = ledger.change_key(old.with_name("history.key"))
        if erased:
            ledger.forget("north")
        ledger.verify()
        rows(old, statement)
        with pytest.raises(LedgerError, match="the events of format 1 are others"):
            ledger.verify()
        exported = ledger.export()
        with pytest.raises(ValueError, match="earlier event"):
            auditor.check_history(first, exported)


def test_what_remains_after_a_removal_in_format_1_is_accepted_once(old):
    ((north,),) = rows(old, "SELECT value FROM contributions WHERE client = 'north'")
    rows(old, "UPDATE events SET what = 'remove', detail = '{}' WHERE client = 'north'")
    with Ledger.open(old) as ledger:
        ledger.verify()
        ledger.change_key(old.with_name("history.key"))
        ledger.verify()
        more = (
            "INSERT INTO contributions (client, id, member, value, sha256) VALUES (?, ?, 0, ?, ?)"
        )
        rows(old, more, "north", "", north, hashlib.sha256(north).hexdigest())
        with pytest.raises(LedgerError, match="of client north are not those that its history"):
            ledger.verify()


class Killed(BaseException):
    """Ends everything at once, as a kill does."""


def test_a_kill_during_the_change_of_format_leaves_format_1(old, monkeypatch):
    def killed(self, *arguments, **options):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(store.LedgerFile, "add_event", killed)
        with pytest.raises(Killed), Ledger.open(old) as ledger:
            ledger.leave("north")
    with Ledger.open(old) as ledger:
        assert ledger._file.get("format") == 1
        ledger.verify()
        ledger.leave("north")
        ledger.verify()


# A lost key


def lose(path, how):
    """Lose the key in a file, in one of the ways in which keys are lost."""
    if how == "missing":
        path.unlink()
    elif how == "damaged":
        path.write_text("-----BEGIN PRIVATE KEY-----\nnothing\n")
    else:
        path.unlink()
        signing.HistoryKey.create(path)


FORGETTING = {
    "forget": lambda ledger: ledger.forget("north"),
    "remove": lambda ledger: ledger.stream("north", -of(10, "ant")),
    "replace": lambda ledger: ledger.replace("north", of(11, "bee")),
    "withdraw": lambda ledger: ledger.withdraw(
        "a", of(10, "ant"), within="north", tag="b", mark="c"
    ),
}


@pytest.mark.parametrize("how", ["missing", "damaged", "another"])
@pytest.mark.parametrize("what", FORGETTING)
def test_a_lost_key_does_not_prevent_forgetting(ledger, path, what, how):
    first, key = ledger.signed_by, path.with_name(signing.KEY)
    lose(key, how)
    with pytest.raises(LedgerError, match="--change FILE --lost"):
        ledger.leave("south")
    number = len(ledger.history()) + 1
    FORGETTING[what](ledger)
    assert ledger.lost_keys == {number: ledger.signed_by}
    assert ledger.signed_by != first
    ledger.verify()
    history = ledger.export()
    with pytest.raises(ValueError, match="a key that nobody has confirmed"):
        auditor.check_history(first, history)
    auditor.check_history(f"{first},{ledger.signed_by}", history)
    if what == "forget":
        (certificate,) = ledger.certificates("north")
        events = auditor.check_history(f"{first},{ledger.signed_by}", history)
        auditor.check_certificate(events, certificate.to_dict())
    ledger.join("east", of(30, "dog"))  # the new key signs on
    assert ledger.lost_keys == {number: ledger.signed_by}
    ledger.verify()


def test_a_key_that_is_there_is_not_replaced(ledger):
    first = ledger.signed_by
    ledger.forget("north")
    assert (ledger.signed_by, ledger.lost_keys) == (first, {})


def test_where_the_file_of_the_key_cannot_be_written_the_new_one_is_beside_the_ledger(tmp_path):
    with Ledger.create(tmp_path / "l", key=tmp_path / "stick" / "k") as ledger:
        ledger.join("north", of(10, "ant"))
        (tmp_path / "stick" / "k").unlink()
        (tmp_path / "stick").rmdir()
        (tmp_path / "stick").write_text("no folder")
        ledger.forget("north")
        assert ledger.lost_keys == {3: ledger.signed_by}
        assert (tmp_path / "history-3.key").is_file()
        ledger.verify()


def test_an_operator_begins_a_new_key_by_hand(ledger, path, tmp_path):
    path.with_name(signing.KEY).unlink()
    found = ledger.change_key(tmp_path / "new", lost=True)
    assert [*ledger.lost_keys.values()] == [found]
    ledger.leave("south")
    ledger.verify()


def test_a_lost_key_that_somebody_made_up_is_reported_and_names_a_key(ledger, tmp_path):
    """Who has no key can write such an event: the auditor asks for the new fingerprint."""
    history = ledger.export()
    last = history["events"][-1]["body"]
    stolen = signing.HistoryKey.create(tmp_path / "other")
    for public in (stolen.public, ""):
        body = {
            **last,
            "number": last["number"] + 1,
            "what": "lost-key",
            "before": last["after"],
            "key": public,
            "signer": signing.fingerprint(public),
            "previous": Entry.read(history["events"][-1]).digest,
            "about": CommitmentOpening(salt="00" * 32, text=about_text(None, {})).commitment,
        }
        signature = stolen.sign(signed_bytes(body)) if public else ""
        forged = Entry(body=body, signature=signature, samples=None, detail={}, salt="00" * 32)
        entries = [*map(Entry.read, history["events"]), forged]
        if public:
            assert check(entries, {}) == public
            assert lost_keys(entries) == {body["number"]: signing.fingerprint(public)}
        else:
            with pytest.raises(LedgerError, match="names no key"):
                check(entries, {})
        altered = {**history, "events": [*history["events"], forged.to_dict()]}
        with pytest.raises(ValueError, match="a key that nobody has confirmed"):
            auditor.check_history(ledger.signed_by, altered)
