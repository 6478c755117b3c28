"""A site decides on every request: a hostile server may send anything, in any order."""

import os
import stat
import sys
from dataclasses import replace
from importlib.metadata import version

import pytest
from remote_support import federation, members, office_of

from fedgram.core import codec
from fedgram.deploy.settings import plain_grid
from fedgram.engines.remote.messages import Answer, Delivery, Refusal, Request, ScoreRequest, Terms
from fedgram.engines.remote.site import SitePolicy
from fedgram.federation.method import create_method

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
