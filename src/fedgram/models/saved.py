"""A model with the schema of the table that its features are made from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fedgram.core import codec
from fedgram.core.samples import Features, Floats
from fedgram.core.shared import Wrapper


@codec.register("SavedModel/1")
@dataclass(frozen=True, eq=False, kw_only=True)
class SavedModel(Wrapper):
    """A model, or a shared result, with the schema of its tables: rows can be predicted directly.

    Models whose features are not columns of a table are saved without this.

    Parameters
    ----------
    model
        The model, or what a method shares.
    schema
        The schema, as the text of a TOML file.

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
    schema: str

    @property
    def wrapped(self) -> Any:
        """The model."""
        return self.model

    def __call__(self, features: Features) -> Floats:
        scores: Floats = self.model(features)
        return scores


def saved(model: Any, schema: str) -> Any:
    """Return what to write to a file: the model itself if there is no schema."""
    return SavedModel(model=model, schema=schema) if schema else model


def opened(value: Any) -> tuple[Any, str]:
    """Return the model of a file's value, and its schema; empty without one."""
    return (value.model, value.schema) if isinstance(value, SavedModel) else (value, "")
