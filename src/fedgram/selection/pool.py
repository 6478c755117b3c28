"""Log-linear pools of models: weighted sums of scores, with weights by held-out likelihood.

A log-linear pool adds the scores of several models, each times a weight, and a client's log class
prior. The weights maximize the likelihood of held-out samples, so that the softmax of the pooled
scores is a calibrated probability.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import sqrt
from typing import Any, Self

import numpy as np

from fedgram.core import codec
from fedgram.core.additive import Additive, require_shape
from fedgram.core.samples import Array, Features, Floats, Integers
from fedgram.core.shared import Wrapper
from fedgram.errors import DataError, SolveError
from fedgram.models.adjusted import Blend
from fedgram.models.linear import Classifier, Linear
from fedgram.models.mlp import softmax
from fedgram.runtime import flops
from fedgram.runtime.threads import single_threaded_blas

LOSS_PLACES = 20  # a log-likelihood is summed in steps of 2^-20
_SCORES_AT_ONCE = 2**16  # of several settings; more would leave the processor's cache


@codec.register("LikelihoodSums/1")
@dataclass(frozen=True, eq=False, kw_only=True)
class LikelihoodSums(Additive):
    """Log-loss and number of correct predictions of several settings on held-out samples.

    Parameters
    ----------
    weight
        Number of samples, or their summed weights.
    loss
        Summed negative log-likelihood of each setting, in steps of 2^-20 nats.
    correct
        Weight of the samples that each setting classifies correctly.

    Examples
    --------
    >>> scores = np.log(np.array([[0.5, 0.5], [0.25, 0.75]]))
    >>> sums = LikelihoodSums.of([scores, 0 * scores], np.array([0, 1]))
    >>> sums.best, sums.mean_loss.round(3), sums.accuracy
    (0, array([0.49 , 0.693]), array([1. , 0.5]))
    """

    weight: int = 0
    loss: Integers = field(default_factory=lambda: np.zeros(0, np.int64))
    correct: Integers = field(default_factory=lambda: np.zeros(0, np.int64))

    @classmethod
    def of(
        cls, scores: Sequence[Array], codes: Integers, weights: Integers | None = None
    ) -> LikelihoodSums:
        """Return the sums for one array of scores, (samples, classes), per setting.

        Parameters
        ----------
        scores
            Held-out scores of each setting.
        codes
            Class codes.
        weights
            Integer weights of the samples; ones by default.
        """
        weights = np.ones(len(codes), np.int64) if weights is None else weights
        loss, correct = [], []
        group = max(1, _SCORES_AT_ONCE // max(1, scores[0].size)) if len(scores) else 1
        for begin in range(0, len(scores), group):
            stacked = np.stack(scores[begin : begin + group])
            loss += (log_losses(stacked, codes) * weights).sum(axis=1).tolist()
            correct += ((stacked.argmax(axis=2) == codes) * weights).sum(axis=1).tolist()
        return cls(
            weight=int(weights.sum()),
            loss=np.array(loss, np.int64),
            correct=np.array(correct, np.int64),
        )

    @classmethod
    def over_scales(
        cls,
        scores: Array,
        odds: Array,
        scales: Sequence[float],
        codes: Integers,
        weights: Integers | None = None,
    ) -> LikelihoodSums:
        """Return the sums for scores times each scale, without and with `odds` added.

        The settings are ordered by scale. In single precision: exponentials of twice a scale are
        squares, and those with odds are products, so that few exponentials are computed.

        Parameters
        ----------
        scores
            Held-out scores, (samples, classes), or of several models, (models, samples, classes).
            Settings are then ordered by model.
        odds
            Added to the scores in every second setting, (samples, classes).
        scales
            Factors of the scores.
        codes
            Class codes.
        weights
            Integer weights of the samples; ones by default.

        Examples
        --------
        >>> scores = np.array([[1.0, 0.0], [0.0, 1.0]])
        >>> sums = LikelihoodSums.over_scales(scores, 0 * scores, [1.0, 2.0], np.array([0, 1]))
        >>> sums.mean_loss.round(3)
        array([0.313, 0.313, 0.127, 0.127])
        """
        weights = np.ones(len(codes), np.int64) if weights is None else weights
        scores = scores if scores.ndim == 3 else scores[None]
        loss, correct = (np.zeros((len(scores), len(scales), 2), np.int64) for _ in range(2))
        rows_at_a_time = max(1, _SCORES_AT_ONCE // max(1, odds.shape[1]))
        for start in range(0, len(codes), rows_at_a_time):
            part = slice(start, start + rows_at_a_time)
            models_at_a_time = max(1, _SCORES_AT_ONCE // max(1, odds[part].size))
            for first in range(0, len(scores), models_at_a_time):
                some = slice(first, first + models_at_a_time)
                cost, hits = _over_scales(
                    scores[some, part], odds[part], scales, codes[part], weights[part]
                )
                loss[some] += cost
                correct[some] += hits
        return cls(weight=int(weights.sum()), loss=loss.ravel(), correct=correct.ravel())

    def lacks_schema(self) -> bool:
        return not self.loss.size

    def claimed_weight(self) -> int:
        return self.weight

    def validate(self, sites: int = 1) -> None:
        super().validate(sites)
        require_shape("LikelihoodSums.correct", self.correct, *self.loss.shape)
        if self.weight < 0 or (self.loss < 0).any() or (self.correct < 0).any():
            raise DataError("held-out sums: expected counts and losses of at least 0")
        if (self.correct > self.weight).any():
            raise DataError("held-out sums: expected correct <= weight")
        if (self.loss > 2**62 // max(1, sites)).any():
            raise DataError("held-out sums: losses are too large: a sum may overflow")

    @property
    def best(self) -> int:
        """The index of the likeliest setting; of equal ones the first."""
        if not self.loss.size:
            raise SolveError("no setting was evaluated; at least one client is needed")
        return int(self.loss.argmin())

    @property
    def mean_loss(self) -> Floats:
        """Mean log-loss of each setting, in nats."""
        means: Floats = self.loss / (max(1, self.weight) * 2.0**LOSS_PLACES)
        return means

    @property
    def accuracy(self) -> Floats:
        """Accuracy of each setting on held-out samples."""
        shares: Floats = self.correct / max(1, self.weight)
        return shares

    def standard_error(self, place: int) -> float:
        """Return the standard error of a setting's accuracy."""
        share = float(self.accuracy[place])
        return sqrt(share * (1 - share) / max(1, self.weight))


def log_losses(scores: Array, codes: Integers) -> Integers:
    """Return the negative log-likelihood of each sample's class, in steps of 2^-20 nats.

    The scores are (samples, classes), or (settings, samples, classes). If a score is NaN, the loss
    is that of equal probabilities.
    """
    flops.add(4 * scores.size)
    gap = scores - scores.max(axis=-1, keepdims=True)
    own = gap[..., np.arange(len(codes)), codes].astype(np.float64)
    total = np.exp(gap, out=gap).sum(axis=-1, dtype=np.float64)
    with np.errstate(invalid="ignore"):
        losses = np.log(total) - own
    return _steps(losses, scores.shape[-1])


def _steps(losses: Floats, classes: int) -> Integers:
    known = np.where(np.isfinite(losses), losses, np.log(classes))
    steps: Integers = np.rint(known * 2.0**LOSS_PLACES).astype(np.int64)
    return steps


def _over_scales(
    scores: Array, odds: Array, scales: Sequence[float], codes: Integers, weights: Integers
) -> tuple[Integers, Integers]:
    """Return the summed losses and correct weights of `over_scales`, (models, scales, 2)."""
    flops.add(8 * len(scales) * scores.size)
    each, (models, samples, classes) = np.arange(len(codes)), scores.shape
    gap = (scores - scores.max(axis=2, keepdims=True)).astype(np.float32, copy=False)
    prior = (odds - odds.max(axis=1, keepdims=True)).astype(np.float32)
    own, own_prior = gap[:, each, codes].astype(np.float64), prior[each, codes].astype(np.float64)
    np.exp(prior, out=prior)
    best = ((gap.argmax(axis=2) == codes) * weights).sum(axis=1)  # the same with every scale
    correct = np.empty((models, len(scales), 2), np.int64)
    correct[:, :, 0] = best[:, None]
    sums = np.empty((len(scales), 2, models, samples), np.float32)
    ones, power, product = np.ones(classes, np.float32), np.empty_like(gap), np.empty_like(gap)
    with single_threaded_blas():
        for k, scale in enumerate(scales):
            if k and scale == 2 * scales[k - 1]:
                np.square(power, out=power)
            else:
                np.exp(np.multiply(gap, np.float32(scale), out=power), out=power)
            np.multiply(power, prior, out=product)
            # Products with ones: a few times as fast as sums of short rows.
            np.matmul(power, ones, out=sums[k, 0])
            np.matmul(product, ones, out=sums[k, 1])
            correct[:, k, 1] = ((product.argmax(axis=2) == codes) * weights).sum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        losses = np.log(sums.astype(np.float64)) - np.asarray(scales)[:, None, None, None] * own
        losses[:, 1] -= own_prior
    return (_steps(losses, classes) @ weights).transpose(2, 0, 1), correct


@codec.register("LogLinear/1")
@dataclass(frozen=True, eq=False, kw_only=True)
class LogLinear(Wrapper):
    """A log-linear pool: the weighted sum of the models' scores plus a shift for each class.

    Parameters
    ----------
    models
        At least one model; all have the same class list.
    weights
        One weight for each model.
    shift
        Added to the scores: a client's log class prior, (classes,).

    Examples
    --------
    >>> from fedgram.core.samples import Space
    >>> space = Space(width=1)
    >>> rows = Features(np.array([[2.0]]), space)
    >>> head = Linear(weights=np.array([[1.0, 0.0]]), space=space, classes=("a", "b"))
    >>> pool = LogLinear(models=(head,), weights=(0.5,), shift=np.zeros(2))
    >>> pool.probabilities(rows).round(3)
    array([[0.731, 0.269]])
    """

    models: tuple[Any, ...]
    weights: tuple[float, ...]
    shift: Floats

    @classmethod
    def of(cls, parts: Sequence[tuple[float, Classifier]], shift: Floats) -> LogLinear:
        """Return the pool of (weight, model) pairs; linear heads in one space are merged."""
        heads: dict[str, Linear] = {}
        rest: list[tuple[float, Classifier]] = []
        for weight, model in parts:
            for share, each in _linear_parts(weight, model):
                if not isinstance(each, Linear):
                    rest.append((share, each))
                    continue
                key = codec.digest([each.space, each.lift])
                scaled = replace(each, weights=share * each.weights, origin="")
                known = heads.get(key)
                heads[key] = (
                    scaled
                    if known is None
                    else replace(known, weights=known.weights + scaled.weights)
                )
        whole = [(1.0, head) for head in heads.values()] + rest
        return cls(
            models=tuple(model for _, model in whole),
            weights=tuple(float(weight) for weight, _ in whole),
            shift=shift,
        )

    @property
    def wrapped(self) -> Any:
        """The first model."""
        return self.models[0]

    def __call__(self, features: Features) -> Floats:
        scores: Floats = np.zeros((len(features), len(self.classes))) + self.shift
        for weight, model in zip(self.weights, self.models, strict=True):
            scores += weight * model(features)
        return scores

    def probabilities(self, features: Features) -> Floats:
        """Return the probability of each class, (samples, classes)."""
        return softmax(self(features))


def _linear_parts(weight: float, model: Classifier) -> list[tuple[float, Classifier]]:
    if isinstance(model, Blend):
        return [(weight, model.first), (weight * model.balance, model.second)]
    return [(weight, model)]


@codec.register("PoolSums/1")
@dataclass(frozen=True, eq=False, kw_only=True)
class PoolSums(Additive):
    """Held-out log-loss of a pool, with gradient and Hessian in the pool's weights.

    Parameters
    ----------
    weight, loss, correct
        As in `LikelihoodSums`, for one pool.
    slope, curvature
        Gradient and Hessian of the loss, in steps of 2^-20, (terms,) and (terms, terms).
    """

    weight: int = 0
    loss: int = 0
    correct: int = 0
    slope: Integers = field(default_factory=lambda: np.zeros(0, np.int64))
    curvature: Integers = field(default_factory=lambda: np.zeros((0, 0), np.int64))

    @classmethod
    def of(
        cls,
        terms: Floats,
        codes: Integers,
        pool: Floats,
        weights: Integers | None = None,
    ) -> PoolSums:
        """Return the sums for a pool.

        Parameters
        ----------
        terms
            Held-out scores of each model, and the log class prior, (terms, samples, classes).
        codes
            Class codes.
        pool
            Weights of the terms.
        weights
            Integer weights of the samples; ones by default.
        """
        weights = np.ones(len(codes), np.int64) if weights is None else weights
        return cls.of_each(terms[None], codes[None], pool, weights[None])[0]

    @classmethod
    def of_each(cls, terms: Floats, codes: Integers, pool: Floats, weights: Integers) -> list[Self]:
        """Return the sums of several clients with equally many samples, one by one.

        Parameters
        ----------
        terms
            As in `of`, (clients, terms, samples, classes).
        codes
            Class codes, (clients, samples).
        pool
            Weights of the terms.
        weights
            Integer weights of the samples, (clients, samples).
        """
        clients, number, samples, classes = terms.shape
        flops.add(4 * terms.size * number)
        terms = terms - terms.max(axis=3, keepdims=True, initial=-np.inf)
        scores = pool[None] @ terms.reshape(clients, number, samples * classes)
        scores = scores.reshape(clients, samples, classes)
        shares = np.exp(scores - scores.max(axis=2, keepdims=True, initial=-np.inf))
        shares /= shares.sum(axis=2, keepdims=True)
        means = np.einsum("ksc,ktsc->kts", shares, terms)
        each = np.arange(clients)[:, None], slice(None), np.arange(samples), codes
        slopes = means - terms[each].swapaxes(1, 2)
        spread = np.einsum("ksc,ktsc,kusc->ktus", shares, terms, terms)
        spread -= means[:, :, None] * means[:, None]
        one = 2.0**LOSS_PLACES
        slopes = np.rint((slopes * weights[:, None]).sum(axis=2) * one)
        spread = np.rint((spread * weights[:, None, None]).sum(axis=3) * one)
        losses = log_losses(scores.reshape(-1, classes), codes.ravel()).reshape(codes.shape)
        loss = (losses * weights).sum(axis=1).tolist()
        correct = ((scores.argmax(axis=2) == codes) * weights).sum(axis=1).tolist()
        return [
            cls(
                weight=int(weights[k].sum()),
                loss=loss[k],
                correct=correct[k],
                slope=slopes[k].astype(np.int64),
                curvature=spread[k].astype(np.int64),
            )
            for k in range(clients)
        ]

    def lacks_schema(self) -> bool:
        return not self.slope.size

    def claimed_weight(self) -> int:
        return self.weight

    def validate(self, sites: int = 1) -> None:
        super().validate(sites)
        require_shape("PoolSums.curvature", self.curvature, *self.slope.shape * 2)
        LikelihoodSums(
            weight=self.weight, loss=np.array([self.loss]), correct=np.array([self.correct])
        ).validate(sites)
        most = 2**62 // max(1, sites)
        for each in (self.slope, self.curvature):
            if (each > most).any() or (each < -most).any():
                raise DataError("held-out sums: slopes are too large: a sum may overflow")

    def likelier(self, other: PoolSums) -> bool:
        """Whether the mean loss is smaller; the sums may be of different clients, or empty."""
        return self.weight > 0 and (not other.weight or self.mean_loss < other.mean_loss)

    @property
    def mean_loss(self) -> float:
        """Mean log-loss in nats."""
        return self.loss / (max(1, self.weight) * 2.0**LOSS_PLACES)

    @property
    def accuracy(self) -> float:
        """Accuracy on held-out samples."""
        return self.correct / max(1, self.weight)


@dataclass(frozen=True, eq=False, kw_only=True)
class PoolWeights:
    """Weights of a pool's terms, at least 0 each, with their sums on held-out samples."""

    weights: Floats
    sums: PoolSums

    @property
    def standard_error(self) -> float:
        """Standard error of the accuracy."""
        share = self.sums.accuracy
        return sqrt(share * (1 - share) / max(1, self.sums.weight))


def likeliest_weights(
    ask: Callable[[Floats], PoolSums], start: Floats, *, exchanges: int = 7, own: int = 0
) -> PoolWeights:
    """Return the weights, at least 0 each, that minimize the held-out log-loss.

    Newton's method on a convex function; a step that increases the loss is halved. Then terms are
    removed by Akaike's information criterion: if without a term twice the log-likelihood decreases
    by less than two.

    Parameters
    ----------
    ask
        Returns the sums over all clients for given weights: one exchange.
    start
        The first weights.
    exchanges
        Maximum number of exchanges of Newton's method.
    own
        Number of terms, before the class prior, that a client solves from its own samples alone. At
        least one of the other terms stays, for clients with few samples or none.
    """
    start = _rounded(start)
    best = PoolWeights(weights=start, sums=ask(start))
    length, shared = 1.0, len(start) - 1 - own
    for _ in range(exchanges - 1):
        tried, length = _stepped(best, length, shared)
        if np.abs(tried - best.weights).max(initial=0.0) <= 1e-3 * best.weights.max(initial=0.0):
            break
        sums = ask(tried)
        if sums.likelier(best.sums):
            best, length = PoolWeights(weights=tried, sums=sums), 1.0
        else:
            length /= 2
    return _pruned(ask, best, shared)


def _pruned(ask: Callable[[Floats], PoolSums], best: PoolWeights, shared: int) -> PoolWeights:
    """Remove terms, the least important first, as long as Akaike's criterion decreases.

    At least one of the first `shared` terms stays.
    """
    while True:
        used = np.flatnonzero(best.weights > 0)
        inverse = np.linalg.pinv(_curvature(best)[np.ix_(used, used)])
        with np.errstate(over="ignore"):  # without curvature: never the least important
            loss = best.weights[used] ** 2 / np.maximum(np.diagonal(inverse), 1e-300)
        if (used < shared).sum() < 2:  # the only shared model that is left
            loss[used < shared] = np.inf
        worst = int(loss.argmin())
        if loss[worst] >= 2.0:
            return best
        moved = best.weights.copy()
        # The minimizer of the others, to second order, with this weight fixed at zero.
        moved[used] -= inverse[:, worst] / inverse[worst, worst] * best.weights[used[worst]]
        moved = _rounded(np.maximum(0.0, moved))
        moved[used[worst]] = 0.0
        if not moved[:shared].any():
            return best
        best = PoolWeights(weights=moved, sums=ask(moved))


def _curvature(at: PoolWeights) -> Floats:
    curvature: Floats = at.sums.curvature / 2.0**LOSS_PLACES
    return curvature


def _stepped(at: PoolWeights, length: float, shared: int) -> tuple[Floats, float]:
    """Return the weights after a step, and a step length with which one shared model stays."""
    move = _newton_move(at)
    tried = np.maximum(0.0, at.weights + length * move)
    while at.weights[:shared].any() and not tried[:shared].any():
        length /= 2
        tried = np.maximum(0.0, at.weights + length * move)
    return _rounded(tried), length


def _rounded(weights: Floats) -> Floats:
    """Return weights of four digits: with other BLAS kernels a step differs by a few millionths."""
    return np.array([float(f"{weight:.4g}") for weight in weights])


def _newton_move(at: PoolWeights) -> Floats:
    """Return the Newton step of the terms in use and of those with a negative slope."""
    slope, curvature = at.sums.slope / 2.0**LOSS_PLACES, _curvature(at)
    free = (at.weights > 0) | (slope < 0)
    move = np.zeros(len(slope))
    if free.any():
        inner = curvature[np.ix_(free, free)]
        held = 1e-9 * max(float(np.trace(inner)), 1e-300)
        move[free] = -np.linalg.solve(inner + held * np.eye(len(inner)), slope[free])
    return move
