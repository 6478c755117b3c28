"""Hostile inputs made of valid ones: changed bytes, and changed structure in a valid shell.

A random generator decides everything, so the same generator gives the same input again.
"""

from __future__ import annotations

import io
import json
import struct
import zipfile
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from fedgram.core import codec

Mutator = Callable[[Random, Sequence[bytes]], bytes]

NUMBERS = (0, 1, -1, 2, 255, 2**31, 2**32, 2**62, 2**63 - 1, -(2**63), 2**64, 10**30, 10**320)
FLOATS = (0.5, -0.0, 1e-320, 1e308, -1e308, float("nan"), float("inf"), -float("inf"))
TEXTS = (
    *(
        "",
        " ",
        "a",
        "nan",
        "1e999",
        "0x10",
        "true",
        "__class__",
        "../../up",
        "/etc/passwd",
        "C:\\x",
    ),
    *("\x00", "\x1b[2J", "\u202e", "\ud800", "e\u0301", "\U0001f600", "=1+1", "[bold]", "<b>"),
    *("x" * 300, "9" * 5000, "a.b.c", "\n", "\r\n", '"', "'", "\\", "int64", "float64", "S9"),
)
TOKENS = (
    *(b"\x00", b"\xff", b"\x7f", b"\xff\xff\xff\xff", b"\x00\x00\x00\x00", b"\x80\x00\x00\x00"),
    *(
        b"{",
        b"}",
        b"[",
        b"]",
        b"[" * 200,
        b'{"a":' * 200,
        b'"',
        b"'",
        b'"""',
        b",",
        b":",
        b"=",
        b"\n",
    ),
    *(b"null", b"NaN", b"Infinity", b"-1", b"1e400", b"9" * 400, b"9" * 5000, b"0x" + b"f" * 40),
    *(b"\\ud800", b"\\u0000", b"\x1b[2J", b"\xe2\x80\xae", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"#"),
    *(
        b"a.b.c.d",
        b"a." * 90 + b"a = 1\n",
        b"[[a]]\n",
        b"inf",
        b"2001-01-01",
        b"PK\x03\x04",
        b"../",
    ),
)
WORDS = tuple(
    struct.pack(kind, number % 2**bits)
    for kind, bits in (("<I", 32), (">I", 32), ("<Q", 64))
    for number in (0, 1, 127, 2**16, 2**31 - 1, 2**31, -1, 2**40, 2**62)
)
DTYPES = (
    "?",
    "i1",
    "i2",
    "i4",
    "i8",
    "u1",
    "u8",
    "f2",
    "f4",
    "f8",
    "c16",
    "S3",
    "U2",
    "M8[s]",
    "V5",
)


def of_bytes(rng: Random, corpus: Sequence[bytes]) -> bytes:
    """Change bytes: flips, cuts, copies, insertions, and splices with another input."""
    data = bytearray(rng.choice(corpus))
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        rng.choice(_BYTES)(rng, data, corpus)
    return bytes(data)


def _flip(rng: Random, data: bytearray, _: Sequence[bytes]) -> None:
    if data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _set(rng: Random, data: bytearray, _: Sequence[bytes]) -> None:
    if data:
        data[rng.randrange(len(data))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))


def _cut(rng: Random, data: bytearray, _: Sequence[bytes]) -> None:
    del data[rng.randint(0, len(data)) :]


def _remove(rng: Random, data: bytearray, _: Sequence[bytes]) -> None:
    start = rng.randint(0, len(data))
    del data[start : start + rng.choice((1, 2, 4, 8, 40))]


def _insert(rng: Random, data: bytearray, _: Sequence[bytes]) -> None:
    start = rng.randint(0, len(data))
    data[start:start] = rng.choice(TOKENS)


def _word(rng: Random, data: bytearray, _: Sequence[bytes]) -> None:
    word, start = rng.choice(WORDS), rng.randint(0, len(data))
    data[start : start + len(word)] = word


def _copy(rng: Random, data: bytearray, _: Sequence[bytes]) -> None:
    start, length = rng.randint(0, len(data)), rng.choice((1, 8, 64, 400))
    data[start:start] = data[start : start + length] * rng.choice((1, 1, 2, 50))


def _splice(rng: Random, data: bytearray, corpus: Sequence[bytes]) -> None:
    other = rng.choice(corpus)
    data[rng.randint(0, len(data)) :] = other[rng.randint(0, len(other)) :]


_BYTES = (_flip, _flip, _set, _cut, _remove, _insert, _insert, _word, _copy, _splice)


def value(rng: Random) -> Any:
    """Return a value of JSON that a reader may not expect."""
    kind = rng.randrange(8)
    if kind == 0:
        return rng.choice((None, True, False))
    if kind == 1:
        return rng.choice(NUMBERS)
    if kind == 2:
        return rng.choice(FLOATS)
    if kind == 3:
        return rng.choice(TEXTS)
    if kind == 4:
        return rng.choice(([], {}, [[]], [None], [{}], {"": 0}, {"$": "array"}, {"a": {"a": 1}}))
    if kind == 5:
        return [value(rng) for _ in range(rng.randint(1, 3))]
    if kind == 6:
        return {rng.choice(TEXTS): value(rng)}
    nested: Any = rng.choice((0, "a"))
    for _ in range(rng.choice((3, 70, 200))):
        nested = [nested] if rng.random() < 0.5 else {"a": nested}
    return nested


def tree(rng: Random, root: Any) -> Any:
    """Return a JSON value with some of its parts changed."""
    root = json.loads(json.dumps(root))
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        places = list(_places(root))
        if not places:
            return value(rng)
        holder, key = rng.choice(places)
        _change(rng, holder, key, places)
    return root


def _places(node: Any) -> Any:
    if not isinstance(node, dict | list):
        return
    for key, item in list(node.items() if isinstance(node, dict) else enumerate(node)):
        yield node, key
        if isinstance(item, dict | list):
            yield from _places(item)


def _change(rng: Random, holder: Any, key: Any, places: list[tuple[Any, Any]]) -> None:
    kind = rng.randrange(7)
    if kind == 0:
        del holder[key]
    elif kind == 1 and isinstance(holder, dict):
        holder[rng.choice(TEXTS)] = holder.pop(key)
    elif kind == 2 and isinstance(holder, dict):
        holder[rng.choice(TEXTS)] = value(rng)
    elif kind == 2:
        holder.insert(key, value(rng))
    elif kind == 3:
        other, place = rng.choice(places)
        found = json.dumps(other[place]) if _has(other, place) else "0"
        holder[key] = json.loads(found) if len(found) < 10_000 else 0
    elif kind == 4 and isinstance(holder[key], int | float) and not isinstance(holder[key], bool):
        holder[key] = rng.choice((-holder[key], holder[key] + 1, holder[key] * 1000, 0.5))
    else:
        holder[key] = value(rng)


def _has(holder: Any, key: Any) -> bool:
    return key in holder if isinstance(holder, dict) else key < len(holder)


def _dumped(root: Any) -> bytes:
    return json.dumps(root).encode("utf-8", "surrogatepass")


def of_json(rng: Random, corpus: Sequence[bytes]) -> bytes:
    """Change values of a JSON text, or its bytes."""
    if rng.random() < 0.3:
        return of_bytes(rng, corpus)
    return _dumped(tree(rng, json.loads(rng.choice(corpus))))


def of_json_lines(rng: Random, corpus: Sequence[bytes]) -> bytes:
    """Change values in one of the lines, or the bytes of all."""
    if rng.random() < 0.3:
        return of_bytes(rng, corpus)
    lines = rng.choice(corpus).splitlines()
    place = rng.randrange(len(lines))
    lines[place] = _dumped(tree(rng, json.loads(lines[place])))
    return b"\n".join(lines) + b"\n"


def of_toml(rng: Random, corpus: Sequence[bytes]) -> bytes:
    """Change lines of a TOML text: values, copies, keys; or its bytes."""
    if rng.random() < 0.3:
        return of_bytes(rng, corpus)
    lines = rng.choice(corpus).splitlines()
    for _ in range(rng.choice((1, 1, 2, 4))):
        place = rng.randrange(len(lines))
        key, equals, _ = lines[place].partition(b"=")
        kind = rng.randrange(5)
        if equals and kind < 3:
            lines[place] = key + b"= " + _toml_value(rng)
        elif kind == 3:
            other = rng.choice(rng.choice(corpus).splitlines() or [b""])
            lines.insert(place, rng.choice((other, b"a = " + _toml_value(rng), rng.choice(TOKENS))))
        else:
            lines[place] = rng.choice((b"", lines[place] * 2, b"[" + lines[place] + b"]"))
    return b"\n".join(lines) + b"\n"


def _toml_value(rng: Random) -> bytes:
    found = value(rng)
    if isinstance(found, dict):
        inside = b", ".join(json.dumps(k).encode() + b" = " + _toml_value(rng) for k in found)
        return b"{" + inside + b"}"
    if isinstance(found, float) and found != found:
        return b"nan"
    return json.dumps(found).replace("Infinity", "inf").encode()


def array(rng: Random, old: np.ndarray | None = None) -> np.ndarray:
    """Return a small array of any type and shape, or a changed one."""
    if old is not None and rng.random() < 0.6:
        changed = np.array(old)
        kind = rng.randrange(5)
        if kind == 0:
            return changed.reshape(-1)[: rng.randint(0, changed.size)]
        if kind == 1:
            return changed[None] if rng.random() < 0.5 else changed.reshape(-1)
        if kind == 2 and changed.dtype.kind in "iufb":
            return changed.astype(rng.choice(("i1", "i8", "f4", "f8", "u8", "?")))
        if changed.size and changed.dtype.kind in "iuf":
            with np.errstate(all="ignore"):
                flat = changed.reshape(-1)
                wrong = rng.choice((0, 1, 127, 255, -1, 2**62, 1e300, float("nan"), float("inf")))
                flat[rng.randrange(len(flat))] = np.array(wrong).astype(changed.dtype)
        return changed
    shape = rng.choice(((), (0,), (1,), (3,), (0, 5), (2, 2), (2, 1, 3), (1,) * 20))
    kind = np.dtype(rng.choice(DTYPES))
    count = int(np.prod(shape))
    return np.frombuffer(rng.randbytes(count * kind.itemsize), kind, count).reshape(shape)


def of_safetensors(rng: Random, corpus: Sequence[bytes]) -> bytes:
    """Change the arrays of a safetensors file, its header, or its bytes."""
    data = rng.choice(corpus)
    kind = rng.randrange(3)
    try:
        if kind == 0:
            arrays = dict(load(data))
            _change_arrays(rng, arrays)
            return save(arrays)
        if kind == 1:
            size = int.from_bytes(data[:8], "little")
            header = _dumped(tree(rng, json.loads(data[8 : 8 + size])))
            return struct.pack("<Q", len(header)) + header + data[8 + size :]
    except (SafetensorError, KeyError, ValueError, TypeError):  # a type that it does not have
        pass
    return of_bytes(rng, corpus)


def _change_arrays(rng: Random, arrays: dict[str, np.ndarray]) -> None:
    for _ in range(rng.choice((1, 1, 2))):
        name = rng.choice([*arrays, "scale", "classes"])
        if rng.random() < 0.15:
            arrays.pop(name, None)
        else:
            arrays[name] = array(rng, arrays.get(name))


def of_message(rng: Random, corpus: Sequence[bytes]) -> bytes:
    """Change the value of a message of the codec and seal it again; or its header, or its bytes."""
    if rng.random() < 0.3:
        return of_safetensors(rng, corpus)
    data = rng.choice(corpus)
    size = int.from_bytes(data[:8], "little")
    skeleton = json.loads(json.loads(data[8 : 8 + size])["__metadata__"]["fedgram"])["value"]
    arrays = load(data)
    if rng.random() < 0.3 and len(corpus) > 1:  # a value inside another one
        other = rng.choice(corpus)
        size = int.from_bytes(other[:8], "little")
        inner = json.loads(json.loads(other[8 : 8 + size])["__metadata__"]["fedgram"])["value"]
        places = list(_places(skeleton))
        if places and not load(other):
            holder, key = rng.choice(places)
            holder[key] = inner
    if arrays and rng.random() < 0.4:
        name = rng.choice(list(arrays))
        arrays[name] = array(rng, arrays[name])
        for holder, key in list(_places([skeleton])):
            node = holder[key]
            if isinstance(node, dict) and node.get("name") == name and rng.random() < 0.8:
                node["dtype"] = rng.choice((arrays[name].dtype.name, "int64"))
    else:
        changed = tree(rng, [skeleton])
        one = isinstance(changed, list) and len(changed) == 1
        skeleton = changed[0] if one and rng.random() < 0.9 else changed
    try:
        return sealed(skeleton, arrays)
    except (SafetensorError, ValueError, KeyError, TypeError):  # no number of JSON, no such type
        return of_bytes(rng, corpus)


def sealed(skeleton: Any, arrays: dict[str, np.ndarray]) -> bytes:
    """Return a message with a right checksum whose value is the skeleton."""
    ordered = dict(sorted(arrays.items(), key=codec._number))
    about = codec._about(skeleton, codec._hash(skeleton, ordered))
    return save(ordered, metadata={"fedgram": about})


def of_npz(rng: Random, corpus: Sequence[bytes]) -> bytes:
    """Change the arrays of an .npz file, the text of an array's header, or the bytes."""
    kind = rng.randrange(3)
    if kind == 2:
        return of_bytes(rng, corpus)
    with np.load(io.BytesIO(rng.choice(corpus)), allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    if kind == 0:
        _change_arrays(rng, arrays)
    out = io.BytesIO()
    packing = rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
    with zipfile.ZipFile(out, "w", packing) as archive:
        wrong = rng.choice(list(arrays)) if kind == 1 and arrays else None
        for name, found in arrays.items():
            held = io.BytesIO()
            np.lib.format.write_array(held, np.asarray(found), allow_pickle=False)
            content = held.getvalue()
            archive.writestr(f"{name}.npy", _header(rng, content) if name == wrong else content)
    return out.getvalue()


def _header(rng: Random, content: bytes) -> bytes:
    """Change the shape, type or order in the header of a .npy file."""
    size = int.from_bytes(content[8:10], "little")
    shape = rng.choice(
        ("(10**9,)", "(99999999999,)", "(-1,)", "(0, 9)", "()", "(3, 2.5)", "('a',)")
    )
    descr = rng.choice(
        ("'|O'", "'<f8'", "'|S0'", "'<U9'", "[('a', '<i4')]", "'<c16'", "None", "'?'")
    )
    text = (
        f"{{'descr': {descr}, 'fortran_order': {rng.choice(('True', 'False'))}, 'shape': {shape}}}"
    )
    header = text.encode().ljust(max(size, len(text)))
    return content[:8] + struct.pack("<H", len(header)) + header + content[10 + size :]


def of_cells(rng: Random, corpus: Sequence[bytes]) -> bytes:
    """Change cells of a table in CSV, or its bytes."""
    if rng.random() < 0.3:
        return of_bytes(rng, corpus)
    rows = [line.split(b",") for line in rng.choice(corpus).splitlines()]
    for _ in range(rng.choice((1, 2, 5))):
        row = rng.choice(rows)
        cell = str(rng.choice((*TEXTS, *FLOATS, *NUMBERS[:-1]))).encode("utf-8", "surrogatepass")
        row[rng.randrange(len(row))] = cell
    return b"\n".join(b",".join(row) for row in rows) + b"\n"
