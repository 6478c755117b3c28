"""Maps of the features that are chosen by the likelihood of held-out training samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedgram.core.census import DataSchema
from fedgram.core.gcv import resolved
from fedgram.core.samples import Features, Labels, Samples
from fedgram.core.statistics import Statistics
from fedgram.features.chain import Chain
from fedgram.federation.client import Client
from fedgram.federation.protocol import Federation
from fedgram.federation.shared import PerClient, Tuned, unwrap
from fedgram.federation.step import step
from fedgram.methods._stacked import Stacked, StackedModel
from fedgram.models.linear import Linear, Predictor, streamed_statistics
from fedgram.selection.candidates import SCALES
from fedgram.selection.holdout import folds
from fedgram.selection.pool import LikelihoodSums

_ALIKE = 2.0**-16  # nats: settings whose mean losses differ by less are equally good


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """What was chosen on held-out samples.

    Parameters
    ----------
    best
        Position of the chosen map.
    losses, accuracies
        Log-loss and accuracy of each map on held-out samples, at its best scale of scores.
    samples
        Number of held-out samples.
    """

    best: int
    losses: tuple[float, ...]
    accuracies: tuple[float, ...]
    samples: int


class HeldOut(Stacked):
    """Base class of methods whose map is chosen on held-out samples.

    A hash of its content holds out a tenth of the training samples, whatever the partition. What a
    map learns, and the ridge head on it, come from the sums of the other samples.
    """

    @step
    def opening(self, client: Client, _: None) -> DataSchema:
        """Return the feature space and the class list of the client."""
        return DataSchema(space=client.train.features.space, classes=client.train.labels.classes)

    @step
    def kept_statistics(self, client: Client, chain: Chain) -> Statistics:
        """Return the statistics of mapped samples that are not held out."""
        samples = client.samples
        return _mapped_statistics(samples.take(np.flatnonzero(folds(samples, 1) < 0)), chain)

    @step
    def all_statistics(self, client: Client, chain: Chain) -> Statistics:
        """Return the statistics of all mapped samples."""
        return _mapped_statistics(client.samples, chain)

    @step
    def held_out(self, client: Client, models: list[Any]) -> LikelihoodSums:
        """Return the log-losses of models on held-out samples, for each scale of the scores."""
        samples = client.samples
        out = samples.take(np.flatnonzero(folds(samples, 1) == 0)).with_cache()
        tried = [scale * scores for scores in (m(out.features) for m in models) for scale in SCALES]
        return LikelihoodSums.of(tried, out.labels.codes)

    def personalize(self, client: Client, shared: Any) -> Predictor:
        """Return the model of the inner method, on mapped features."""
        return super().personalize(client, unwrap(shared)[0])

    def shared_predictor(self, shared: Any) -> Any:
        """Return the model of the inner method for clients without samples."""
        common = shared.common if isinstance(shared, PerClient) else shared
        return super().shared_predictor(unwrap(common)[0])

    def judged(self, federation: Federation, chains: Sequence[Chain]) -> Judgement:
        """Return the likeliest of several maps; of equally likely ones the first."""
        models = []
        for chain in chains:
            total = federation.sum(self.kept_statistics, chain)
            ridge = resolved("auto", total, slack=0.0)
            models.append(StackedModel(below=chain, model=Linear.of(total, ridge=ridge)))
        return judgement(federation.sum(self.held_out, models))


def judgement(sums: LikelihoodSums) -> Judgement:
    """Return the likeliest of several models, each with `SCALES` of its scores."""
    losses = sums.mean_loss.reshape(-1, len(SCALES))
    scale = losses.argmin(axis=1)
    each = np.arange(len(losses))
    least = losses[each, scale]
    return Judgement(
        best=int(np.flatnonzero(least <= least.min() + _ALIKE)[0]),
        losses=tuple(least.tolist()),
        accuracies=tuple(sums.accuracy.reshape(losses.shape)[each, scale].tolist()),
        samples=sums.weight,
    )


def tuned(
    shared: StackedModel, setting: dict[str, Any], words: Sequence[str], found: Judgement | None
) -> Tuned:
    """Return the shared result with what was chosen, in words."""
    top = shared.tuned
    description = words[found.best if found else 0]
    if found:
        accuracy = 100 * found.accuracies[found.best]
        description += f": {accuracy:.1f} % correct on {found.samples:,} held-out samples"
    if top is not None:
        description += f"; {top.description}"
    notes = {"held_out_loss": dict(zip(words, found.losses, strict=True))} if found else {}
    return Tuned(
        shared=shared,
        setting=setting,
        description=description,
        left_out_accuracy=dict(zip(words, found.accuracies, strict=True)) if found else {},
        invariant=top is None or top.invariant,
        notes={**notes, **({} if top is None else {"top": top.to_dict()})},
    )


def with_map(shared: Any, wrapped: Callable[[StackedModel], Tuned]) -> Any:
    """Wrap the part of a shared result that all clients have in common."""
    if isinstance(shared, PerClient):
        return replace(shared, common=wrapped(shared.common))
    return wrapped(shared)


def _mapped_statistics(samples: Samples, chain: Chain) -> Statistics:
    def rows(part: Samples) -> tuple[Features, Labels]:
        return chain(part.features), part.labels

    return streamed_statistics(samples, rows)
