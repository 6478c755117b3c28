from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedgram.ballot import Ballot
from fedgram.candidates import (
    CANDIDATES,
    NORMALIZED,
    REPEATED,
    Candidates,
    Setting,
    family,
)
from fedgram.choose import told
from fedgram.client import Client
from fedgram.errors import ConfigError
from fedgram.features.lift import Lift
from fedgram.federation import Federation, Settled, unsettled
from fedgram.gcv import Ridge, resolved
from fedgram.heads import Predictor, lifted, require_lift
from fedgram.priors import Informed, class_counts, repeated_statistics, repeats
from fedgram.samples import Array, Integers
from fedgram.stats import Statistics
from fedgram.whole import Whole


@dataclass(frozen=True, kw_only=True)
class Auto:
    """Whatever does best on samples that were left out: nothing to set.

    From one sum of statistics it forms many models: the shared head of `afl`, with an intercept of
    the client's own, with own samples that weigh more (`fedhip`), with a second stream (`apfl`),
    and each of these times the client's class frequencies (`prior`). Clients then count how many
    of their samples every one of them gets right when they are left out, one at a time, of the
    shared sum too; the server adds the counts up and everybody takes the winner. No validation
    samples are needed, and test samples are never seen.

    Parameters
    ----------
    ridge
        Weight of the shared head's squared norm, for features of unit size; "auto" takes the
        least with nearly the smallest generalized cross-validation error.
    lift
        Random projection and activation before the shared head; width 0 for none.
    refinement
        The same before a client's own stream.
    smoothing
        So many samples with everybody's class frequencies are added to each client's.
    judges
        About so many samples are left out for the choice: those of clients drawn at random. 0 for
        everybody's.
    by_client
        Let a client depart from the common choice where its own samples speak clearly against it,
        if that gets more samples right on halves that did not decide. Everybody is asked then.
    classes_alike
        Judge by the mean accuracy within classes instead of the accuracy over samples, and try two
        more shared heads, for classes that are rare everywhere: with columns of one length, as in
        `fed3r`, and with samples of rare classes repeated. That is another sum.
    """

    ridge: Ridge = "auto"
    lift: Lift = Lift()
    refinement: Lift = Lift()
    smoothing: float = 1.0
    judges: int = 10_000
    by_client: bool = False
    classes_alike: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.smoothing < float("inf"):
            raise ConfigError(f"smoothing = {self.smoothing}: use a number > 0")
        if self.judges < 0:
            raise ConfigError(f"judges = {self.judges}: use 0 for all samples, or a number")

    def statistics(self, client: Client, _: None) -> Statistics:
        client.remember(counted=True)
        return Statistics.of(*lifted(client.samples, self.lift))

    def repeated(self, client: Client, times: Integers) -> Statistics:
        return repeated_statistics(client.samples, self.lift, times)

    def left_out(self, client: Client, sent: list[Whole]) -> Ballot:
        counted, samples = "counted" in client.state, client.samples
        hits = self._candidates.left_out(samples, sent[0], counted=counted)
        if self.classes_alike:
            more = self._candidates.left_out_alike(samples, *sent, counted=counted)
            hits = np.hstack([hits, more])
        if self.by_client:
            client.remember(hits=hits)
        return Ballot.of(hits, samples.labels if self.classes_alike else None)

    def departed(self, client: Client, common: int) -> Ballot:
        """Count what the common choice gets right, and the client's own on halves it was not on."""
        hits: Array = client.state.get("hits", np.zeros((0, len(self._tried)), bool))
        own = np.empty(len(hits), bool)
        for half in (0, 1):
            mine = np.arange(len(hits)) % 2 == half
            own[mine] = hits[mine][:, departure(hits[~mine], common)]
        labels = client.samples.labels.take(slice(0, len(hits)))
        both = np.stack([hits[:, common], own], axis=1)
        return Ballot.of(both, labels if self.classes_alike else None)

    def fit(self, federation: Federation) -> Iterator[Settled]:
        total = federation.sum(self.statistics)
        require_lift(total.space, self.lift)
        sent = [Whole(total=total, ridge=resolved(self.ridge, total))]
        if self.classes_alike:
            more = federation.sum(self.repeated, repeats(class_counts(total)[0]))
            sent.append(Whole(total=more, ridge=resolved(self.ridge, more)))
        asked = self._asked(federation, total.count)
        ballot = federation.sum(self.left_out, sent, clients=asked)
        setting: dict[str, Any] = dict(self._tried[ballot.winner])
        words, reasons = described(setting), self._best_of_families(ballot)
        if self.by_client:
            both = federation.sum(self.departed, ballot.winner)
            reasons["own choices, on other halves"] = float(both.accuracy[1])
            setting["own_choice"] = bool(both.winner)
            words += ", but for clients that are clearly better off otherwise" * both.winner
        shared: Whole | Informed = sent[0]
        if "alpha" not in setting:  # the total need not travel again
            head = sent["repeated" in setting].linear(self.lift)
            head = head.normalized() if "normalized" in setting else head
            shared = Informed(head=head, counts=class_counts(total)[0])
        yield Settled(shared=shared, setting=setting, told=words, reasons=reasons)

    def personalize(self, client: Client, shared: Any) -> Predictor:
        common, setting = unsettled(shared)
        if setting.pop("own_choice", False) and "hits" in client.state:
            place = departure(client.state["hits"], self._tried.index(setting))
            setting = self._tried[place]
        if isinstance(common, Whole):
            counts = class_counts(common.total)[0]
            return self._candidates.model(setting, client.samples, common, counts)
        return self._candidates.model(setting, client.samples, common.head, common.counts)

    @property
    def _tried(self) -> tuple[Setting, ...]:
        return (*CANDIDATES, NORMALIZED, REPEATED) if self.classes_alike else CANDIDATES

    @property
    def _candidates(self) -> Candidates:
        return Candidates(lift=self.lift, refinement=self.refinement, smoothing=self.smoothing)

    def _asked(self, federation: Federation, samples: int) -> list[str] | None:
        """Return the clients that judge; None means everybody."""
        everybody = list(federation.clients)
        if self.by_client or not self.judges or samples <= self.judges:
            return None
        some = max(1, -(-len(everybody) * self.judges // samples))
        return sorted(federation.rng.choice(everybody, some, replace=False).tolist())

    def _best_of_families(self, ballot: Ballot) -> dict[str, float]:
        """Return the share that the best of each kind of model gets right, best first."""
        found: dict[str, float] = {}
        for setting, share in zip(self._tried, ballot.accuracy, strict=True):
            kind = family(setting)
            found[kind] = max(found.get(kind, 0.0), float(share))
        winner = family(self._tried[ballot.winner])
        return dict(sorted(found.items(), key=lambda item: (-item[1], item[0] != winner)))


def described(setting: Setting) -> str:
    """Return a candidate in words.

    Examples
    --------
    >>> described({"alpha": 10.0, "temperature": 40.0})
    'own samples weigh more x prior (alpha 10, temperature 40)'
    """
    return family(setting) + (f" ({told(setting)})" if setting else "")


def departure(hits: Array, common: int) -> int:
    """Return the candidate that a client is clearly better off with, else the common one.

    Clearly: by more than two standard errors of the difference, counting the samples that only
    one of both gets right. Models of another shared head than was sent do not stand for election.
    """
    theirs = hits[:, [common]]
    won, lost = (hits & ~theirs).sum(axis=0), (~hits & theirs).sum(axis=0)
    gain = won - lost - 2 * np.sqrt(won + lost)
    needed = [_needs(setting) for setting in (*CANDIDATES, NORMALIZED, REPEATED)]
    gain[[need != needed[common] for need in needed[: len(gain)]]] = -np.inf
    best = int(gain.argmax())
    return best if gain[best] > 0 else common


def _needs(setting: Setting) -> str:
    """Return which of the things that may be sent a candidate is made of."""
    return next((name for name in ("alpha", "normalized", "repeated") if name in setting), "head")
