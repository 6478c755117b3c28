"""Linear heads and the protocols of models: functions from features to one score per class."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from fedgram.core import codec
from fedgram.core.exact import require_gram, smaller_gram_matrix
from fedgram.core.gcv import Ridge, resolved
from fedgram.core.samples import Features, Floats, Integers, Labels, Samples, Space
from fedgram.core.shared import Shared
from fedgram.core.solve import least_squares, require_ridge
from fedgram.core.statistics import Statistics
from fedgram.errors import DataError, MismatchError
from fedgram.features.grid import Grid
from fedgram.features.lift import MOST_KEPT, Lift
from fedgram.runtime import flops
from fedgram.runtime.threads import single_threaded_blas

_ROWS_AT_A_TIME = 8192  # bounds the float64 copy of the features


class Predictor(Protocol):
    """A model: scores per class from (unlifted) features."""

    def __call__(self, features: Features) -> Floats:
        """Return one row of scores per sample; the class with the largest score is predicted."""


class Classifier(Predictor, Protocol):
    """A predictor with a feature space and a class list."""

    @property
    def space(self) -> Space:
        """The feature space, after the lift."""

    @property
    def classes(self) -> tuple[str, ...]:
        """The class list, in the order of the scores."""


def predict(predictor: Predictor, features: Features) -> Integers:
    """Return the predicted class code of each sample; of equal scores the first class."""
    codes: Integers = predictor(features).argmax(axis=1)
    return codes


def lifted(samples: Samples, lift: Lift) -> tuple[Features, Labels]:
    """Return lifted features and labels; raise an error if the Gram matrix would not fit memory."""
    if lift.width:
        require_gram(lift.width + 1, len(samples.labels.classes))
    return lift(samples.features), samples.labels


def streamed_statistics(
    samples: Samples, rows: Callable[[Samples], tuple[Features, Labels]]
) -> Statistics:
    """Return the statistics of derived rows; those of many samples are derived in batches.

    The derived rows of a large client are never all in memory, and the bytes are the same.

    Parameters
    ----------
    samples
        The samples.
    rows
        Returns the features and labels to sum, for some of the samples.
    """
    space = rows(samples.take(slice(0)))[0].space
    if not space.exact or len(samples) * space.width <= MOST_KEPT:
        return Statistics.of(*rows(samples))
    require_gram(space.width, len(samples.labels.classes))
    starts = range(0, len(samples), _ROWS_AT_A_TIME)
    return Statistics.over(rows(samples.take(slice(s, s + _ROWS_AT_A_TIME))) for s in starts)


@codec.register("Linear/1")
@dataclass(frozen=True, eq=False, kw_only=True)
class Linear(Shared):
    """A linear head on (lifted) features, in real units.

    Parameters
    ----------
    weights
        Features by classes.
    space
        The feature space, after the lift.
    classes
        The class list, in the order of the columns.
    lift
        Applied to features before the weights.
    origin
        Digest of the total and the ridge that the head was solved from; empty without a total.

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
        """Return the ridge regression of a total, with the digest of the total as `origin`.

        Parameters
        ----------
        total
            The summed statistics.
        ridge
            Weight of the squared norm, or "auto".
        lift
            The lift that the statistics were made with.
        """
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
        """Return the ridge regression of `targets` on samples, in the primal or the dual form.

        Parameters
        ----------
        samples
            The samples.
        targets
            Samples by classes.
        ridge
            Weight of the squared norm.
        lift
            Applied to the features first.
        """
        require_ridge(ridge)
        lift = lift or Lift()
        features = lift(samples.features)
        unit = features.space.unit
        stored = least_squares(
            features.values.astype(np.float64),
            targets,
            ridge / unit**2,
            products=smaller_gram_matrix(features.values),
        )
        return cls(
            weights=stored / unit,
            space=features.space,
            classes=samples.labels.classes,
            lift=lift,
        )

    def validate(self) -> None:
        """Raise an error unless the weights are numbers for every feature and class."""
        shape = (self.space.width, len(self.classes))
        if self.weights.shape != shape or self.weights.dtype != np.float64:
            raise DataError(
                f"weights: expected float64 of shape {shape}, got {self.weights.dtype} of shape "
                f"{self.weights.shape}"
            )

    def normalized(self) -> Linear:
        """Return the head with columns of norm one (Fed3R); the norm excludes the constant."""
        norms = np.linalg.norm(self.weights[self.space.without_constant], axis=0)
        return replace(
            self,
            weights=self.weights / np.where(norms > 0, norms, 1.0),
            origin=codec.digest({"of": self.origin, "normalized": True}),
        )

    def fit_residual(self, samples: Samples, *, ridge: float, lift: Lift) -> Linear:
        """Return the ridge regression of this head's residual on samples.

        Parameters
        ----------
        samples
            The samples.
        ridge
            Weight of the squared norm.
        lift
            Applied to the features of the residual fit.
        """
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
        """Digest of the total and the ridge if known, otherwise of the head."""
        return self.origin or codec.digest(self)


def require_space(wanted: Space, found: Space) -> None:
    """Raise MismatchError if the features are not in the space of the model."""
    if found != wanted:
        raise MismatchError(
            f"this model was made for other features: {wanted.difference(found)}; use the same "
            "backbone, grid and lift"
        )


def require_lift(space: Space, lift: Lift) -> None:
    """Raise MismatchError if a total was not made with this lift."""
    if space.traceable:
        wanted = lift.space(Grid.of(space).space(space.inputs, space.backbone))
        if wanted != space:
            raise MismatchError(
                f"the total was made with other settings: {space.difference(wanted)}; use the "
                "same settings"
            )
