from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

from fedgram.core.samples import Space
from fedgram.core.statistics import Statistics
from fedgram.errors import ConfigError
from fedgram.features.chain import Chain, Map
from fedgram.features.lift import Lift
from fedgram.features.projection import Projection
from fedgram.federation.method import Method
from fedgram.federation.protocol import Federation
from fedgram.methods._held_out import HeldOut, tuned, with_map
from fedgram.methods._stacked import Top
from fedgram.selection.whitening import within_class_whitening

STRENGTHS = (0.0, 0.3, 1.0, 3.0, 10.0, 30.0)  # the least adapted first


@dataclass(frozen=True, kw_only=True)
class Projected(HeldOut):
    """A projection of frozen features, adapted in closed form, under any method.

    The backbone is adjusted without gradients: its features pass a linear map that is learned from
    sums. ``P = (I + strength S / s)^-1/2`` shrinks the directions in which samples of one class
    differ, with the within-class covariance S of mean variance s. Contrastive learning of a linear
    map pulls samples of a class together against the spread of all; for Gaussian classes with one
    covariance the best map is this whitening. The form with a strength is ours. A ridge head
    itself weighs directions; so an adapted map matters for what follows it: a lift, a kernel, or
    penalties of personal heads.

    The strength is chosen by the likelihood of held-out samples, whose classes the map has not
    seen; strength 0 is the frozen backbone as it is. P is rounded to integers of a public grid.

    Exchanges: the sum of `afl`, once without the held-out samples; for strength "auto" one sum on
    mapped features for each of six strengths, and log-losses; then those of the method on top.

    Parameters
    ----------
    strength
        The strength, >= 0. "auto" selects it on held-out samples.
    rank
        Number of projected features, those in which class means differ most; 0 for all.
    lift
        Random projection and activation after the adapted projection; width 0 for no lift.
    top
        The method on the mapped features (`method`) and its settings (`settings`). Where a ridge
        can be "auto" and none is given, it is.
    """

    strength: float | Literal["auto"] = "auto"
    rank: int = 0
    lift: Lift = Lift()
    top: Top = field(default_factory=Top)

    def __post_init__(self) -> None:
        if self.strength != "auto" and not 0 <= self.strength < float("inf"):
            raise ConfigError(f"strength = {self.strength}: use a number >= 0, or 'auto'")
        if self.rank < 0:
            raise ConfigError(f"rank = {self.rank}: use a number of features, or 0 for all")

    def shortened(self, *, search: bool = True) -> Self:
        """Return the method with a shortened method on top; without `search` a fixed strength."""
        strength = self.strength if search or self.strength != "auto" else 1.0
        return replace(self, strength=strength, top=self.top.shortened(search=search))

    @property
    def inner(self) -> Method[Any]:
        return self.top.make()

    def fit(self, federation: Federation) -> Iterator[Any]:
        inputs = federation.sum(self.opening).space
        strength, found = self.strength, None
        if strength == "auto":
            some: Statistics = federation.sum(self.kept_statistics, Chain(inputs=inputs))
            chains = [self._chain(inputs, some, each) for each in STRENGTHS]
            found = self.judged(federation, chains)
            strength = STRENGTHS[found.best]
        total: Statistics = federation.sum(self.all_statistics, Chain(inputs=inputs))
        words = [f"strength {each:g}" for each in (STRENGTHS if found else (strength,))]
        below = self._chain(inputs, total, strength)
        for shared in self.fit_inner(federation, below):
            yield with_map(shared, lambda each: tuned(each, {"strength": strength}, words, found))

    def _chain(self, inputs: Space, total: Statistics, strength: float) -> Chain:
        maps: list[Map] = []
        if strength or self.rank:
            rank = min(self.rank, inputs.constant)
            maps.append(Projection.of(within_class_whitening(total, strength, rank=rank)))
        if self.lift.width:
            maps.append(self.lift)
        return Chain(inputs=inputs, maps=tuple(maps))
