"""Flower's SuperLink behind a gate: only its own machine may start runs or register sites.

A SuperLink serves sites and operators on one port. Sites prove their identity with a key. Operators
do not: every machine that reaches the port could start a run, that is, run its own programs at the
server and at every site. The gate therefore refuses requests of other machines unless they belong
to the part of the API that sites use. `python -m fedgram.deploy.flower.gate` has the options of
`flower-superlink`.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from fedgram.deploy.flower.adapter import FLEET, HEALTH, run_superlink

OPEN = (FLEET, HEALTH)
MARK = (b"fedgram-gate", b"closed")  # header of every response: it shows that the gate is there

Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]


class Gate:
    """An ASGI application that restricts another one to sites and to its own machine."""

    def __init__(self, app: Callable[[Event, Receive, Send], Awaitable[None]]) -> None:
        self._app = app

    async def __call__(self, scope: Event, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif admitted(scope):

            async def marked(event: Event) -> None:
                if event["type"] == "http.response.start":
                    event["headers"] = [*event.get("headers", ()), MARK]
                await send(event)

            await self._app(scope, receive, marked)
        else:
            await _refuse(scope, send)


def admitted(scope: Event) -> bool:
    """Whether a request is one of a site, or comes from this machine.

    Examples
    --------
    >>> admitted({"path": "/v1/control/start-run", "client": ("127.0.0.1", 1)})
    True
    >>> admitted({"path": "/v1/control/start-run", "client": ("10.0.0.7", 1)})
    False
    >>> admitted({"path": "/v1/fleet/pull-messages", "client": ("10.0.0.7", 1)})
    True
    """
    if str(scope.get("path", "")).startswith(OPEN):
        return True
    try:
        address = ipaddress.ip_address((scope.get("client") or ("", 0))[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)  # an IPv4 peer of an IPv6 socket
    return (mapped or address).is_loopback


async def _refuse(scope: Event, send: Send) -> None:
    if scope["type"] != "http":
        await send({"type": "websocket.close", "code": 1008})
        return
    text = b'{"detail": "Only the server\'s own machine may send this request."}'
    headers = [(b"content-type", b"application/json"), MARK]
    await send({"type": "http.response.start", "status": 403, "headers": headers})
    await send({"type": "http.response.body", "body": text})


if __name__ == "__main__":
    os.umask(0o077)  # its database holds messages of sites
    run_superlink(Gate)
