"""Secure sums over clients in one process, for studies and tests; they protect nothing here."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal

from fedgram.core import codec
from fedgram.engines.in_process import InProcess, with_flops
from fedgram.engines.protocol import require_one_broadcast
from fedgram.errors import ConfigError
from fedgram.federation.client import Site
from fedgram.federation.protocol import Total
from fedgram.federation.step import Step, step_name
from fedgram.secure.messages import Commitment, Signer
from fedgram.secure.party import TWO_THIRDS, Party
from fedgram.secure.server import Server
from fedgram.secure.session import RoundName, run_session

Stage = RoundName | Literal["late"]


class Secure(InProcess):
    """A federation in this process whose sums run the whole protocol, message by message.

    Sums equal those of `InProcess` to the last bit. Each sum is recorded as four exchanges, one for
    each round. A client that drops out by chance does so at the worst time: after it has shared its
    keys.

    Parameters
    ----------
    sites
        The members.
    threshold
        More than this fraction of the asked clients must stay to the end.
    absent
        Clients that stop answering, by the first round that they do not answer. The contribution of
        a client under "late" reaches the server after the sum is closed.
    on_message
        Called with the client's name and every message that the server sends or receives: all that
        the server sees.
    party
        Class of a client's side of a sum.
    signers
        The signer of each client, by name; with signers there is a fifth round.
    options
        Options of `InProcess`.

    Examples
    --------
    >>> from fedgram.checks.federations import partitioned
    >>> from fedgram.core.statistics import Statistics
    >>> def statistics(client, broadcast):
    ...     return Statistics.of(client.train.features, client.train.labels)
    >>> openly, securely = InProcess(partitioned().members), Secure(partitioned().members)
    >>> openly.sum(statistics) == securely.sum(statistics)
    True
    >>> [ask.step for ask in securely.asks]
    ['statistics: keys', 'statistics: shares', 'statistics', 'statistics: reveal']
    """

    def __init__(
        self,
        sites: Iterable[Site],
        *,
        threshold: float = TWO_THIRDS,
        absent: Mapping[Stage, Collection[str]] | None = None,
        on_message: Callable[[str, Any], None] | None = None,
        party: type[Party] = Party,
        signers: Mapping[str, Signer] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(sites, **options, private=True)
        if not 0.5 <= threshold < 1:
            raise ConfigError(f"engine.threshold = {threshold}: use 0.5 <= threshold < 1")
        self._threshold = threshold
        self._absent = absent or {}
        self._on_message = on_message
        self._party = party
        self._signers = signers or {}

    def sum(
        self, step: Step[Total], broadcast: Any = None, *, clients: Iterable[str] | None = None
    ) -> Total:
        members, client_at = self._prepare(step, clients)
        require_one_broadcast(broadcast, members)
        received = codec.digest(broadcast)
        commitment = Commitment(ask_number=self._asked, step=step_name(step), broadcast=received)
        server = Server(commitment, share=self._threshold)
        parties = {
            name: self._party(
                name, server.call, signer=self._signers.get(name), share=self._threshold
            )
            for name in members
        }

        def answer(round_: RoundName, name: str, message: Any) -> tuple[Any, int]:
            if round_ == "keys":
                return parties[name].keys(), 0
            if round_ == "masked":
                reply, flops = with_flops(lambda: step(client_at(name), broadcast))
                return parties[name].masked(reply, message, received), flops
            return getattr(parties[name], round_)(message), 0

        def ask(
            round_: RoundName,
            names: Sequence[str],
            message: Any,
            *,
            check: Callable[[Any], None],
            **_: int,
        ) -> Iterator[Any]:
            there = self._there(round_, [name for name in members if name in set(names)])
            what = step_name(step) if round_ == "masked" else f"{step_name(step)}: {round_}"
            beside = codec.size(broadcast) if round_ == "masked" and broadcast is not None else 0
            parts = message if isinstance(message, dict) else dict.fromkeys(there, message)
            replies = self._round(what, there, parts, partial(answer, round_), beside)
            if round_ != "masked":  # small messages: the server receives all before it checks one
                replies = iter(list(replies))
            for name, reply in replies:
                if round_ != "masked" or name not in self._absent.get("late", ()):
                    check(reply)
                    yield reply

        total: Total
        total, survivors = run_session(server, members, ask, confirm=bool(self._signers))
        self._totals.summed(step, broadcast, survivors.names)
        return total

    def _there(self, round_: RoundName, names: Sequence[str]) -> Sequence[str]:
        """Return the clients that answer; those that drop out by chance do so before `masked`."""
        stay = set(self._survivors(names)) if round_ == "masked" else set(names)
        return [name for name in names if name in stay and name not in self._absent.get(round_, ())]

    def _round(
        self,
        what: str,
        names: Sequence[str],
        parts: Mapping[str, Any],
        answer: Callable[[str, Any], tuple[Any, int]],
        beside: int,
    ) -> Iterator[tuple[str, Any]]:
        """Send each client its message and yield the answers.

        Parameters
        ----------
        what
            Name of the exchange.
        names
            The clients.
        parts
            The message to each client.
        answer
            Returns a client's answer and its floating-point operations.
        beside
            Bytes that every client receives with its message.
        """
        sizes = {key: codec.size(part) for key, part in {id(p): p for p in parts.values()}.items()}

        def at(name: str) -> tuple[Any, int, int, int]:
            message, flops = answer(name, parts[name])
            return message, codec.size(message), sizes[id(parts[name])] + beside, flops

        for name, message in self._exchange("train", what, names, at):
            if self._on_message:
                self._on_message(name, parts[name])
                self._on_message(name, message)
            yield name, message
