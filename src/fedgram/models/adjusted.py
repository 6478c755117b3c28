"""Models made of other models: blends, class masks and shifted scores."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedgram.core import codec
from fedgram.core.samples import Array, Features, Floats
from fedgram.core.shared import Wrapper
from fedgram.models.linear import Classifier, Linear


@codec.register("Blend/1")
@dataclass(frozen=True, eq=False, kw_only=True)
class Blend(Wrapper):
    """The sum of two models: scores = first + balance * second (APFL).

    Examples
    --------
    >>> from fedgram.core.samples import Space
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
    def wrapped(self) -> Linear:
        """The first model."""
        return self.first

    def __call__(self, features: Features) -> Floats:
        return self.first(features) + self.balance * self.second(features)


@codec.register("Restricted/1", fields={"allowed": "present"})
@dataclass(frozen=True, eq=False, kw_only=True)
class ClassMasked(Wrapper):
    """A model whose predictions are restricted to the allowed classes: they get higher scores.

    Examples
    --------
    >>> from fedgram.core.samples import Space
    >>> rows = Features(np.ones((1, 1)), Space(width=1))
    >>> model = Linear(weights=np.array([[1.0, 3.0]]), space=rows.space, classes=("a", "b"))
    >>> ClassMasked(model=model, allowed=np.array([True, False]))(rows)
    array([[1., 0.]])
    """

    model: Classifier
    allowed: Array

    @property
    def wrapped(self) -> Classifier:
        """The model before the change."""
        return self.model

    def __call__(self, features: Features) -> Floats:
        scores = self.model(features)
        if self.allowed.any():
            least = scores[:, self.allowed].min(axis=1, keepdims=True) - 1
            scores[:, ~self.allowed] = np.minimum(scores[:, ~self.allowed], least)
        return scores


@codec.register("Shifted/1")
@dataclass(frozen=True, eq=False, kw_only=True)
class Shifted(Wrapper):
    """A model with a constant added to the scores of each class, such as a log class prior.

    Examples
    --------
    >>> from fedgram.core.samples import Space
    >>> rows = Features(np.ones((1, 1)), Space(width=1))
    >>> model = Linear(weights=np.array([[1.0, 3.0]]), space=rows.space, classes=("a", "b"))
    >>> Shifted(model=model, shift=np.array([0.0, -4.0]))(rows)
    array([[ 1., -1.]])
    """

    model: Classifier
    shift: Floats

    @property
    def wrapped(self) -> Classifier:
        """The model before the change."""
        return self.model

    def __call__(self, features: Features) -> Floats:
        return self.model(features) + self.shift
