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
