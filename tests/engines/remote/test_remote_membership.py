"""Who may take part in a remote federation, and what a site refuses."""

import contextlib
import itertools
import json
import sqlite3
from dataclasses import fields, is_dataclass, replace

import numpy as np
import pytest
from ledger_support import pieces
from remote_support import (
    MOST,
    REST,
    StandIn,
    at,
    changed,
    done,
    federation,
    in_process,
    members,
    notes,
    office_of,
    offices,
    served,
    shared_bytes,
)

from fedgram.core import codec
from fedgram.core.samples import Labels, Space
from fedgram.core.statistics import Statistics
from fedgram.deploy.membership import Membership
from fedgram.deploy.server import run_federation
from fedgram.deploy.settings import plain_grid
from fedgram.engines.remote.messages import Answer, Greeting, Refusal, Request, Terms
from fedgram.engines.remote.site import SitePolicy
from fedgram.errors import FederationError, FedgramError, LedgerError, MismatchError
from fedgram.features.grid import Grid
from fedgram.ledger.folder import Ledgers

# Who may take part.


def assembled(tmp_path, sites, *, accept=None, grids=None, name="afl", **rules):
    """Serve these sites; return where it is recorded and the settings."""
    folder, config = federation(tmp_path, name, clients=len(sites), rules=rules)
    there = {
        100 + k: office_of(
            site,
            config,
            tmp_path / f"site {k}",
            **({"accept": accept[k]} if accept and k in accept else {}),
            **({"grid": grids[k]} if grids and k in grids else {}),
        )
        for k, site in enumerate(sites)
    }
    return run_federation(StandIn(there), folder, print), config


def four(tmp_path):
    _, config = federation(tmp_path, "afl")
    return members(config)


def in_space(site, **fields):
    """Return a site whose features were made in another way."""

    def moved(samples):
        space = replace(samples.features.space, **fields)
        return replace(samples, features=replace(samples.features, space=space))

    return replace(
        site, **{part: moved(getattr(site, part)) for part in ("train", "valid", "test")}
    )


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"steps": ("backbone(sha256:1234)", "grid(8 bits)")}, "backbone(sha256:1234)"),
        ({"steps": ("input(64)", "grid(8 bits)", "lift(128, seed 0)")}, "lift(128, seed 0)"),
        ({"backbone": "other"}, "backbone='other'"),
        ({"unit": 0.5}, "unit=0.5"),
    ],
)
def test_a_site_with_other_features_than_most_is_left_out_by_name(tmp_path, fields, reason):
    sites = four(tmp_path)
    if "lift" in reason:
        fields = {"steps": (*sites[1].train.features.space.steps, "lift(128, seed 0)")}
    sites[1] = in_space(sites[1], **fields)
    out, config = assembled(tmp_path, sites, minimum=3)
    told = [text for client, text in notes(out, "afl") if client == "c1"]
    assert any("left out: its features differ from most" in text for text in told)
    assert any(reason in text for text in told)
    written = (out / "afl" / "shared.safetensors").read_bytes()
    assert written == shared_bytes(config, "afl", REST, tmp_path / "expected")


def test_where_no_features_prevail_the_sites_are_named(tmp_path):
    sites = four(tmp_path)
    sites[1:3] = [in_space(site, backbone="other") for site in sites[1:3]]
    with pytest.raises(MismatchError, match="the features of c0, c3 and those of c1, c2 differ"):
        assembled(tmp_path, sites)


def renamed(site, names):
    def under(samples):
        return replace(samples, labels=Labels(samples.labels.codes, names))

    return replace(
        site, **{part: under(getattr(site, part)) for part in ("train", "valid", "test")}
    )


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        (tuple(f"digit {n}" for n in range(10)), "one site has class names"),
        (tuple(f"{n} " if n == 4 else str(n) for n in range(10)), "differ only in case or spaces"),
    ],
)
def test_a_site_that_names_classes_in_another_way_is_left_out(tmp_path, names, reason):
    sites = four(tmp_path)
    sites[1] = renamed(sites[1], names)
    out, config = assembled(tmp_path, sites, minimum=3)
    assert any(c == "c1" and reason in text for c, text in notes(out, "afl"))
    written = (out / "afl" / "shared.safetensors").read_bytes()
    assert written == shared_bytes(config, "afl", REST, tmp_path / "expected")


def test_class_lists_that_merge_are_merged(tmp_path):
    sites = [renamed(site, tuple("abcdefghij")) for site in four(tmp_path)]
    other = tuple("jihgfedcba")
    sites[1] = replace(
        sites[1],
        **{
            part: replace(
                getattr(sites[1], part), labels=getattr(sites[1], part).labels.relabel(other)
            )
            for part in ("train", "valid", "test")
        },
    )
    out, config = assembled(tmp_path, sites)
    alike = [renamed(site, tuple("abcdefghij")) for site in four(tmp_path)]
    assert (out / "afl" / "shared.safetensors").read_bytes() == shared_bytes(
        config, "afl", alike, tmp_path / "expected"
    )


def test_a_site_with_another_grid_or_conditions_refuses_and_is_named(tmp_path):
    sites = four(tmp_path)
    out, config = assembled(
        tmp_path,
        sites,
        minimum=1,
        wait=40,
        grids={1: plain_grid(Grid(bits=4))},
        accept={2: SitePolicy(methods=("fedhip",)), 3: SitePolicy(secure=True)},
    )
    told = dict(reversed(notes(out, "afl")))
    assert "c1 refuses: the server's grid is bits 8" in told["node 101"]
    assert "c2 refuses: method afl may not run here; accepted: fedhip" in told["node 102"]
    assert "c3 refuses: this site takes part in secure sums only" in told["node 103"]
    assert done(out, "afl")["shared_digest"] == in_process(config, "afl", ["c0"]).shared_digest
    assert len(notes(out, "afl")) == 4  # once each, however often they were greeted


def test_sites_that_must_be_large_or_of_the_same_version_say_so(tmp_path):
    site = four(tmp_path)[0]
    _, config = federation(tmp_path, "afl")
    small = office_of(site, config, tmp_path / "a", accept=SitePolicy(samples=10**6))
    terms = Terms(
        version="0.0.1", run="0" * 32, seed=0, method="afl", settings={}, grid=plain_grid(Grid())
    )
    old = codec.encode(Request(terms=terms, kind="greet", serial=0))
    assert "the server runs fedgram 0.0.1, this site" in codec.decode(small.answer(old)).text
    from importlib.metadata import version

    new = codec.encode(
        Request(terms=replace(terms, version=version("fedgram")), kind="greet", serial=0)
    )
    assert "fewer than 1000000 samples" in codec.decode(small.answer(new)).text


def test_two_nodes_of_one_name_are_told_apart(tmp_path):
    sites = four(tmp_path)
    sites[3] = replace(sites[3], id="c1")
    out, config = assembled(tmp_path, sites, minimum=3)
    assert (
        "node 103",
        "not admitted: c1 is connected already, as another node; names must differ",
    ) in (notes(out, "afl"))
    expected = in_process(config, "afl", ["c0", "c1", "c2"])
    assert done(out, "afl")["shared_digest"] == expected.shared_digest


def test_a_registered_name_is_its_owners_alone(tmp_path):
    folder, _ = federation(tmp_path, "afl")
    nodes = {"c0": {"node": 100}, "c1": {"node": 999}, "c9": {"node": 102}, "c3": {"node": 103}}
    (folder / "nodes.json").write_text(json.dumps(nodes))
    out, config = assembled(tmp_path, four(tmp_path), minimum=2, wait=40)
    told = dict(notes(out, "afl"))
    assert "a node with the name c1 has the key" in told["node 101"]
    assert "has the key of c9" in told["node 102"]
    expected = in_process(config, "afl", ["c0", "c3"])
    assert done(out, "afl")["shared_digest"] == expected.shared_digest


def test_sites_that_are_not_listed_stay_out(tmp_path):
    out, config, _, _ = served(tmp_path, "afl", rules={"minimum": 1, "sites": ["c0", "c2"]})
    told = dict(notes(out, "afl"))
    assert "c1 is not among the listed sites" in told["node 101"]
    expected = in_process(config, "afl", ["c0", "c2"])
    assert done(out, "afl")["shared_digest"] == expected.shared_digest


def test_who_was_forgotten_stays_out_until_admitted_and_who_comes_late_joins_the_next_run(tmp_path):
    folder, config = federation(tmp_path, "afl", rules={"minimum": 3})
    everybody = offices(config, tmp_path / "sites")
    late = everybody.pop(103)
    first = run_federation(StandIn(everybody), folder, print)
    three = in_process(config, "afl", ["c0", "c1", "c2"])
    assert done(first, "afl")["shared_digest"] == three.shared_digest
    second = run_federation(StandIn({**everybody, 103: late}), folder, print)
    assert done(second, "afl")["shared_digest"] == in_process(config, "afl").shared_digest
    (certificate,) = Membership(folder=folder).forget("c1")
    third = run_federation(StandIn({**everybody, 103: late}), folder, print)
    assert any("c1 was forgotten" in text for _, text in notes(third, "afl"))
    never = in_process(config, "afl", REST)
    assert done(third, "afl")["shared_digest"] == never.shared_digest
    rest = [site.train + site.valid for site in members(config) if site.id != "c1"]
    total = Statistics.over((samples.features, samples.labels) for samples in rest)
    assert json.loads(certificate.read_text())["total_digest"] == total.digest()
    Membership(folder=folder).verify(certificate)
    Membership(folder=folder).admit("c1")
    fourth = run_federation(StandIn({**everybody, 103: late}), folder, print)
    assert done(fourth, "afl")["shared_digest"] == in_process(config, "afl").shared_digest


def test_a_client_is_not_forgotten_while_a_run_uses_what_it_sent(tmp_path):
    folder, config = federation(tmp_path, "afl", rules=MOST)
    there = offices(config, tmp_path / "sites")
    refusals = []

    def forgotten(request, answer):
        with pytest.raises(LedgerError, match="a run is using this folder") as refused:
            Membership(folder=folder).forget("c1")
        refusals.append(refused)
        return answer(request)

    out = run_federation(StandIn(there, at(101, "deliver", forgotten)), folder, print)
    assert refusals
    assert done(out, "afl")["shared_digest"] == in_process(config, "afl").shared_digest
    (certificate,) = Membership(folder=folder).forget("c1")
    (model,) = json.loads(certificate.read_text())["published_with"]
    assert model["model"] == str(out / "afl" / "shared.safetensors")


def test_a_run_notices_that_its_total_has_changed_and_the_next_one_sums_again(tmp_path):
    folder, config = federation(tmp_path, "afl", rules={**MOST, "minimum": 3})
    there = offices(config, tmp_path / "sites")

    def forgotten(request, answer):
        with Ledgers(folder) as ledgers:  # by a program that does not take the lock
            [ledger.forget("c1") for _, ledger in ledgers]
        return answer(request)

    with pytest.raises(LedgerError, match="the ledger has changed since the model was computed"):
        run_federation(StandIn(there, at(101, "deliver", forgotten)), folder, print)
    out = run_federation(StandIn(there), folder, print)
    assert done(out, "afl")["shared_digest"] == in_process(config, "afl", REST).shared_digest


def test_a_client_that_is_forgotten_while_it_answers_does_not_come_back(tmp_path):
    folder, config = federation(tmp_path, "afl", rules=MOST)
    run_federation(StandIn(offices(config, tmp_path / "sites")), folder, print)
    sites = members(config)
    sites[1] = replace(sites[1], train=sites[1].train.take(slice(5, None)))  # to be asked again
    there = {100 + k: office_of(s, config, tmp_path / f"{k}") for k, s in enumerate(sites)}

    def forgotten(request, answer):
        with Ledgers(folder) as ledgers:  # by a program that does not take the lock
            [ledger.forget("c1") for _, ledger in ledgers]
        return answer(request)

    out = run_federation(StandIn(there, at(101, "step", forgotten)), folder, print)
    assert any(
        c == "c1" and "left out: the site was forgotten" in text for c, text in notes(out, "afl")
    )
    assert done(out, "afl")["shared_digest"] == in_process(config, "afl", REST).shared_digest


# A patient removed and looked for.


def statistics_in(value):
    """Return the statistics in a value, at any depth."""
    if isinstance(value, Statistics):
        return [value]
    if is_dataclass(value):
        value = [getattr(value, field.name) for field in fields(value)]
    if isinstance(value, dict):
        value = list(value.values())
    return [s for v in value for s in statistics_in(v)] if isinstance(value, list | tuple) else []


def statistics_under(*folders):
    """Return all statistics in the files of folders: encoded anywhere, whatever holds them."""
    found = []
    for path in sorted(path for folder in folders for path in folder.rglob("*") if path.is_file()):
        data = path.read_bytes()
        if data.startswith(b"SQLite"):
            with contextlib.closing(sqlite3.connect(path)) as db:
                named = "SELECT name FROM sqlite_master WHERE type = 'table'"
                tables = [name for (name,) in db.execute(named)]
                rows = [row for t in tables for row in db.execute(f"SELECT * FROM {t}")]
            blobs = [cell for row in rows for cell in row if isinstance(cell, bytes)]
        else:
            blobs = [data, data[64:]]  # an answer follows the digest of its request
        for blob in blobs:
            with contextlib.suppress(FedgramError):
                found += statistics_in(codec.decode(blob))
    return found


def differs_by(patient, pair):
    one, other = pair
    return one.space == other.space and np.array_equal(one.gram - other.gram, patient.gram)


@pytest.mark.parametrize("name", ["afl", "fedpcl"])
@pytest.mark.parametrize("keep", [False, True])
def test_a_removed_patient_is_in_no_difference_of_what_is_kept(tmp_path, name, keep):
    short = {"rounds": 2, "epochs": 1, "rate": 0.1} if name == "fedpcl" else {}
    rules = {**MOST, "keep_replaced": keep}
    folder, config = federation(tmp_path, name, "afl", rules=rules, method={name: short})
    sites = members(config)

    def run():
        there = {100 + k: office_of(s, config, tmp_path / f"{k}") for k, s in enumerate(sites)}
        return run_federation(StandIn(there), folder, print)

    run()
    before = sites[1].train
    sites[1] = replace(sites[1], train=before.take(slice(1, None)))
    run()
    patient = Statistics.of(before.features.take(slice(0, 1)), before.labels.take(slice(0, 1)))
    kept = statistics_under(folder, *(tmp_path / str(k) for k in range(4)))
    assert any(s.count == len(sites[1].train + sites[1].valid) for s in kept)
    shown = any(differs_by(patient, pair) for pair in itertools.permutations(kept, 2))
    assert shown == keep  # the search finds the patient where the operator keeps what was replaced

    old, new = (sites[1].valid + samples for samples in (before, sites[1].train))
    there = codec.encode(Statistics.of(new.features, new.labels).gram)
    gone = codec.encode(Statistics.of(old.features, old.labels).gram)
    traces = [piece for piece in pieces(gone) if piece not in there]
    assert traces
    everything = [p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()]
    assert any(trace in data for trace in traces for data in everything) == keep


@pytest.mark.parametrize("name", ["afl", "fedpcl"])
def test_names_may_be_odd(tmp_path, name):
    names = ["c/0", "../../etc", "z" * 200, "😀" * 200, "Ä é.json"]
    short = {"rounds": 2, "epochs": 1, "rate": 0.1} if name == "fedpcl" else {}
    folder, config = federation(tmp_path, name, clients=5, method={name: short})
    sites = [replace(s, id=n) for s, n in zip(members(config), names, strict=True)]
    there = {100 + k: office_of(s, config, tmp_path / f"{k}") for k, s in enumerate(sites)}
    out = run_federation(StandIn(there), folder, print)
    expected = in_process(config, name, sites)
    assert done(out, name)["shared_digest"] == expected.shared_digest
    if name == "afl":
        (certificate,) = Membership(folder=folder).forget("😀" * 200)
        Membership(folder=folder).verify(certificate)


@pytest.mark.parametrize("name", ["", "  ", "x" * 201, "a\nb", "cohort", 7, None])
def test_names_that_cannot_be_are_refused(tmp_path, name):
    hello = at(101, "greet", changed(client=name))
    out, config, _, _ = served(tmp_path, "afl", fault=hello, rules={"minimum": 3, "wait": 20})
    assert any(c == "node 101" and "not admitted" in text for c, text in notes(out, "afl"))
    assert done(out, "afl")["shared_digest"] == in_process(config, "afl", REST).shared_digest


@pytest.mark.parametrize(
    "greeting",
    [
        {"value": 3},
        {"value": lambda honest: replace(honest.value, space="here")},
        {"value": lambda honest: replace(honest.value, space=replace(honest.value.space, steps=5))},
        {"value": lambda honest: replace(honest.value, classes=("a", 1))},
        {"value": lambda honest: replace(honest.value, classes=5)},
        {"value": lambda honest: replace(honest.value, classes=())},
        {"value": lambda honest: replace(honest.value, space=replace(honest.value.space, unit=[]))},
        {"request_digest": "another"},
    ],
)
def test_a_greeting_of_no_sense_stops_nobody_else(tmp_path, greeting):
    fault = at(101, "greet", changed(**greeting))
    out, config, _, _ = served(tmp_path, "afl", fault=fault, rules={"minimum": 3, "wait": 20})
    assert any(c == "node 101" and "not admitted" in text for c, text in notes(out, "afl"))
    assert done(out, "afl")["shared_digest"] == in_process(config, "afl", REST).shared_digest


# What a site never does, whoever asks.


@pytest.fixture
def office(tmp_path):
    site = four(tmp_path)[0]
    _, config = federation(tmp_path, "afl")
    return office_of(site, config, tmp_path / "site")


def asked(office, method="afl", *, space=None, **fields):
    """Return what a site answers to a request of a server that may mean harm."""
    from importlib.metadata import version

    site = office._site()
    terms = Terms(
        version=version("fedgram"),
        run="0" * 32,
        seed=0,
        method=method,
        settings={},
        grid=office._grid,
        space=space or site.train.features.space,
        classes=site.train.labels.classes,
    )
    request = Request(terms=terms, **{"kind": "step", "serial": 1, "step": "statistics", **fields})
    return codec.decode(office.answer(codec.encode(request)))


def test_an_honest_question_is_answered(office):
    assert isinstance(asked(office), Answer)
    assert isinstance(asked(office, kind="greet").value, Greeting)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        (
            {"method": "central", "step": "samples"},
            "would send samples; samples never leave a site",
        ),
        ({"step": "_solved"}, "'_solved' is not a step"),
        ({"step": "__init__"}, "'__init__' is not a step"),
        ({"step": "fit"}, "'fit' is not a step"),
        ({"step": "personalize"}, "'personalize' is not a step"),
        ({"step": "ridge"}, "'ridge' is not a step"),
        ({"step": "settings"}, "'settings' is not a step"),
        ({"method": "evil.py"}, "sites run the methods of fedgram only"),
        ({"method": "../x"}, "'../x'"),
        ({"kind": "../../x"}, "unknown kind of request"),
        ({"serial": "1"}, "unknown kind of request"),
        ({"serial": -1}, "unknown kind of request"),
        ({"kind": "keys"}, "is a round of a secure sum"),
        ({"space": Space(width=65, bound=127)}, "the features of this site differ"),
    ],
)
def test_a_site_refuses_what_no_honest_server_asks(office, fields, reason):
    answer = asked(office, **fields)
    assert isinstance(answer, Refusal)
    assert reason in answer.text


def test_samples_do_not_leave_within_something_else(office, monkeypatch):
    from fedgram.methods.afl import AFL

    monkeypatch.setattr(AFL, "statistics", lambda self, client, _: {"a": [client.samples.labels]})
    assert "never leave" in asked(office).text


def test_no_site_answers_where_samples_would_have_to_leave(tmp_path):
    with pytest.raises(FederationError, match="0 of 4 sites answered"):
        served(tmp_path, "central")
    told = notes(tmp_path / "server" / "runs" / "0001", "central")
    assert sum("never leave a site" in text for _, text in told) == 4
