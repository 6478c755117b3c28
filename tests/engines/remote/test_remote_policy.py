"""A site decides on every request: a hostile server may send anything, in any order."""

import os
import stat
import sys
from dataclasses import replace
from importlib.metadata import version

import numpy as np
import pytest
from remote_support import federation, members, office_of

from fedgram.core import codec
from fedgram.deploy.settings import plain_grid
from fedgram.engines.remote.messages import (
    Answer,
    Delivery,
    Refusal,
    Request,
    Round,
    ScoreRequest,
    Terms,
    commitment_of,
)
from fedgram.engines.remote.policy import SitePolicy
from fedgram.federation.method import create_method
from fedgram.secure.messages import NOTHING, Roster, SealedShares, SessionStart, Survivors
from fedgram.secure.party import Party
from fedgram.secure.server import Server

RUN = "0a1b2c3d" * 4
HOSTILE = {
    "above": "../../../outside/evil",
    "absolute": "/tmp/evil",
    "a file": "evil.py",
    "a file above": "../../evil.py",
    "private module": "_closed_form",
    "other spelling": "AFL",
    "a link": "afl/../../evil",
    "NUL": "afl\0evil",
    "long": "a" * 10_000,
    "reserved": "CON",
    "empty": "",
    "a list": ["afl"],
    "a number": 3,
    "nothing": None,
}


@pytest.fixture
def config(tmp_path):
    return federation(tmp_path, "afl")[1]


@pytest.fixture
def site(config):
    return members(config)[0]


def terms_of(config, site, **changed):
    known = {
        "version": version("fedgram"),
        "run": RUN,
        "seed": 0,
        "method": "afl",
        "settings": {},
        "grid": plain_grid(config.grid),
        "space": site.train.features.space,
        "classes": site.train.labels.classes,
        **changed,
    }
    return Terms(**known)


def shared_of(site):
    method = create_method("afl")
    client = site.client(None)
    total = method.statistics(client, None)
    return next(iter(method.fit(Once(total))))


class Once:
    """A federation whose only sum is known."""

    def __init__(self, total):
        self._total = total
        self.clients = ["one"]

    def sum(self, *_, **__):
        return self._total


def requests(terms, site):
    """Return a request of every kind that reads samples."""
    part = shared_of(site)
    yield Request(terms=terms, kind="greet", serial=0)
    yield Request(terms=terms, kind="step", serial=1, ask_number=1, step="statistics")
    yield Request(terms=terms, kind="score", serial=2, broadcast=ScoreRequest(part=part, round=1))
    yield Request(terms=terms, kind="deliver", serial=3, broadcast=Delivery(part=part, round=1))


def everything_under(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.parametrize("method", HOSTILE.values(), ids=HOSTILE)
def test_no_name_of_a_server_becomes_a_path_or_a_module(tmp_path, config, site, method):
    home = tmp_path / "deep" / "down" / "site"
    endpoint = office_of(site, config, home)
    before = everything_under(tmp_path)
    for request in requests(terms_of(config, site, method=method), site):
        answer = codec.decode(endpoint.answer(codec.encode(request)))
        assert isinstance(answer, Refusal), (request.kind, method)
        assert len(answer.text) < 1000
    assert everything_under(tmp_path) == before


@pytest.mark.parametrize("run", ["../../evil", "0" * 65, "", "0a1b2c3d/..", "0A1B2C3D"])
def test_no_name_of_a_run_becomes_a_path(tmp_path, config, site, run):
    endpoint = office_of(site, config, tmp_path / "site")
    before = everything_under(tmp_path)
    for request in requests(terms_of(config, site, run=run), site):
        assert isinstance(codec.decode(endpoint.answer(codec.encode(request))), Refusal)
    assert everything_under(tmp_path) == before


def test_all_files_of_a_site_are_under_its_folder_and_private(tmp_path, config, site):
    home = tmp_path / "home"
    endpoint = office_of(site, config, home)
    before = [path for path in everything_under(tmp_path) if not path.startswith("home")]
    for request in requests(terms_of(config, site), site):
        assert isinstance(codec.decode(endpoint.answer(codec.encode(request))), Answer)
    after = [path for path in everything_under(tmp_path) if not path.startswith("home")]
    assert after == before
    assert (home / "models" / "afl.safetensors").is_file()
    if sys.platform != "win32":
        for path in [home, *home.rglob("*")]:
            mode = stat.S_IMODE(os.stat(path).st_mode)
            assert mode == (0o700 if path.is_dir() else 0o600), path


def test_too_few_samples_are_refused_on_every_request(tmp_path, config, site):
    """Also by a site that was not greeted: a server may leave that out."""
    endpoint = office_of(site, config, tmp_path / "site", accept=SitePolicy(samples=10**9))
    for request in requests(terms_of(config, site), site):
        answer = codec.decode(endpoint.answer(codec.encode(request)))
        assert isinstance(answer, Refusal), request.kind
        assert "fewer than 1000000000 samples" in answer.text


def test_methods_and_secure_sums_are_checked_on_every_request(tmp_path, config, site):
    for k, policy in enumerate((SitePolicy(methods=("fedhip",)), SitePolicy(secure=True))):
        endpoint = office_of(site, config, tmp_path / str(k), accept=policy)
        for request in requests(terms_of(config, site), site):
            answer = codec.decode(endpoint.answer(codec.encode(request)))
            assert isinstance(answer, Refusal), request.kind
        for request in requests(terms_of(config, site, secure=True), site):
            if request.kind in ("step", "score"):  # in the open, whatever the terms say
                answer = codec.decode(endpoint.answer(codec.encode(request)))
                assert isinstance(answer, Refusal), request.kind


def test_an_accepted_request_is_answered(tmp_path, config, site):
    """So that the refusals above are not those of a site that refuses all."""
    policy = SitePolicy(methods=("afl",), samples=len(site.train) + len(site.valid))
    endpoint = office_of(site, config, tmp_path / "site", accept=policy)
    for request in requests(terms_of(config, site), site):
        assert isinstance(codec.decode(endpoint.answer(codec.encode(request))), Answer)
    more = replace(policy, samples=policy.samples + 1)
    endpoint = office_of(site, config, tmp_path / "other", accept=more)
    for request in requests(terms_of(config, site), site):
        assert isinstance(codec.decode(endpoint.answer(codec.encode(request))), Refusal)


LONG = "a" * 10_000
NAMES = {
    "above": "../../../outside/evil",
    "absolute": "/tmp/evil",
    "reserved": "CON",
    "NUL": "c\0evil",
    "long": LONG,
    "dots": "..",
    "empty": "",
    "a line": "a\nb",
}


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_no_name_of_a_step_session_or_member_becomes_a_path(tmp_path, config, site, name):
    home = tmp_path / "deep" / "down" / "site"
    endpoint = office_of(site, config, home)
    before = [path for path in everything_under(tmp_path) if not path.startswith("deep")]

    def ask(kind, content, *, step="statistics", session="ab" * 32, **changed):
        terms = terms_of(config, site, secure=True, **changed)
        request = Request(
            terms=terms,
            kind=kind,
            serial=1,
            step=step,
            broadcast=Round(session=session, content=content),
        )
        return codec.decode(endpoint.answer(codec.encode(request)))

    def start(session="ab" * 32, *, step="statistics", federation=""):
        about = commitment_of(
            terms_of(config, site, secure=True),
            ask_number=0,
            step=step,
            federation=federation,
            broadcast=NOTHING,
        )
        return SessionStart(session=session, commitment=about)

    assert isinstance(ask("keys", start(name), session=name), Refusal)
    assert isinstance(ask("keys", start(step=name), step=name), Answer)  # a step comes later
    assert isinstance(ask("masked", SealedShares(sealed={}), step=name), Refusal)
    keys = ask("keys", start("cd" * 32), session="cd" * 32).value
    others = [replace(Party(n, start("cd" * 32)).keys(), name=n) for n in (name, "z")]
    members = tuple(sorted([keys, *others], key=lambda each: each.name))
    roster = Roster(session="cd" * 32, threshold=3, members=members)
    ask("shares", roster, session="cd" * 32)
    listed = Survivors(names=tuple(sorted((site.id, name, "z"))))
    ask("confirm", listed, session="cd" * 32)
    ask("reveal", listed, session="cd" * 32)
    require_private(tmp_path, home, before)


def require_private(tmp_path, home, before):
    """Check that only the site's folder has changed, and that only its owner can read it."""
    inside = str(home.relative_to(tmp_path).parts[0])
    after = [path for path in everything_under(tmp_path) if not path.startswith(inside)]
    assert after == before
    written = [path for path in home.rglob("*") if not path.is_dir()]
    assert written
    assert all(len(path.name) < 100 for path in written)
    if sys.platform != "win32":
        for path in [home, *home.rglob("*")]:
            mode = stat.S_IMODE(os.lstat(path).st_mode)
            assert mode == (0o700 if path.is_dir() else 0o600), path


def test_links_at_a_site_are_replaced_and_not_followed(tmp_path, config, site):
    home, outside = tmp_path / "home", tmp_path / "outside"
    outside.mkdir()
    for folder, names in (
        ("models", ("afl.safetensors", "afl.safetensors.part", "afl.json")),
        ("cache", ("answers.json", "refusals.log", "refusals.log.part")),
    ):
        (home / folder).mkdir(parents=True)
        for name in names:
            (outside / name).write_text('{"answers": 0, "runs": {}, "sums": []}')
            (home / folder / name).symlink_to(outside / name)
    before = {path: path.read_bytes() for path in outside.iterdir()}
    endpoint = office_of(site, config, home)
    for request in requests(terms_of(config, site), site):
        assert isinstance(codec.decode(endpoint.answer(codec.encode(request))), Answer)
    bad = Request(terms=terms_of(config, site, secure=True), kind="reveal", serial=4)
    assert isinstance(codec.decode(endpoint.answer(codec.encode(bad))), Refusal)
    assert {path: path.read_bytes() for path in outside.iterdir()} == before


# No refusal and no greeting tells which classes have samples.


def without(site, name):
    """Return a site with the same class list, and no samples of one class."""

    def rest(samples):
        code = samples.labels.classes.index(name)
        return samples.take(np.flatnonzero(samples.labels.codes != code))

    return replace(site, train=rest(site.train), valid=rest(site.valid), test=rest(site.test))


def test_a_server_cannot_ask_which_classes_a_site_has(tmp_path, config, site):
    classes = site.train.labels.classes
    gone = next(name for name in classes if (site.train.labels.codes == classes.index(name)).any())
    few = without(site, gone)
    said = []
    for k, each in enumerate((site, few)):
        endpoint = office_of(each, config, tmp_path / str(k))
        terms = terms_of(config, each, secure=True)
        greeting = codec.decode(
            endpoint.answer(codec.encode(Request(terms=terms, kind="greet", serial=0)))
        )
        lesser = replace(terms, classes=tuple(name for name in classes if name != gone))
        about = commitment_of(
            lesser, ask_number=1, step="statistics", federation="", broadcast=NOTHING
        )
        start = SessionStart(session="ab" * 32, commitment=about)
        parties = [Party(name, start) for name in ("y", "z")]

        def ask(kind, content, endpoint=endpoint, lesser=lesser):
            request = Request(
                terms=lesser,
                kind=kind,
                serial=1,
                ask_number=1,
                step="statistics",
                broadcast=Round(session="ab" * 32, content=content),
            )
            return codec.decode(endpoint.answer(codec.encode(request)))

        server = Server(about)
        server.call = start
        roster = server.roster([ask("keys", start).value, *(p.keys() for p in parties)])
        shares = [ask("shares", roster).value, *(p.shares(roster) for p in parties)]
        refused = ask("masked", server.parcels(shares)[site.id])
        assert isinstance(refused, Refusal)
        assert gone not in refused.text
        said.append([greeting.value, refused.error, refused.text])
        assert "lacks classes" in (tmp_path / str(k) / "cache" / "refusals.log").read_text()
    assert codec.digest(said[0][0]) == codec.digest(said[1][0])
    assert said[0][1:] == said[1][1:]
