"""A sequence of maps of the features: projections, landmarks and lifts."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fedgram.core import codec
from fedgram.core.samples import Features, Space
from fedgram.errors import DataError
from fedgram.features.landmarks import Landmarks
from fedgram.features.lift import Lift
from fedgram.features.projection import Projection

Map = Lift | Landmarks | Projection


@codec.register("Chain/1")
@dataclass(frozen=True, eq=False, kw_only=True)
class Chain:
    """Maps of the features, applied one after the other.

    Parameters
    ----------
    inputs
        The feature space of the inputs.
    maps
        The maps, the first one first.

    Examples
    --------
    >>> import numpy as np
    >>> from fedgram.features.grid import Grid
    >>> rows = Grid(bits=8)(np.array([[3.0, 4.0]]))
    >>> twice = Chain(inputs=rows.space, maps=(Lift(width=4), Lift(width=2)))
    >>> twice(rows).values.shape, len(twice.space.steps) - len(rows.space.steps)
    ((1, 3), 2)
    """

    inputs: Space
    maps: tuple[Map, ...] = ()

    def __post_init__(self) -> None:
        if not all(isinstance(each, Map) for each in self.maps):
            raise DataError("a chain of maps: expected lifts, landmarks and projections")

    @property
    def space(self) -> Space:
        """The space of the results."""
        space = self.inputs
        for each in self.maps:
            space = each.space(space)
        return replace(space, inputs=0)  # the maps cannot be checked from a total in this space

    def __call__(self, features: Features) -> Features:
        """Return the mapped features, from the cache of `features` if there is one."""
        return features.derived(self.space, lambda: self._mapped(features))

    def _mapped(self, features: Features) -> Features:
        rows = Features(features.values, features.space)
        for each in self.maps:
            rows = each(rows)
        return Features(rows.values, self.space, None if features.cache is None else {})
