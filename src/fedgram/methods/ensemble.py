from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from fedgram.core import codec
from fedgram.core.gcv import resolved
from fedgram.core.samples import Floats, Integers
from fedgram.core.solve import unpack_symmetric
from fedgram.core.statistics import Statistics
from fedgram.errors import ConfigError
from fedgram.features.chain import Chain
from fedgram.features.lift import Lift
from fedgram.federation.client import Client
from fedgram.federation.method import for_all_clients
from fedgram.federation.protocol import Federation
from fedgram.federation.shared import Tuned
from fedgram.methods._held_out import HeldOut, judgement, tuned
from fedgram.methods._stacked import StackedModel
from fedgram.models.linear import Linear, Predictor

SHARES = (0.25, 0.5, 0.75)  # of one head beside another


@dataclass(frozen=True, kw_only=True)
class Ensemble(HeldOut):
    """Ridge heads on parts of the features, averaged: from one Gram matrix of all features.

    The Gram matrix of all features has the Gram matrix of each part as a block. So one sum gives
    the head on all features, and the head on each part. Compared on held-out samples are: the whole
    head; the mean of the parts' heads, where every head sees all samples; each part's head; the
    whole head beside the mean, at three shares; of two parts, one beside the other. Each of these
    is one linear head on all features: an ensemble of heads costs nothing at prediction. The
    selection, and this use of the blocks, are ours.

    Parts are the features of several backbones, concatenated in one feature file; or members of
    equal size of one lift: its columns are independent, so that members differ as lifts of
    different seeds do.

    Exchanges: the sum of `afl` on all features, with and without the held-out samples, and
    log-losses of the heads.

    Parameters
    ----------
    parts
        Number of features of each backbone, in the order of the feature file. Without parts the
        lift is divided into members.
    members
        Number of members of the lift, >= 2; used without `parts`.
    lift
        Random projection and activation; not used with `parts`.
    """

    parts: tuple[int, ...] = ()
    members: int = 4
    lift: Lift = Lift(width=2048)

    def __post_init__(self) -> None:
        if self.parts and (len(self.parts) < 2 or min(self.parts) < 1):
            raise ConfigError(f"parts = {list(self.parts)}: give the sizes of two or more parts")
        if self.members < 2:
            raise ConfigError(f"members = {self.members}: use at least two")
        if not self.parts and self.lift.width < self.members:
            raise ConfigError(
                f"lift.width = {self.lift.width}: expected a feature for each of {self.members} "
                "members; or give the sizes of `parts`"
            )

    def shortened(self, *, search: bool = True) -> Self:
        """Return the method with a narrow lift."""
        del search
        return replace(self, lift=replace(self.lift, width=min(96, self.lift.width)))

    def fit(self, federation: Federation) -> Iterator[Tuned]:
        inputs = federation.sum(self.opening).space
        below = Chain(inputs=inputs, maps=() if self.parts else (self.lift,))
        kept, total = (
            federation.sum(step, below) for step in (self.kept_statistics, self.all_statistics)
        )
        candidates = self._heads(kept)
        models = [
            StackedModel(below=below, model=_linear(kept, head, "")) for _, head in candidates
        ]
        found = judgement(federation.sum(self.held_out, models))
        words = [name for name, _ in candidates]
        chosen = words[found.best]
        head = _linear(total, self._heads(total)[found.best][1], chosen)
        yield tuned(StackedModel(below=below, model=head), {"heads": chosen}, words, found)

    @for_all_clients
    def personalize(self, client: Client, shared: Any) -> Predictor:
        model: StackedModel = shared.shared
        return model

    def shared_predictor(self, shared: Any) -> StackedModel:
        """Return the shared head."""
        model: StackedModel = shared.shared
        return model

    def _columns(self, features: int) -> list[Integers]:
        """Return the features of each part, without the constant."""
        if not self.parts:
            # Of Fourier features a member has cosines with their sines where the width allows.
            return [np.arange(k, features, self.members) for k in range(self.members)]
        if sum(self.parts) != features:
            raise ConfigError(
                f"parts = {list(self.parts)}: expected sizes that add up to the {features} features"
            )
        ends = np.cumsum(self.parts)
        return [np.arange(end - size, end) for end, size in zip(ends, self.parts, strict=True)]

    def _heads(self, total: Statistics) -> list[tuple[str, Floats]]:
        """Return all candidates: weights of all features, in real units, with a name."""
        whole = total.solve(resolved("auto", total))
        parts = []
        for columns in self._columns(total.space.constant):
            some = np.append(columns, total.space.constant)
            block = _block(total, some)
            head = np.zeros_like(whole)
            head[some] = block.solve(resolved("auto", block))
            parts.append(head)
        mean: Floats = np.mean(parts, axis=0)
        found = [("whole", whole), ("mean of the parts", mean)]
        found += [
            (f"whole x {share:g} + mean x {1 - share:g}", share * whole + (1 - share) * mean)
            for share in SHARES
        ]
        found += [(f"part {k + 1}", head) for k, head in enumerate(parts)]
        if len(parts) == 2:
            first, second = parts
            found += [
                (
                    f"part 1 x {share:g} + part 2 x {1 - share:g}",
                    share * first + (1 - share) * second,
                )
                for share in SHARES
                if share != 0.5  # that is their mean
            ]
        return found


def _linear(total: Statistics, weights: Floats, name: str) -> Linear:
    return Linear(
        weights=weights,
        space=total.space,
        classes=total.classes,
        origin=codec.digest({"total": total.digest(), "heads": name}),
    )


def _block(total: Statistics, columns: Integers) -> Statistics:
    """Return the statistics of some of the features, with the constant as the last one."""
    gram = unpack_symmetric(total.gram, total.space.width)[np.ix_(columns, columns)]
    upper = gram[np.triu_indices(len(columns))].astype(total.gram.dtype)
    space = replace(
        total.space,
        width=len(columns),
        inputs=0,
        steps=(*total.space.steps, f"part of {len(columns) - 1}"),
    )
    return replace(total, gram=upper, moment=total.moment[columns], space=space)
