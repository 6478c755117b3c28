"""Models made of other models: blends, class masks and shifted scores."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedgram.core import codec
from fedgram.core.samples import Array, Features, Floats, Space
from fedgram.models.linear import Classifier, Linear


@codec.register("Blend/1")
@dataclass(frozen=True, eq=False, kw_only=True)
class Blend:
    """The sum of two models: scores = first + balance * second (APFL).

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
        """The feature space of the first model."""
        return self.first.space

    @property
    def classes(self) -> tuple[str, ...]:
        """The class list, in the order of the scores."""
        return self.first.classes

    def __call__(self, features: Features) -> Floats:
        return self.first(features) + self.balance * self.second(features)


class _Adjusted:
    """What a model made of one other model takes over from that model."""

    model: Classifier

    @property
    def space(self) -> Space:
        """The feature space of the model."""
        return self.model.space

    @property
    def classes(self) -> tuple[str, ...]:
        """The class list, in the order of the scores."""
        return self.model.classes


@codec.register("Restricted/1", fields={"allowed": "present"})
@dataclass(frozen=True, eq=False, kw_only=True)
class ClassMasked(_Adjusted):
    """A model whose predictions are restricted to the allowed classes: they get higher scores.

    Examples
    --------
    >>> rows = Features(np.ones((1, 1)), Space(width=1))
    >>> model = Linear(weights=np.array([[1.0, 3.0]]), space=rows.space, classes=("a", "b"))
    >>> ClassMasked(model=model, allowed=np.array([True, False]))(rows)
    array([[1., 0.]])
    """

    model: Classifier
    allowed: Array

    def __call__(self, features: Features) -> Floats:
        scores = self.model(features)
        if self.allowed.any():
            least = scores[:, self.allowed].min(axis=1, keepdims=True) - 1
            scores[:, ~self.allowed] = np.minimum(scores[:, ~self.allowed], least)
        return scores


@codec.register("Shifted/1")
@dataclass(frozen=True, eq=False, kw_only=True)
class Shifted(_Adjusted):
    """A model with a constant added to the scores of each class, such as a log class prior.

    Examples
    --------
    >>> rows = Features(np.ones((1, 1)), Space(width=1))
    >>> model = Linear(weights=np.array([[1.0, 3.0]]), space=rows.space, classes=("a", "b"))
    >>> Shifted(model=model, shift=np.array([0.0, -4.0]))(rows)
    array([[ 1., -1.]])
    """

    model: Classifier
    shift: Floats

    def __call__(self, features: Features) -> Floats:
        return self.model(features) + self.shift
