"""A model with what it needs to take raw data and to give probabilities, as it is saved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fedgram.core import codec
from fedgram.core.codec import added_field
from fedgram.core.samples import Features, Floats
from fedgram.core.shared import Wrapper
from fedgram.core.targets import outputs_named
from fedgram.features.standardize import Standardization
from fedgram.models.model import Calibration, Model


@codec.register("SavedModel/1")
@dataclass(frozen=True, eq=False, kw_only=True)
class SavedModel(Wrapper):
    """A model, or a shared result, with the rules that make its features and its probabilities.

    A model that needs none of them is saved without this.

    Parameters
    ----------
    model
        The model, or what a method shares.
    schema
        The schema of the table that its features are made from, as the text of a TOML file.
    standardization
        Makes features of raw columns; None if features come from a backbone or a schema.
    calibration
        Turns scores into probabilities; None if it is not known.
    columns
        Names of the columns that it was fitted on, in its order; empty if they are not known.

    Examples
    --------
    >>> import numpy as np
    >>> from fedgram.core.samples import Space
    >>> from fedgram.models.linear import Linear
    >>> head = Linear(weights=np.array([[1.0, 3.0]]), space=Space(width=1), classes=("a", "b"))
    >>> SavedModel(model=head, schema="label = 'x'").classes
    ('a', 'b')
    """

    model: Any
    schema: str = ""
    standardization: Standardization | None = added_field(None)
    calibration: Calibration | None = added_field(None)
    columns: tuple[str, ...] = added_field(())

    @property
    def wrapped(self) -> Any:
        """The model."""
        return self.model

    @property
    def needed(self) -> bool:
        """Whether there is anything besides the model."""
        return bool(self.schema or self.standardization or self.calibration or self.columns)

    def __call__(self, features: Features) -> Floats:
        scores: Floats = self.model(features)
        return scores

    @property
    def has_probabilities(self) -> bool:
        """Whether scores can be turned into probabilities."""
        if outputs_named(self.model.classes):  # numbers, also of a model that knows how
            return False
        return self.calibration is not None or hasattr(self.model, "probabilities")

    def probabilities(self, features: Features) -> Floats:
        """Return the probability of each class, (samples, classes)."""
        if self.calibration is None:
            own: Floats = self.model.probabilities(features)
            return own
        return self.calibration.probabilities(self.model(features))


def saved(value: SavedModel) -> Any:
    """Return what to write to a file: the model itself if there is nothing else."""
    return value if value.needed else value.model


def opened(value: Any) -> SavedModel:
    """Return the value of a model file, or a model of a result, with what is known besides it."""
    if isinstance(value, SavedModel):
        return value
    if isinstance(value, Model):
        known = value if value.calibrate is None else value.calibrated()
        return SavedModel(
            model=value.predictor,
            standardization=value.inputs.standardization,
            calibration=known.calibration,
            columns=value.inputs.columns,
        )
    return SavedModel(model=value)
