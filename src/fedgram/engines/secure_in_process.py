"""Secure sums over clients in this process: to study and test them, no protection by itself."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from fedgram.core import codec
from fedgram.engines.in_process import InProcess, with_flops
from fedgram.errors import ConfigError
from fedgram.federation.client import Site
from fedgram.federation.protocol import Total
from fedgram.federation.step import Step, step_name
from fedgram.secure.messages import Masked, SealedShares, Signer
from fedgram.secure.party import Party
from fedgram.secure.server import TWO_THIRDS, Server

Stage = Literal["keys", "shares", "masked", "late", "reveal"]


class Secure(InProcess):
    """A federation in this process whose sums go through the whole protocol, message by message.

    Sums are those of `InProcess` to the last bit. Each is recorded as four exchanges, one for each
    round. A client that drops out by chance does so at the worst time: after it has shared its
    keys.

    Parameters
    ----------
    sites
        The members.
    threshold
        More than this share of the clients that are asked must stay to the end.
    absent
        Clients that no longer answer, by the round from which on they are silent; those of "late"
        send a contribution that reaches the server when the sum is closed.
    on_message
        Called with every message that the server sends or receives, and the client's name: its
        whole view.
    party
        Makes a client's side of a sum.
    signers
        By which clients know each other, by name; there is a fifth round then.
    options
        As of `InProcess`.

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
            raise ConfigError(f"engine.threshold = {threshold}: use 0.5 <= share < 1")
        self._threshold = threshold
        self._absent = absent or {}
        self._on_message = on_message
        self._party = party
        self._signers = signers or {}

    def sum(
        self, step: Step[Total], broadcast: Any = None, *, clients: Iterable[str] | None = None
    ) -> Total:
        names, client_at = self._prepare(step, clients)
        what, server = step_name(step), Server(share=self._threshold)
        parties = {
            name: self._party(name, server.call, signer=self._signers.get(name)) for name in names
        }

        def masked(name: str, parcel: SealedShares) -> tuple[Masked, int]:
            reply, flops = with_flops(lambda: step(client_at(name), broadcast))
            return parties[name].masked(reply, parcel), flops

        names = self._without("keys", names)
        keys = self._round(
            f"{what}: keys", names, server.call, lambda name, _: (parties[name].keys(), 0)
        )
        roster = server.roster(keys)
        names = self._without("shares", names)
        shares = self._round(
            f"{what}: shares", names, roster, lambda name, sent: (parties[name].shares(sent), 0)
        )
        parcels = server.parcels(shares)
        present = set(self._present(names))
        names = [name for name in self._without("masked", names) if name in present]
        beside = 0 if broadcast is None else codec.size(broadcast)
        for message in self._round(what, names, parcels, masked, beside=beside):
            if message.name not in self._absent.get("late", ()):
                server.add(message)
        survivors, names = server.survivors(), self._without("late", names)
        if self._signers:
            confirmations = self._round(
                f"{what}: confirm",
                names,
                survivors,
                lambda name, sent: (parties[name].confirm(sent), 0),
            )
            survivors = server.survivors(confirmations)
        names = self._without("reveal", names)
        reveals = self._round(
            f"{what}: reveal", names, survivors, lambda name, sent: (parties[name].reveal(sent), 0)
        )
        total: Total = server.total(reveals)
        return total

    def _without(self, stage: Stage, names: Sequence[str]) -> Sequence[str]:
        return [name for name in names if name not in self._absent.get(stage, ())]

    def _round(
        self,
        what: str,
        names: Sequence[str],
        sent: Any,
        answer: Callable[[str, Any], tuple[Any, int]],
        *,
        beside: int = 0,
    ) -> Iterator[Any]:
        """Send everybody a message, or each its own of a dict, and yield what they answer.

        An answer comes with its operations; `beside` are bytes that everybody is sent as well.
        """
        parts = sent if isinstance(sent, dict) else dict.fromkeys(names, sent)
        sizes = {key: codec.size(part) for key, part in {id(p): p for p in parts.values()}.items()}

        def at(name: str) -> tuple[Any, int, int, int]:
            message, flops = answer(name, parts[name])
            return message, codec.size(message), sizes[id(parts[name])] + beside, flops

        for name, message in self._exchange("train", what, names, at):
            if self._on_message:
                self._on_message(name, parts[name])
                self._on_message(name, message)
            yield message
