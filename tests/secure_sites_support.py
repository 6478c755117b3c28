"""Sites of secure sums without samples of their own, and all that their server sees."""

from importlib.metadata import version

import numpy as np
import pytest
from remote_support import StandIn, kind
from secure_support import Load, load_of, lone, names, plain

from fedgram.core import codec
from fedgram.engines.remote.collector import Collector, Deadlines
from fedgram.engines.remote.messages import Answer, Terms
from fedgram.engines.remote.policy import SitePolicy
from fedgram.engines.remote.replay_log import ReplayLog
from fedgram.engines.remote.secure_server import SecureRemoteFederation
from fedgram.engines.remote.site import SiteEndpoint
from fedgram.federation.step import step
from fedgram.methods.afl import AFL

CLASSES = ("no", "yes")


LIVE, DEAD = ["a model that shows the samples"], ["a model of zeros"]


def statistics(self, client, model):
    """Return what a client contributes: nothing, if the model is dead."""
    return load_of(client) if client.id and model != DEAD else Load()


@pytest.fixture
def loads(monkeypatch):
    """Let a method of fedgram's own sum what the tests of secure sums know how to search for."""
    monkeypatch.setattr(AFL, "statistics", step(statistics))


def office(folder, name, *, signer=None, **policy):
    site = lone(name)
    return SiteEndpoint(
        name,
        lambda: site,
        grid={},
        folder=folder / name,
        accept=SitePolicy(samples=0, **policy),
        signer=signer,
    )


def terms(run="0"):
    space = lone("c00").train.features.space
    return Terms(
        version=version("fedgram"),
        run=run * 32,
        seed=0,
        method="afl",
        settings={},
        grid={},
        secure=True,
        space=space,
        classes=CLASSES,
    )


def node(name):
    return 100 + int(name[1:])


class Remote:
    """A federation of offices, and all that its server sees."""

    def __init__(self, folder, count, fault=None, *, run="0", signers=None, **policy):
        known = signers or {}
        there = {
            node(name): office(folder, name, signer=known.get(name), **policy)
            for name in names(count)
        }
        self.notes = []
        self.carrier = StandIn(there, fault)
        post = Collector(
            self.carrier,
            node,
            Deadlines(timeout=30, grace=5),
            lambda *note: self.notes.append(note),
        )
        self.engine = SecureRemoteFederation(
            post, names(count), terms(run), ReplayLog(folder / run)
        )

    def sum(self, model=None, *, clients=None):
        return self.engine.sum(AFL().statistics, model, clients=clients)

    @property
    def view(self):
        """Messages in the form in which the tests of secure sums search them."""
        asked = [codec.decode(request).broadcast.content for _, request in self.carrier.sent]
        told = [codec.decode(answer) for answer in self.carrier.answered]
        return [*asked, *(answer.value for answer in told if isinstance(answer, Answer))]

    def seen(self):
        """Return every byte that the server has sent or received."""
        return b"".join([*(request for _, request in self.carrier.sent), *self.carrier.answered])


def silent(away, kinds):
    def fault(asked, request, answer):
        return None if asked in map(node, away) and kind(request) in kinds else answer(request)

    return fault


def traces(name):
    """Return by which bytes a contribution would be found, in whatever width it were sent."""
    values = plain(name).values
    return [
        values.astype(width).tobytes()[:64] for width in (np.int8, np.int16, np.int32, np.int64)
    ]
