"""Values to sum securely, and all that a server could try with what it has seen."""

import dataclasses
import itertools
from collections import defaultdict

import numpy as np
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from scipy import stats

from fedgram.core import codec
from fedgram.core.additive import Additive, schema_field
from fedgram.core.samples import Features, Labels, Samples, Space
from fedgram.engines.secure_in_process import Secure
from fedgram.federation.client import Site
from fedgram.secure import masks, shamir
from fedgram.secure.flatten import flatten
from fedgram.secure.messages import (
    Masked,
    Reveal,
    Roster,
    SealedShares,
    SessionStart,
    Shares,
    binding,
)
from fedgram.secure.party import pair_mask, self_mask

WORDS = 600


@codec.register("Load/1")
@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Load(Additive):
    """Small integers, far from uniform: what a mask has to hide."""

    count: int = 0
    values: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(WORDS, np.int64))
    unit: str = schema_field(default="kg")


def names(count):
    return [f"c{number:02d}" for number in range(count)]


def load_of(client, _=None):
    rng = np.random.default_rng(int(client.id[1:]))
    return Load(count=int(client.id[1:]) - 5, values=rng.integers(-50, 50, WORDS))


def lone(name):
    rows = Features(np.zeros((0, 1), np.int8), Space(width=1, bound=127))
    nothing = Samples(rows, Labels(np.zeros(0, np.int64), ("no", "yes")))
    return Site(id=name, train=nothing, valid=nothing, test=nothing)


def federation(count, **options):
    return Secure([lone(name) for name in names(count)], **options)


class Named:
    """Enough of a client for `load_of`."""

    def __init__(self, name):
        self.id = name


def plain(name):
    return load_of(Named(name))


class Known:
    """Signs with a key of its own, and knows those of the others."""

    def __init__(self, name, keys):
        self.name, self.keys = name, keys

    def known(self, name):
        return name in self.keys

    def sign(self, message):
        return self.keys[self.name].sign(message)

    def verify(self, name, message, signature):
        try:
            self.keys[name].public_key().verify(signature, message)
        except InvalidSignature:
            return False
        return True


def signers(some):
    keys = {name: Ed25519PrivateKey.generate() for name in some}
    return {name: Known(name, keys) for name in some}


def total_of(some):
    return sum(plain(name) for name in some)


def session(count, step=load_of, **options):
    """Return a secure sum, or the error it ended with, and all that the server saw."""
    view = []
    engine = federation(count, on_message=lambda _, message: view.append(message), **options)
    try:
        outcome = engine.sum(step)
    except Exception as error:  # the view is what matters
        outcome = error
    return outcome, view


def stripped(view):
    """Return each contribution less every mask that the server can compute."""
    roster = next(m for m in view if isinstance(m, Roster))
    commitment = next(m for m in view if isinstance(m, SessionStart)).commitment
    bound, keys = (
        binding(roster, commitment),
        {k.name: bytes.fromhex(k.mask) for k in roster.members},
    )
    points = {name: point for point, name in enumerate(roster.names, 1)}
    found = {"seeds": defaultdict(dict), "keys": defaultdict(dict)}
    for message in view:
        for kind in found if isinstance(message, Reveal) else ():
            for name, share in getattr(message, kind).items():
                found[kind][name][points[message.name]] = bytes.fromhex(share)
    seeds, private = (
        {
            name: shamir.recover(dict(list(shares.items())[: roster.threshold]))
            for name, shares in found[kind].items()
            if len(shares) >= roster.threshold
        }
        for kind in ("seeds", "keys")
    )
    sharing = {m.name for m in view if isinstance(m, Shares)}
    left = {}
    for message in (m for m in view if isinstance(m, Masked)):
        name, vector = message.name, message.vector.copy()
        if name in seeds:
            masks.add_mask(vector, self_mask(bound, name, seeds[name]), negative=True)
        for peer in sharing - {name}:
            if name in private or peer in private:
                own, other = (name, peer) if name in private else (peer, name)
                key, taken = pair_mask(bound, own, other, private[own], keys[other])
                taken = taken if own == name else not taken
                masks.add_mask(vector, key, negative=not taken)
        left[name] = vector
    return left


def looks_random(data, known=None):
    """Whether bytes are uniform, and numbers have nothing to do with known ones."""
    counts = np.bincount(np.frombuffer(np.ascontiguousarray(data), np.uint8), minlength=256)
    uniform = stats.chisquare(counts).pvalue > 1e-9
    if known is None:
        return bool(uniform)
    signed = np.asarray(data).view(np.int64).astype(np.float64)
    if not signed.std():
        return False
    related = abs(np.corrcoef(signed, known.view(np.int64))[0, 1]) * np.sqrt(len(signed))
    return bool(uniform and related < 6.5)


def leaks(views):
    """Return the names of clients of whom the server has learnt something, and how."""
    found = set()
    lefts = [stripped(view) for view in views]
    for view, left in zip(views, lefts, strict=True):
        for name, vector in left.items():
            if not looks_random(vector, flatten(plain(name))[1]):
                found.add((name, "contribution"))
        for message in (m for m in view if isinstance(m, Shares | SealedShares)):
            letters = b"".join(bytes.fromhex(text) for text in message.sealed.values())
            if not looks_random(np.frombuffer(letters, np.uint8)):
                found.add(("letters", "shares"))
    for first, second in itertools.pairwise(lefts):
        for name in first.keys() & second.keys():
            if not looks_random(first[name] - second[name]):
                found.add((name, "difference of two sums"))
    return found
