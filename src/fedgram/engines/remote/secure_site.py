"""A site's side of a secure sum, which may take a new process for every round."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from fedgram.engines.remote.messages import Request, Round
from fedgram.engines.remote.site_store import SiteStore
from fedgram.errors import DataError, PrivacyError
from fedgram.secure.messages import SessionStart  # so that requests can be read that hold its kinds

Kept = tuple[Any, Callable[[], None]]  # an answer's value, and what to keep once it is certain


def nothing() -> None:
    """Keep nothing."""


def masked_answer(
    request: Request, cabinet: SiteStore, *, name: str, step: Callable[[Request], Kept]
) -> Kept:
    """Answer one round of a secure sum; `step` gives what is summed.

    A round that was entered is on the disk before anything is said: asked again with other content,
    this side says nothing.
    """
    from fedgram.secure.party import Party  # needs the extra

    round_ = request.broadcast
    if not isinstance(round_, Round):
        raise DataError(f"{request.kind} without a session")
    content = round_.content
    if request.kind == "keys":
        if not isinstance(content, SessionStart) or cabinet.party(round_.session) is not None:
            raise PrivacyError("this session has begun already; nothing is said")
        party = Party(name, content)
    else:
        kept = cabinet.party(round_.session)
        if not kept:
            raise PrivacyError("this session is not known here, or over; nothing is said")
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
        cabinet.keep_party(round_.session, {} if spent else party.to_dict())
    return answer, keep
