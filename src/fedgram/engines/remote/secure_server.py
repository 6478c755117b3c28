"""Remote secure sums: the server sees masked contributions and their total, nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from fedgram.core import codec
from fedgram.core.additive import Additive
from fedgram.engines.protocol import require_one_broadcast
from fedgram.engines.remote.messages import (
    Answer,
    RequestKind,
    Round,
    ScoreRequest,
    commitment_of,
)
from fedgram.engines.remote.recorded_state import RecordedState
from fedgram.engines.remote.server import Count, RemoteFederation
from fedgram.errors import MismatchError
from fedgram.federation.protocol import Total
from fedgram.federation.scoring import ScoreTask, SiteScore
from fedgram.federation.step import Step, step_name
from fedgram.secure.flatten import flatten, words
from fedgram.secure.messages import Confirmation, Keys, Masked, Reveal, Shares
from fedgram.secure.party import TWO_THIRDS
from fedgram.secure.server import Server
from fedgram.secure.session import Ask, run_session

_KINDS: dict[RequestKind, type] = {
    "keys": Keys,
    "shares": Shares,
    "masked": Masked,
    "confirm": Confirmation,
    "reveal": Reveal,
}
_PART = 4096  # most bytes for one client in a message about all clients
_LEAST_ROOM = 1 << 20


class SecureRemoteFederation(RemoteFederation):
    """A remote federation whose sums are secure, with five rounds each.

    The server can check only the layout of a contribution, because its values are masked. Sites
    check their values before they mask them.

    Parameters
    ----------
    threshold
        More than this fraction of the sites must stay to the end of a sum.
    federation
        Digest that names the federation; sites that know it answer no other one.
    """

    def __init__(
        self, *args: Any, threshold: float = TWO_THIRDS, federation: str = "", **options: Any
    ) -> None:
        super().__init__(*args, **{**options, "private": True})
        self._threshold = threshold
        self._federation = federation
        self._state = ""  # the last session that made a state at its members

    def sum(
        self, step: Step[Total], broadcast: Any = None, *, clients: Iterable[str] | None = None
    ) -> Total:
        names = self._begin(step, clients)
        require_one_broadcast(broadcast, names)
        state = RecordedState()
        like = self._example(step, broadcast, state)
        used = self._state if state.read else ""
        total, who, session = self._masked_total(
            step_name(step), broadcast, names, like, state=used
        )
        if state.written:
            self._state = session
        self._totals.summed(step, broadcast, who)
        if self._members and self._kept(like, broadcast, clients):
            self._members(self._mark(step)).join_cohort(who, total, run=self._terms.run)
        summed: Total = total
        return summed

    def evaluate(self, step: ScoreTask, shared: Any) -> Iterator[tuple[str, SiteScore]]:
        self._serial += 1
        require_one_broadcast(shared, self._names)
        scoring = ScoreRequest(part=shared, round=step.round, best=step.best)
        total, _, _ = self._masked_total("score", scoring, self._names, self._zero_scores())
        yield "", SiteScore(sums=total)

    def _masked_total(
        self, step: str, broadcast: Any, names: Sequence[str], like: Additive, *, state: str = ""
    ) -> Any:
        """Sum under masks, unless the sum was finished before a restart.

        Returns the total, the names of its members, and the session.
        """
        key = codec.digest([step, codec.digest(broadcast), self._terms, list(names)])
        if self._replayed(key):
            replayed = dict(self._replay_log.values(self._serial))
            return replayed["total"], replayed["names"], replayed["session"]
        commitment = commitment_of(
            self._terms,
            ask_number=self._asked,
            step=step,
            federation=self._federation,
            broadcast=codec.digest(broadcast),
            state=state,
            totals=codec.digest(self._totals.to_dict()),
        )
        server, count = Server(commitment, share=self._threshold), Count()
        ask = self._transport(server, step, broadcast, flatten(like)[0], count)
        total, survivors = run_session(server, names, ask, confirm=True)
        who = list(survivors.names)
        count.clients = len(who)
        self._replay_log.put(self._serial, "total", total)
        self._replay_log.put(self._serial, "names", who)
        self._replay_log.put(self._serial, "session", server.call.session)
        ended = count.ask("score" if step == "score" else "train", step)
        self._close(key, ended, ["names", "session", "total"])
        return total, who, server.call.session

    def _transport(
        self, server: Server, step: str, broadcast: Any, layout: dict[str, Any], count: Count
    ) -> Ask:
        """Return what sends the messages of one secure sum.

        Parameters
        ----------
        server
            The server's side of the sum.
        step
            Name of the step that is summed.
        broadcast
            Sent to the sites with the request for their masked contributions.
        layout
            Layout that every contribution must have.
        count
            Adds up the costs.
        """

        def ask(
            round_: Any,
            names: Sequence[str],
            message: Any,
            *,
            needed: int,
            check: Callable[[Any], None],
        ) -> Iterator[Any]:
            if round_ != "masked":
                return self._round(
                    round_, step, names, message, server, count, needed=needed, check=check
                )

            def fits(masked: Masked) -> None:
                if masked.layout != layout:
                    raise MismatchError("the layout of its sums differs; use the same settings")
                check(masked)

            return self._round(
                *(round_, step, names, message, server, count),
                broadcast=broadcast,
                needed=needed,
                room=16 * words(layout),
                check=fits,
            )

        return ask

    def _round(
        self,
        kind: RequestKind,
        step: str,
        names: Sequence[str],
        content: Any,
        server: Server,
        count: Count,
        *,
        broadcast: Any = None,
        needed: int,
        room: int = 0,
        check: Callable[[Any], None],
    ) -> Iterator[Any]:
        """Send all sites a message, or each site its own of a dict, and yield the answers."""
        session = server.call.session

        def request(part: Any) -> bytes:
            totals = self._totals.to_dict() if kind == "masked" else None
            round_ = Round(session=session, content=part, broadcast=broadcast, totals=totals)
            return self._request(kind, step, round_, frozenset())

        if isinstance(content, dict):
            requests = {name: request(content[name]) for name in names}
        else:
            requests = dict.fromkeys(names, request(content))

        def checked(name: str, answer: Answer) -> None:
            value = answer.value
            if not isinstance(value, _KINDS[kind]) or getattr(value, "name", None) != name:
                raise MismatchError(f"invalid answer to {kind}: {type(value).__name__}")
            check(value)

        limit = _LEAST_ROOM + room + _PART * len(self._names)
        for received in self._collector.ask(requests, needed=needed, check=checked, limit=limit):
            count.add(received.cost, counts=False)
            yield received.answer.value
