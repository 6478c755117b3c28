"""The ServerApp of every federation: it runs the methods of ``federation.toml``."""

from __future__ import annotations

import logging
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedgram.deploy.flower.transport import FlowerTransport
from fedgram.deploy.server import run_federation

app = ServerApp()
_log = logging.getLogger("flwr")


@app.main()  # type: ignore[untyped-decorator]
def main(grid: Grid, context: Context) -> None:
    """Run the federation; an error ends the run as failed, with its reason in the log."""
    folder = Path(str(context.run_config["server"]))
    out = run_federation(FlowerTransport(grid), folder, lambda text: _log.info("fedgram: %s", text))
    _log.info("fedgram: recorded in %s", out)
