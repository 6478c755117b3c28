"""From tables to features, sums and models: three hospitals end where one table does."""

import csv
import json
import math
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from fedgram import Grid, load_dataset
from fedgram.cli import main
from fedgram.data.items import Columns
from fedgram.data.tabular.columns import CategoryColumn, NumberColumn
from fedgram.data.tabular.reader import Table, read_table
from fedgram.data.tabular.schema import Schema
from fedgram.errors import ConfigError
from fedgram.features.tabular import dataset, rows, vectors

SCHEMA = Schema(
    label="outcome",
    classes=("ill", "well"),
    columns={
        "age": NumberColumn(range=(0.0, 120.0), mean=60.0, deviation=15.0),
        "dose": NumberColumn(range=(-9.0, 9.0), missing="indicate"),
        "sex": CategoryColumn(values=("f", "m")),
    },
)


def patients(count=90, seed=0):
    rng = np.random.default_rng(seed)
    made = []
    for k in range(count):
        age, dose = int(rng.integers(18, 100)), round(float(rng.normal() * 2), 2)
        sick = 0.05 * (age - 60) + 0.4 * dose + rng.normal() > 0
        made.append(
            {
                "id": f"p{k}",
                "age": age,
                "dose": dose if k % 9 else "",
                "sex": str(rng.choice(["f", "m"])),
                "outcome": "ill" if sick else "well",
                "split": "test" if k % 4 == 0 else "train",
            }
        )
    return made


def table(entries):
    return Table(name="t", columns={key: [e[key] for e in entries] for key in entries[0]})


def slow(entry, anchor=1.0, bits=8, reach=6.0):
    """Encode one row of SCHEMA in the plainest way."""
    dose = entry["dose"]
    standard = [
        (entry["age"] - 60) / 15,
        0.0 if dose == "" else dose / (18 / math.sqrt(12)),
        1.0 if dose == "" else 0.0,
        *(1.0 if entry["sex"] == sex else 0.0 for sex in "fm"),
    ]
    mean_square = math.fsum(v * v for v in standard) / len(standard)
    size = math.sqrt((mean_square + anchor**2) / (1 + anchor**2))
    step = reach / (2 ** (bits - 1) - 1)
    return [v / size / step for v in standard]


@pytest.mark.parametrize("anchor", [0.0, 0.5, 1.0, 1000.0])
@pytest.mark.parametrize("bits", [4, 8, 12])
def test_rows_are_those_of_a_slow_reference(anchor, bits):
    grid = Grid(bits=bits)
    made = rows(replace(SCHEMA, anchor=anchor), table(patients()), grid)
    wanted = np.array([slow(entry, anchor, bits, grid.reach) for entry in patients()])
    assert made.dtype == (np.int8 if bits <= 8 else np.int16)
    bound = 2 ** (bits - 1) - 1
    assert np.abs(made - np.clip(wanted, -bound, bound)).max() <= 0.51


def test_known_rows():
    entry = {"age": 75, "dose": 0.0, "sex": "m", "outcome": "ill", "split": "train"}
    one = 127 / 6
    for anchor, size in ((1000.0, 1.0), (0.0, math.sqrt(2 / 5)), (1.0, math.sqrt(0.7))):
        made = rows(replace(SCHEMA, anchor=anchor), table([entry]), Grid()).tolist()
        assert made == [[round(one / size), 0, 0, 0, round(one / size)]]


def test_a_lone_column_keeps_more_than_its_sign_unless_asked_not_to():
    lone = Schema(
        label="y", classes=("a", "b"), columns={"v": NumberColumn(mean=0.0, deviation=1.0)}
    )
    cells = Table(name="t", columns={"v": [-3, -1, -0.1, 0, 0.1, 1, 3]})
    assert rows(replace(lone, anchor=0.0), cells, Grid()).ravel().tolist() == [
        *(-21, -21, -21, 0, 21, 21, 21)
    ]
    kept = rows(lone, cells, Grid()).ravel().astype(int)
    assert (np.diff(kept) > 0).all()
    assert rows(replace(lone, anchor=1000.0), cells, Grid()).ravel().tolist() == [
        *(-63, -21, -2, 0, 2, 21, 63)
    ]


def test_one_wild_value_does_not_drown_its_row():
    columns = {name: NumberColumn(mean=0.0, deviation=1.0) for name in "abcdefghij"}
    wide = Schema(label="y", classes=("a", "b"), columns=columns)
    cells = {name: [1.0, 1.0] for name in columns}
    cells["a"] = [1.0, 1e300]
    calm, wild = rows(wide, Table(name="t", columns=cells), Grid()).astype(int)
    assert calm[1] == 21
    size = math.sqrt((4.5 + 1) / 2)  # with 36 for the square of what was cut at six deviations
    assert wild[:2].tolist() == [round(127 / size), round(127 / 6 / size)]


@given(st.integers(0, 2**32), st.integers(1, 5))
def test_features_of_a_row_do_not_depend_on_the_other_rows(seed, sites):
    rng = np.random.default_rng(seed)
    entries = patients()
    whole = rows(SCHEMA, table(entries), Grid())
    owner = rng.integers(0, sites, len(entries))
    for site in np.unique(owner):
        mine = rng.permutation(np.flatnonzero(owner == site))
        assert np.array_equal(rows(SCHEMA, table([entries[k] for k in mine]), Grid()), whole[mine])


def test_a_data_set_knows_its_schema_and_its_rows():
    entries = [{**entry, "ward": f"w{k % 2}"} for k, entry in enumerate(patients())]
    parts = [table(entries[:40]), table(entries[40:])]
    data = dataset(SCHEMA, parts, Columns(client="ward"), Grid())
    assert np.array_equal(data.x, rows(SCHEMA, table(entries), Grid()))
    assert [data.classes[y] for y in data.y] == [entry["outcome"] for entry in entries]
    assert list(data.client) == [entry["ward"] for entry in entries]
    assert list(data.split == 2) == [entry["split"] == "test" for entry in entries]
    assert (data.backbone, data.grid) == (f"table {SCHEMA.digest[:16]}", (8, 6.0))
    found = vectors(SCHEMA, parts, Grid())
    assert np.array_equal(found.x, data.x)
    assert (found.backbone, found.grid) == (data.backbone, data.grid)


def test_features_need_a_grid():
    with pytest.raises(ConfigError, match=r"grid\.bits from 2 to 16"):
        rows(SCHEMA, table(patients()), Grid(bits="off"))


# The commands


def fedgram(*arguments, code=0):
    done = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert done.exit_code == code, (done.output, done.exception)
    return done


def write(path, entries):
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(entries[0]))
        writer.writeheader()
        writer.writerows(entries)
    return path


@pytest.fixture
def hospitals(tmp_path):
    """Three tables, the table of all rows, and the schema that all of them agreed on."""
    entries = patients(200)
    shares = {"north": entries[:120], "south": entries[120:170], "west": entries[170:]}
    for name, share in shares.items():
        write(tmp_path / f"{name}.csv", share)
    whole = [{**entry, "site": name} for name, share in shares.items() for entry in share]
    write(tmp_path / "all.csv", whole)
    made = ["schema", "draft", tmp_path / "north.csv", "--label", "outcome", "--without", "id"]
    fedgram(*made, "-o", tmp_path / "draft.toml")
    widen(tmp_path, "draft.toml", 9.0)  # reviewed: doses may be larger than the north's
    for name in shares:
        measure(tmp_path, name)
    return tmp_path


def widen(folder, out, most):
    draft = Schema.load(folder / "draft.toml")
    dose = replace(draft.columns["dose"], range=(-most, most))
    wider = replace(draft, columns={**draft.columns, "dose": dose})
    (folder / out).write_text(wider.toml())


def measure(folder, name, code=0, schema="draft.toml"):
    arguments = ["schema", "measure", folder / schema, folder / f"{name}.csv"]
    return fedgram(*arguments, "--client", name, "-o", folder / f"{name}.moments", code=code)


def settle(folder, names=("north", "south", "west"), out="agreed.toml", code=0):
    files = [folder / f"{name}.moments" for name in names]
    return fedgram("schema", "settle", folder / "draft.toml", *files, "-o", folder / out, code=code)


def test_three_hospitals_end_where_one_table_does(hospitals):
    settle(hospitals)
    measure(hospitals, "all")
    settle(hospitals, names=["all"], out="central.toml")
    agreed, central = (Schema.load(hospitals / f"{n}.toml") for n in ("agreed", "central"))
    assert agreed == central
    schema = ["--schema", hospitals / "agreed.toml"]
    fedgram("ledger", "init", hospitals / "book")
    for name in ("west", "north", "south"):
        features, part = hospitals / f"{name}.npz", hospitals / f"{name}.contribution"
        done = fedgram("features", hospitals / f"{name}.csv", *schema, "-o", features)
        assert "left out: 'id' is not in the schema" in done.stderr
        fedgram("contribute", features, "--client", name, "-o", part)
        fedgram("ledger", "join", hospitals / "book", part)
    shared = hospitals / "shared"
    done = fedgram("ledger", "solve", hospitals / "book", "-m", "afl", "-o", shared, "--json")
    by_files = json.loads(done.stdout)["shared_digest"]
    whole = hospitals / "all.npz"
    fedgram("features", hospitals / "all.csv", *schema, "--client", "site", "-o", whole)
    data = load_dataset(str(whole))
    assert np.array_equal(
        data.x,
        np.concatenate(
            [load_dataset(str(hospitals / f"{n}.npz")).x for n in ("north", "south", "west")]
        ),
    )
    for partition in ("given", "iid"):
        source = ["-s", f"data.source={whole}", "-s", f"data.partition={partition}"]
        done = fedgram("run", "-m", "afl", *source, "--json")
        (run,) = json.loads(done.stdout)["runs"]
        assert run["shared_digest"] == by_files
        assert run["accuracy"]["global_test"] > 0.7
    table_, stored = hospitals / "north.csv", hospitals / "north.npz"
    by_table = fedgram("predict", shared, table_, *schema).stdout
    assert by_table == fedgram("predict", shared, stored).stdout


def test_sums_of_different_schemas_are_refused_by_name(hospitals):
    settle(hospitals)
    settle(hospitals, names=("north", "south"), out="other.toml")
    fedgram("ledger", "init", hospitals / "book")
    for name, schema in (("north", "agreed"), ("west", "other")):
        features, part = hospitals / f"{name}.npz", hospitals / f"{name}.contribution"
        chosen = ["--schema", hospitals / f"{schema}.toml"]
        fedgram("features", hospitals / f"{name}.csv", *chosen, "-o", features)
        fedgram("contribute", features, "--client", name, "-o", part)
    fedgram("ledger", "join", hospitals / "book", hospitals / "north.contribution")
    done = fedgram("ledger", "join", hospitals / "book", hospitals / "west.contribution", code=4)
    assert "client west" in done.stderr
    for name in ("agreed", "other"):
        assert Schema.load(hospitals / f"{name}.toml").backbone in done.stderr


def test_the_order_of_the_messages_does_not_matter(hospitals):
    settle(hospitals)
    settle(hospitals, names=("west", "south", "north"), out="again.toml")
    agreed, again = (hospitals / name for name in ("agreed.toml", "again.toml"))
    assert agreed.read_bytes() == again.read_bytes()


def test_messages_of_another_schema_or_kind_are_refused(hospitals):
    widen(hospitals, "mine.toml", 10.0)
    measure(hospitals, "west", schema="mine.toml")
    done = settle(hospitals, code=4)
    assert "client west: the table was measured with another schema" in done.stderr
    (hospitals / "west.moments").write_bytes(b"not a message")
    assert "west.moments" in settle(hospitals, code=3).stderr
    settle(hospitals, names=("north", "south"))
    done = measure(hospitals, "west", schema="agreed.toml", code=2)
    assert "nothing to measure" in done.stderr


def test_a_contribution_is_not_a_measurement(hospitals):
    settle(hospitals)
    features = hospitals / "north.npz"
    schema = ["--schema", hospitals / "agreed.toml"]
    fedgram("features", hospitals / "north.csv", *schema, "-o", features)
    fedgram("contribute", features, "--client", "north", "-o", hospitals / "west.moments")
    assert "not a file of 'fedgram schema measure'" in settle(hospitals, code=3).stderr


def test_predictions_need_the_schema_of_the_model(hospitals):
    settle(hospitals)
    fedgram("features", hospitals / "north.csv", "--schema", hospitals / "agreed.toml",
            "-o", hospitals / "north.npz")  # fmt: skip
    part, book, shared = (hospitals / name for name in ("part", "book", "shared"))
    fedgram("contribute", hospitals / "north.npz", "--client", "north", "-o", part)
    fedgram("ledger", "init", book)
    fedgram("ledger", "join", book, part)
    fedgram("ledger", "solve", book, "-o", shared)
    done = fedgram("predict", shared, hospitals / "north.csv", code=3)
    assert "give that schema with --schema" in done.stderr
    x = load_dataset(str(hospitals / "north.npz")).x
    np.savez(hospitals / "bare.npz", x=x)  # would be scaled anew
    done = fedgram("predict", shared, hospitals / "bare.npz", code=3)
    assert "give a table with these columns, or its features" in done.stderr
    wrong = ["--schema", hospitals / "draft.toml"]
    done = fedgram("predict", shared, hospitals / "north.csv", *wrong, code=4)
    assert "use the schema that its features were made with" in done.stderr
    unlabelled = [
        {key: entry[key] for key in ("sex", "dose", "age")} for entry in patients(200)[:3]
    ]
    new = write(hospitals / "new.csv", unlabelled)
    done = fedgram("predict", shared, new, "--schema", hospitals / "agreed.toml")
    assert len(done.stdout.splitlines()) == 4


def test_one_table_needs_no_schema(hospitals):
    out = hospitals / "own.npz"
    whole = ["features", hospitals / "all.csv", "--label", "outcome", "--client", "site"]
    done = fedgram(*whole, "--without", "id", "-o", out)
    assert "no --schema: scales and categories are from" in done.stderr
    own = Schema.load(hospitals / "own.schema.toml")
    assert own.features == ("age", "dose", "dose missing", "sex = f", "sex = m")
    data = load_dataset(str(out))
    assert data.backbone == own.backbone
    assert np.array_equal(data.x, rows(own, read_table(hospitals / "all.csv"), Grid()))
    assert set(data.client) == {"north", "south", "west"}
    trained = [float(e["age"]) for e in patients(200) if e["split"] != "test"]
    assert own.columns["age"].mean == pytest.approx(np.mean(trained))
    done = fedgram(*whole, "-o", out)
    assert "left out: 'id' has more than 100 different words" in done.stderr
    assert load_dataset(str(out)).backbone == data.backbone


def test_numbers_can_be_taken_as_they_are(tmp_path):
    (tmp_path / "a.csv").write_text("u,v,label\n3,4,x\n300,400,y\n")
    fedgram("features", tmp_path / "a.csv", "--backbone", "identity", "-o", tmp_path / "a.npz")
    data = load_dataset(str(tmp_path / "a.npz"))
    assert data.x.tolist() == [[18, 24], [18, 24]]
    assert data.backbone == "identity identity"


def test_other_grids_are_kept_in_the_file(hospitals):
    out = hospitals / "four.npz"
    fedgram(
        "features", hospitals / "north.csv", "--label", "outcome", "-s", "grid.bits=4", "-o", out
    )
    data = load_dataset(str(out))
    assert data.grid == (4, 3.0)
    assert np.abs(data.x).max() <= 7


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["north.csv", "--text", "sex"], "--text"),
        (["north.csv", "--label", "outcome"], "--label"),
        (["north.csv", "--backbone", "identity"], "--backbone"),
        (["north.csv", "--without", "id"], "--without"),
        (["north.npz"], "not a table"),
    ],
)
def test_options_that_a_schema_decides_are_refused(hospitals, arguments, message):
    source, *options = arguments
    command = ["features", hospitals / source, *options, "--schema", hospitals / "draft.toml"]
    done = fedgram(*command, "-o", hospitals / "f.npz", code=2)
    assert message in done.stderr
    assert not (hospitals / "f.npz").exists()


def test_leaving_columns_out_is_for_tables_only(hospitals):
    command = ["features", hospitals / "north.csv", "--text", "sex", "--label", "outcome"]
    done = fedgram(*command, "--without", "id", "-o", hospitals / "f.npz", code=2)
    assert "--without" in done.stderr


def test_rows_that_do_not_fit_leave_no_file(hospitals):
    settle(hospitals)
    entries = patients(30)
    entries[11]["age"] = 130
    write(hospitals / "bad.csv", entries)
    out = hospitals / "f.npz"
    schema = ["--schema", hospitals / "agreed.toml"]
    done = fedgram("features", hospitals / "bad.csv", *schema, "-o", out, code=3)
    assert "bad.csv: row 12: age = 130 is outside its range from 10 to 100" in done.stderr
    assert not out.exists()
