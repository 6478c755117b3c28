"""Inputs on which a reader failed once; each of them is now read, or refused by its error.

Enter an input here under the name of its reader, as short as it can be made.
"""

from __future__ import annotations

import gzip
import io
import json
import pickle
import struct
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from safetensors.numpy import save

from . import mutate
from .readers import arrays

DEEP = "[" * 100_000
LONG = "7" * 1_000_000
DOTTED = ".".join("a" * 200_000)


def npz(**changed: Any) -> bytes:
    held = io.BytesIO()
    np.savez(held, **{**arrays(), **changed})
    return held.getvalue()


def member(name: str, header: str, data: bytes = b"") -> bytes:
    """Return an .npz with one array of any header."""
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as archive:
        start = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header))
        archive.writestr(name, start + header.encode() + data)
    return held.getvalue()


def idx(kind: int, *shape: int, data: bytes = b"") -> bytes:
    return bytes([0, 0, kind, len(shape)]) + struct.pack(f">{len(shape)}I", *shape) + data


def shared_lists(levels: int) -> bytes:
    """Return a pickle whose labels are lists of lists of ...: 100 times more with each level."""
    labels: Any = 1
    for _ in range(levels):
        labels = [labels] * 100
    return pickle.dumps({b"data": np.zeros((2, 3072), np.uint8), b"fine_labels": labels}, 4)


TOML = tuple(
    text.encode()
    for text in (
        f"a = {DEEP}",
        f"a = {LONG}",
        f"a = 0x{LONG}",
        f"{DOTTED} = 1",
        f'"a b".{DOTTED} = 1',
        f"[{DOTTED}]",
        "".join(f"a = {{{'.'.join('b' * 60)} = " for _ in range(60)),
        "a = \ud800".encode("utf-8", "surrogatepass").decode("latin1"),
    )
)
JSON = tuple(
    text.encode()
    for text in (
        DEEP,
        '{"a":' * 100_000,
        LONG,
        f"1e{LONG}",
        f"-{LONG}",
        '"\\ud800"',
        '{"a":1,"a":2}',
    )
)
RUN = (
    b'{"format": 2, "method": "afl", "config": {"data": {"a": [1, null]}}}',
    b'{"format": 2, "method": "afl", "config": {"data": {"a": [[{"b": null}]]}}}',
    b'{"format": 2, "method": "afl", "config": {"data": {"seed": {"a": 1}}}}',
    b'{"format": 2, "method": "afl", "config": {"engine": -1e308}}',
)


def scored(**changed: Any) -> bytes:
    summary = {"accuracy": {"client_mean": 0.5}, "clients": 3, **changed}
    return json.dumps({"round": 1, "set": "members", "summary": summary}).encode() + b"\n"


EXCHANGE = {
    "step": "a",
    "phase": "train",
    "clients": 3,
    "bytes_up": 1,
    "bytes_down": 1,
    "seconds": 1,
}


def exchange(**changed: Any) -> bytes:
    return json.dumps({**EXCHANGE, **changed}).encode() + b"\n"


PARTITION = {"client": "a", "holdout": False, "train": [1], "valid": [1], "test": [1]}


def partition(**changed: Any) -> bytes:
    about = {"format": 1, "classes": ["cat"], "clients": [{**PARTITION, **changed}]}
    return json.dumps(about).encode()


ARRAY = {"$": "array", "name": "0 a", "dtype": "int64"}
FINDINGS: Mapping[str, Sequence[bytes]] = {
    **dict.fromkeys(
        (
            *("TOML", "configuration", "site.toml", "federation.toml", "connection.toml"),
            *("study", "published numbers", "schema"),
        ),
        TOML,
    ),
    **dict.fromkeys(
        ("JSON", "certificate", "times.jsonl", "course.json", "onnx sidecar", "table.jsonl"), JSON
    ),
    "preprocessor config": (
        *JSON,
        b'{"size": -Infinity}',
        b'{"size": {"width": 8}}',
        b'{"size": 8, "rescale_factor": false}',
        b'{"size": 8, "image_std": [1, [], 1]}',
        b'{"size": 8, "resample": 3000}',
        b'{"size": 0.5}',
        b'{"size": {"height": 0.5, "width": 1}}',
    ),
    "override": (f"a={LONG}".encode(), f"a={DEEP}".encode(), f"grid.bits={LONG}".encode()),
    "site.toml": (
        *TOML,
        b'name = "a"\n[features]\nlabel = "label"\n',
        b'name = "a"\n[data]\nsource = "' + b"x" * 300 + b'"\n',
        b'name = "a"\n[data]\nsource = "\\u0000"\n',
        b'name = "a\\u001b[2J"\n',
    ),
    "study": (*TOML, b"[table]\nseeds = 9223372036854775807\n", b"[table]\nshow = [{ a = 1 }]\n"),
    "published numbers": (*TOML, b'source = "a"\nbackbone = "b"\nmeasure = 0.5\n'),
    "nodes.json": (*JSON, b'{"north": {"node": -Infinity}}', b'{"north": {"node": "5"}}'),
    "course.json": (
        *JSON,
        b'{"plan": "p", "finished": false}',
        b'{"plan": "p", "runs": {}, "parties": {}, "finished": false}',
        b'{"plan": "p", "runs": {"afl": 1}, "parties": [], "finished": false}',
    ),
    "run.json": (*JSON, *RUN),
    "scores.jsonl": (
        *(text + b"\n" for text in JSON),
        scored(class_accuracy=5),
        scored(clients=float("inf")),
        scored(seconds="a"),
        scored(accuracy={"client_mean": []}),
        scored(flops=10**40),
        scored(bytes={"up": float("inf"), "down": 1}),
    ),
    "exchanges.jsonl": (
        *(text + b"\n" for text in JSON),
        exchange(phase=float("inf")),
        exchange(bytes_up="a"),
        exchange(clients=None),
        exchange(more=1),
    ),
    "partition.json": (
        *JSON,
        partition(train=[float("inf")]),
        partition(test=5),
        partition(valid=[[]]),
    ),
    "message": (
        mutate.sealed("\ud800", {}),
        mutate.sealed({"$": "dict", "items": {"x" * 5000: 1}}, {}),
        mutate.sealed({"$": "tuple", "items": ["class"] * 1_000_000}, {}),
        mutate.sealed([[]] * 1_000_000, {}),
        mutate.sealed([ARRAY] * 8000, {"0 a": np.zeros(1_000_000, np.int8)}),
        mutate.sealed({**ARRAY, "dtype": "complex256"}, {"0 a": np.zeros(1_000_000, np.int8)}),
        mutate.sealed({**ARRAY, "dtype": "S4000"}, {"0 a": np.zeros(1_000_000, np.int8)}),
        mutate.sealed(ARRAY, {"0 a": np.empty((0, 2**50), np.int64)}),
    ),
    "moments": (
        mutate.sealed({"$": "Measured", "items": {"client": [], "moments": None}}, {}),
        mutate.sealed({"$": "Measured", "items": {"client": "a", "moments": None}}, {}),
    ),
    "npz": (
        npz(y=np.array(3)),
        npz(y=np.full(6, 1e300)),
        npz(scale=np.zeros(4, "M8[s]")),
        npz(offset=np.zeros(4, "V5")),
        npz(split=np.zeros(6, "V5")),
        npz(classes=np.array([b"\xff\x83", b"a"])),
        npz(classes=np.array(["a\x1b", "b"])),
        npz(client=np.array(["a\n"] * 5 + ["\x00b"])),
        member("x.npy", "{'descr': '|O', 'fortran_order': False, 'shape': (9,)}", b"\x80\x04."),
        member("x.npy", "{'descr': '<f8', 'fortran_order': False, 'shape': (10**10,)}"),
        member("x.npy", "{'descr': '<f8', 'fortran_order': False, 'shape': (99999999999,)}"),
        member("x.npy", "{'descr': '|i1', 'fortran_order': False, 'shape': (-1,)}", bytes(9)),
        member("../x.npy", "{'descr': '|i1', 'fortran_order': False, 'shape': (9,)}", bytes(9)),
    ),
    "safetensors": (
        save({"x": np.zeros((2, 2)), "y": np.array(1)}),
        save({"x": np.zeros((2, 2)), "y": np.zeros(2), "scale": np.zeros(2, bool)}),
    ),
    "feature file": (
        npz(x=np.array(5.0), backbone=np.array("vit"), digest=np.zeros((1, 32), "u1")),
        npz(backbone=np.zeros((), "V5"), digest=np.zeros((6, 32), "u1")),
    ),
    "idx images": (
        idx(0x08, *[2**32 - 1] * 200),
        idx(0x08, 2**31, 2**31, 2),
        idx(0x08),
        idx(0x0E, 4, data=bytes(32)),
    ),
    "idx labels": (
        gzip.compress(idx(0x08, 2**32 - 1) + bytes(10**7), mtime=0),
        gzip.compress(idx(0x08, 4, data=bytes(10**7)), mtime=0),
        gzip.compress(idx(0x0D, 1, data=b"\x7f\xc0\x00\x00"), mtime=0),
        gzip.compress(idx(0x08, 4, data=bytes(4)), mtime=0)[:-12] + bytes(12),
        b"\x1f\x8b\x08" + bytes(40),
    ),
    "cifar batch": (
        shared_lists(6),
        b"r\xff\xff\xff\x7f}.",  # a number that the unpickler in C reserves memory for
        b"}r\xff\xff\xff\x7f.",
        pickle.dumps({b"data": np.zeros(3, np.float64), b"fine_labels": [1]}, 4),
        pickle.dumps({b"data": [[1]], b"fine_labels": ["a"]}, 4),
    ),
    "cifar names": (pickle.dumps({}, 4), pickle.dumps({b"fine_label_names": [1]}, 4), b"N."),
    "table.jsonl": (
        *JSON,
        b"".join(b'{"a%d": 1, "label": "a"}\n' % number for number in range(9000)),
        b'[["age", 1]]\n',
    ),
    "table.csv": (
        b",".join(b"a%d" % number for number in range(60_000)) + b",a59999\n1\n",
        b"age,label\n" + b"".join(b"1,%d\n" % number for number in range(60_000)),
    ),
    "ledger cells": (
        b"1\nInfinity",
        b'2\n{"width": 6, "steps": "a", "more": 1}',
        b"2\n[" + b"[" * 5000,
        b"7\n" + LONG.encode(),
        b"4\nnot a message",
    ),
}
