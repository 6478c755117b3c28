"""Items through a backbone onto the grid, in parts that survive a kill.

Each part is written whole or not at all, under a name that holds the digest of its items, of the
backbone and of the grid. A run that is started again makes only what is missing, and the final
file is the same to the byte.
"""

from __future__ import annotations

import hashlib
import io
import shutil
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedgram import codec
from fedgram.data.items import Encoded, Items
from fedgram.errors import ConfigError, DataError
from fedgram.features.backbones.registry import Backbone
from fedgram.features.grid import Grid
from fedgram.files import cannot_write
from fedgram.samples import Array

PART = 64  # items per part: what a kill can cost


@dataclass(frozen=True, kw_only=True)
class Extraction:
    """How to turn items into a feature file.

    Parameters
    ----------
    backbone
        What makes the vectors.
    grid
        What they are stored on.
    workers
        Threads that decode images.
    broken
        What to do with images that cannot be read: "refuse" or "skip".
    """

    backbone: Backbone
    grid: Grid = Grid()
    workers: int = 2
    broken: Literal["refuse", "skip"] = "refuse"

    def run(
        self, items: Items, out: Path, on_progress: Callable[[int, int], None] | None = None
    ) -> list[str]:
        """Write the feature file; return the names of the items that were skipped."""
        if self.backbone.takes != items.kind:
            raise ConfigError(
                f"backbone {self.backbone.name!r} takes {self.backbone.takes}, but {items.name} "
                f"holds {items.kind}; choose another backbone"
            )
        if not self.grid.bound:
            raise ConfigError("features are stored on a grid: use grid.bits from 2 to 16")
        folder = out.with_name(out.name + ".parts")
        paths = []
        for start, path in self._parts(items, folder):
            paths.append(path)
            if on_progress:
                on_progress(min(start + PART, len(items)), len(items))
        kept = np.concatenate([codec.load(path)["kept"] for path in paths])
        if not kept.any():
            raise DataError(f"{items.name}: none of the items could be read")
        self._write(items, out, paths, kept)
        shutil.rmtree(folder)
        return [str(items.entries[int(i)]) for i in np.flatnonzero(~kept)]

    def _parts(self, items: Items, folder: Path) -> Iterator[tuple[int, Path]]:
        how = f"{self.backbone.digest} {self.grid.bits} {self.grid.reach} {self.broken}"
        with ThreadPoolExecutor(self.workers) as pool:
            for start in range(0, len(items), PART):
                stop = min(start + PART, len(items))
                named = hashlib.sha256(f"{items.digest(start, stop)} {how}".encode()).hexdigest()
                path = folder / f"{start:09d}-{named[:24]}"
                if not path.is_file():
                    loaded = list(
                        pool.map(self._loaded, [items.entries[i] for i in range(start, stop)])
                    )
                    codec.save(path, self._made(loaded))
                yield start, path

    def _loaded(self, entry: Any) -> Any:
        if self.backbone.takes != "images":
            return entry
        try:
            return decoded(entry)
        except DataError:
            if self.broken == "refuse":
                raise
            return None

    def _made(self, loaded: list[Any]) -> dict[str, Array]:
        kept = np.array([entry is not None for entry in loaded])
        good = [entry for entry in loaded if entry is not None]
        if not good:
            return {"kept": kept}
        rows = self.grid(self.backbone(good)).values[:, :-1]  # the constant is not stored
        return {"kept": kept, "x": np.ascontiguousarray(rows)}

    def _write(self, items: Items, out: Path, paths: list[Path], kept: Array) -> None:
        """Write an .npz, its largest array part by part: memory does not grow with the items."""
        first = next(part["x"] for part in map(codec.load, paths) if "x" in part)
        arrays: dict[str, Array] = {
            "y": items.y[kept],
            "classes": np.array(items.classes),
            "backbone": np.array(f"{self.backbone.name} {self.backbone.digest[:16]}"),
            "grid": np.array([float(self.grid.bits), self.grid.reach]),
        }
        for name in ("client", "domain", "split"):
            column = getattr(items, name)
            if column is not None:
                arrays[name] = np.asarray(column)[kept]
        part = out.with_name(out.name + ".part")
        try:
            with zipfile.ZipFile(part, "w") as archive:
                shape = (int(kept.sum()), first.shape[1])
                with archive.open("x.npy", "w", force_zip64=True) as file:
                    header = {"descr": first.dtype.str, "fortran_order": False, "shape": shape}
                    np.lib.format.write_array_header_1_0(file, header)
                    for path in paths:
                        rows = codec.load(path).get("x")
                        if rows is not None:
                            file.write(rows.tobytes())
                for name, array in arrays.items():
                    with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                        np.lib.format.write_array(file, array, allow_pickle=False)
            part.replace(out)
        except OSError as error:
            raise cannot_write(out, error) from error
        finally:
            part.unlink(missing_ok=True)


def decoded(entry: Any) -> Array:
    """Return an image as a uint8 array of height by width by three colors."""
    if not isinstance(entry, Path | Encoded):
        array = np.asarray(entry)
        gray = array.ndim == 2 or array.shape[2] == 1
        return np.repeat(array.reshape(*array.shape[:2], 1), 3, axis=2) if gray else array
    try:
        from PIL import Image
    except ImportError as error:
        raise ConfigError("reading images needs: pip install 'fedgram[vision]'") from error
    try:
        with Image.open(entry if isinstance(entry, Path) else io.BytesIO(entry.data)) as image:
            return np.asarray(image.convert("RGB"))
    except Exception as error:
        raise DataError(
            f"{entry}: cannot be read as an image ({error}); repair it, or use --skip-broken"
        ) from error
