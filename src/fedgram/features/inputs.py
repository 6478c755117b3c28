"""From arrays and frames to the features that a model was made for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from fedgram.core import codec
from fedgram.core.samples import Array, Features, Samples, Space
from fedgram.data.arrays import matrix, require_finite
from fedgram.data.dataset import Dataset, Vectors
from fedgram.errors import DataError
from fedgram.features.backbones.registry import Backbone
from fedgram.features.column_order import places
from fedgram.features.grid import Grid
from fedgram.features.new_data import NewData, backbone_of
from fedgram.features.raw_inputs import RawInputs, raw_inputs
from fedgram.features.standardize import Standardization, is_standardized
from fedgram.features.stored import require_on_grid


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
            An array, a list, a frame, a tensor, or a data set; if the model names the backbone of
            its features, also images, texts, or the path of a file or folder.
        """
        if isinstance(given, Samples):
            return given.features
        if isinstance(given, Features):
            return given
        if (raw := raw_inputs(given)) is not None:
            return self._embedded(raw)
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

    def _embedded(self, raw: RawInputs) -> Features:
        """Return the features of raw inputs, from the backbone that the model names."""
        data = NewData(columns=self.columns, standardization=self.standardization)
        if raw.source:
            batches = data.batches(raw.source, self.space)
        else:
            if not self.space.backbone or is_standardized(self.space):
                raise DataError(
                    f"X: expected samples by features, got {raw.words}; this model was fitted on "
                    "vectors that name no backbone: make the data with 'fedgram features' for a "
                    "model that takes such inputs"
                )
            backbone = _backbone(self.space)
            items = raw.items(backbone.takes)
            names = [f"X[{k}]" for k in range(len(items))]
            batches = data.embedded(items, names, self.space, backbone)
        values = [batch.features.values for batch in batches]
        return Features(np.concatenate(values), self.space)

    def _of_vectors(self, data: Dataset | Vectors, grid: Grid) -> Features:
        columns = data.columns if isinstance(data, Dataset) else ()
        if columns and self.columns and columns != self.columns:
            data = Vectors(
                **{name: getattr(data, name) for name in ("backbone", "grid")},
                x=self._ordered(data.x, columns),
                scale=self._ordered(data.scale, columns),
                offset=self._ordered(data.offset, columns),
            )
        self._require_width(data.x)
        require_finite(data.x, "X", self.columns)
        backbone = data.backbone or self.space.backbone
        if data.grid is not None:
            require_on_grid(data.x, data.grid, grid, "X")
            return grid.stored(data.x, backbone=backbone)
        if self.standardization is not None:
            return self.standardization(data.x, grid)
        return grid(data.x, scale=data.scale, offset=data.offset, backbone=backbone)

    def _ordered(self, x: Any, columns: tuple[str, ...]) -> Any:
        """Return columns, or numbers of columns, in the order of the model; one for all stays."""
        if x is None or not x.ndim:
            return x
        return x[..., places(self.columns, columns, "X")]

    def _require_width(self, x: Array) -> None:
        if x.shape[1] != self.space.inputs:
            raise DataError(
                f"X: expected {self.space.inputs} features, as the model was fitted on, got "
                f"{x.shape[1]}"
            )


@lru_cache(maxsize=1)
def _backbone(space: Space) -> Backbone:
    """Return the backbone of a feature space, which stays in memory for the next samples."""
    return backbone_of(space)
