"""The file of features: written part by part, and read back for the rows it already holds."""

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
    """Rows of a feature file by the digests of the items they were made from."""

    x: Array = field(default_factory=lambda: np.empty((0, 0)))
    places: Mapping[bytes, int] = field(default_factory=dict)

    @classmethod
    def of(cls, path: Path, origin: Mapping[str, Array]) -> Known:
        """Read the file at this path; nothing is known where there is none of this origin."""
        try:
            arrays = read_arrays(str(path)) if path.is_file() else {}
        except DataError:  # what cannot be read is about to be replaced
            return cls()
        if not {"x", "digest", *origin} <= arrays.keys():
            return cls()
        x, digests = arrays["x"], arrays["digest"]
        same = all(np.array_equal(arrays[name], array) for name, array in origin.items())
        if not same or digests.shape != (len(x), DIGEST_BYTES):
            return cls()
        return cls(x=x, places={digest.tobytes(): place for place, digest in enumerate(digests)})

    def row(self, digest: bytes) -> Array | None:
        """Return the row of the item of this digest, None where it is not known."""
        place = self.places.get(digest)
        return None if place is None else self.x[place]


def write(path: Path, blocks: Iterable[Array], rows: int, others: Mapping[str, Array]) -> None:
    """Write an .npz in one step, `x` block by block: memory does not grow with the rows."""
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
