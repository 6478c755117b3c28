"""From arrays and frames to the features that a model was made for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fedgram.core import codec
from fedgram.core.samples import Array, Features, Samples, Space
from fedgram.data.arrays import matrix, require_finite
from fedgram.data.dataset import Dataset, Vectors
from fedgram.errors import DataError
from fedgram.features.grid import Grid
from fedgram.features.standardize import Standardization
from fedgram.runtime.settings import propose


@codec.register("Inputs/1")
@dataclass(frozen=True, eq=False, kw_only=True)
class Inputs:
    """What turns arrays into the features of a model.

    Parameters
    ----------
    space
        The feature space on the grid, before any lift.
    columns
        Names of the columns, if they were known; frames are brought in this order.
    standardization
        Applied to raw columns; None for features of a backbone.
    scale, offset
        If given, the real features are ``x * scale + offset``.

    Examples
    --------
    >>> inputs = Inputs(space=Grid().space(2))
    >>> inputs.features([[3.0, 4.0]]).values
    array([[18, 24, 21]], dtype=int8)
    >>> inputs.features([[3.0, 4.0, 5.0]])
    Traceback (most recent call last):
    ...
    fedgram.errors.DataError: X: expected 2 features, as the model was fitted on, got 3
    """

    space: Space
    columns: tuple[str, ...] = ()
    standardization: Standardization | None = None
    scale: Array | None = None
    offset: Array | None = None

    def features(self, given: Any) -> Features:
        """Return the features of new samples.

        Parameters
        ----------
        given
            An array, a list, a frame, a tensor, or a data set.
        """
        if isinstance(given, Samples):
            return given.features
        if isinstance(given, Features):
            return given
        grid = Grid.of(self.space)
        if isinstance(given, Dataset | Vectors):
            return self._of_vectors(given, grid)
        x, columns = matrix(given, "X")
        if columns and self.columns:
            x = self._ordered(x, columns)
        self._require_width(x)
        require_finite(x, "X", columns)
        if self.standardization is not None:
            return self.standardization(x, grid)
        return grid(x, scale=self.scale, offset=self.offset, backbone=self.space.backbone)

    def _of_vectors(self, data: Dataset | Vectors, grid: Grid) -> Features:
        self._require_width(data.x)
        backbone = data.backbone or self.space.backbone
        if data.grid is not None:
            return grid.stored(data.x, backbone=backbone)
        if self.standardization is not None:
            return self.standardization(data.x, grid)
        return grid(data.x, scale=data.scale, offset=data.offset, backbone=backbone)

    def _ordered(self, x: Array, columns: tuple[str, ...]) -> Array:
        place = {name: k for k, name in enumerate(columns)}
        missing = [name for name in self.columns if name not in place]
        if missing:
            near = propose(missing[0], columns)
            raise DataError(f"X: expected a column {missing[0]!r}, which is missing; {near}")
        return x[:, [place[name] for name in self.columns]]

    def _require_width(self, x: Array) -> None:
        if x.shape[1] != self.space.inputs:
            raise DataError(
                f"X: expected {self.space.inputs} features, as the model was fitted on, got "
                f"{x.shape[1]}"
            )
