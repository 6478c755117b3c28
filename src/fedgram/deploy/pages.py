"""Texts of the files that `fedgram federation init` writes."""

FEDERATION_TOML = """\
# What the server runs: the settings of 'fedgram run', and the rules of a round. It is read when a
# run starts. [data] is for 'fedgram federation simulate' alone: in a real federation the data are
# the sites'.
#   sites    who may take part
#   minimum  sites that must be connected before a run starts
#   wait     seconds to wait for them
#   timeout  seconds that an answer may take
#   quorum   share of the sites asked that must answer
#   grace    seconds that the others still have when that many have answered

"""

SITE_TOML = """\
# One site of a federation. What stands here is the site's own to decide.
#   source   features.npz, seen from this file, or whatever else 'fedgram run' reads
#   methods  which this site takes part in; an empty list stands for all
#   secure   send nothing of this site's samples but under masks
#   samples  training samples below which this site takes no part

"""

CONNECTION_TOML = """\
# Where sites find the server: host:port.
"""

APP = """\
# The app that 'fedgram federation run' hands to Flower. Sites run what is installed there: nothing
# but these few lines travels to them.
[project]
name = "fedgram-app"
version = "{version}"
description = "A federation, carried by Flower."
license = "Apache-2.0"
dependencies = ["fedgram[flower]"]

[tool.flwr.app]
publisher = "fedgram"

[tool.flwr.app.components]
serverapp = "fedgram_app.server:app"
clientapp = "fedgram_app.client:app"

[tool.flwr.app.config]
server = {server}
"""

PROGRAM = """\
from fedgram.deploy.flower.{name}_app import app

__all__ = ["app"]
"""

README = """\
# The federation {name}

The server is reached at {address}. Everywhere: `pip install 'fedgram[flower]'`, the same version.

1. Make the keys, once: `fedgram federation keys .` Then take `authority/ca.key` away from here: it
   is needed again only to renew the server's certificate.
2. Hand each folder of `sites/` to its site, over a channel that keeps `node` secret. A site that
   would rather make its own key runs `fedgram federation keys NAME` there and sends `node.pub`.
3. On the server's machine, whose port {port} the sites must be able to reach:

    fedgram federation server .

4. Beside it, once, and again whenever a site has got a new key:

    fedgram federation register .

5. At each site, with its folder, once its data are where `site.toml` says:

{starts}

6. On the server's machine, as often as you like:

    fedgram federation run .
    fedgram report server/runs/0001 -o report.html

What the server runs is set in `server/federation.toml`. `fedgram federation simulate .` tries it on
this machine alone, with the data that are named there.
"""

SITE_README = """\
# The site {name}

1. `pip install 'fedgram[flower]'`, the version that the server has.
2. Put this site's features where `site.toml` says, or change what it says.
3. `fedgram federation site .` connects to {server} and stays there until it is stopped.

`node` is this site's private key: keep it here, readable by you alone. `ca.crt` is how the server
is known. This site's cache and its personal models are written here too, and do not leave it.
"""

IGNORED = """\
# Keys, data and what runs leave behind do not belong in a repository.
*.key
node
.flwr/
logs/
*.npz
cache/
models/
*.db*
"""
