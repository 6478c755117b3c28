"""Multilayer perceptrons on frozen features, trained with cross-entropy, for gradient methods.

The model is a linear head with at most one hidden layer. All parameters are one flat vector, so
that proximal terms, mixing, masking and averaging are vector operations.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
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

_ORDINARY = (1e-20, 1e30)  # sums of exponentials without harmful overflow or underflow
_ROWS_AT_A_TIME = 8192  # bounds the float copy of the features
_float_rows = ArrayCache(most=2**30)


class Architecture(Protocol):
    """The layers of a network over one flat vector of parameters, those of the head last."""

    @property
    def hidden(self) -> int:
        """Width of the last hidden layer; 0 without hidden layers."""

    @property
    def base(self) -> int:
        """Number of parameters below the head."""

    @property
    def size(self) -> int:
        """Number of parameters."""

    def layers(self, theta: Array) -> list[Array]:
        """Return views of the layers; the last is the head (inputs and a constant by classes)."""

    def start(self, dtype: Any, seed: int = 0) -> Array:
        """Return the initial parameters, which are public."""

    def logits(self, theta: Array, rows: TrainingRows) -> Array:
        """Return one row of scores per sample."""

    def backward(
        self, theta: Array, rows: TrainingRows, *, into: Array, scale: float, keep: float = 0.0
    ) -> None:
        """Set ``into`` to ``keep * into + scale * gradient`` of the mean cross-entropy at `theta`.

        Parameters
        ----------
        theta
            All parameters.
        rows
            The samples.
        into
            The vector to change; may be `theta` itself.
        scale
            Factor of the gradient.
        keep
            Factor of the previous content of `into`.
        """


@codec.register("Shape/1")
@dataclass(frozen=True, kw_only=True)
class MLP:
    """The layers of a multilayer perceptron: features, at most one hidden layer (ReLU), classes.

    The features contain a constant; a constant is appended to the hidden layer too.

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
        """Width of the input of the head."""
        return self.hidden + 1 if self.hidden else self.width

    @property
    def size(self) -> int:
        """Number of parameters."""
        return self.base + self.depth * self.classes

    def layers(self, theta: Array) -> list[Array]:
        """Return views of the layers: the hidden layer, if there is one, and the head."""
        head = theta[self.base :].reshape(self.depth, self.classes)
        return [theta[: self.base].reshape(self.width, self.hidden), head][not self.hidden :]

    def start(self, dtype: Any, seed: int = 0) -> Array:
        """Return the initial parameters: a random hidden layer, and a head of zeros."""
        theta = np.zeros(self.size, dtype)
        if self.hidden:
            rng = np.random.Generator(np.random.Philox(seed))
            theta[: self.base] = rng.standard_normal(self.base) * np.sqrt(2 / self.width)
        return theta

    def represent(self, theta: Array, rows: TrainingRows) -> Array:
        """Return the input of the head: the hidden layer and a constant, or the features.

        Features stay in stored integers; the caller must multiply by the unit.
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
        """Set ``into`` to ``keep * into + scale * gradient`` of the mean cross-entropy at `theta`.

        Parameters
        ----------
        theta
            All parameters.
        rows
            The samples.
        into
            The vector to change; may be `theta` itself.
        scale
            Factor of the gradient.
        keep
            Factor of the previous content of `into`.
        """
        inside = self.represent(theta, rows)
        unit = 1.0 if self.hidden else rows.unit
        head = self.layers(theta)[-1]
        residual = cross_entropy_grad(matmul(inside, head, unit), rows.codes)
        layers = self.layers(into)
        if self.hidden:
            below = matmul(residual, head[:-1].T, 1.0)  # before the head changes, if into is theta
            below *= inside[:, :-1] > 0
            _outer(rows.values, below, layers[0], scale * rows.unit, keep)
        _outer(inside, residual, layers[-1], scale * unit, keep)


@dataclass(frozen=True, eq=False, kw_only=True)
class TrainingRows:
    """A client's samples for gradient descent: stored integers as floats, codes, and the unit.

    Parameters
    ----------
    values
        Samples by (lifted) features.
    codes
        Class codes.
    unit
        The real value of the stored number 1.
    origin
        The client's features and the lift; None for a subset of the client's rows.
    """

    values: Array
    codes: Integers
    unit: float
    origin: tuple[Features, Lift] | None = None

    @classmethod
    def of(cls, samples: Samples, lift: Lift, dtype: Any) -> TrainingRows:
        """Return the lifted samples as floats; the array is cached for all rounds.

        Parameters
        ----------
        samples
            The client's samples.
        lift
            Applied to the features.
        dtype
            Float type of the rows.
        """
        features = samples.features
        return cls(
            values=_float_rows(
                features, (lift, np.dtype(dtype)), lambda: lift(features).values.astype(dtype)
            ),
            codes=samples.labels.codes,
            unit=lift.space(features.space).unit,
            origin=(features, lift),
        )

    def __len__(self) -> int:
        return len(self.codes)

    def take(self, indices: Array) -> TrainingRows:
        """Return some of the rows."""
        return TrainingRows(values=self.values[indices], codes=self.codes[indices], unit=self.unit)

    def epoch_orders(self, size: int, epochs: int, rng: np.random.Generator) -> Iterator[Integers]:
        """Yield the order of the rows in each epoch: random, unless one batch contains all rows.

        Parameters
        ----------
        size
            Rows per mini-batch; 0 for all.
        epochs
            Number of epochs.
        rng
            Draws the orders.
        """
        one_batch = len(self.batch_slices(size)) < 2
        for _ in range(epochs):
            yield np.arange(len(self)) if one_batch else rng.permutation(len(self))

    def batch_slices(self, size: int) -> list[slice]:
        """Return the slices of an epoch's order that are mini-batches; the last may be smaller.

        With size 0 there is one batch of all samples.
        """
        size = size or max(1, len(self))
        return [slice(start, start + size) for start in range(0, len(self), size)]

    def batches(self, size: int, epochs: int, rng: np.random.Generator) -> Iterator[TrainingRows]:
        """Yield shuffled mini-batches, epoch after epoch.

        Parameters
        ----------
        size
            Rows per mini-batch; 0 for all.
        epochs
            Number of epochs.
        rng
            Draws the orders.
        """
        slices = self.batch_slices(size)
        for order in self.epoch_orders(size, epochs, rng):
            for batch in slices:
                yield self if len(slices) == 1 else self.take(order[batch])


@contextlib.contextmanager
def ignore_overflow() -> Iterator[None]:
    """Run the body with a fixed number of BLAS threads and without overflow warnings.

    `Weighted.mean` raises the error if training has diverged.
    """
    with single_threaded_blas(), np.errstate(over="ignore", invalid="ignore"):
        yield


def softmax(scores: Array) -> Array:
    """Return the softmax of each row of scores.

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
    """Return exp(scores) and row sums; rows that overflow or underflow are shifted first."""
    powers = np.exp(scores)
    sums = np.add.reduce(powers, axis=1, keepdims=True)
    least, most = _ORDINARY
    if not (
        least <= np.minimum.reduce(sums, axis=None, initial=1.0)
        and np.maximum.reduce(sums, axis=None, initial=1.0) <= most
    ):
        extreme = np.flatnonzero(~((least <= sums) & (sums <= most)))
        again = scores[extreme]
        powers[extreme] = np.exp(again - again.max(axis=1, keepdims=True))
        sums[extreme] = np.add.reduce(powers[extreme], axis=1, keepdims=True)
    return powers, sums


def cross_entropy_grad(scores: Array, codes: Integers, share: float | Array | None = None) -> Array:
    """Return the gradient of the weighted cross-entropy with respect to the scores.

    For use within `ignore_overflow`, because exponentials may overflow.

    Parameters
    ----------
    scores
        Samples by classes.
    codes
        Class codes.
    share
        Weight of each sample: one number or a column; by default 1 / samples, as in a mean.
    """
    # gradient = share * (softmax(scores) - onehot(codes))
    if share is None:
        share = 1 / len(codes)
    residual, sums = _exponentials(scores)
    residual *= share / sums
    flat = residual.reshape(-1)  # one flat index is faster than two indices
    at = np.arange(0, flat.size, residual.shape[1]) + codes
    flat[at] -= share.ravel() if isinstance(share, np.ndarray) else share
    return residual


def loss(shape: Architecture, theta: Array, rows: TrainingRows) -> float:
    """Return the mean cross-entropy.

    Parameters
    ----------
    shape
        The layers.
    theta
        All parameters.
    rows
        The samples.
    """
    likelihoods = softmax(shape.logits(theta, rows))[np.arange(len(rows)), rows.codes]
    return float(-np.log(np.maximum(likelihoods, np.finfo(likelihoods.dtype).tiny)).mean())


def gradient(shape: Architecture, theta: Array, rows: TrainingRows) -> Array:
    """Return the gradient of the mean cross-entropy.

    Parameters
    ----------
    shape
        The layers.
    theta
        All parameters.
    rows
        The samples.
    """
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
        The feature space, after the lift.
    classes
        The class list, in the order of the scores.
    lift
        Applied to features first.
    offset
        Added to the input of the head; empty for no offset.
    """

    theta: Array
    shape: Architecture
    space: Space
    classes: tuple[str, ...]
    lift: Lift = Lift()
    offset: Array = field(default_factory=lambda: np.zeros(0))

    def __call__(self, features: Features) -> Floats:
        return self.of_each([features])

    def of_each(self, parts: Sequence[Features]) -> Floats:
        """Return the scores of several parts, one after the other, each with its own product.

        The last bits of a product of floats depend on its number of rows: so they are those of
        each part alone.
        """
        scores = np.empty((sum(map(len, parts)), len(self.classes)))
        end = 0
        with ignore_overflow():
            for features in parts:
                begin, end = end, end + len(features)
                self._score(self.lift(features), scores[begin:end])
            if self.offset.size:
                scores += self.offset @ self.shape.layers(self.theta)[-1]
        return scores

    def _score(self, lifted: Features, scores: Floats) -> None:
        """Set the scores of lifted features."""
        if lifted.space is not self.space and lifted.space != self.space:
            raise MismatchError(
                f"this model was made for other features: {self.space.difference(lifted.space)}; "
                "use the same backbone, grid and lift"
            )
        for start in range(0, len(lifted), _ROWS_AT_A_TIME):
            part = slice(start, start + _ROWS_AT_A_TIME)
            values = lifted.values[part].astype(self.theta.dtype)
            codes = np.zeros(len(values), np.int64)
            rows = TrainingRows(values=values, codes=codes, unit=self.space.unit)
            scores[part] = self.shape.logits(self.theta, rows)


def matmul(left: Array, right: Array, scale: float, *, out: Array | None = None) -> Array:
    """Return ``scale * left @ right``, by NumPy, which unlike SciPy releases the GIL.

    Parameters
    ----------
    left, right
        The matrices.
    scale
        Factor of the product.
    out
        Array for the result; a new one by default.
    """
    flops.add(2 * left.shape[0] * left.shape[1] * right.shape[1])
    result: Array = np.matmul(left, right, out=out)
    if scale != 1.0:
        result *= scale
    return result


def _outer(left: Array, right: Array, into: Array, scale: float, keep: float) -> None:
    """Set `into` to ``keep * into + scale * left' right``."""
    flops.add(2 * left.shape[0] * left.shape[1] * right.shape[1])
    if keep == 0.0:
        into[...] = 0.0  # also if it contains NaN
    elif keep != 1.0:
        into *= keep
    into += left.T @ (scale * right)
