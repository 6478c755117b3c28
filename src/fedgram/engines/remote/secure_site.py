"""A site's side of a secure sum; every round may run in a new process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from fedgram.core import codec
from fedgram.engines.remote.messages import Request, Round, commitment_of
from fedgram.engines.remote.policy import AnswerRecord, SitePolicy
from fedgram.engines.remote.site_store import SiteStore
from fedgram.errors import DataError, MismatchError
from fedgram.secure.messages import (
    Commitment,
    ProtocolError,
    Roster,
    SessionStart,
    Signer,
    Survivors,
)

if TYPE_CHECKING:  # needs the extra [secure]
    from fedgram.secure.party import Party

Kept = tuple[Any, Callable[[], None]]  # the value of an answer, and a function that stores state


def nothing() -> None:
    """Store nothing."""


@dataclass(frozen=True, eq=False, kw_only=True)
class SecureRounds:
    """Answers the rounds of secure sums for one site, under the site's lock.

    The state is on disk before an answer is sent. If a round is requested again with other content,
    it is refused.

    Parameters
    ----------
    name
        Name of the site.
    signer
        Signs for the site and knows the pinned keys of the others; None in a simulation, where the
        server is trusted to pass on public keys.
    policy, record
        The sums that the site accepts, and those that it has answered.
    federation
        Digest that names the federation; empty if the site does not know it.
    store
        Stores the state of this site in the session.
    samples
        Returns the digest of the site's samples.
    step
        Returns the contribution, and a function that stores state. Its arguments are the request,
        and the session whose state the step uses.
    count
        Counts an answer that depends on the samples; raises at the limit.
    """

    name: str
    signer: Signer | None
    policy: SitePolicy
    record: AnswerRecord
    federation: str
    store: SiteStore
    samples: Callable[[], str]
    step: Callable[[Request, str], Kept]
    count: Callable[[], None]

    def answer(self, request: Request) -> Kept:
        """Answer one round."""
        round_ = request.broadcast
        if not isinstance(round_, Round):
            raise DataError(f"{request.kind}: the request has no session")
        party, samples = self._party(request, round_)
        content = round_.content
        value: Any = None
        keep: Callable[[], None] = nothing
        if request.kind == "masked":
            self._check_totals(round_, party.commitment)
            self.count()
            asked = replace(request, broadcast=round_.broadcast, totals=round_.totals_of(self.name))
            value, keep = self.step(asked, party.commitment.state)
            if self.samples() != samples:
                raise MismatchError("the samples changed during this session; start again")
        self._check_members(request, content, samples)
        answers: dict[str, Callable[[], Any]] = {
            "keys": party.keys,
            "shares": lambda: party.shares(content),
            "masked": lambda: party.masked(value, content, codec.digest(round_.broadcast)),
            "confirm": lambda: party.confirm(content),
            "reveal": lambda: party.reveal(content),
        }
        spent = request.kind == "reveal"
        try:
            answer = answers[request.kind]()
            if spent:
                self.record.reveal(request.step, samples, content.names)
                self.store.use_session_state(round_.session)
        finally:
            kept = {} if spent else {"party": party.to_dict(), "samples": samples}
            self.store.keep_party(round_.session, kept)
        return answer, keep

    def _party(self, request: Request, round_: Round) -> tuple[Party, str]:
        """Return this site's side of a session, and the digest of its samples at the start."""
        from fedgram.secure.party import Party  # needs the extra

        options: dict[str, Any] = {"signer": self.signer, "share": self.policy.threshold}
        kept, content = self.store.party(round_.session), round_.content
        if request.kind == "keys":
            if kept is not None or not isinstance(content, SessionStart):
                raise ProtocolError("this session has started already; it is not answered")
            if content.session != round_.session:
                raise ProtocolError("the names of the session differ; it is not answered")
            self._check_commitment(request, content.commitment)
            self.store.end_sums()  # a site takes part in one at a time
            return Party(self.name, content, **options), self.samples()
        if not kept:
            raise ProtocolError("this session is unknown here, or finished; it is not answered")
        party = Party.restored(kept["party"], **options)
        self._check_commitment(request, party.commitment)
        return party, str(kept["samples"])

    def _check_commitment(self, request: Request, found: object) -> None:
        """Raise unless a session is about this very request, of this federation."""
        if not isinstance(found, Commitment):
            raise DataError("a session without commitment; install the same fedgram as the server")
        expected = commitment_of(
            request.terms,
            ask_number=request.ask_number,
            step=request.step,
            federation=self.federation or found.federation,
            broadcast=found.broadcast,
            state=found.state,
            totals=found.totals,
        )
        if found != expected:
            raise ProtocolError(
                "the session is about another federation, run, step or other terms than this "
                "request; it is not answered"
            )

    def _check_totals(self, round_: Round, commitment: Commitment) -> None:
        """Raise unless all members were sent the same members of earlier totals."""
        if codec.digest(round_.totals) != commitment.totals:
            raise ProtocolError(
                "the members of earlier totals are not those that the session started with; do "
                "not trust this server"
            )

    def _check_members(self, request: Request, content: object, samples: str) -> None:
        """Raise unless the policy allows a sum over these members."""
        if request.kind not in ("shares", "confirm", "reveal"):
            return
        if not isinstance(content, Roster if request.kind == "shares" else Survivors):
            raise DataError(f"{request.kind}: the request has no list of members")
        names = list(content.names)
        self.policy.require_members(names)
        least = self.policy.difference
        self.record.require_apart(request.step, samples, names, least=least)
