"""Who may ask what of the server."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgram.deploy.flower.gate import MARK, Gate, admitted

PRIVATE = ("/v1/control/start-run", "/v1/runtime/pull-task", "/docs", "/openapi.json", "/", "")


def asked(path, client, kind="http"):
    """Ask through a gate; return whether it came through, and what was answered."""
    seen, sent = [], []

    async def app(scope, receive, send):
        seen.append(scope["path"])
        await send({"type": "http.response.start", "status": 200, "headers": [(b"a", b"b")]})
        await send({"type": "http.response.body", "body": b"yes"})

    async def send(event):
        sent.append(event)

    scope = {"type": kind, "path": path, "client": client}
    asyncio.run(Gate(app)(scope, None, send))
    return bool(seen), sent


@pytest.mark.parametrize("client", [("127.0.0.1", 5), ("127.3.4.5", 5), ("::1", 5)])
@pytest.mark.parametrize("path", [*PRIVATE, "/v1/fleet/pull-messages", "/health"])
def test_the_servers_own_machine_may_ask_for_anything(path, client):
    through, sent = asked(path, client)
    assert through
    assert sent[0]["headers"] == [(b"a", b"b"), MARK]


@pytest.mark.parametrize("client", [("10.0.0.7", 5), ("2001:db8::1", 5), ("::ffff:10.0.0.7", 5)])
def test_other_machines_reach_what_sites_need_and_no_more(client):
    assert asked("/v1/fleet/pull-messages", client)[0]
    assert asked("/health", client)[0]
    for path in PRIVATE:
        through, sent = asked(path, client)
        assert not through
        assert sent[0]["status"] == 403
        assert MARK in sent[0]["headers"]


def test_an_ipv4_address_in_ipv6_clothes_is_itself():
    assert admitted({"path": "/docs", "client": ("::ffff:127.0.0.1", 5)})


@pytest.mark.parametrize("client", [None, ("", 0), ("unix:", 0), ("localhost", 5)])
def test_who_cannot_be_told_is_a_stranger(client):
    assert not admitted({"path": "/docs", "client": client})


@given(st.text(max_size=40))
def test_no_other_path_is_open_to_strangers(path):
    if admitted({"path": path, "client": ("10.0.0.7", 5)}):
        assert path.startswith(("/v1/fleet/", "/health"))


def test_other_kinds_of_connections_are_closed_to_strangers():
    through, sent = asked("/docs", ("10.0.0.7", 5), kind="websocket")
    assert not through
    assert sent == [{"type": "websocket.close", "code": 1008}]


def test_the_start_and_the_end_of_the_server_pass():
    seen = []

    async def app(scope, receive, send):
        seen.append(scope["type"])

    asyncio.run(Gate(app)({"type": "lifespan"}, None, None))
    assert seen == ["lifespan"]
