"""Secure sums by letter: the server sees masked contributions and their total, nothing else."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from fedgram.core import codec
from fedgram.core.additive import Additive
from fedgram.engines.remote.messages import Answer, RequestKind, Round, ScoreRequest
from fedgram.engines.remote.server import Count, RemoteFederation
from fedgram.errors import MismatchError
from fedgram.federation.protocol import Total
from fedgram.federation.scoring import ScoreTask, SiteScore
from fedgram.federation.step import Step, step_name
from fedgram.secure import masks
from fedgram.secure.flatten import flatten, words
from fedgram.secure.messages import Keys, Masked, Reveal, Shares, unhex
from fedgram.secure.server import TWO_THIRDS, Server, threshold_of

_KINDS: dict[RequestKind, type] = {
    "keys": Keys,
    "shares": Shares,
    "masked": Masked,
    "reveal": Reveal,
}
_LETTERS = 4096  # bytes that one client's part of a message about all of them may take
_LEAST_ROOM = 1 << 20


class SecureRemoteFederation(RemoteFederation):
    """A federation by letter whose sums are secure; four exchanges each.

    Of what one site sends, only the form can be checked: all else is under masks. Sites check their
    own part before they mask it.

    Parameters
    ----------
    threshold
        More than this share of the sites must stay to the end of a sum.
    """

    def __init__(self, *args: Any, threshold: float = TWO_THIRDS, **options: Any) -> None:
        super().__init__(*args, **{**options, "private": True})
        self._threshold = threshold

    def sum(
        self, step: Step[Total], broadcast: Any = None, *, clients: Iterable[str] | None = None
    ) -> Total:
        names = self._begin(step, clients)
        like = self._example(step, broadcast)
        total, who = self._masked_total(step_name(step), broadcast, names, like)
        if self._members and self._kept(like, broadcast, clients):
            self._members(self._mark(step)).join_cohort(who, total)
        summed: Total = total
        return summed

    def evaluate(self, step: ScoreTask, shared: Any) -> Iterator[tuple[str, SiteScore]]:
        self._serial += 1
        scoring = ScoreRequest(part=shared, round=step.round, best=step.best)
        total, _ = self._masked_total("score", scoring, self._names, self._nobody())
        yield "", SiteScore(sums=total)

    def _masked_total(self, step: str, broadcast: Any, names: Sequence[str], like: Additive) -> Any:
        """Sum under masks, unless that was done before a restart."""
        key = codec.digest([step, codec.digest(broadcast), self._terms, list(names)])
        if self._replayed(key):
            told = dict(self._journal.values(self._serial))
            return told["total"], told["names"]
        server, count = Server(share=self._threshold), Count()
        total, who = self._session(server, step, broadcast, names, flatten(like)[0], count)
        self._journal.put(self._serial, "total", total)
        self._journal.put(self._serial, "names", who)
        ended = count.ask("score" if step == "score" else "train", step)
        self._close(key, ended, ["names", "total"])
        return total, who

    def _session(
        self,
        server: Server,
        step: str,
        broadcast: Any,
        names: Sequence[str],
        layout: dict[str, Any],
        count: Count,
    ) -> tuple[Any, list[str]]:
        """Go through the four rounds; return the total, and of whom it is."""

        def ask(kind: RequestKind, to: Iterable[str], content: Any, **more: Any) -> Iterator[Any]:
            return self._round(kind, step, list(to), content, server, count, **more)

        def add(masked: Masked) -> None:
            if masked.layout != layout:
                raise MismatchError("its sums are of another form; use the same settings")
            server.add(masked)

        def about_all(shares: Shares) -> None:
            _require_letters(shares.sealed, set(roster.names) - {shares.name})

        def about_each(reveal: Reveal) -> None:
            _require_letters(reveal.seeds, set(survivors.names))
            _require_letters(reveal.keys, set(parcels) - set(survivors.names))

        first = threshold_of(len(names), self._threshold)
        roster = server.roster(
            list(ask("keys", names, server.call, needed=first, check=_require_keys))
        )
        needed, room = roster.threshold, 16 * words(layout)
        parcels = server.parcels(
            ask("shares", roster.names, roster, needed=needed, check=about_all)
        )
        for _ in ask(
            "masked", parcels, parcels, broadcast=broadcast, needed=needed, room=room, check=add
        ):
            count.clients += 1
        survivors = server.survivors()
        reveals = ask("reveal", survivors.names, survivors, needed=needed, check=about_each)
        return server.total(reveals), list(survivors.names)

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
        check: Callable[[Any], None] | None = None,
    ) -> Iterator[Any]:
        """Send everybody a message, or each its own of a dict, and yield what they answer."""
        session = server.call.session

        def request(part: Any) -> bytes:
            round_ = Round(session=session, content=part, broadcast=broadcast)
            return self._request(kind, step, round_)

        if isinstance(content, dict):
            requests = {name: request(content[name]) for name in names}
        else:
            requests = dict.fromkeys(names, request(content))

        def checked(name: str, answer: Answer) -> None:
            value = answer.value
            if not isinstance(value, _KINDS[kind]) or getattr(value, "name", None) != name:
                raise MismatchError(f"a {type(value).__name__} is no answer to {kind}")
            if check:
                check(value)

        limit = _LEAST_ROOM + room + _LETTERS * len(self._names)
        for received in self._post.ask(requests, needed=needed, check=checked, limit=limit):
            count.add(received.cost, counts=False)
            yield received.answer.value


def _require_keys(keys: Keys) -> None:
    """Refuse keys with which nobody could go on: they would end the sum for all."""
    own = secrets.token_bytes(masks.KEY)
    for public in (keys.mask, keys.letter):
        masks.agree(own, unhex(public))
    unhex(keys.stamp)


def _require_letters(letters: Any, names: set[str]) -> None:
    """Refuse what are no texts in base 16 for these clients, neither more nor fewer."""
    if not isinstance(letters, dict) or set(letters) != names:
        raise MismatchError("it sent shares of other clients than asked")
    for letter in letters.values():
        unhex(letter)
