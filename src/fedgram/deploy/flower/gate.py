"""Flower's SuperLink behind a gate: only its own machine may start runs or register sites.

A SuperLink serves sites and operators on one port. Sites prove who they are; operators, in the
Flower that everybody has, do not: whoever reaches the port may start a run, which is to say, run
programs of their own at the server and at every site. So what comes from other machines is let
through to the sites' part alone. `python -m fedgram.deploy.flower.gate` takes the arguments of
`flower-superlink`.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

OPEN = ("/v1/fleet/", "/health")  # what sites need
MARK = (b"fedgram-gate", b"closed")  # in every answer, so that one can see that it is there

Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]


class Gate:
    """An ASGI application that keeps what is not for sites to the machine it runs on."""

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
    mapped = getattr(address, "ipv4_mapped", None)  # how IPv6 sockets show IPv4 peers
    return (mapped or address).is_loopback


async def _refuse(scope: Event, send: Send) -> None:
    if scope["type"] != "http":
        await send({"type": "websocket.close", "code": 1008})
        return
    text = b'{"detail": "Only the machine of the server may ask for this."}'
    headers = [(b"content-type", b"application/json"), MARK]
    await send({"type": "http.response.start", "status": 403, "headers": headers})
    await send({"type": "http.response.body", "body": text})


def main() -> None:
    """Run the SuperLink with the arguments of this process."""
    import uvicorn
    from flwr.superlink.cli import flower_superlink

    run = uvicorn.run

    def gated(*, app: Any, **settings: Any) -> None:
        run(app=Gate(app), **settings)

    uvicorn.run = gated
    flower_superlink()


if __name__ == "__main__":
    main()
