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
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load as _unpack
from safetensors.numpy import save as _pack

from fedgram.core.wire_types import WIRE_TYPES
from fedgram.errors import DataError, FedgramError, UnknownTypeError
from fedgram.runtime import files

FORMAT = 1
_KEY = "fedgram"
# What taking damaged or foreign content apart may raise.
_DAMAGE = (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError)
_WIDTHS = {width: np.iinfo(width) for width in (np.int8, np.int16, np.int32)}

Kind = TypeVar("Kind", bound=type)


@dataclasses.dataclass(frozen=True)
class _WireType:
    """A registered dataclass, and what it and its fields are called in bytes."""

    kind: type
    name: str
    fields: Mapping[str, str]  # attribute -> name in bytes
    counted: Mapping[str, type]  # name in bytes -> type that its numbers are counted as


_BY_NAME: dict[str, _WireType] = {}
_BY_CLASS: dict[type, _WireType] = {}


def register(name: str, *, fields: Mapping[str, str] | None = None) -> Callable[[Kind], Kind]:
    """Let values of a dataclass be encoded and decoded, under a name that never changes.

    Parameters
    ----------
    name
        What the type is called in files, messages and digests, and the version of its fields:
        "Statistics/1". The class may be renamed and moved; this name stays. When the meaning of
        its fields changes, the version grows.
    fields
        Names in files of the attributes that are called otherwise there.

    Examples
    --------
    >>> @register("Point/1", fields={"east": "x"})
    ... @dataclasses.dataclass(frozen=True)
    ... class Place:
    ...     east: int
    >>> decode(encode(Place(3)))
    Place(east=3)
    >>> wire_name(Place), wire_fields(Place)
    ('Point', {'east': 'x'})
    """
    found = re.fullmatch(r"([A-Za-z]\w*)/([1-9][0-9]*)", name)
    if found is None:
        raise TypeError(f"{name!r} is not a name with a version, such as 'Point/1'")
    written = found[1] if found[2] == "1" else name  # before versions there was the name alone

    def registered(kind: Kind) -> Kind:
        _require_free(written, kind)
        carried = [f for f in dataclasses.fields(kind) if f.metadata.get("carried", True)]
        names = {f.name: (fields or {}).get(f.name, f.name) for f in carried}
        counted = {
            names[f.name]: f.metadata["counted_as"] for f in carried if "counted_as" in f.metadata
        }
        wire_type = _WireType(kind=kind, name=written, fields=names, counted=counted)
        _BY_NAME[written] = _BY_CLASS[kind] = wire_type
        return kind

    return registered


def _require_free(name: str, kind: type) -> None:
    known = _BY_NAME.get(name)
    if known is not None and (known.kind.__module__, known.kind.__qualname__) != (
        kind.__module__,
        kind.__qualname__,
    ):
        raise TypeError(f"{name} is the name of {known.kind.__module__}'s own; choose another")
    if WIRE_TYPES.get(name, kind.__module__) != kind.__module__:
        raise TypeError(f"{name} is the name of {WIRE_TYPES[name]}'s own; choose another")


def wire_name(kind: type) -> str:
    """Return what values of a registered dataclass are called in bytes."""
    return _registered(kind).name


def wire_fields(kind: type) -> dict[str, str]:
    """Return what the attributes of a registered dataclass are called in bytes."""
    return dict(_registered(kind).fields)


def build(name: str, values: Mapping[str, Any]) -> Any:
    """Return the value of a registered dataclass, from its name and field names in bytes.

    Its module is imported if that has not happened yet.

    Examples
    --------
    >>> build("Nothing", {})
    Traceback (most recent call last):
    ...
    fedgram.errors.UnknownTypeError: unknown type 'Nothing': written by a newer fedgram, or by a \
method that is not installed here
    """
    if name not in _BY_NAME and name in WIRE_TYPES:
        importlib.import_module(WIRE_TYPES[name])
    if name not in _BY_NAME:
        raise UnknownTypeError(
            f"unknown type {name!r}: written by a newer fedgram, or by a method that is not "
            "installed here"
        )
    wire_type = _BY_NAME[name]
    attributes = {wire: attribute for attribute, wire in wire_type.fields.items()}
    return wire_type.kind(**{attributes[key]: value for key, value in values.items()})


def _registered(kind: type) -> _WireType:
    if kind not in _BY_CLASS:
        raise TypeError(f"a {kind.__name__} cannot be encoded; see fedgram.core.codec.register")
    return _BY_CLASS[kind]


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
    >>> @register("Mean/1")
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
    types: Mapping[Any, type] = {}
    if isinstance(skeleton, dict):
        known = _BY_NAME.get(skeleton["$"])
        types, skeleton = known.counted if known else {}, skeleton.get("items")
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
    except UnknownTypeError as error:
        raise UnknownTypeError(f"{origin}: {error}") from error
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


class DiskStore:
    """Values kept on disk under names, for a server that may not hold all of them in memory.

    Examples
    --------
    >>> with DiskStore() as shelf:
    ...     shelf["a"] = {"n": 3}
    ...     shelf["a"], list(shelf)
    ({'n': 3}, ['a'])
    """

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="fedgram-")
        self._names: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
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
    wire_type = _registered(type(node))
    values = {wire: getattr(node, attribute) for attribute, wire in wire_type.fields.items()}
    return {"$": wire_type.name, "items": _walk_named(values, path, arrays)}


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
    return items if kind == "dict" else build(kind, items)


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
