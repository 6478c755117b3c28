"""A server that may send anything to sites, and all that it can compute from their answers.

The server knows what it has sent and received, and the secrets of the parties that it runs itself:
invented ones, whose keys no site has pinned, and colluding ones, whose keys the sites have pinned.
Every request is answered by a new endpoint on the site's folder, as by a new process.
"""

import secrets
from collections import defaultdict
from dataclasses import dataclass, field, replace

import numpy as np
from secure_sites_support import terms
from secure_support import Known, Load, Named, load_of, lone

from fedgram.core import codec
from fedgram.engines.remote.messages import Answer, Request, Round, commitment_of
from fedgram.engines.remote.policy import SitePolicy
from fedgram.engines.remote.site import SiteEndpoint
from fedgram.errors import FedgramError
from fedgram.secure import masks, shamir
from fedgram.secure.flatten import flatten
from fedgram.secure.messages import (
    Keys,
    Masked,
    Reveal,
    Roster,
    SealedShares,
    SessionStart,
    Shares,
    Survivors,
    binding,
)
from fedgram.secure.party import Party, least_threshold, pair_mask, seed_commitment, self_mask

STEP = "statistics"
EMPTY = 1  # the broadcast for which a site's sums are zero, as those of a model without gradient
LEAST = 3  # members of a sum, and members by which two sums differ


def contribution(client, broadcast):
    return Load() if broadcast == EMPTY or not client.id else load_of(client)


class Careless(Known):
    """Signs with its own key, and believes every signature."""

    def known(self, name):
        return True

    def verify(self, name, message, signature):
        return True


class Hostile(Party):
    """A party of the server's own: it computes as others do, and checks nothing."""

    def _enter(self, round_):
        pass

    def _check(self, roster):
        pass

    def _require(self, count):
        pass


@dataclass
class View:
    """What a site has accepted in a session, and what it has answered."""

    start: SessionStart | None = None
    keys: Keys | None = None
    roster: Roster | None = None
    shares: Shares | None = None
    masked: Masked | None = None
    broadcast: object = None
    sharing: frozenset = frozenset()

    @property
    def bound(self):
        seen = codec.digest(self.broadcast)
        return binding(self.roster, replace(self.start.commitment, broadcast=seen))


@dataclass(frozen=True)
class Release:
    """A sum that the server can compute: of these sites, for these broadcasts."""

    names: frozenset
    broadcasts: frozenset
    colluding: frozenset

    @property
    def members(self):
        return self.names | self.colluding


@dataclass
class Attacker:
    """The server.

    Parameters
    ----------
    folder
        Where the sites have their state.
    signers
        The keys of honest and of colluding sites, which the sites have pinned.
    honest, colluding, invented
        Names of the sites that follow the protocol, and of the server's own parties.
    policy
        The policy of the sites.
    """

    folder: object
    signers: dict
    honest: list
    colluding: list
    invented: list
    policy: SitePolicy
    log: list = field(default_factory=list)
    plain: list = field(default_factory=list)  # answers with sums that have no masks
    views: dict = field(default_factory=lambda: defaultdict(View))
    parties: dict = field(default_factory=dict)  # of the server's own, by session and name
    pool: dict = field(default_factory=lambda: defaultdict(dict))  # shares, by owner and kind

    def send(self, name, request):
        """Send a request, and remember all that its answer says."""
        site = lone(name)
        office = SiteEndpoint(
            name,
            lambda: site,
            grid={},
            folder=self.folder / name,
            accept=self.policy,
            signer=self.signers[name],
        )
        answer = codec.decode(office.answer(codec.encode(request)))
        self.log.append((name, request))
        if not isinstance(answer, Answer):
            return None
        if request.kind in ("step", "score") and answer.value is not None:
            self.plain.append((name, request.kind))
        if isinstance(request.broadcast, Round):
            self._learn(name, request.broadcast, answer.value)
        return answer.value

    def _learn(self, name, round_, value):
        view, content = self.views[name, round_.session], round_.content
        if isinstance(value, Keys):
            view.start, view.keys = content, value
        elif isinstance(value, Shares):
            view.roster, view.shares = content, value
            self._open_shares(name, round_.session, view)
        elif isinstance(value, Masked):
            view.masked, view.broadcast = value, round_.broadcast
            view.sharing = frozenset(content.sealed)
        elif isinstance(value, Reveal):
            for kind in ("seeds", "keys"):
                for owner, share in getattr(value, kind).items():
                    self._keep_share(round_.session, owner, kind, name, bytes.fromhex(share))

    def _open_shares(self, name, session, view):
        """Open the shares of a site that are for the server's own parties."""
        for own in self.own_in(view.roster):
            party = self.party(session, own, view.start, view.roster)
            key, about = party._encryption(name, own)
            both = masks.unseal(key, bytes.fromhex(view.shares.sealed[own]), about)
            self._keep_share(session, name, "keys", own, both[: shamir.SHARE])
            self._keep_share(session, name, "seeds", own, both[shamir.SHARE :])

    def _keep_share(self, session, owner, kind, holder, share):
        self.pool[session, owner, kind][holder] = share

    # The server's own parties

    def own_in(self, roster):
        return [name for name in (*self.colluding, *self.invented) if name in roster.names]

    def party(self, session, name, start, roster=None):
        """Return a party of the server's own, as the site sees it that was sent this start."""
        if (session, name) not in self.parties:
            keys = self.signers[name].keys if name in self.signers else {}
            signer = Careless(name, {**keys, name: self.key_of(name)})
            self.parties[session, name] = Hostile(name, start, signer=signer)
            self.parties[session, name].keys()
        first = self.parties[session, name]
        party = Hostile.restored(first.to_dict(), signer=first._signer)
        party._call = start
        party._own = replace(first._own, signature=party._signed(first._own.signed_part(start)))
        if roster is not None:
            party._join(roster)
        return party

    def key_of(self, name):
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        known = self.signers.get(name)
        return known.keys[name] if known else Ed25519PrivateKey.from_private_bytes(bytes(32))

    # What can be computed

    def secret(self, session, owner, kind):
        """Return a site's mask key or seed, if the server has enough shares of it."""
        view = self.views[owner, session]
        held = self.pool.get((session, owner, kind), {})
        points = {
            view.roster.names.index(holder) + 1: share
            for holder, share in held.items()
            if holder in view.roster.names
        }
        if len(points) < view.roster.threshold:
            return None
        try:
            found = shamir.recover(dict(list(points.items())[: view.roster.threshold]))
        except FedgramError:
            return None
        right = (
            masks.public(found).hex() == view.keys.mask
            if kind == "keys"
            else seed_commitment(owner, found) == view.keys.seed_commitment
        )
        return found if right else None

    def releases(self):
        """Return every sum of contributions that the server can compute."""
        found = []
        for session in {session for _, session in self.views}:
            found += self._releases(session)
        return found

    def _releases(self, session):
        left = {}  # of each site whose own mask is known: the rest of its vector, open masks
        for name in self.honest:
            view = self.views.get((name, session))
            if view is None or view.masked is None:
                continue
            seed = self.secret(session, name, "seeds")
            if seed is None:
                continue
            vector = view.masked.vector.copy()
            masks.add_mask(vector, self_mask(view.bound, name, seed), negative=True)
            left[name] = vector, self._strip(session, name, view, vector)
        found = []
        for names in components({name: masked for name, (_, masked) in left.items()}):
            total = sum((left[name][0] for name in names), np.zeros_like(left[names[0]][0]))
            views = [self.views[name, session] for name in names]
            both = list(zip(names, views, strict=True))
            parts = [flatten(contribution(Named(n), v.broadcast))[1] for n, v in both]
            true = sum(parts, np.zeros_like(total))
            assert (total == true).all()  # the server really computes it
            informed = [n for n, v in both if v.broadcast != EMPTY]
            if informed:
                found.append(
                    Release(
                        names=frozenset(informed),
                        broadcasts=frozenset(codec.digest(v.broadcast) for v in views),
                        colluding=frozenset(self.colluding) & set(views[0].roster.names),
                    )
                )
        return found

    def _strip(self, session, name, view, vector):
        """Take off the masks with peers that the server can compute; return the others."""
        private, keys = (
            self.secret(session, name, "keys"),
            {each.name: each for each in view.roster.members},
        )
        unknown = set()
        for peer in view.sharing - {name}:
            public = bytes.fromhex(keys[peer].mask)
            other = self._private(session, peer, keys[peer])
            if private is not None:
                key, negative = pair_mask(view.bound, name, peer, private, public)
            elif other is not None:
                own = bytes.fromhex(keys[name].mask)
                key, reverse = pair_mask(view.bound, peer, name, other, own)
                negative = not reverse
            else:
                unknown.add((view.bound, frozenset((keys[name].mask, keys[peer].mask))))
                continue
            masks.add_mask(vector, key, negative=not negative)
        return unknown

    def _private(self, session, peer, keys):
        if peer in (*self.colluding, *self.invented):
            return self.parties[session, peer]._mask_key
        view = self.views.get((peer, session))
        if view is None or view.roster is None or view.keys.mask != keys.mask:
            return None
        return self.secret(session, peer, "keys")

    def leaks(self):
        """Return how the sums of few sites can be computed; empty if they cannot."""
        found = [f"sums without masks: {each}" for each in self.plain]
        releases = self.releases()
        for one in releases:
            if len(one.broadcasts) > 1:
                found.append(f"sums for unequal broadcasts: {sorted(one.names)}")
            if len(one.members) < LEAST:
                found.append(f"a sum of few members: {sorted(one.names)}")
            if self.policy.difference:
                least = 99 if self.policy.difference == "same" else LEAST
                found += [
                    f"a difference of two sums: {sorted(one.names ^ two.names)}"
                    for two in releases
                    if 0 < len(one.names ^ two.names) < least
                ]
        return found


def components(unknown):
    """Yield the sets of sites whose open masks cancel in their sum.

    Parameters
    ----------
    unknown
        The masks of each site that are not known.
    """
    rest = set(unknown)
    while rest:
        some = {rest.pop()}
        while more := {n for n in rest if any(unknown[n] & unknown[m] for m in some)}:
            some |= more
            rest -= more
        times = defaultdict(int)
        for name in some:
            for mask in unknown[name]:
                times[mask] += 1
        if all(count == 2 for count in times.values()):
            yield sorted(some)


@dataclass(frozen=True)
class Plan:
    """One session of the server: whom it asks for what, and how it departs from the protocol."""

    sites: tuple
    own: tuple = ()  # parties of the server's own in the roster
    odd: str = ""  # a site that is sent another broadcast...
    announced: bool = True  # ...and it is part of what the session is about
    threshold: int = 0  # 0 for the least that is allowed
    hidden: tuple = ()  # (site, other): the site gets a roster without the other one
    lists: tuple = ((),)  # lists of survivors, as names that are missing from each
    confirm: bool = True
    run: str = "0"
    serial: int = 1


def conduct(attacker, plan):
    """Run one session by a plan; nothing is raised, whatever sites refuse."""
    session = secrets.token_bytes(masks.KEY).hex()
    known = terms(plan.run)

    def broadcast(name):
        return EMPTY if plan.odd and name != plan.odd else None

    def start(name):
        meant = broadcast(name) if plan.announced else None
        about = commitment_of(
            known, ask_number=1, step=STEP, federation="", broadcast=codec.digest(meant)
        )
        return SessionStart(session=session, commitment=about)

    def ask(name, kind, content, argument=None):
        request = Request(
            terms=known,
            kind=kind,
            serial=plan.serial,
            ask_number=1,
            step=STEP,
            broadcast=Round(session=session, content=content, broadcast=argument),
        )
        return attacker.send(name, request)

    keys = {name: ask(name, "keys", start(name)) for name in plan.sites}
    rosters = {name: _roster(attacker, plan, session, name, keys, start) for name in plan.sites}
    shares = {name: ask(name, "shares", roster) for name, roster in rosters.items()}
    for name in plan.sites:
        parcel = _parcel(attacker, session, name, rosters[name], shares, start)
        ask(name, "masked", parcel, broadcast(name))
    for missing in plan.lists:
        _reveal(attacker, plan, session, ask, missing)


def _roster(attacker, plan, session, name, keys, start):
    members = {other: found for other, found in keys.items() if found is not None}
    for own in plan.own:
        members[own] = attacker.party(session, own, start(name))._own
    if plan.hidden and plan.hidden[0] == name:
        members.pop(plan.hidden[1], None)
    threshold = plan.threshold or least_threshold(len(members))
    listed = tuple(members[other] for other in sorted(members))
    return Roster(session=session, threshold=threshold, members=listed)


def _parcel(attacker, session, name, roster, shares, start):
    sealed, digests, signatures = {}, {}, {}
    sent = {other: found for other, found in shares.items() if found and other != name}
    can = name in roster.names and roster.threshold <= len(roster.members)
    for own in attacker.own_in(roster) if can else ():
        party = attacker.party(session, own, start(name))
        sent[own] = party.shares(roster)
    for other, found in sent.items():
        if name in found.sealed:
            sealed[other], digests[other] = found.sealed[name], found.digests[name]
            signatures[other] = found.signatures[name]
    return SealedShares(sealed=sealed, digests=digests, signatures=signatures)


def _reveal(attacker, plan, session, ask, missing):
    views = {name: attacker.views[name, session] for name in plan.sites}
    there = {name: view for name, view in views.items() if view.masked is not None}
    if not there:
        return
    names = tuple(sorted({*there, *plan.own} - set(missing)))
    signed = {}
    if plan.confirm:
        for name in there:
            if name in names and (found := ask(name, "confirm", Survivors(names=names))):
                signed[name] = found.signature
    for name, view in there.items():
        signatures = dict(signed)
        for own in set(plan.own) & set(names):
            party = attacker.party(session, own, view.start)
            said = Survivors(names=names).signed_part(view.bound)
            signatures[own] = party._signed(said)
        if name in names:
            ask(name, "reveal", Survivors(names=names, signatures=signatures))


@dataclass(frozen=True)
class Replay:
    """An earlier request, sent again: to any site, and changed in one respect."""

    number: int
    site: int
    change: str = ""
    other: int = 0


def replay(attacker, again):
    """Send a request of the log again."""
    if not attacker.log:
        return
    _, request = attacker.log[again.number % len(attacker.log)]
    _, other = attacker.log[again.other % len(attacker.log)]
    name = attacker.honest[again.site % len(attacker.honest)]
    round_, its = request.broadcast, other.broadcast
    if again.change == "serial":
        request = replace(request, serial=request.serial + 1)
    elif again.change == "kind":
        request = replace(request, kind=other.kind)
    elif again.change == "run":
        request = replace(request, terms=other.terms)
    elif again.change == "bare":
        request = replace(request, kind="step", broadcast=None)
    elif again.change == "open":
        known = replace(request.terms, secure=False)
        request = replace(request, kind="step", broadcast=None, terms=known)
    elif again.change == "content" and isinstance(round_, Round) and isinstance(its, Round):
        request = replace(request, broadcast=replace(round_, content=its.content))
    elif again.change == "names" and isinstance(getattr(round_, "content", None), Survivors):
        fewer = replace(round_.content, names=round_.content.names[1:])
        request = replace(request, broadcast=replace(round_, content=fewer))
    attacker.send(name, request)
