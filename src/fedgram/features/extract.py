"""Feature extraction: items through a frozen backbone, quantized and written to a feature file.

Items are processed in parts, so that a killed run can be resumed. Threads read, hash and decode the
next parts while the backbone runs on the current one. Each part is written atomically; the file
name contains the digest of the items, the backbone and the grid. A resumed run computes only the
missing parts, and the final file has the same bytes.
"""

from __future__ import annotations

import hashlib
import io
import shutil
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedgram.core import codec
from fedgram.core.samples import Array
from fedgram.data.items import Encoded, Items, content
from fedgram.errors import ConfigError, DataError, RowError
from fedgram.features import feature_file
from fedgram.features.backbones.registry import Backbone, Staged
from fedgram.features.feature_file import Known
from fedgram.features.grid import Grid

PART = 64  # items per part: the work that a kill loses, and the items in a thread's memory


@dataclass(frozen=True, kw_only=True)
class Extracted:
    """The result of an extraction.

    Parameters
    ----------
    skipped
        The names of the items that could not be read.
    reused
        Number of rows copied from the previous feature file.
    """

    skipped: tuple[str, ...]
    reused: int


@dataclass(frozen=True, eq=False, kw_only=True)
class _Part:
    """Items that a thread has prepared, by their index in the part.

    `rows` contains known features, `ready` the inputs of the backbone; other items are broken.
    """

    start: int
    path: Path
    digests: list[bytes]
    rows: Mapping[int, Array]
    ready: Mapping[int, Any]


@dataclass(frozen=True, kw_only=True)
class Extraction:
    """The settings of an extraction.

    Parameters
    ----------
    backbone
        Computes the feature vectors.
    grid
        Quantizes the feature vectors.
    workers
        Number of threads that read and decode images while the backbone runs.
    broken
        Images that cannot be read: "refuse" (an error) or "skip".
    """

    backbone: Backbone
    grid: Grid = Grid()
    workers: int = 2
    broken: Literal["refuse", "skip"] = "refuse"

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise ConfigError(f"workers = {self.workers}: use at least 1")
        if not self.grid.bound:
            raise ConfigError("features are stored on a grid: use grid.bits from 2 to 16")

    def run(
        self, items: Items, out: Path, on_progress: Callable[[int, int], None] | None = None
    ) -> Extracted:
        """Write the feature file; rows of an existing file with the same settings are reused.

        Parameters
        ----------
        items
            The items, in the order of the rows.
        out
            The feature file, an ``.npz``.
        on_progress
            Called with the number of finished items and of all items.
        """
        if self.backbone.takes != items.kind:
            raise ConfigError(
                f"backbone {self.backbone.name!r}: expected {self.backbone.takes}, got "
                f"{items.kind} from {items.name}; choose another backbone"
            )
        if out.suffix != ".npz":
            raise ConfigError(f"{out}: expected a file name that ends in .npz")
        folder = out.with_name(out.name + ".parts")
        paths: list[Path] = []
        digests: list[bytes] = []
        reused = 0
        for part in self._parts(items, folder, Known.of(out, self._origin())):
            paths.append(part.path)
            digests.extend(part.digests)
            reused += len(part.rows)
            if on_progress:
                on_progress(len(digests), len(items))
        readable = np.concatenate([codec.load(path)["kept"] for path in paths])
        if not readable.any():
            raise DataError(f"{items.name}: none of the items could be read")
        self._write(items, out, paths, readable, digests)
        shutil.rmtree(folder)
        skipped = tuple(_name_of(items, int(i)) for i in np.flatnonzero(~readable))
        return Extracted(skipped=skipped, reused=reused)

    def _origin(self) -> dict[str, Array]:
        return {
            "backbone": np.array(f"{self.backbone.name} {self.backbone.digest[:16]}"),
            "grid": np.array([float(self.grid.bits), self.grid.reach]),
        }

    def _parts(self, items: Items, folder: Path, known: Known) -> Iterator[_Part]:
        """Yield the saved parts in order, while each thread reads one of the next parts."""
        pending: deque[Future[_Part]] = deque()
        with ThreadPoolExecutor(self.workers) as pool:
            for start in range(0, len(items), PART):
                pending.append(pool.submit(self._read, items, folder, known, start))
                if len(pending) > self.workers:
                    yield self._saved(items, pending.popleft().result())
            while pending:
                yield self._saved(items, pending.popleft().result())

    def _read(self, items: Items, folder: Path, known: Known, start: int) -> _Part:
        """Read each item once; decode an item if its row is neither in a part nor known."""
        entries = [items.entries[i] for i in range(start, min(start + PART, len(items)))]
        contents = [self._content(entry) for entry in entries]
        digests = [hashlib.sha256(data).digest() for data in contents]
        how = f"{self.backbone.digest} {self.grid.bits} {self.grid.reach} {self.broken}"
        named = hashlib.sha256(b"".join(digests) + how.encode()).hexdigest()
        path = folder / f"{start:09d}-{named[:24]}"
        rows, ready = {}, {}
        if not path.is_file():
            for place, digest in enumerate(digests):
                row = known.row(digest)
                if row is not None:
                    rows[place] = row
                    continue
                item = self._prepared(entries[place], contents[place])
                if item is not None:
                    ready[place] = item
        return _Part(start=start, path=path, digests=digests, rows=rows, ready=ready)

    def _content(self, entry: Any) -> bytes:
        try:
            return content(entry)
        except OSError as error:
            if self.broken == "skip":
                return b""  # not an image, so skipped when it is decoded
            raise DataError(
                f"{entry}: cannot be read ({error.strerror}); replace it, or use --skip-broken"
            ) from error

    def _prepared(self, entry: Any, data: bytes) -> Any:
        if self.backbone.takes == "images":
            try:
                entry = decoded(entry, data)
            except DataError:
                if self.broken == "refuse":
                    raise
                return None
        return self.backbone.prepare(entry) if isinstance(self.backbone, Staged) else entry

    def _saved(self, items: Items, part: _Part) -> _Part:
        if not part.path.is_file():
            codec.save(part.path, self._made(items, part))
        return part

    def _made(self, items: Items, part: _Part) -> dict[str, Array]:
        rows = {**part.rows, **self._embedded(items, part)}
        readable = np.array([place in rows for place in range(len(part.digests))])
        if not rows:
            return {"kept": readable}
        return {"kept": readable, "x": np.stack([rows[place] for place in sorted(rows)])}

    def _embedded(self, items: Items, part: _Part) -> dict[int, Array]:
        if not part.ready:
            return {}
        ready, backbone = list(part.ready.values()), self.backbone
        vectors = backbone.embed(ready) if isinstance(backbone, Staged) else backbone(ready)
        try:
            features = self.grid(vectors)
        except RowError as error:
            index = part.start + list(part.ready)[error.row]
            raise DataError(
                f"{_name_of(items, index)}: the features of {backbone.name} are NaN or infinite; "
                "correct or remove the item"
            ) from error
        values = features.values[:, features.space.without_constant]  # the constant is not stored
        return dict(zip(part.ready, values, strict=True))

    def _write(
        self, items: Items, out: Path, paths: list[Path], readable: Array, digests: list[bytes]
    ) -> None:
        others = self._origin()
        if items.y is not None:
            others = {"y": items.y[readable], "classes": np.array(items.classes), **others}
        for name in ("client", "domain", "split"):
            column = getattr(items, name)
            if column is not None:
                others[name] = np.asarray(column)[readable]
        all_digests = np.frombuffer(b"".join(digests), np.uint8).reshape(len(digests), -1)
        others["digest"] = all_digests[readable]
        blocks = (part["x"] for part in map(codec.load, paths) if "x" in part)
        feature_file.write(out, blocks, int(readable.sum()), others)


def _name_of(items: Items, index: int) -> str:
    entry = items.entries[index]
    named = isinstance(entry, Path | Encoded)
    return str(entry) if named else f"{items.name}: item {index}"


def decoded(entry: Any, data: bytes | None = None) -> Array:
    """Return an image as a uint8 array of height by width by three colors.

    `data` contains the bytes of a file that was read before.
    """
    if not isinstance(entry, Path | Encoded):
        array = np.asarray(entry)
        gray = array.ndim == 2 or array.shape[2] == 1
        return np.repeat(array.reshape(*array.shape[:2], 1), 3, axis=2) if gray else array
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise ConfigError("reading images needs: pip install 'fedgram[vision]'") from error
    try:
        held = entry.read_bytes() if data is None else data
        with Image.open(io.BytesIO(held)) as image:
            return np.asarray(image.convert("RGB"))
    except Exception as error:  # decoders raise many types for damaged images
        # Pillow's own text contains a memory address.
        reason = "unknown format" if isinstance(error, UnidentifiedImageError) else error
        raise DataError(
            f"{entry}: cannot be read as an image ({reason}); replace it, or use --skip-broken"
        ) from error
