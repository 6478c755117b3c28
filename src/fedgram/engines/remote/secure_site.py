"""A site's side of a secure sum; every round may run in a new process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from fedgram.engines.remote.messages import Request, Round
from fedgram.engines.remote.site_store import SiteStore
from fedgram.errors import DataError, PrivacyError
from fedgram.secure.messages import SessionStart

Kept = tuple[Any, Callable[[], None]]  # the value of an answer, and a function that stores state


def nothing() -> None:
    """Store nothing."""


def masked_answer(
    request: Request, store: SiteStore, *, name: str, step: Callable[[Request], Kept]
) -> Kept:
    """Answer one round of a secure sum.

    The state is on disk before an answer is sent. If a round is requested again with other content,
    it is refused.

    Parameters
    ----------
    request
        The request of the round.
    store
        Stores the state of this site in the session.
    name
        Name of the site.
    step
        Returns the contribution, and a function that stores state.
    """
    from fedgram.secure.party import Party  # needs the extra

    round_ = request.broadcast
    if not isinstance(round_, Round):
        raise DataError(f"{request.kind}: the request has no session")
    content = round_.content
    if request.kind == "keys":
        if not isinstance(content, SessionStart) or store.party(round_.session) is not None:
            raise PrivacyError("this session has started already; it is not answered")
        party = Party(name, content)
    else:
        kept = store.party(round_.session)
        if not kept:
            raise PrivacyError("this session is unknown here, or finished; it is not answered")
        party = Party.restored(kept)
    value: Any = None
    keep: Callable[[], None] = nothing
    if request.kind == "masked":
        value, keep = step(replace(request, broadcast=round_.broadcast))
    try:
        answers: dict[str, Callable[[], Any]] = {
            "keys": party.keys,
            "shares": lambda: party.shares(content),
            "masked": lambda: party.masked(value, content),
            "reveal": lambda: party.reveal(content),
        }
        answer = answers[request.kind]()
    finally:
        spent = request.kind == "reveal"
        store.keep_party(round_.session, {} if spent else party.to_dict())
    return answer, keep
