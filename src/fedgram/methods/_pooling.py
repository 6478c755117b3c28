"""Model selection of `auto`: the likeliest model of each kind, then the weights of the pool."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from fedgram.core import codec
from fedgram.core.additive import Additive
from fedgram.core.samples import Floats, Integers, Space
from fedgram.core.shared import Shared
from fedgram.models.linear import Linear
from fedgram.selection.candidates import Candidates, Setting, described, scales
from fedgram.selection.normal_equations import NormalEquations
from fedgram.selection.pool import LikelihoodSums, PoolWeights
from fedgram.softmax.arithmetic import SoftmaxGrid
from fedgram.softmax.sums import IntegerHead

# Ridge per feature of a client's own softmax part; 0 for no own part.
STRENGTHS = (0.0, 2.4, 0.24, 0.08, 0.024)
OWN = "local"  # the family of models of a client's own samples alone
SOFT_SCALES = (0.5, 0.7, 1.0, 1.4)  # factors of softmax scores
SQUARED_BITS = 22  # binary places of the weights of squared-loss heads, whose scores are small


@codec.register("Question/1", fields={"equations": "wholes"})
@dataclass(frozen=True, eq=False, kw_only=True)
class Question:
    """The broadcast for model selection: models to evaluate on left-out samples.

    Parameters
    ----------
    equations
        Totals with their ridges, one for each lift.
    soft
        Integer softmax weights that were fitted without each fold, (folds, features, classes), or
        (0, 0, 0) if there are none.
    folds
        Number of folds (`fedgram.selection.holdout`).
    counts, pseudo_count
        Global class counts and pseudo-count of the class prior.
    """

    equations: tuple[NormalEquations, ...]
    soft: Integers
    folds: int
    counts: Floats
    pseudo_count: float


@codec.register("Judged/1")
@dataclass(frozen=True, eq=False, kw_only=True)
class Judged(Additive):
    """Summed log-losses of squared-loss models and of softmax models on left-out samples.

    Squared-loss models are evaluated by leave-one-out on all samples of the selected clients;
    softmax models on the samples of the held-out folds.
    """

    squared: LikelihoodSums = field(default_factory=LikelihoodSums.zero)
    soft: LikelihoodSums = field(default_factory=LikelihoodSums.zero)


@codec.register("PoolParts/1")
@dataclass(frozen=True, eq=False, kw_only=True)
class PoolParts(Shared):
    """The shared parts of the pool, as broadcast to all clients.

    Parameters
    ----------
    heads
        A head for each part of the pool, or the total for FedHiP.
    counts, pseudo_count
        Global class counts and pseudo-count of the class prior.
    origin
        Digest of the totals behind the parts.
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
        """The class list, in the order of the scores."""
        first = self.heads[0]
        return first.total.classes if isinstance(first, NormalEquations) else first.classes

    def provenance(self) -> str:
        """Digest of the totals behind the parts."""
        return self.origin


@dataclass(frozen=True, eq=False, kw_only=True)
class Part:
    """A candidate for the pool.

    Parameters
    ----------
    setting
        Its family and parameters.
    place
        Position of its scores among those that clients have stored.
    candidates
        Index of its `Candidates`; None for the softmax head.
    scale, prior
        The likeliest factor of its scores, and weight of the class prior (0 or 1), if used alone.
    """

    setting: Setting
    place: int
    candidates: int | None
    scale: float
    prior: float

    @property
    def own(self) -> bool:
        """Whether a client solves it from its own samples alone."""
        return bool(self.setting["family"] == OWN)

    @property
    def words(self) -> str:
        """A short description of the model."""
        if self.setting["family"] != "softmax":
            return described(self.setting)
        strength = self.setting["strength"]
        return "softmax head" + (f" with an own part ({strength:.3g})" if strength else "")


def likeliest_parts(candidates: Sequence[Candidates], judged: Judged) -> list[Part]:
    """Return the likeliest softmax model (if any), ridge, Gaussian and own model.

    The own model, of a client's samples alone, is the last.
    """
    parts, place = [], 0
    if judged.soft.loss.size:
        width = candidates[0].equations.total.space.width
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
    best: dict[str, tuple[int, Part]] = {}
    begin = 0
    for number, each in enumerate(candidates):
        for setting in each.settings:
            steps = scales(setting)
            losses = judged.squared.loss[begin : begin + 2 * len(steps)].reshape(-1, 2)
            begin += losses.size
            step, prior = np.unravel_index(int(losses.argmin()), losses.shape)
            family, loss = setting["family"], int(losses.min())
            kind = family if family in ("lda", OWN) else "ridge"
            if kind not in best or loss < best[kind][0]:
                best[kind] = (
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
    squared = [part for _, part in best.values()]
    return [*parts, *sorted(squared, key=lambda part: part.own)]


def side_by_side(sums: Sequence[LikelihoodSums]) -> LikelihoodSums:
    """Concatenate the sums of settings that were evaluated on the same samples."""
    if not sums:
        return LikelihoodSums.zero()
    return LikelihoodSums(
        weight=sums[0].weight,
        loss=np.concatenate([each.loss for each in sums]),
        correct=np.concatenate([each.correct for each in sums]),
    )


def integer_head(head: Linear) -> IntegerHead:
    """Return a squared-loss head on the integer grid, as it is sent."""
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
    """Return a description of the pool: parts, weights, accuracy and its standard error.

    Parameters
    ----------
    used
        The parts with their weights.
    class_term
        Description of the class term; empty for none.
    found
        The weights, and the sums over left-out samples.
    alike
        Whether classes have equal weights; then there is no simple standard error, and none is
        shown.

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
