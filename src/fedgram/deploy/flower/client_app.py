"""The ClientApp of every federation: it passes requests to the site's endpoint."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedgram.deploy.flower.transport import ASK, packed, unpacked
from fedgram.deploy.server import SETTINGS
from fedgram.deploy.settings import read_federation, read_site
from fedgram.deploy.site import office, simulated
from fedgram.engines.remote.site import SiteEndpoint
from fedgram.errors import ConfigError

app = ClientApp()


@app.query(ASK)  # type: ignore[untyped-decorator]
def ask(message: Message, context: Context) -> Message:
    """Answer one request."""
    answer = _office(context).answer(unpacked(message.content))
    return Message(packed(answer), reply_to=message)


def _office(context: Context) -> SiteEndpoint:
    """Return the endpoint, from the site's settings or, in a simulation, from the server's."""
    site = context.node_config.get("site")
    if site is not None:
        return office(read_site(Path(str(site))))
    share, server = context.node_config.get("partition-id"), context.run_config.get("server")
    if share is None or server is None:
        raise ConfigError(
            "this node has no site.toml; start it with --node-config 'site=\"site.toml\"'"
        )
    return _simulated(Path(str(server)), int(share), os.getpid())


@lru_cache(maxsize=64)
def _simulated(server: Path, share: int, process: int) -> SiteEndpoint:  # noqa: ARG001
    """Return a simulated site's endpoint, cached per process, so that its data stay in memory."""
    config, _ = read_federation(server / SETTINGS)
    return simulated(config, share, server.parent / "simulated")
