"""Small networks on frozen features, as one flat vector of parameters.

Closed-form methods need none of this. It is here for the methods they are compared with: a linear
head or one hidden layer, and cross-entropy. Parameters are one vector, so that pulling, mixing,
masking and averaging are vector operations whatever the layers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from fedgram.core import codec
from fedgram.core.array_cache import ArrayCache
from fedgram.core.samples import Array, Features, Floats, Integers, Samples, Space
from fedgram.errors import MismatchError
from fedgram.features.lift import Lift
from fedgram.runtime import flops
from fedgram.runtime.threads import single_threaded_blas

_ORDINARY = (1e-20, 1e30)  # sums of exponentials of which none that matters has been lost
_ROWS_AT_A_TIME = 8192  # bounds the float copy of the features
_kept = ArrayCache(most=2**30)


class Architecture(Protocol):
    """The layers of a network over one flat vector of parameters, the head's at its end."""

    @property
    def hidden(self) -> int:
        """Width of what is trained below the head; 0 where nothing is."""

    @property
    def base(self) -> int:
        """Number of parameters below the head."""

    @property
    def size(self) -> int:
        """Number of parameters."""

    def layers(self, theta: Array) -> list[Array]:
        """Return views of the layers, the head last: what it sees and a constant by classes."""

    def start(self, dtype: Any, seed: int = 0) -> Array:
        """Return the public start."""

    def logits(self, theta: Array, rows: TrainingRows) -> Array:
        """Return one row of scores per sample."""

    def backward(
        self, theta: Array, rows: TrainingRows, *, into: Array, scale: float, keep: float = 0.0
    ) -> None:
        """Set ``into`` to ``keep * into + scale * gradient``; it may be `theta` itself."""


@codec.register("Shape/1")
@dataclass(frozen=True, kw_only=True)
class MLP:
    """The layers of a network: features, perhaps a hidden layer (ReLU), classes.

    The features bring their constant along; a constant is appended to the hidden layer.

    Examples
    --------
    >>> shape = MLP(width=3, hidden=4, classes=2)
    >>> shape.size, [layer.shape for layer in shape.layers(np.zeros(shape.size))]
    (22, [(3, 4), (5, 2)])
    """

    width: int
    hidden: int
    classes: int

    @property
    def base(self) -> int:
        """Number of parameters below the head."""
        return self.width * self.hidden

    @property
    def depth(self) -> int:
        """Width of the representation that the head sees."""
        return self.hidden + 1 if self.hidden else self.width

    @property
    def size(self) -> int:
        """Number of parameters."""
        return self.base + self.depth * self.classes

    def layers(self, theta: Array) -> list[Array]:
        """Return views of the layers: the hidden one, where there is one, and the head."""
        head = theta[self.base :].reshape(self.depth, self.classes)
        return [theta[: self.base].reshape(self.width, self.hidden), head][not self.hidden :]

    def start(self, dtype: Any, seed: int = 0) -> Array:
        """Return the public start: a random hidden layer, and a head of zeros."""
        theta = np.zeros(self.size, dtype)
        if self.hidden:
            rng = np.random.Generator(np.random.Philox(seed))
            theta[: self.base] = rng.standard_normal(self.base) * np.sqrt(2 / self.width)
        return theta

    def represent(self, theta: Array, rows: TrainingRows) -> Array:
        """Return what the head sees of each row: the hidden layer and a constant, or the features.

        Features are left in stored integers; multiply by the unit.
        """
        if not self.hidden:
            return rows.values
        hidden = matmul(rows.values, self.layers(theta)[0], rows.unit)
        inside = np.empty((len(rows), self.depth), hidden.dtype)
        np.maximum(hidden, 0, out=inside[:, :-1])
        inside[:, -1] = 1
        return inside

    def logits(self, theta: Array, rows: TrainingRows) -> Array:
        """Return one row of scores per sample."""
        unit = 1.0 if self.hidden else rows.unit
        return matmul(self.represent(theta, rows), self.layers(theta)[-1], unit)

    def backward(
        self, theta: Array, rows: TrainingRows, *, into: Array, scale: float, keep: float = 0.0
    ) -> None:
        """Set ``into`` to ``keep * into + scale * gradient``; it may be `theta` itself.

        The gradient is that of the mean cross-entropy of the rows at `theta`.
        """
        inside = self.represent(theta, rows)
        unit = 1.0 if self.hidden else rows.unit
        head = self.layers(theta)[-1]
        residual = cross_entropy_grad(matmul(inside, head, unit), rows.codes)
        layers = self.layers(into)
        if self.hidden:
            below = matmul(residual, head[:-1].T, 1.0)  # before the head may change
            below *= inside[:, :-1] > 0
            _outer(rows.values, below, layers[0], scale * rows.unit, keep)
        _outer(inside, residual, layers[-1], scale * unit, keep)


@dataclass(frozen=True, eq=False, kw_only=True)
class TrainingRows:
    """A client's samples ready for descent: stored integers as floats, codes, and the unit.

    ``origin`` is what the client holds them as, and the lift: None where they are a part of that.
    """

    values: Array
    codes: Integers
    unit: float
    origin: tuple[Features, Lift] | None = None

    @classmethod
    def of(cls, samples: Samples, lift: Lift, dtype: Any) -> TrainingRows:
        """Lift the samples and make them floats, once for all rounds."""
        features = samples.features
        return cls(
            values=_kept(
                features, (lift, np.dtype(dtype)), lambda: lift(features).values.astype(dtype)
            ),
            codes=samples.labels.codes,
            unit=lift.space(features.space).unit,
            origin=(features, lift),
        )

    def __len__(self) -> int:
        return len(self.codes)

    def take(self, indices: Array) -> TrainingRows:
        """Return some of them."""
        return TrainingRows(values=self.values[indices], codes=self.codes[indices], unit=self.unit)

    def orders(self, size: int, epochs: int, rng: np.random.Generator) -> Iterator[Integers]:
        """Yield the order in which each epoch meets them: random, unless one batch holds all."""
        whole = len(self.parts(size)) < 2
        for _ in range(epochs):
            yield np.arange(len(self)) if whole else rng.permutation(len(self))

    def parts(self, size: int) -> list[slice]:
        """Return which places of an order are mini-batches; the last may be smaller.

        Size 0 means all samples at once.
        """
        size = size or max(1, len(self))
        return [slice(start, start + size) for start in range(0, len(self), size)]

    def batches(self, size: int, epochs: int, rng: np.random.Generator) -> Iterator[TrainingRows]:
        """Yield shuffled mini-batches, epoch after epoch."""
        parts = self.parts(size)
        for order in self.orders(size, epochs, rng):
            for part in parts:
                yield self if len(parts) == 1 else self.take(order[part])


@contextlib.contextmanager
def ignore_overflow() -> Iterator[None]:
    """Run the body with a fixed number of BLAS threads, and let it diverge in silence.

    Whoever averages the result says that it has diverged, and what to do.
    """
    with single_threaded_blas(), np.errstate(over="ignore", invalid="ignore"):
        yield


def softmax(scores: Array) -> Array:
    """Turn scores into probabilities.

    Examples
    --------
    >>> softmax(np.array([[0.0, 0.0], [1000.0, 0.0]]))
    array([[0.5, 0.5],
           [1. , 0. ]])
    """
    with np.errstate(over="ignore"):
        powers, sums = _exponentials(scores)
    powers /= sums
    return powers


def _exponentials(scores: Array) -> tuple[Array, Array]:
    """Return multiples of probabilities and their sums; rows that overflow are done again."""
    powers = np.exp(scores)
    sums = np.add.reduce(powers, axis=1, keepdims=True)
    least, most = _ORDINARY
    if not (
        least <= np.minimum.reduce(sums, axis=None, initial=1.0)
        and np.maximum.reduce(sums, axis=None, initial=1.0) <= most
    ):
        strange = np.flatnonzero(~((least <= sums) & (sums <= most)))
        again = scores[strange]
        powers[strange] = np.exp(again - again.max(axis=1, keepdims=True))
        sums[strange] = np.add.reduce(powers[strange], axis=1, keepdims=True)
    return powers, sums


def cross_entropy_grad(scores: Array, codes: Integers, share: float | Array | None = None) -> Array:
    """Return the gradient of the cross-entropy of the scores, each sample's times its share.

    Shares are one number or a column, those of a mean by default. For use within `ignore_overflow`,
    where exponentials may overflow at first.
    """
    if share is None:
        share = 1 / len(codes)
    residual, sums = _exponentials(scores)
    residual *= share / sums
    flat = residual.reshape(-1)  # one index is found sooner than two
    at = np.arange(0, flat.size, residual.shape[1]) + codes
    flat[at] -= share.ravel() if isinstance(share, np.ndarray) else share
    return residual


def loss(shape: Architecture, theta: Array, rows: TrainingRows) -> float:
    """Return the mean cross-entropy."""
    chances = softmax(shape.logits(theta, rows))[np.arange(len(rows)), rows.codes]
    return float(-np.log(np.maximum(chances, np.finfo(chances.dtype).tiny)).mean())


def gradient(shape: Architecture, theta: Array, rows: TrainingRows) -> Array:
    """Return the gradient of the mean cross-entropy."""
    into = np.zeros_like(theta)
    with ignore_overflow():
        shape.backward(theta, rows, into=into, scale=1.0)
    return into


@codec.register("Network/1")
@dataclass(frozen=True, eq=False, kw_only=True)
class TrainedModel:
    """A trained model on (lifted) features, in real units.

    Parameters
    ----------
    theta
        All parameters, layer after layer.
    shape
        The layers.
    space
        The space of the features, after the lift.
    classes
        Names of the scores.
    lift
        Applied to features first.
    offset
        Added to what the head sees; empty for nothing.
    """

    theta: Array
    shape: Architecture
    space: Space
    classes: tuple[str, ...]
    lift: Lift = Lift()
    offset: Array = field(default_factory=lambda: np.zeros(0))

    def __call__(self, features: Features) -> Floats:
        lifted = self.lift(features)
        if lifted.space != self.space:
            raise MismatchError(
                f"this model was made for other features: {self.space.difference(lifted.space)}; "
                "use the same backbone, grid and lift"
            )
        scores = np.empty((len(lifted), len(self.classes)))
        with ignore_overflow():
            for start in range(0, len(lifted), _ROWS_AT_A_TIME):
                part = slice(start, start + _ROWS_AT_A_TIME)
                values = lifted.values[part].astype(self.theta.dtype)
                codes = np.zeros(len(values), np.int64)
                rows = TrainingRows(values=values, codes=codes, unit=self.space.unit)
                scores[part] = self.shape.logits(self.theta, rows)
            if self.offset.size:
                scores += self.offset @ self.shape.layers(self.theta)[-1]
        return scores


def matmul(left: Array, right: Array, scale: float, *, out: Array | None = None) -> Array:
    """Return ``scale * left @ right``, by NumPy: unlike SciPy it lets other threads run."""
    flops.add(2 * left.shape[0] * left.shape[1] * right.shape[1])
    result: Array = np.matmul(left, right, out=out)
    if scale != 1.0:
        result *= scale
    return result


def _outer(left: Array, right: Array, into: Array, scale: float, keep: float) -> None:
    """Set `into` to ``keep * into + scale * left' right``."""
    flops.add(2 * left.shape[0] * left.shape[1] * right.shape[1])
    if keep == 0.0:
        into[...] = 0.0  # whatever is there, if it is a number at all
    elif keep != 1.0:
        into *= keep
    into += left.T @ (scale * right)
