"""How the default chooses what it pools: the likeliest model of each kind, then their weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from fedgram.core import codec
from fedgram.core.additive import Additive
from fedgram.core.samples import Array, Floats, Integers, Space
from fedgram.core.shared import Shared
from fedgram.models.linear import Linear
from fedgram.selection.candidates import Candidates, Setting, described, scales
from fedgram.selection.normal_equations import NormalEquations
from fedgram.selection.pool import LikelihoodSums, PoolWeights
from fedgram.softmax.arithmetic import SoftmaxGrid
from fedgram.softmax.sums import IntegerHead

# Of a client's own softmax head, for each feature: 0 for none, else how strongly it is held.
STRENGTHS = (0.0, 2.4, 0.24, 0.08, 0.024)
SOFT_SCALES = (0.5, 0.7, 1.0, 1.4)  # by which softmax scores are multiplied
SQUARED_BITS = 22  # binary places of the weights of squared heads, whose scores are small


@codec.register("Question/1")
@dataclass(frozen=True, eq=False, kw_only=True)
class Question:
    """What judging clients are sent: models to be tried on their left-out samples.

    Parameters
    ----------
    wholes
        Totals with their ridges, one for each lift.
    soft
        Integer softmax weights that were fitted without each fold, (folds, features, classes), or
        (0, 0, 0) for none.
    folds
        How the left-out samples are chosen (`fedgram.selection.holdout`).
    counts, pseudo_count
        Of the class prior.
    """

    wholes: tuple[NormalEquations, ...]
    soft: Integers
    folds: int
    counts: Floats
    pseudo_count: float


@codec.register("Judged/1")
@dataclass(frozen=True, eq=False, kw_only=True)
class Judged(Additive):
    """What left-out samples say of squared models, and of softmax models.

    Squared models are tried on all samples of the judging clients, each left out by itself; softmax
    models on the samples that their folds left out.
    """

    squared: LikelihoodSums = field(default_factory=LikelihoodSums.zero)
    soft: LikelihoodSums = field(default_factory=LikelihoodSums.zero)


@codec.register("PoolParts/1")
@dataclass(frozen=True, eq=False, kw_only=True)
class PoolParts(Shared):
    """What every client is sent: the shared parts of the pool.

    Parameters
    ----------
    heads
        A head for each part of the pool, or the total for FedHiP.
    counts, pseudo_count
        Of the class prior.
    origin
        Digest of what the parts were solved from.
    """

    heads: tuple[IntegerHead | NormalEquations, ...]
    counts: Floats
    pseudo_count: float
    origin: str

    @property
    def space(self) -> Space:
        """The space of the first head."""
        first = self.heads[0]
        return first.total.space if isinstance(first, NormalEquations) else first.space

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the scores."""
        first = self.heads[0]
        return first.total.classes if isinstance(first, NormalEquations) else first.classes

    def provenance(self) -> str:
        """Digest of what the parts were solved from."""
        return self.origin


@dataclass(frozen=True, eq=False, kw_only=True)
class Part:
    """A model that may be pooled.

    Parameters
    ----------
    setting
        Its family and parameters.
    place
        Of its scores among those that judging clients have kept.
    candidates
        Which of the candidates it comes from; None for the softmax head.
    scale, prior
        By what its scores are multiplied, and whether the class prior is added, where it is
        likeliest alone.
    """

    setting: Setting
    place: int
    candidates: int | None
    scale: float
    prior: float

    @property
    def words(self) -> str:
        """The model in words."""
        if self.setting["family"] != "softmax":
            return described(self.setting)
        strength = self.setting["strength"]
        return "softmax head" + (f" with an own part ({strength:.3g})" if strength else "")


def likeliest_parts(candidates: Sequence[Candidates], judged: Judged) -> list[Part]:
    """Return the likeliest softmax model, if there is one, ridge model and Gaussian model."""
    parts, place = [], 0
    if judged.soft.loss.size:
        width = candidates[0].whole.total.space.width
        kinds = judged.soft.loss.reshape(len(STRENGTHS), len(SOFT_SCALES), 2)
        strength, soft, prior = np.unravel_index(int(kinds.argmin()), kinds.shape)
        setting = {"family": "softmax", "strength": STRENGTHS[strength] * width}
        parts.append(
            Part(
                setting=setting,
                place=int(strength),
                candidates=None,
                scale=SOFT_SCALES[soft],
                prior=float(prior),
            )
        )
        place = len(STRENGTHS)
    best: dict[bool, tuple[int, Part]] = {}
    begin = 0
    for number, each in enumerate(candidates):
        for setting in each.settings:
            steps = scales(setting)
            losses = judged.squared.loss[begin : begin + 2 * len(steps)].reshape(-1, 2)
            begin += losses.size
            step, prior = np.unravel_index(int(losses.argmin()), losses.shape)
            gaussian, loss = setting["family"] == "lda", int(losses.min())
            if gaussian not in best or loss < best[gaussian][0]:
                best[gaussian] = (
                    loss,
                    Part(
                        setting=setting,
                        place=place,
                        candidates=number,
                        scale=steps[int(step)],
                        prior=float(prior),
                    ),
                )
            place += 1
    return [*parts, *(part for _, part in best.values())]


def trials(scores: Array, odds: Array, steps: Sequence[float]) -> list[Array]:
    """Return scores times each scale, without and with the class prior."""
    narrow = odds.astype(np.float32)
    return [
        np.float32(scale) * scores + prior * narrow
        for scale in steps
        for prior in (np.float32(0), np.float32(1))
    ]


def side_by_side(sums: Sequence[LikelihoodSums]) -> LikelihoodSums:
    """Return settings that were tried on the same samples as one."""
    if not sums:
        return LikelihoodSums.zero()
    return LikelihoodSums(
        weight=sums[0].weight,
        loss=np.concatenate([each.loss for each in sums]),
        correct=np.concatenate([each.correct for each in sums]),
    )


def integer_head(head: Linear) -> IntegerHead:
    """Return a squared head on the integer grid, as it is sent."""
    return IntegerHead.of(
        head.weights,
        SoftmaxGrid(weights=SQUARED_BITS),
        head.space,
        head.classes,
        head.lift,
        head.provenance(),
    )


def sentence(
    used: Sequence[tuple[Part, float]], class_term: str, found: PoolWeights, *, alike: bool = False
) -> str:
    """Say what is pooled with which weights, and how sure that is.

    With classes that count `alike`, samples are weighed, and their number does not tell how sure.

    Examples
    --------
    >>> from fedgram.selection.pool import PoolSums
    >>> ridge = Part(setting={"family": "ridge"}, place=0, candidates=0, scale=20.0, prior=1.0)
    >>> sums = PoolSums(weight=400, correct=360)
    >>> weights = PoolWeights(weights=np.array([17.5, 1.0]), sums=sums)
    >>> sentence([(ridge, 17.5)], "class prior x 1", weights)
    'ridge head x 17.5 + class prior x 1: 90.0 ± 1.5 % correct on 400 left-out samples'
    """
    words = [f"{part.words} x {weight:.3g}" for part, weight in used]
    pool = " + ".join([*words, class_term] if class_term else words)
    share, error = 100 * found.sums.accuracy, 100 * found.standard_error
    if alike:
        return f"{pool}: {share:.1f} % correct on left-out samples, every class counted alike"
    count = f"{found.sums.weight:,}"
    return f"{pool}: {share:.1f} ± {error:.1f} % correct on {count} left-out samples"
