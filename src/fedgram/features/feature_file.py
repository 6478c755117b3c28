"""Feature files (.npz): written block by block, and read again to reuse rows by digest."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fedgram.core.samples import Array
from fedgram.data.sources import read_arrays
from fedgram.errors import DataError
from fedgram.runtime.files import cannot_write

DIGEST_BYTES = hashlib.sha256().digest_size


@dataclass(frozen=True, eq=False, kw_only=True)
class Known:
    """Rows of an existing feature file by the digests of their items."""

    x: Array = field(default_factory=lambda: np.empty((0, 0)))
    places: Mapping[bytes, int] = field(default_factory=dict)

    @classmethod
    def of(cls, path: Path, origin: Mapping[str, Array]) -> Known:
        """Read the file at this path; no rows if it is missing or was made with another origin."""
        try:
            arrays = read_arrays(str(path)) if path.is_file() else {}
        except DataError:  # a damaged file is replaced
            return cls()
        if not {"x", "digest", *origin} <= arrays.keys():
            return cls()
        x, digests = arrays["x"], arrays["digest"]
        same = all(
            arrays[name].dtype.kind == array.dtype.kind and np.array_equal(arrays[name], array)
            for name, array in origin.items()
        )
        if not same or x.ndim != 2 or digests.shape != (len(x), DIGEST_BYTES):
            return cls()
        return cls(x=x, places={digest.tobytes(): place for place, digest in enumerate(digests)})

    def row(self, digest: bytes) -> Array | None:
        """Return the row of the item with this digest; None if unknown."""
        place = self.places.get(digest)
        return None if place is None else self.x[place]


def write(path: Path, blocks: Iterable[Array], rows: int, others: Mapping[str, Array]) -> None:
    """Write an ``.npz`` atomically, `x` block by block: memory does not grow with the rows.

    Parameters
    ----------
    path
        The file.
    blocks
        The blocks of rows of ``x``.
    rows
        Number of rows in all blocks.
    others
        The other arrays by name.
    """
    part = path.with_name(path.name + ".part")
    try:
        with zipfile.ZipFile(part, "w") as archive:
            with archive.open("x.npy", "w", force_zip64=True) as file:
                for number, block in enumerate(blocks):
                    if number == 0:
                        shape = (rows, *block.shape[1:])
                        header = {"descr": block.dtype.str, "fortran_order": False, "shape": shape}
                        np.lib.format.write_array_header_1_0(file, header)
                    file.write(np.ascontiguousarray(block).data)
            for name, array in others.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                    np.lib.format.write_array(file, array, allow_pickle=False)
        part.replace(path)
    except OSError as error:
        raise cannot_write(path, error) from error
    finally:
        part.unlink(missing_ok=True)
