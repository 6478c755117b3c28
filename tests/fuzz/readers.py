"""Every reader of foreign bytes, with valid inputs and the way to change them.

A reader is a function of the bytes of one input. It returns, or raises an error of fedgram. To add
one: write a function `prepare(folder)` that makes the files around the input once and returns the
reader and its valid inputs, and enter it in `READERS` below.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import pickle
import shutil
import sqlite3
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from click.testing import CliRunner
from safetensors.numpy import save

from fedgram.cli import main
from fedgram.cli.predict import predicted
from fedgram.cli.screen import print_runs
from fedgram.core import codec
from fedgram.data.items import Columns, read_items
from fedgram.data.sources import load_dataset, load_vectors
from fedgram.data.tabular.draft import draft as drafted
from fedgram.data.tabular.moments import Measured, sum_measured, with_moments
from fedgram.data.tabular.reader import read_table, read_tables
from fedgram.data.tabular.schema import Schema
from fedgram.deploy.folders import SiteFolder
from fedgram.deploy.run_state import RunState
from fedgram.deploy.settings import plain_grid, read_federation, read_site, registered
from fedgram.deploy.site import simulated
from fedgram.engines.remote.messages import (
    Answer,
    Delivery,
    Refusal,
    Request,
    Round,
    ScoreRequest,
    Terms,
    read_answer,
    read_request,
)
from fedgram.errors import DataError
from fedgram.experiments import config as configuration
from fedgram.experiments.gains import who_gains
from fedgram.experiments.reader import read_runs
from fedgram.experiments.record import versions
from fedgram.experiments.study import published
from fedgram.experiments.study import settings as study
from fedgram.experiments.study.folder import Folder
from fedgram.features.backbones.huggingface import picture
from fedgram.features.backbones.onnx import _stated
from fedgram.features.backbones.timm import _arguments
from fedgram.features.feature_file import Known
from fedgram.ledger.certificate import Certificate
from fedgram.ledger.contribution import Contribution
from fedgram.ledger.ledger import Ledger
from fedgram.report.page import page
from fedgram.runtime.files import read_text
from fedgram.runtime.parse import json_object, json_value, toml_table

from . import mutate

STORED = Path(__file__).parent.parent / "stored"
Read = Callable[[bytes], object]
Prepared = tuple[Read, Sequence[bytes]]


@dataclass(frozen=True, kw_only=True)
class Reader:
    """How a reader is called, and how its inputs are changed.

    Parameters
    ----------
    prepare
        Makes the files around an input; returns the reader and its valid inputs.
    mutate
        Makes a hostile input of valid ones.
    cost
        How much longer than a cheap reader it takes; it then gets fewer inputs.
    """

    prepare: Callable[[Path], Prepared]
    mutate: mutate.Mutator
    cost: int = 1


def file_reader(
    name: str, read: Callable[[Path], object], *inputs: bytes
) -> Callable[[Path], Prepared]:
    """Return the preparation of a reader of one file with this name."""

    def prepare(folder: Path) -> Prepared:
        def from_file(data: bytes) -> object:
            path = folder / name
            path.write_bytes(data)
            return read(path)

        return from_file, inputs

    return prepare


def stored(*patterns: str, most: int = 60_000) -> list[bytes]:
    """Return stored files of an earlier fedgram, as long as they are small."""
    found = [path for pattern in patterns for path in sorted(STORED.glob(pattern))]
    return [path.read_bytes() for path in found if path.stat().st_size <= most]


# Messages and values


def messages(_: Path) -> Prepared:
    return codec.decode, stored("values/*", "*.contribution", "run/*/shared.safetensors")


def terms(**changed: Any) -> Terms:
    config = configuration.read({"data": {"clients": 3}, "grid": {"bits": 8}})
    base: dict[str, Any] = {
        "version": versions()["fedgram"],
        "run": "0a1b2c3d",
        "seed": 0,
        "method": "afl",
        "settings": {},
        "grid": plain_grid(config.grid),
    }
    return Terms(**{**base, **changed})


def request_inputs() -> list[bytes]:
    """Return a request of every kind, with the terms of a run that the site of `site` can join."""
    site = simulated(_small(), 0, Path("unused"))._site()
    own = {"space": site.train.features.space, "classes": site.train.labels.classes}
    shared = codec.load(STORED / "run" / "afl" / "shared.safetensors").shared
    session = Round(session="0" * 64, content=None)
    contents = {
        "greet": None,
        "step": None,
        "score": ScoreRequest(part=shared, round=1, best=1),
        "deliver": Delivery(part=shared, round=1),
        **dict.fromkeys(("keys", "shares", "masked", "reveal"), session),
    }
    return [
        codec.encode(
            Request(
                terms=terms(secure=secure, **own),
                kind=kind,
                serial=number,
                ask_number=1,
                step="statistics",
                broadcast=content,
                totals=("statistics",),
            )
        )
        for secure in (False, True)
        for number, (kind, content) in enumerate(contents.items(), 1)
    ]


def _small() -> configuration.Config:
    return configuration.read({"data": {"clients": 40}})


def requests(_: Path) -> Prepared:
    return read_request, request_inputs()


def answers(_: Path) -> Prepared:
    values = [codec.load(path) for path in sorted((STORED / "values").iterdir())[:20]]
    sound = [codec.encode(Answer(client="north", request_digest="12", value=v)) for v in values]
    refusal = Refusal(client="north", request_digest="12", error="DataError", text="no samples")
    inputs = [*sound, codec.encode(refusal)]
    return lambda data: read_answer(data, client="north", to="12"), inputs


def site(folder: Path) -> Prepared:
    """Return the whole site: it answers or refuses, and raises nothing at all."""
    endpoint = simulated(_small(), 0, folder / "site")

    def answered(data: bytes) -> None:
        answer = codec.decode(endpoint.answer(data))
        if not isinstance(answer, Answer | Refusal):
            raise TypeError("expected an answer or a refusal")

    return answered, request_inputs()


def contribution(path: Path) -> None:
    part = codec.load(path)
    if not isinstance(part, Contribution):
        raise DataError("not a contribution")


def certificate(path: Path) -> None:
    """Read a certificate as 'fedgram ledger verify' does."""
    with contextlib.suppress(OSError, ValueError):
        Certificate.read(json_object(read_text(path)))


def model(path: Path) -> object:
    return predicted(path, str(STORED / "north.npz"), None)


def shared_model(path: Path) -> None:
    """Personalize a shared model as the command does."""
    done = CliRunner().invoke(
        main, ["personalize", str(path), str(STORED / "north.npz"), "-o", str(path) + ".own"]
    )
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception


# Ledgers


def ledger_bytes(folder: Path) -> Prepared:
    return _ledger(folder), stored("study.ledger", most=10**6)


def ledger_cells(folder: Path) -> Prepared:
    """Return a ledger whose inputs are the changes of one cell: table, column, row and value."""
    reader, (whole,) = ledger_bytes(folder)
    source = folder / "whole.ledger"

    def changed(data: bytes) -> None:
        source.write_bytes(whole)
        number, _, content = data.partition(b"\n")
        table, column, row = CELLS[int(number) % len(CELLS)]
        with sqlite3.connect(source) as db:
            text = (
                content
                if column == "value" and table != "meta"
                else content.decode("utf-8", "replace")
            )
            db.execute(
                f"UPDATE {table} SET {column} = ? WHERE rowid = (SELECT rowid FROM {table} "
                "ORDER BY rowid LIMIT 1 OFFSET ?)",
                [text, row],
            )
        db.close()
        reader(source.read_bytes())

    inputs = []
    with sqlite3.connect(f"file:{STORED / 'study.ledger'}?mode=ro", uri=True) as db:
        for number, (table, column, row) in enumerate(CELLS):
            query = f"SELECT {column} FROM {table} ORDER BY rowid LIMIT 1 OFFSET ?"
            found = db.execute(query, [row]).fetchone()
            value = found[0] if found else ""
            held = value if isinstance(value, bytes) else str(value).encode()
            inputs.append(f"{number}\n".encode() + held)
    db.close()
    return changed, inputs


CELLS = (
    *(("meta", "value", row) for row in range(4)),
    *(("total", "value", 0), ("contributions", "value", 0), ("contributions", "client", 0)),
    *(
        ("events", column, row)
        for column in ("detail", "samples", "what", "client")
        for row in (0, 2)
    ),
)


def of_cell(rng: Random, corpus: Sequence[bytes]) -> bytes:
    """Change the value of a cell: as JSON, as a message, or its bytes."""
    number, _, content = rng.choice(corpus).partition(b"\n")
    try:
        changed = mutate.of_json(rng, [content])
    except ValueError:
        kind = rng.choice((mutate.of_bytes, mutate.of_message))
        changed = kind(rng, [content]) if content[8:9] == b"{" else mutate.of_bytes(rng, [content])
    return number + b"\n" + changed


def _ledger(folder: Path) -> Read:
    path = folder / "book.ledger"

    def read(data: bytes) -> None:
        for old in folder.glob("book.ledger*"):
            old.unlink()
        path.write_bytes(data)
        with Ledger.open(path) as book:
            book.history()
            for client in book.members:
                book.of(client)
            _ = book.total, book.space, book.shut_out()
            book.verify()

    return read


# Settings


CONFIG = b"""
methods = ["afl", "apfl-linear"]
every = { ridge = 1.0 }

[data]
source = "digits"
clients = 5
partition = "dirichlet"
dirichlet = 0.1

[grid]
bits = 8

[engine]
seed = 1
secure = true

[method.apfl-linear]
balance = 0.3

[method.afl]
lift = { width = 4 }
"""
SITE = b"""
name = "north"
share = 0

[data]
source = "features.npz"
test_fraction = 0.2

[grid]
bits = 8

[features]
source = "table.csv"
label = "label"

[accept]
methods = ["afl"]
secure = true
samples = 10
"""
FEDERATION = b"""
methods = ["afl"]

[data]
clients = 3

[federation]
sites = ["north", "south"]
minimum = 2
timeout = 30
"""
STUDY = b"""
[table]
title = "methods compared"
datasets = ["digits", { name = "other", source = "digits" }]
clients = [5, 10]
seeds = 2
methods = ["afl", { name = "mine", method = "apfl-linear", balance = 0.3 }]
show = ["client_mean", "bytes_up"]
curves = ["rounds"]
partitions = [{ partition = "shards", shards = 2 }, { dirichlet = 0.1 }]

[grid]
bits = 8

[[sweep]]
parameter = "ridge"
values = [0.1, 1.0]
"""
PUBLISHED = b"""
source = "A paper"
backbone = "vit"
measure = "client_mean"
columns = [{ dirichlet = 0.1 }, { dirichlet = 0.5 }]
remarks = ["one seed"]

[[rows]]
method = "afl"
clients = 10
values = [80.1, 90]
"""
SCHEMA = b"""
label = "sick"
classes = ["no", "yes"]
blank = ["", "NA"]

[columns.age]
range = [0, 120]
step = 0.5

[columns.sex]
values = ["f", "m", 3]
"""


def override(data: bytes) -> object:
    settings: dict[str, Any] = {"data": {"clients": 3}}
    configuration.override(settings, data.decode("utf-8", "replace"))
    return configuration.read(settings)


# Records


def run_file(name: str) -> Callable[[Path], Prepared]:
    """Return the preparation of a recorded run in which one file is the input."""

    def prepare(folder: Path) -> Prepared:
        run, inputs = folder / "run", []
        config = configuration.read({"data": {"clients": 3}, "methods": ["afl"]})
        source = STORED / "run" / "afl"
        shutil.copytree(source, run, ignore=shutil.ignore_patterns("models", "*.safetensors"))
        (run / "asks.jsonl").rename(run / "exchanges.jsonl")
        about = {
            **json.loads((run / "run.json").read_text()),
            "format": 2,
            "config": config.to_dict(),
        }
        (run / "run.json").write_text(json.dumps(about))
        scores = (run / "scores.jsonl").read_text()
        (run / "scores.jsonl").write_text(scores.replace('"global"', '"global_test"'))
        inputs = [(run / name).read_bytes()]
        for other in ("auto", "fedavg", "prior"):
            path = STORED / "run" / other / name
            if path.is_file() and path.stat().st_size < 30_000:
                inputs.append(path.read_bytes())

        def read(data: bytes) -> None:
            (run / name).write_bytes(data)
            runs = read_runs([run])
            page(runs).encode()
            gains = who_gains(runs)
            print_runs("runs", runs, gains, "run")
            json.dumps([one.to_dict() for one in runs])

        return read, inputs

    return prepare


def times(folder: Path) -> Prepared:
    def read(data: bytes) -> object:
        (folder / "times.jsonl").write_bytes(data)
        return Folder(folder).times()

    return read, stored("table/times.jsonl")


def nodes(path: Path) -> object:
    return registered(path.parent)


def course(folder: Path) -> Prepared:
    place = folder / "runs" / "0001"
    place.mkdir(parents=True)
    state = {"plan": "p", "runs": {"afl": "0a"}, "parties": {"afl": "9"}, "folder": "0001"}

    def read(data: bytes) -> None:
        (place / "course.json").write_bytes(data)
        found = RunState.begin(folder, "p", ["afl"])
        if found.folder == place:
            found.run("afl", "9")
        else:
            shutil.rmtree(found.folder)

    return read, [json.dumps({**state, "finished": False}).encode()]


def connection(folder: Path) -> Prepared:
    (folder / "site.toml").write_bytes(SITE)

    def read(data: bytes) -> object:
        (folder / "connection.toml").write_bytes(data)
        return str(SiteFolder.open(folder).server)

    return read, [b'address = "fl.example.org:8000"\n', b'address = "[::1]:8000"\n']


# Data


def arrays(rows: int = 6) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "x": rng.normal(size=(rows, 4)).astype(np.float32),
        "y": np.arange(rows) % 2,
        "scale": np.ones(4),
        "offset": np.zeros(4),
        "split": np.zeros(rows, np.int8),
    }


def npz_inputs() -> list[bytes]:
    texts = {
        "client": np.array(["a", "b"] * 3),
        "domain": np.array(["a", "b"] * 3),
        "classes": np.array(["cat", "dog"]),
        "backbone": np.array("vit"),
        "grid": np.array([8.0, 3.0]),
    }
    images = {"x": np.zeros((3, 2, 2, 3), np.uint8), "y": np.arange(3)}
    inputs = []
    for found in (
        {**arrays(), **texts},
        images,
        {**arrays(), "classes": np.array([b"cat", b"dog"])},
    ):
        held = io.BytesIO()
        np.savez(held, **found)
        inputs.append(held.getvalue())
    return inputs


def dataset(path: Path) -> None:
    load_dataset(str(path))
    read_items(str(path))


def known(path: Path) -> object:
    return Known.of(path, {"backbone": np.array("vit")})


def feature_inputs() -> list[bytes]:
    held = io.BytesIO()
    np.savez(held, **arrays(), digest=np.zeros((6, 32), np.uint8), backbone=np.array("vit"))
    return [held.getvalue()]


CSV = b"age,sex,label\n61,1,cat\n2.5,0,dog\n-3,1,cat\n"
JSON_LINES = b'{"age": 61, "label": "cat"}\n{"age": 2.5, "label": "dog"}\n'


def table(path: Path) -> None:
    found = read_table(path)
    for name in found.columns:
        found.texts(name)
    read_items(str(path), Columns(label="label"))


def agreed(path: Path) -> object:
    schema = Schema.parsed(
        'label = "label"\nclasses = ["cat", "dog"]\n[columns.age]\nrange = [0, 99]'
    )
    found = read_table(path)
    return schema.read(found), schema.codes(found)


def draft(path: Path) -> object:
    return drafted(read_tables(path), label="label")


def moments(path: Path) -> object:
    """Read the file of 'fedgram schema measure' as 'fedgram schema settle' does."""
    part, agreed = codec.load(path), Schema.load(STORED / "schema.toml")
    if not isinstance(part, Measured):
        raise DataError("not a file of moments")
    return with_moments(agreed, sum_measured(agreed, [part])).toml()


def parquet_inputs() -> list[bytes]:
    import pyarrow
    from pyarrow import parquet

    inputs = []
    for cells in (
        {"age": [61, 2.5], "label": ["cat", "dog"]},
        {"age": [1, None], "label": [["a"], []]},
    ):
        held = io.BytesIO()
        parquet.write_table(pyarrow.table(cells), held)
        inputs.append(held.getvalue())
    return inputs


def idx(name: str) -> Callable[[Path], Prepared]:
    def prepare(folder: Path) -> Prepared:
        images = b"\x00\x00\x08\x03" + struct.pack(">3I", 4, 2, 2) + bytes(range(16))
        labels = b"\x00\x00\x08\x01" + struct.pack(">I", 4) + bytes([0, 1, 0, 1])
        files = {
            f"{split}-{part}-ubyte{end}": gzip.compress(data, mtime=0) if end else data
            for split in ("train", "t10k")
            for part, data, end in (("images", images, ""), ("labels", labels, ".gz"))
        }
        for other, data in files.items():
            (folder / other).write_bytes(data)

        def read(data: bytes) -> None:
            (folder / name).write_bytes(data)
            load_dataset(str(folder))
            read_items(str(folder))

        return read, [files[name]]

    return prepare


def cifar(name: str) -> Callable[[Path], Prepared]:
    def prepare(folder: Path) -> Prepared:
        pixels = np.zeros((2, 3072), np.uint8)
        batch = {b"data": pixels, b"fine_labels": [0, 1], b"filenames": [b"a", b"b"]}
        inputs = {
            protocol: {
                "train": pickle.dumps(batch, protocol),
                "test": pickle.dumps(batch, protocol),
                "meta": pickle.dumps({b"fine_label_names": [b"cat", b"dog"]}, protocol),
            }
            for protocol in (2, 4)
        }
        for other, data in inputs[4].items():
            (folder / other).write_bytes(data)

        def read(data: bytes) -> None:
            (folder / name).write_bytes(data)
            load_dataset(str(folder))

        return read, [inputs[2][name], inputs[4][name]]

    return prepare


def image_inputs() -> list[bytes]:
    from PIL import Image

    inputs = []
    for kind in ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM"):
        held = io.BytesIO()
        Image.new("RGB", (5, 4), (1, 2, 3)).save(held, kind)
        inputs.append(held.getvalue())
    return inputs


def image(path: Path) -> object:
    from fedgram.features.extract import decoded

    return decoded(path)


def preprocessor(path: Path) -> object:
    try:
        settings = json_object(read_text(path))
    except ValueError as error:
        raise DataError("not valid JSON") from error
    return picture(settings, 224, "hf:model")


def timm_config(path: Path) -> object:
    return _arguments(path.parent)


# Keys


def authority(name: str) -> Callable[[Path], Prepared]:
    def prepare(folder: Path) -> Prepared:
        from fedgram.deploy.tls import Authority

        made = Authority.create()
        made.save(folder)
        inputs = [(folder / name).read_bytes()]

        def read(data: bytes) -> object:
            (folder / name).chmod(0o600)
            (folder / name).write_bytes(data)
            return Authority.load(folder)

        return read, inputs

    return prepare


def server_certificate(folder: Path) -> Prepared:
    from fedgram.deploy.tls import Authority, CertificateInfo

    issued = Authority.create().issue(["fl.example.org", "10.0.0.5"], days=9)
    return file_reader("server.pem", CertificateInfo.load, _bytes(issued.certificate))(folder)


def _bytes(data: bytes | str) -> bytes:
    return data.encode() if isinstance(data, str) else data


READERS: Mapping[str, Reader] = {
    "message": Reader(prepare=messages, mutate=mutate.of_message),
    "request": Reader(prepare=requests, mutate=mutate.of_message),
    "answer": Reader(prepare=answers, mutate=mutate.of_message),
    "site": Reader(prepare=site, mutate=mutate.of_message, cost=20),
    "contribution": Reader(
        prepare=file_reader("a.contribution", contribution, *stored("*.contribution")),
        mutate=mutate.of_message,
    ),
    "model": Reader(
        prepare=file_reader("m.safetensors", model, *stored("run/*/models/north.safetensors")),
        mutate=mutate.of_message,
        cost=10,
    ),
    "shared model": Reader(
        prepare=file_reader("m.safetensors", shared_model, *stored("run/a*/shared.safetensors")),
        mutate=mutate.of_message,
        cost=40,
    ),
    "ledger": Reader(prepare=ledger_bytes, mutate=mutate.of_bytes, cost=20),
    "ledger cells": Reader(prepare=ledger_cells, mutate=of_cell, cost=20),
    "certificate": Reader(
        prepare=file_reader(
            "west.certificate",
            certificate,
            *stored("west.certificate"),
        ),
        mutate=mutate.of_json,
    ),
    "configuration": Reader(
        prepare=file_reader("run.toml", configuration.load, CONFIG), mutate=mutate.of_toml, cost=2
    ),
    "override": Reader(
        prepare=lambda _: (override, [b"data.clients=5", b"grid.bits=6", b'methods=["afl"]']),
        mutate=mutate.of_bytes,
        cost=2,
    ),
    "site.toml": Reader(prepare=file_reader("site.toml", read_site, SITE), mutate=mutate.of_toml),
    "federation.toml": Reader(
        prepare=file_reader("federation.toml", read_federation, FEDERATION),
        mutate=mutate.of_toml,
        cost=2,
    ),
    "connection.toml": Reader(prepare=connection, mutate=mutate.of_toml),
    "study": Reader(
        prepare=file_reader("table.toml", lambda path: study.load(str(path)), STUDY),
        mutate=mutate.of_toml,
        cost=4,
    ),
    "published numbers": Reader(
        prepare=file_reader("paper.toml", lambda path: published.load(str(path)), PUBLISHED),
        mutate=mutate.of_toml,
    ),
    "schema": Reader(
        prepare=file_reader("schema.toml", Schema.load, SCHEMA, *stored("schema.toml")),
        mutate=mutate.of_toml,
    ),
    "run.json": Reader(prepare=run_file("run.json"), mutate=mutate.of_json, cost=20),
    "scores.jsonl": Reader(prepare=run_file("scores.jsonl"), mutate=mutate.of_json_lines, cost=20),
    "exchanges.jsonl": Reader(
        prepare=run_file("exchanges.jsonl"), mutate=mutate.of_json_lines, cost=20
    ),
    "partition.json": Reader(prepare=run_file("partition.json"), mutate=mutate.of_json, cost=20),
    "times.jsonl": Reader(prepare=times, mutate=mutate.of_json_lines),
    "nodes.json": Reader(
        prepare=file_reader("nodes.json", nodes, b'{"north": {"node": 5}, "south": {"node": 6}}'),
        mutate=mutate.of_json,
    ),
    "course.json": Reader(prepare=course, mutate=mutate.of_json),
    "npz": Reader(
        prepare=file_reader("x.npz", dataset, *npz_inputs()), mutate=mutate.of_npz, cost=2
    ),
    "safetensors": Reader(
        prepare=file_reader("x.safetensors", dataset, save(arrays())), mutate=mutate.of_safetensors
    ),
    "feature file": Reader(
        prepare=file_reader("x.npz", known, *feature_inputs()), mutate=mutate.of_npz, cost=2
    ),
    "vectors.csv": Reader(
        prepare=file_reader("x.csv", lambda path: load_vectors(str(path)), b"a,b\n1,2\n3.5,-4\n"),
        mutate=mutate.of_cells,
    ),
    "table.csv": Reader(prepare=file_reader("x.csv", table, CSV), mutate=mutate.of_cells),
    "table.jsonl": Reader(
        prepare=file_reader("x.jsonl", table, JSON_LINES), mutate=mutate.of_json_lines
    ),
    "schema and table": Reader(
        prepare=file_reader("x.jsonl", agreed, JSON_LINES), mutate=mutate.of_json_lines
    ),
    "schema draft": Reader(
        prepare=file_reader("x.csv", draft, CSV + b"5,f,dog\n"), mutate=mutate.of_cells, cost=2
    ),
    "moments": Reader(
        prepare=file_reader("north.moments", moments, *stored("north.moments")),
        mutate=mutate.of_message,
        cost=2,
    ),
    "table.parquet": Reader(
        prepare=lambda folder: file_reader("x.parquet", table, *parquet_inputs())(folder),
        mutate=mutate.of_bytes,
        cost=4,
    ),
    "idx images": Reader(prepare=idx("train-images-ubyte"), mutate=mutate.of_bytes),
    "idx labels": Reader(prepare=idx("t10k-labels-ubyte.gz"), mutate=mutate.of_bytes),
    "cifar batch": Reader(prepare=cifar("train"), mutate=mutate.of_bytes, cost=2),
    "cifar names": Reader(prepare=cifar("meta"), mutate=mutate.of_bytes, cost=2),
    "image": Reader(
        prepare=lambda folder: file_reader("x.png", image, *image_inputs())(folder),
        mutate=mutate.of_bytes,
    ),
    "onnx sidecar": Reader(
        prepare=file_reader("m.onnx.json", _stated, b'{"size": 6, "mean": [0.5, 0.5, 0.5]}'),
        mutate=mutate.of_json,
    ),
    "preprocessor config": Reader(
        prepare=file_reader(
            "p.json",
            preprocessor,
            b'{"size": {"height": 8, "width": 8}, "do_center_crop": true, "crop_size": 8, '
            b'"image_mean": [0.5, 0.5, 0.5], "image_std": [1, 1, 1], "resample": 3}',
            b'{"size": {"shortest_edge": 8}, "do_resize": true, "rescale_factor": 0.5}',
        ),
        mutate=mutate.of_json,
    ),
    "timm config": Reader(
        prepare=file_reader("config.json", timm_config, b'{"model_args": {"num_classes": 3}}'),
        mutate=mutate.of_json,
    ),
    "authority certificate": Reader(prepare=authority("ca.crt"), mutate=mutate.of_bytes),
    "authority key": Reader(prepare=authority("ca.key"), mutate=mutate.of_bytes, cost=2),
    "server certificate": Reader(prepare=server_certificate, mutate=mutate.of_bytes),
}

# Parsers that promise ValueError, to readers that make an error of fedgram of it.


def parsed(parse: Callable[[str], object]) -> Callable[[Path], Prepared]:
    def read(data: bytes) -> None:
        try:
            parse(data.decode("utf-8", "surrogatepass"))
        except ValueError:
            return

    inputs = {json_value: JSON_LINES.splitlines(), toml_table: [CONFIG, SITE, STUDY, SCHEMA]}
    return lambda _: (read, inputs[parse])


PARSERS: Mapping[str, Reader] = {
    "JSON": Reader(prepare=parsed(json_value), mutate=mutate.of_json),
    "TOML": Reader(prepare=parsed(toml_table), mutate=mutate.of_toml),
}
ALL: Mapping[str, Reader] = {**PARSERS, **READERS}
