"""Serialization: values to bytes and back, with digests.

A message is a safetensors blob: named arrays, and a JSON skeleton of the value that contains the
arrays. Integer arrays are written in the smallest integer type that holds them. Nothing is pickled:
only plain containers and dataclasses registered with `register` can be decoded.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib
import json
import math
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load as _unpack
from safetensors.numpy import save as _pack

from fedgram.core.compression import expand
from fedgram.core.wire_types import WIRE_TYPES
from fedgram.errors import DataError, FedgramError, UnknownTypeError
from fedgram.runtime import files
from fedgram.runtime.parse import require_unicode

FORMAT = 1
_KEY = "fedgram"
_SHOWN = 300  # characters of foreign content in an error
_WRITTEN = "written"  # key of the text of the header itself
_CARRIED, _COUNTED, _ADDED = "carried", "counted_as", "added"  # keys of the metadata of fields
# Errors that parsing damaged or foreign content may raise.
_DAMAGE = (
    *(ValueError, LookupError, TypeError, AttributeError, RecursionError),
    *(ArithmeticError, MemoryError),
)
_PLAIN = (bool, int, float, str, np.generic)  # a tuple: a union would be made at every call
_SEQUENCES = (list, tuple)
_EXACTLY_PLAIN = {str, int, float, bool, type(None)}
_WIDTHS = {width: np.iinfo(width) for width in (np.int8, np.int16, np.int32)}
# The element types of arrays that are decoded, and the narrower ones that int64 travels in.
_DTYPES = frozenset(
    np.dtype(code).name
    for code in ("?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")
)
_SMALL = 1 << 12  # entries of an array that are looked at directly
_NARROWER = frozenset(np.dtype(width).name for width in _WIDTHS)
# Limits of what is decoded, far above what fedgram writes. With each array used once, a message
# takes at most eight times its bytes for arrays (int8 that is read as int64).
MOST_DEPTH = 64
MOST_TEXT = 16 << 20  # bytes of the header with the skeleton
MOST_ITEMS = 1 << 19  # commas and brackets of the header: each value and each array has some
MOST_NAME = 1 << 10  # characters of a key
MOST_EMPTY = 1 << 32  # product of the other lengths of an array without entries

Kind = TypeVar("Kind", bound=type)


@dataclasses.dataclass(frozen=True)
class _WireType:
    """A registered dataclass with its wire name and the wire names of its fields."""

    kind: type
    name: str
    fields: Mapping[str, str]  # attribute -> wire name
    counted: Mapping[str, type]  # wire name -> number type for `counted`
    added: Mapping[str, dataclasses.Field[Any]]  # wire name -> field of `added_field`


_BY_NAME: dict[str, _WireType] = {}
_BY_CLASS: dict[type, _WireType] = {}


def local_field(**kwargs: Any) -> Any:
    """Declare a field that is neither encoded nor part of the digest; it needs a default."""
    return dataclasses.field(metadata={_CARRIED: False}, **kwargs)


def counted_field(dtype: type[np.generic], **kwargs: Any) -> Any:
    """Declare an array field whose entries count as entries of `dtype` in `counted`."""
    return dataclasses.field(metadata={_COUNTED: dtype}, **kwargs)


def added_field(default: Any) -> Any:
    """Return a dataclass field that a published type or method did not have at first.

    With its default such a field is neither encoded nor among a method's settings. So what was
    written before is read as it was meant, and earlier bytes and digests stay valid.

    Examples
    --------
    >>> @register("Spot/1")
    ... @dataclasses.dataclass(frozen=True)
    ... class Spot:
    ...     east: int
    ...     height: float = added_field(0.0)
    >>> b"height" in encode(Spot(3)), b"height" in encode(Spot(3, 2.5)), decode(encode(Spot(3)))
    (False, True, Spot(east=3, height=0.0))
    """
    return dataclasses.field(default=default, metadata={_ADDED: True})


def is_unused(field: dataclasses.Field[Any], value: Any) -> bool:
    """Whether a field was declared with `added_field` and has its default."""
    return _ADDED in field.metadata and bool(value == field.default)


def register(name: str, *, fields: Mapping[str, str] | None = None) -> Callable[[Kind], Kind]:
    """Register a dataclass for encoding and decoding, under a wire name that never changes.

    Parameters
    ----------
    name
        Wire name of the type, with the version of its fields: "Statistics/1". Files, messages and
        digests contain the wire name. The class may be renamed and moved; the wire name stays. If
        the meaning of the fields changes, the version is increased.
    fields
        Wire names of the attributes whose wire name differs from the attribute name.

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
        raise TypeError(f"expected a name with a version such as 'Point/1', got {name!r}")
    written = found[1] if found[2] == "1" else name  # version 1 is written without its number

    def registered(kind: Kind) -> Kind:
        _require_free(written, kind)
        carried = [f for f in dataclasses.fields(kind) if f.metadata.get(_CARRIED, True)]
        names = {f.name: (fields or {}).get(f.name, f.name) for f in carried}
        counted = {names[f.name]: f.metadata[_COUNTED] for f in carried if _COUNTED in f.metadata}
        added = {names[f.name]: f for f in carried if _ADDED in f.metadata}
        wire_type = _WireType(kind=kind, name=written, fields=names, counted=counted, added=added)
        _BY_NAME[written] = _BY_CLASS[kind] = wire_type
        return kind

    return registered


def _require_free(name: str, kind: type) -> None:
    known = _BY_NAME.get(name)
    if known is not None and (known.kind.__module__, known.kind.__qualname__) != (
        kind.__module__,
        kind.__qualname__,
    ):
        raise TypeError(
            f"the wire name {name} is taken by {known.kind.__module__}; choose another name"
        )
    if WIRE_TYPES.get(name, kind.__module__) != kind.__module__:
        raise TypeError(f"the wire name {name} is taken by {WIRE_TYPES[name]}; choose another name")


def wire_name(kind: type) -> str:
    """Return the wire name of a registered dataclass."""
    return _registered(kind).name


def wire_fields(kind: type) -> dict[str, str]:
    """Return the wire names of the attributes of a registered dataclass."""
    return dict(_registered(kind).fields)


def build(name: str, values: Mapping[str, Any]) -> Any:
    """Return a value of a registered dataclass, from the wire names of the class and its fields.

    The module of the class is imported if necessary.

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
            f"unknown type {name[:100]!r}: written by a newer fedgram, or by a method that is not "
            "installed here"
        )
    wire_type = _BY_NAME[name]
    attributes = {wire: attribute for attribute, wire in wire_type.fields.items()}
    return wire_type.kind(**{attributes[key]: value for key, value in values.items()})


def _registered(kind: type) -> _WireType:
    if kind not in _BY_CLASS:
        raise TypeError(
            f"{kind.__name__} cannot be encoded: not registered; see fedgram.core.codec.register"
        )
    return _BY_CLASS[kind]


def encode(value: Any) -> bytes:
    """Return `value` as bytes; equal values give equal bytes. What `decode` refuses is refused."""
    skeleton, arrays = _flatten(value)
    narrow = {name: _narrowed(array) for name, array in arrays.items()}
    data = _packed(skeleton, narrow, _hash(skeleton, narrow))
    try:
        _require_small(data[8 : 8 + int.from_bytes(data[:8], "little")])
    except ValueError as error:
        raise DataError(f"this cannot be sent or saved: {error}; make it smaller") from error
    return data


def size(value: Any) -> int:
    """Return the length of ``encode(value)``, without computing a digest.

    Examples
    --------
    >>> size([1, np.arange(3)]) == len(encode([1, np.arange(3)]))
    True
    """
    return _size(*_flatten(value), {})


def array_bytes(value: Any) -> int:
    """Return the bytes that the arrays of a value take in memory.

    Examples
    --------
    >>> array_bytes([1, np.arange(3)])
    24
    """
    return sum(array.nbytes for array in _flatten(value)[1].values())


def counted(value: Any) -> int:
    """Return the number of bytes that a method needs to send for `value`.

    This is the encoded size, except for arrays in a field declared with `counted_field`: these
    count in the given number type. Such a field holds wider numbers only to make sums exact.

    Examples
    --------
    >>> @register("Mean/1")
    ... @dataclasses.dataclass(frozen=True)
    ... class Mean:
    ...     total: NDArray[Any] = counted_field(np.float32)
    >>> size(Mean(np.full(1000, 2**40))) - counted(Mean(np.full(1000, 2**40)))
    4000
    """
    kind = _kind(value, None)
    known = _lengths.get(kind)
    if known is None:
        skeleton, arrays = _flatten(value)
        known = _size(skeleton, arrays, dict(_counted_types([skeleton])))
        if len(_lengths) >= _MOST_KINDS:
            _lengths.clear()
        _lengths[kind] = known
    return known


_MOST_KINDS = 4096
_lengths: dict[Any, int] = {}  # of values of each kind


def _kind(node: Any, counted_as: type | None) -> Any:
    """Return what the length of a value depends on: many clients send values of equal kinds."""
    if node is None or isinstance(node, _PLAIN):
        plain = node.item() if isinstance(node, np.generic) else node
        measured = type(plain) is int or (type(plain) is float and math.isfinite(plain))
        return type(plain), len(repr(plain)) if measured else plain
    if isinstance(node, np.ndarray):
        return node.shape, node.dtype, counted_as or _narrow(node)
    if isinstance(node, _SEQUENCES):
        if all(type(item) is str for item in node):  # long lists of class names
            return type(node), tuple(node)
        return type(node), tuple(_kind(item, None) for item in node)
    if isinstance(node, dict):
        return dict, tuple((key, _kind(node[key], None)) for key in sorted(node))
    wire_type = _registered(type(node))
    values = [
        (wire, _kind(getattr(node, attribute), wire_type.counted.get(wire)))
        for attribute, wire in wire_type.fields.items()
        if wire not in wire_type.added
        or not is_unused(wire_type.added[wire], getattr(node, attribute))
    ]
    return wire_type.name, tuple(values)


def _counted_types(skeleton: Any) -> Iterator[tuple[str, type]]:
    """Yield the names of the arrays that count in another number type, with this type."""
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
    return 8 + -(-(bare + len(about) - 2) // 8) * 8 + data  # headers are padded to 8 bytes


@functools.lru_cache(maxsize=256)  # all rounds and clients exchange arrays of the same shapes
def _sizes(kinds: tuple[tuple[str, type, tuple[int, ...]], ...]) -> tuple[int, int]:
    """Return the lengths of the header with empty metadata, and of the data."""
    arrays: dict[str, NDArray[Any]] = {name: np.zeros(shape, kind) for name, kind, shape in kinds}
    packed = _pack(arrays, metadata={_KEY: ""})
    header = int.from_bytes(packed[:8], "little")
    return len(packed[8 : 8 + header].rstrip(b" ")), len(packed) - 8 - header


def _packed(skeleton: Any, arrays: dict[str, NDArray[Any]], digest: str) -> bytes:
    # One metadata key only: safetensors does not define the order of several keys.
    return _pack(arrays, metadata={_KEY: _about(skeleton, digest)})


def _about(skeleton: Any, digest: str) -> str:
    return _canonical_json({"format": FORMAT, "value": skeleton, "sha256": digest})


def decode(data: bytes, *, origin: str = "message") -> Any:
    """Return the value that was encoded as `data`; error messages start with `origin`.

    Data that `fedgram.core.compression` has compressed are expanded, within its limits.
    """
    data = expand(data, origin=origin)
    header = _header(data, origin)
    if header.get("format") != FORMAT:
        raise DataError(
            f"{origin}: format {header.get('format')} is not supported (expected {FORMAT}); "
            "upgrade fedgram"
        )
    try:
        arrays = dict(sorted(_unpack(data).items(), key=_number))
        if header["sha256"] != _hash(header["value"], arrays):
            raise ValueError("wrong checksum")
        if header[_WRITTEN] != _about(header["value"], header["sha256"]):
            raise ValueError("not written as fedgram writes it, or with a key twice")
        unused = dict(arrays)  # each array is used once, so that decoding costs what bytes cost
        value = _rebuild(header["value"], unused, MOST_DEPTH)
        if unused:
            raise ValueError(f"{len(unused)} arrays that no value contains")
        return value
    except UnknownTypeError as error:
        raise UnknownTypeError(f"{origin}: {error}") from error
    except (SafetensorError, FedgramError, *_DAMAGE) as error:
        raise DataError(
            f"{origin}: damaged or foreign content ({str(error)[:_SHOWN]}); create or copy the "
            "file again"
        ) from error


def digest(value: Any) -> str:
    """Return the sha256 of the canonical bytes of `value`.

    Arrays are hashed in their full width, little-endian. So the digest does not depend on the
    machine, nor on the narrower integer types of a message.

    Examples
    --------
    >>> digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
    True
    """
    return _hash(*_flatten(value))


class Digests:
    """Computes digests of values that have large arrays in common, such as a shared head.

    Where values differ in later arrays only, the earlier ones are hashed once. So an array must not
    change between two digests of one object.

    Examples
    --------
    >>> head, of = np.zeros(1000), Digests()
    >>> all(of([head, np.array([k])]) == digest([head, np.array([k])]) for k in range(3))
    True
    """

    def __init__(self) -> None:
        self._last = threading.local()  # of each thread: the text, and the state after each array

    def __call__(self, value: Any) -> str:
        """Return `digest(value)`."""
        text, arrays = self._flattened(value)
        if getattr(self._last, "text", None) != text:
            self._last.text = text
            self._last.states = [(None, hashlib.sha256(text.encode()))]
        states = self._last.states
        same = 1  # equal texts mean equal names and types of arrays
        for (known, _), array in zip(states[1:], arrays.values(), strict=False):
            if known is not array:
                break
            same += 1
        del states[same:]
        for name, array in list(arrays.items())[same - 1 :]:
            total = states[-1][1].copy()
            _hash_array(total, name, array)
            states.append((array, total))
        found: str = states[-1][1].hexdigest()
        return found

    def _flattened(self, value: Any) -> tuple[str, dict[str, NDArray[Any]]]:
        """Return the text and the arrays of a value.

        The text of the last value serves a value that differs from it in arrays only.
        """
        wire_type = _BY_CLASS.get(type(value))
        parts = [getattr(value, name) for name in wire_type.fields] if wire_type else []
        last = getattr(self._last, "flat", None)
        if last is not None and last[0] is wire_type and all(map(_same_text, last[1], parts)):
            arrays = [part for part in parts if type(part) is np.ndarray]
            return last[2], {name: arrays[place] for name, place in last[3]}
        skeleton, found = _flatten(value)
        text = _canonical_json(skeleton)
        own = [id(part) for part in parts if type(part) is np.ndarray]
        known = {id(array) for array in found.values()}
        if wire_type and known == set(own) and len(own) == len(found) == len(known):
            places = [(name, own.index(id(array))) for name, array in found.items()]
            self._last.flat = wire_type, parts, text, places
        return text, found


def _same_text(part: Any, other: Any) -> bool:
    """Whether two fields are written with the same text: one object, or arrays of one type."""
    if type(part) is np.ndarray and type(other) is np.ndarray:
        return bool(part.dtype == other.dtype)
    return part is other and not isinstance(part, dict | list)


def save(path: Path, value: Any, *, private: bool = False) -> None:
    """Write `value` to a file, atomically: the file is either complete or absent.

    Parameters
    ----------
    path
        The file; missing folders are created.
    value
        The value.
    private
        Whether only the owner may read the file, and enter folders that are created.
    """
    files.write(path, encode(value), private=private)


def load(path: Path) -> Any:
    """Return the value in a file written by `save`."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); give another file") from error
    return decode(data, origin=str(path))


def _flatten(value: Any) -> tuple[Any, dict[str, NDArray[Any]]]:
    arrays: dict[str, NDArray[Any]] = {}
    return _walk(value, "", arrays), arrays


# Not nested in `_flatten`: nested functions that call each other are a reference cycle, which would
# keep every array alive until the next garbage collection.
def _walk(node: Any, path: str, arrays: dict[str, NDArray[Any]]) -> Any:
    if node is None or isinstance(node, _PLAIN):
        return node.item() if isinstance(node, np.generic) else node
    if isinstance(node, np.ndarray):
        name = f"{len(arrays)} {path}".strip()  # the number makes the name unique
        arrays[name] = node
        return {"$": "array", "name": name, "dtype": _dtype_name(node.dtype)}
    if isinstance(node, _SEQUENCES):
        if _EXACTLY_PLAIN.issuperset(map(type, node)):  # long lists of class names
            items = list(node)
        else:
            items = [_walk(item, f"{path}.{i}", arrays) for i, item in enumerate(node)]
        return items if isinstance(node, list) else {"$": "tuple", "items": items}
    if isinstance(node, dict):
        return {"$": "dict", "items": _walk_named(node, path, arrays)}
    wire_type = _registered(type(node))
    values = {wire: getattr(node, attribute) for attribute, wire in wire_type.fields.items()}
    for wire, field in wire_type.added.items():
        if is_unused(field, values[wire]):
            del values[wire]
    return {"$": wire_type.name, "items": _walk_named(values, path, arrays)}


@functools.cache
def _dtype_name(dtype: np.dtype[Any]) -> str:
    return dtype.name


def _walk_named(
    values: dict[str, Any], path: str, arrays: dict[str, NDArray[Any]]
) -> dict[str, Any]:
    for key in values:
        if not isinstance(key, str):
            raise TypeError(f"expected a str as key, got {key!r}")
        if len(key) > MOST_NAME:
            raise DataError(f"a key of {len(key)} characters: use at most {MOST_NAME}")
    walked = {}
    for key in sorted(values):
        value = values[key]
        if type(value) not in _EXACTLY_PLAIN:
            value = _walk(value, f"{path}.{key}".strip("."), arrays)
        walked[key] = value
    return walked


def _rebuild(skeleton: Any, unused: dict[str, NDArray[Any]], depth: int) -> Any:
    """Return the value of a skeleton; arrays are taken out of `unused`."""
    if not isinstance(skeleton, dict | list):
        return skeleton
    if not depth:
        raise ValueError(f"nested deeper than {MOST_DEPTH}")
    if isinstance(skeleton, list):
        return [_rebuild(item, unused, depth - 1) for item in skeleton]
    kind = skeleton["$"]
    if kind == "array":
        return _widened(unused.pop(skeleton["name"]), skeleton["dtype"])
    if kind == "tuple":
        return tuple(_rebuild(item, unused, depth - 1) for item in skeleton["items"])
    _require_short(skeleton["items"])
    items = {name: _rebuild(item, unused, depth - 1) for name, item in skeleton["items"].items()}
    return items if kind == "dict" else build(kind, items)


def _require_short(names: Iterable[str]) -> None:
    for name in names:
        if len(name) > MOST_NAME:
            raise ValueError(f"a key of {len(name)} characters, expected at most {MOST_NAME}")


def _require_small(header: bytes) -> None:
    """Raise ValueError for a header with more values than are read; none of them is made."""
    if len(header) > MOST_TEXT:
        raise ValueError(f"more than {MOST_TEXT} bytes of texts and names")
    if sum(map(header.count, (b",", b"[", b"{"))) > MOST_ITEMS:
        raise ValueError(f"more than {MOST_ITEMS} values")


def _widened(array: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Return an array in the type that it was encoded from: int64 may be stored narrower."""
    stored = array.dtype.name
    same = stored == dtype or (dtype == "int64" and stored in _NARROWER)
    if not same or dtype not in _DTYPES:
        raise ValueError(f"an array of {stored} for one of {str(dtype)[:20]!r}")
    if not array.size and math.prod(max(length, 1) for length in array.shape) > MOST_EMPTY:
        raise ValueError(f"an array of shape {array.shape} without entries")
    return array.astype(dtype, copy=False)


def _header(data: bytes, origin: str) -> dict[str, Any]:
    """Return fedgram's JSON header, read from the safetensors header at the start of `data`."""
    try:
        text = data[8 : 8 + int.from_bytes(data[:8], "little")]
        _require_small(text)
        about = json.loads(text)["__metadata__"][_KEY]
        header = json.loads(about)
        if "\\ud" in about:
            require_unicode(header)
        if not isinstance(header, dict):
            raise ValueError("not a table")
    except _DAMAGE as error:
        raise DataError(
            f"{origin}: not a fedgram file, or truncated; create the file again"
        ) from error
    return {**header, _WRITTEN: about}


def _hash(skeleton: Any, arrays: Mapping[str, NDArray[Any]]) -> str:
    total = hashlib.sha256(_canonical_json(skeleton).encode())
    for name, array in arrays.items():
        _hash_array(total, name, array)
    return total.hexdigest()


def _hash_array(total: Any, name: str, array: NDArray[Any]) -> None:
    total.update(f"\n{name} {array.dtype.name} {array.shape}\n".encode())
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    total.update(np.ascontiguousarray(little).reshape(-1).view(np.uint8).data)


def _number(item: tuple[str, Any]) -> int:
    """Return the number at the start of an array's name: its position in the encoded value."""
    return int(item[0].split(" ", 1)[0])


def _narrowed(array: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(array, _narrow(array), order="C")


def _narrow(array: NDArray[Any]) -> type:
    """Return the smallest type for an array of 64-bit integers; other types stay unchanged."""
    if array.dtype != np.int64 or not array.size:
        return array.dtype.type
    if array.size > _SMALL:
        sample = array.flat[:: 1 + array.size // 64]  # often shows that 64 bits are needed
        if _least(sample) is np.int64:
            return np.int64
    return _least(array)


def _least(array: NDArray[Any]) -> type:
    """Return the smallest type that holds these integers."""
    low, high = int(array.min()), int(array.max())
    for width, range_ in _WIDTHS.items():
        if range_.min <= low and high <= range_.max:
            return width
    return np.int64


def _canonical_json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
