"""Values <-> named arrays <-> bytes.

A message is a safetensors blob: the arrays by name, and a JSON skeleton that says how they fit
together. Integer arrays travel in the smallest width that holds them. Nothing is ever pickled: only
plain containers and the dataclasses registered here can be built from bytes.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib
import json
import pkgutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load as _unpack
from safetensors.numpy import save as _pack

from fedgram import files
from fedgram.errors import DataError, FedgramError

FORMAT = 1
_KEY = "fedgram"
_KINDS: dict[str, type] = {}
_FIELDS: dict[str, list[str]] = {}  # which of them are encoded
_COUNTED: dict[str, dict[str, type]] = {}  # and the types that their numbers are counted as
# What taking damaged or foreign content apart may raise.
_DAMAGE = (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError)
_WIDTHS = {width: np.iinfo(width) for width in (np.int8, np.int16, np.int32)}

Kind = TypeVar("Kind", bound=type)


def register(kind: Kind) -> Kind:
    """Let values of this dataclass be encoded and decoded, under its class name.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> @register
    ... @dataclass(frozen=True)
    ... class Point:
    ...     x: int
    >>> decode(encode(Point(3)))
    Point(x=3)
    """
    known = _KINDS.get(kind.__name__, kind)
    if (known.__module__, known.__qualname__) != (kind.__module__, kind.__qualname__):
        raise TypeError(f"{kind.__name__} is the name of {known.__module__}'s own; choose another")
    _KINDS[kind.__name__] = kind
    carried = (field for field in dataclasses.fields(kind) if field.metadata.get("carried", True))
    _FIELDS[kind.__name__] = [field.name for field in carried]
    _COUNTED[kind.__name__] = {
        field.name: field.metadata["counted_as"]
        for field in dataclasses.fields(kind)
        if "counted_as" in field.metadata
    }
    return kind


def kind(name: str) -> type:
    """Return the registered dataclass of this name.

    Examples
    --------
    >>> kind("Nothing")
    Traceback (most recent call last):
    ...
    fedgram.errors.DataError: a Nothing cannot be decoded; see fedgram.codec.register
    """
    if name not in _KINDS:
        raise DataError(f"a {name} cannot be decoded; see fedgram.codec.register")
    return _KINDS[name]


def encode(value: Any) -> bytes:
    """Return the bytes that carry `value`; the same value always gives the same bytes."""
    skeleton, arrays = _flatten(value)
    narrow = {name: _narrowed(array) for name, array in arrays.items()}
    return _packed(skeleton, narrow, _hash(skeleton, narrow))


def size(value: Any) -> int:
    """Return the number of bytes that carry `value`, without the time for their digest.

    Examples
    --------
    >>> size([1, np.arange(3)]) == len(encode([1, np.arange(3)]))
    True
    """
    return _size(*_flatten(value), {})


def counted(value: Any) -> int:
    """Return the bytes that a method needs to send for `value`.

    That is its size, except for arrays in a field with the metadata ``counted_as``: a type of
    numbers that would do, where other ones are sent so that sums are exact.

    Examples
    --------
    >>> @register
    ... @dataclasses.dataclass(frozen=True)
    ... class Mean:
    ...     total: NDArray[Any] = dataclasses.field(metadata={"counted_as": np.float32})
    >>> size(Mean(np.full(1000, 2**40))) - counted(Mean(np.full(1000, 2**40)))
    4000
    """
    skeleton, arrays = _flatten(value)
    return _size(skeleton, arrays, dict(_counted_types([skeleton])))


def _counted_types(skeleton: Any) -> Iterator[tuple[str, type]]:
    """Yield the names of arrays that are counted as another type, with that type."""
    types: dict[str, type] = {}
    if isinstance(skeleton, dict):
        types, skeleton = _COUNTED.get(skeleton["$"], {}), skeleton.get("items")
    inside = skeleton.items() if isinstance(skeleton, dict) else enumerate(skeleton or ())
    for key, item in inside:
        if key in types:
            yield item["name"], types[key]
        elif isinstance(item, dict | list):
            yield from _counted_types(item)


def _size(skeleton: Any, arrays: dict[str, NDArray[Any]], types: Mapping[str, type]) -> int:
    kinds = tuple(
        (name, types.get(name) or _narrow(array), array.shape) for name, array in arrays.items()
    )
    bare, data = _sizes(kinds)
    about = json.dumps(_about(skeleton, "0" * hashlib.sha256().digest_size * 2))
    return 8 + -(-(bare + len(about) - 2) // 8) * 8 + data  # headers are filled up to 8 bytes


@functools.lru_cache(maxsize=256)  # rounds and clients exchange the same kinds of arrays
def _sizes(kinds: tuple[tuple[str, type, tuple[int, ...]], ...]) -> tuple[int, int]:
    """Return the length of the header of such arrays, with nothing about them, and of the rest."""
    arrays: dict[str, NDArray[Any]] = {name: np.zeros(shape, kind) for name, kind, shape in kinds}
    packed = _pack(arrays, metadata={_KEY: ""})
    header = int.from_bytes(packed[:8], "little")
    return len(packed[8 : 8 + header].rstrip(b" ")), len(packed) - 8 - header


def _packed(skeleton: Any, arrays: dict[str, NDArray[Any]], digest: str) -> bytes:
    # One metadata key only: safetensors does not promise an order among several.
    return _pack(arrays, metadata={_KEY: _about(skeleton, digest)})


def _about(skeleton: Any, digest: str) -> str:
    return _canonical_json({"format": FORMAT, "value": skeleton, "sha256": digest})


def decode(data: bytes, *, origin: str = "message") -> Any:
    """Return the value that `encode` turned into `data`; `origin` names it in errors."""
    header = _header(data, origin)
    if header.get("format") != FORMAT:
        raise DataError(
            f"{origin}: format {header.get('format')} is not known to this version of fedgram "
            f"(it reads {FORMAT}); upgrade fedgram"
        )
    try:
        arrays = dict(sorted(_unpack(data).items(), key=_number))
        if header["sha256"] != _hash(header["value"], arrays):
            raise ValueError("its checksum is wrong")
        return _rebuild(header["value"], arrays)
    except (SafetensorError, FedgramError, *_DAMAGE) as error:
        raise DataError(
            f"{origin}: damaged or foreign content ({error}); make it again, or copy it again"
        ) from error


def digest(value: Any) -> str:
    """Return the sha256 of the canonical bytes of `value`.

    Arrays count in their full width, little-endian, so the digest does not depend on the machine
    or on how a message was narrowed.

    Examples
    --------
    >>> digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
    True
    """
    return _hash(*_flatten(value))


def save(path: Path, value: Any) -> None:
    """Write `value` to a file that is either whole or not there."""
    files.write(path, encode(value))


def load(path: Path) -> Any:
    """Read what `save` wrote."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); give another file") from error
    return decode(data, origin=str(path))


class Shelf:
    """Values kept on disk under names, for a server that may not hold all of them in memory.

    Examples
    --------
    >>> with Shelf() as shelf:
    ...     shelf["a"] = {"n": 3}
    ...     shelf["a"], list(shelf)
    ({'n': 3}, ['a'])
    """

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="fedgram-")
        self._names: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._folder.cleanup()

    def __setitem__(self, name: str, value: Any) -> None:
        save(self._path(name), value)
        if name not in self._names:
            self._names.append(name)

    def __getitem__(self, name: str) -> Any:
        return load(self._path(name))

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def _path(self, name: str) -> Path:
        return Path(self._folder.name) / hashlib.sha256(name.encode()).hexdigest()


def _flatten(value: Any) -> tuple[Any, dict[str, NDArray[Any]]]:
    arrays: dict[str, NDArray[Any]] = {}
    return _walk(value, "", arrays), arrays


# Functions of their own rather than within `_flatten`: inner ones that call each other are a
# reference cycle, which would keep every array alive until the garbage is collected.
def _walk(node: Any, path: str, arrays: dict[str, NDArray[Any]]) -> Any:
    if node is None or isinstance(node, bool | int | float | str | np.generic):
        return node.item() if isinstance(node, np.generic) else node
    if isinstance(node, np.ndarray):
        name = f"{len(arrays)} {path}".strip()  # the number keeps equal paths apart
        arrays[name] = node
        return {"$": "array", "name": name, "dtype": _dtype_name(node.dtype)}
    if isinstance(node, list | tuple):
        items = [_walk(item, f"{path}.{i}", arrays) for i, item in enumerate(node)]
        return items if isinstance(node, list) else {"$": "tuple", "items": items}
    if isinstance(node, dict):
        return {"$": "dict", "items": _walk_named(node, path, arrays)}
    kind = type(node)
    if _KINDS.get(kind.__name__) is not kind:
        raise TypeError(f"a {kind.__name__} cannot be encoded; see fedgram.codec.register")
    values = {name: getattr(node, name) for name in _FIELDS[kind.__name__]}
    return {"$": kind.__name__, "items": _walk_named(values, path, arrays)}


@functools.cache
def _dtype_name(dtype: np.dtype[Any]) -> str:
    return dtype.name


def _walk_named(
    values: dict[str, Any], path: str, arrays: dict[str, NDArray[Any]]
) -> dict[str, Any]:
    for key in values:
        if not isinstance(key, str):
            raise TypeError(f"only texts can name values, not {key!r}")
    return {key: _walk(values[key], f"{path}.{key}".strip("."), arrays) for key in sorted(values)}


def _rebuild(skeleton: Any, arrays: dict[str, NDArray[Any]]) -> Any:
    if isinstance(skeleton, list):
        return [_rebuild(item, arrays) for item in skeleton]
    if not isinstance(skeleton, dict):
        return skeleton
    kind = skeleton["$"]
    if kind == "array":
        return arrays[skeleton["name"]].astype(skeleton["dtype"], copy=False)
    if kind == "tuple":
        return tuple(_rebuild(item, arrays) for item in skeleton["items"])
    items = {name: _rebuild(item, arrays) for name, item in skeleton["items"].items()}
    return items if kind == "dict" else _registered(kind)(**items)


def _registered(name: str) -> type:
    """Return the dataclass of this name, whatever has been imported so far."""
    if name not in _KINDS:
        _import_methods()
    if name not in _KINDS:
        raise DataError(
            f"holds a {name}: written by a newer fedgram, or by a method that is not installed here"
        )
    return _KINDS[name]


@functools.cache
def _import_methods() -> None:
    """Import every method that comes with fedgram: with it the types that it shares exist."""
    package = importlib.import_module("fedgram.methods")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"fedgram.methods.{module.name}")


def _header(data: bytes, origin: str) -> dict[str, Any]:
    """Return our JSON header, read from the safetensors header at the start of `data`."""
    try:
        size = int.from_bytes(data[:8], "little")
        header = json.loads(json.loads(data[8 : 8 + size])["__metadata__"][_KEY])
    except _DAMAGE as error:
        raise DataError(f"{origin}: not written by fedgram, or cut short; make it again") from error
    if not isinstance(header, dict):
        raise DataError(f"{origin}: not written by fedgram; make it again")
    return header


def _hash(skeleton: Any, arrays: Mapping[str, NDArray[Any]]) -> str:
    total = hashlib.sha256(_canonical_json(skeleton).encode())
    for name, array in arrays.items():
        total.update(f"\n{name} {array.dtype.name} {array.shape}\n".encode())
        little = array.astype(array.dtype.newbyteorder("<"), copy=False)
        total.update(np.ascontiguousarray(little).reshape(-1).view(np.uint8).data)
    return total.hexdigest()


def _number(item: tuple[str, Any]) -> int:
    """Return the number that an array's name begins with: the order they were met in."""
    return int(item[0].split(" ", 1)[0])


def _narrowed(array: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(array, _narrow(array), order="C")


def _narrow(array: NDArray[Any]) -> type:
    """Return the smallest type that holds an array of 64-bit integers; others stay."""
    if array.dtype != np.int64 or not array.size:
        return array.dtype.type
    few = array.flat[:: 1 + array.size // 64]  # often enough to see that it takes all 64 bits
    return np.int64 if _least(few) is np.int64 else _least(array)


def _least(array: NDArray[Any]) -> type:
    """Return the smallest type that holds these integers."""
    low, high = int(array.min()), int(array.max())
    for width, range_ in _WIDTHS.items():
        if range_.min <= low and high <= range_.max:
            return width
    return np.int64


def _canonical_json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
