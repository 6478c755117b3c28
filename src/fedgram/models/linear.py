"""Models: functions from features to one score per class, which can be saved and digested."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from fedgram.core import codec
from fedgram.core.exact import require_gram
from fedgram.core.gcv import Ridge, resolved
from fedgram.core.samples import Array, Features, Floats, Integers, Labels, Samples, Space
from fedgram.core.shared import Shared
from fedgram.core.solve import least_squares, require_ridge, single_threaded_blas
from fedgram.core.statistics import Statistics
from fedgram.errors import MismatchError
from fedgram.features.grid import Grid
from fedgram.features.lift import Lift
from fedgram.runtime import flops

_ROWS_AT_A_TIME = 8192  # bounds the float64 copy of the features


class Predictor(Protocol):
    """What a client ends up with: scores per class from (unlifted) features."""

    def __call__(self, features: Features) -> Floats:
        """Return one row of scores per sample; the largest wins."""


class Classifier(Predictor, Protocol):
    """A predictor that knows its features and its classes."""

    @property
    def space(self) -> Space:
        """The space of the features, after the lift."""

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the scores."""


def predict(predictor: Predictor, features: Features) -> Integers:
    """Return the winning class code of each sample; ties go to the first class."""
    winners: Integers = predictor(features).argmax(axis=1)
    return winners


def lifted(samples: Samples, lift: Lift) -> tuple[Features, Labels]:
    """Return lifted features with their labels, unless their Gram matrix would not fit."""
    if lift.width:
        require_gram(lift.width + 1, len(samples.labels.classes))
    return lift(samples.features), samples.labels


@codec.register("Linear/1")
@dataclass(frozen=True, eq=False, kw_only=True)
class Linear(Shared):
    """A linear head on (lifted) features, in real units.

    Parameters
    ----------
    weights
        Features by classes.
    space
        The space the head was solved in, after the lift.
    classes
        Names of the columns.
    lift
        Applied to features before the weights.
    origin
        Digest of the total it was solved from and of the ridge; empty where nothing was summed.

    Examples
    --------
    >>> from fedgram.features.grid import Grid
    >>> from fedgram.core.samples import Labels
    >>> rows = Grid(bits=8)(np.array([[1.0, 0.0], [0.0, 1.0]]))
    >>> total = Statistics.of(rows, Labels(np.array([0, 1]), ("left", "right")))
    >>> head = Linear.of(total, ridge=0.1)
    >>> predict(head, rows)
    array([0, 1])
    """

    weights: Floats
    space: Space
    classes: tuple[str, ...]
    lift: Lift = Lift()
    origin: str = ""

    @classmethod
    def of(cls, total: Statistics, *, ridge: Ridge, lift: Lift | None = None) -> Linear:
        """Solve a total; the head remembers the digest of what it was solved from."""
        lift = lift or Lift()
        require_lift(total.space, lift)
        ridge = resolved(ridge, total)
        return cls(
            weights=total.solve(ridge),
            space=total.space,
            classes=total.classes,
            lift=lift,
            origin=codec.digest({"total": total.digest(), "ridge": float(ridge)}),
        )

    @classmethod
    def fitted(
        cls, samples: Samples, targets: Floats, *, ridge: float, lift: Lift | None = None
    ) -> Linear:
        """Fit `targets` on samples at hand: in the dual form where they are few."""
        require_ridge(ridge)
        lift = lift or Lift()
        features = lift(samples.features)
        unit = features.space.unit
        stored = least_squares(features.values.astype(np.float64), targets, ridge / unit**2)
        return cls(
            weights=stored / unit,
            space=features.space,
            classes=samples.labels.classes,
            lift=lift,
        )

    def normalized(self) -> Linear:
        """Return the head with columns of one length; the last feature's entry does not count."""
        norms = np.linalg.norm(self.weights[:-1], axis=0)
        return replace(
            self,
            weights=self.weights / np.where(norms > 0, norms, 1.0),
            origin=codec.digest({"of": self.origin, "normalized": True}),
        )

    def refined(self, samples: Samples, *, ridge: float, lift: Lift) -> Linear:
        """Fit what this head leaves over at samples at hand."""
        residual = samples.labels.onehot() - self(samples.features)
        return Linear.fitted(samples, residual, ridge=ridge, lift=lift)

    def __call__(self, features: Features) -> Floats:
        lifted = self.lift(features)
        require_space(self.space, lifted.space)
        scores = np.empty((len(lifted), len(self.classes)))
        flops.add(2 * self.weights.size * len(lifted))
        with single_threaded_blas():
            for start in range(0, len(lifted), _ROWS_AT_A_TIME):
                part = slice(start, start + _ROWS_AT_A_TIME)
                np.matmul(lifted.take(part).real(), self.weights, out=scores[part])
        return scores

    def predictor(self) -> Linear:
        """Return this head."""
        return self

    def provenance(self) -> str:
        """Digest of what the head was solved from, where that is known; else of the head."""
        return self.origin or codec.digest(self)


@codec.register("Blend/1")
@dataclass(frozen=True, eq=False, kw_only=True)
class Blend:
    """A first model plus a weighted second one: scores = first + balance * second.

    Examples
    --------
    >>> import numpy as np
    >>> rows = Features(np.ones((1, 1)), Space(width=1))
    >>> one, two = (
    ...     Linear(weights=np.array([[w, 0.0]]), space=rows.space, classes=("a", "b"))
    ...     for w in (1.0, 2.0)
    ... )
    >>> Blend(first=one, second=two, balance=0.5)(rows)
    array([[2., 0.]])
    """

    first: Linear
    second: Linear
    balance: float

    @property
    def space(self) -> Space:
        """The space of the first model."""
        return self.first.space

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the scores."""
        return self.first.classes

    def __call__(self, features: Features) -> Floats:
        return self.first(features) + self.balance * self.second(features)


@codec.register("Restricted/1")
@dataclass(frozen=True, eq=False, kw_only=True)
class ClassMasked:
    """A model that never chooses an absent class: all others score higher.

    Examples
    --------
    >>> rows = Features(np.ones((1, 1)), Space(width=1))
    >>> model = Linear(weights=np.array([[1.0, 3.0]]), space=rows.space, classes=("a", "b"))
    >>> ClassMasked(model=model, present=np.array([True, False]))(rows)
    array([[1., 0.]])
    """

    model: Classifier
    present: Array

    @property
    def space(self) -> Space:
        """The space of the model."""
        return self.model.space

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the scores."""
        return self.model.classes

    def __call__(self, features: Features) -> Floats:
        scores = self.model(features)
        if self.present.any():
            least = scores[:, self.present].min(axis=1, keepdims=True) - 1
            scores[:, ~self.present] = np.minimum(scores[:, ~self.present], least)
        return scores


@codec.register("Shifted/1")
@dataclass(frozen=True, eq=False, kw_only=True)
class Shifted:
    """A model whose scores are shifted, each class by its own amount.

    Examples
    --------
    >>> rows = Features(np.ones((1, 1)), Space(width=1))
    >>> model = Linear(weights=np.array([[1.0, 3.0]]), space=rows.space, classes=("a", "b"))
    >>> Shifted(model=model, shift=np.array([0.0, -4.0]))(rows)
    array([[ 1., -1.]])
    """

    model: Classifier
    shift: Floats

    @property
    def space(self) -> Space:
        """The space of the model."""
        return self.model.space

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the scores."""
        return self.model.classes

    def __call__(self, features: Features) -> Floats:
        return self.model(features) + self.shift


def require_space(wanted: Space, found: Space) -> None:
    """Refuse features that a model was not made for."""
    if found != wanted:
        raise MismatchError(
            f"this model was made for other features: {wanted.difference(found)}; use the same "
            "backbone, grid and lift"
        )


def require_lift(space: Space, lift: Lift) -> None:
    """Refuse a total that was not made with this lift."""
    if space.inputs:
        wanted = lift.space(Grid.of(space).space(space.inputs, space.backbone))
        if wanted != space:
            raise MismatchError(
                f"the total was made with other settings: {space.difference(wanted)}; use the "
                "same ones"
            )
