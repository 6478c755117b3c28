"""The space, the classes and the number of samples of all clients, before anything is solved."""

from __future__ import annotations

from dataclasses import dataclass

from fedgram.core import codec
from fedgram.core.additive import Additive, schema_field
from fedgram.core.samples import NO_SPACE, Space
from fedgram.errors import DataError


@codec.register("Opening/1")
@dataclass(frozen=True, eq=False, kw_only=True)
class DataSchema(Additive):
    """The feature space and the class list, which must be equal at all clients.

    Examples
    --------
    >>> space = Space(width=3, bound=127)
    >>> both = DataSchema(space=space, classes=("a", "b")) + DataSchema.zero()
    >>> both.classes
    ('a', 'b')
    """

    space: Space = schema_field(default=NO_SPACE)
    classes: tuple[str, ...] = schema_field(default=())

    def lacks_schema(self) -> bool:
        return self.space == NO_SPACE


@codec.register("Census/1")
@dataclass(frozen=True, eq=False, kw_only=True)
class Census(DataSchema):
    """The feature space and the class list, with the total number of samples."""

    count: int = 0

    def claimed_samples(self) -> int:
        return self.count

    def validate(self, sites: int = 1) -> None:
        super().validate(sites)
        if not 0 <= self.count <= self.space.most_samples // max(1, sites):
            raise DataError("a number of samples below zero, or that leaves no room for others")
