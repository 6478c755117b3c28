"""What the inputs of a feature space are, written in the name of the backbone and read from it."""

from __future__ import annotations

import re
from dataclasses import dataclass

_TABLE = "table"


@dataclass(frozen=True, kw_only=True)
class ImageLayout:
    """The inputs are the pixels of images, by rows, all channels of a pixel together.

    Examples
    --------
    >>> ImageLayout(height=28, width=28, channels=1).backbone
    'image 28x28x1'
    """

    height: int
    width: int
    channels: int

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width and channels."""
        return (self.height, self.width, self.channels)

    @property
    def backbone(self) -> str:
        """Name of the backbone for images whose pixels are the features."""
        return f"image {self.height}x{self.width}x{self.channels}"


@dataclass(frozen=True, kw_only=True)
class TableLayout:
    """The inputs are the columns of a table.

    Parameters
    ----------
    schema
        The first 16 digits of the digest of the table's schema.

    Examples
    --------
    >>> TableLayout(schema="0123456789abcdef").backbone
    'table 0123456789abcdef'
    """

    schema: str

    @property
    def backbone(self) -> str:
        """Name of the backbone for tables of this schema."""
        return f"{_TABLE} {self.schema}"


def downsampled(side: int) -> str:
    """Return the name of the backbone that makes color images of `side` by `side` pixels."""
    return f"pixels:{side}"


def name_and_digest(backbone: str) -> tuple[str, str]:
    """Return the name of a backbone, and the digest that follows it ("" if there is none).

    Examples
    --------
    >>> name_and_digest("hf:org/model 0123456789abcdef"), name_and_digest("table")
    (('hf:org/model', '0123456789abcdef'), ('table', ''))
    """
    name, _, digest = backbone.partition(" ")
    return name, digest


def source_and_model(backbone: str) -> tuple[str, str]:
    """Return where a backbone comes from, and the model there; ("", "") if its name has no source.

    Examples
    --------
    >>> source_and_model("hf:org/model 0123"), source_and_model("wordllama 0123")
    (('hf', 'org/model'), ('', ''))
    """
    source, colon, model = name_and_digest(backbone)[0].partition(":")
    return (source, model) if colon else ("", "")


def layout_of(backbone: str) -> ImageLayout | TableLayout | None:
    """Return the layout of a backbone's vectors; None if the name of the backbone has none.

    Examples
    --------
    >>> layout_of("image 28x28x1")
    ImageLayout(height=28, width=28, channels=1)
    >>> layout_of(downsampled(8)).shape, layout_of("resnet18")
    ((8, 8, 3), None)
    """
    if found := re.fullmatch(r"image (\d+)x(\d+)x(\d+)", backbone):
        height, width, channels = map(int, found.groups())
        return ImageLayout(height=height, width=width, channels=channels)
    if found := re.match(r"pixels:(\d+)\b", backbone):  # a digest may follow
        return ImageLayout(height=int(found[1]), width=int(found[1]), channels=3)
    first, schema = name_and_digest(backbone)
    return TableLayout(schema=schema) if first == _TABLE else None
