"""Schemas: what is declared is what is read, and everything else is refused by name."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgram.data.tabular.columns import CategoryColumn, NumberColumn
from fedgram.data.tabular.draft import draft, draft_for_file, rounded_outwards
from fedgram.data.tabular.reader import Table, read_tables
from fedgram.data.tabular.schema import BLANK, Schema
from fedgram.errors import ConfigError, DataError

TOML = """
# A comment.
version = 1
label = "outcome"
classes = ["died", "survived"]

[columns.age]
range = [0, 120]
step = 1

[columns."blood pressure"]
range = [50.0, 250.0]
mean = 130.5
deviation = 20
outside = "clip"
missing = "indicate"

[columns.grade]
values = [1, 2, "3a"]
outside = "zero"
"""


def schema(**columns):
    return Schema(label="y", classes=("no", "yes"), columns=columns)


def cells(**columns):
    return Table(name="ward.csv", columns=columns)


def test_a_file_declares_columns():
    read = Schema.parsed(TOML)
    assert (read.label, read.classes, read.anchor) == ("outcome", ("died", "survived"), 1.0)
    assert read.blank == BLANK
    assert read.columns == {
        "age": NumberColumn(range=(0.0, 120.0), step=1.0),
        "blood pressure": NumberColumn(
            range=(50.0, 250.0), mean=130.5, deviation=20.0, outside="clip", missing="indicate"
        ),
        "grade": CategoryColumn(values=("1", "2", "3a"), outside="zero"),
    }
    assert list(read.columns) == ["age", "blood pressure", "grade"]
    assert list(read.pending) == ["age"]
    assert read.features == (
        *("age", "blood pressure", "blood pressure missing"),
        *("grade = 1", "grade = 2", "grade = 3a"),
    )


names = st.text(st.characters(codec="utf-8", exclude_characters="\r"), min_size=1, max_size=8)
words = names.map(str.strip).filter(bool)
finite = st.floats(-1e9, 1e9)
numbers = st.one_of(
    st.builds(
        lambda low, width, **kw: NumberColumn(range=(low, low + width), **kw),
        low=finite,
        width=st.floats(1e-3, 1e9),
        outside=st.sampled_from(["refuse", "clip"]),
        missing=st.sampled_from(["refuse", "indicate"]),
    ),
    st.builds(NumberColumn, mean=finite, deviation=st.floats(1e-9, 1e9)),
)
categories = st.builds(
    lambda values, **kw: CategoryColumn(values=tuple(values), **kw),
    values=st.lists(words, min_size=1, max_size=4, unique=True),
    outside=st.sampled_from(["refuse", "zero"]),
)
schemas = st.builds(
    lambda columns, **kw: Schema(label="the class", columns=columns, **kw),
    columns=st.dictionaries(
        names.filter(lambda name: name not in ("the class", "split")),
        st.one_of(numbers, categories),
        min_size=1,
        max_size=4,
    ),
    classes=st.lists(words, min_size=1, max_size=3, unique=True).map(tuple),
    anchor=st.floats(0, 1000),
)


@given(schemas)
def test_what_is_written_is_read_again_with_the_same_digest(wanted):
    again = Schema.parsed(wanted.toml())
    assert again == wanted
    assert list(again.columns) == list(wanted.columns)
    assert again.digest == wanted.digest


def test_layout_does_not_change_the_digest_but_every_declaration_does():
    one = Schema.parsed(TOML).digest
    assert Schema.parsed(Schema.parsed(TOML).toml()).digest == one
    assert Schema.parsed(TOML.replace("# A comment.", "# Another.")).digest == one
    assert Schema.parsed(TOML.replace("[0, 120]", "[0.0, 120.0]")).digest == one
    changes = {
        "[0, 120]": "[0, 121]",
        "step = 1": "step = 2",
        "130.5": "130.6",
        "deviation = 20": "deviation = 21",
        '"clip"': '"refuse"',
        '"indicate"': '"refuse"',
        '"3a"': '"3b"',
        '"zero"': '"refuse"',
        '"outcome"': '"result"',
        '["died", "survived"]': '["survived", "died"]',
        "version = 1": "version = 1\nanchor = 2",
        "# A comment.": 'blank = [""]',
        "columns.age": "columns.years",
    }
    digests = {Schema.parsed(TOML.replace(old, new)).digest for old, new in changes.items()}
    assert len(digests | {one}) == len(changes) + 1


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("version = 1", "version = 2", "of version 1, got 2"),
        ("label =", "lable =", "schema.lable is not a setting; did you mean 'label'"),
        ('label = "outcome"', "", "label is missing"),
        ('label = "outcome"', 'label = "age"', "'age' column cannot be a feature too"),
        ('["died", "survived"]', '["died", "died"]', "and each class once"),
        ('["died", "survived"]', "[]", "and each class once"),
        ("version = 1", "anchor = -1", "anchor = -1: use a number >= 0"),
        ("version = 1", "anchor = inf", "anchor = inf: expected a finite number"),
        ("range = [0, 120]", "rang = [0, 120]", r"columns.age.rang is not a .*mean 'range'"),
        ("range = [0, 120]", "range = [120, 0]", r"columns.age: range = \[120, 0\]"),
        ("range = [0, 120]", "range = [0]", r"columns.age.range = \[0\]: expected a list of 2"),
        ("range = [0, 120]", 'range = ["a", 2]', r"columns.age.range\[0\] = 'a': expected a"),
        ("range = [0, 120]", "range = [0, nan]", r"columns.age.range\[1\] = nan: expected a"),
        ("range = [0, 120]", "range = [-1e308, 1e308]", "low < high"),
        ("range = [0, 120]", "", r"columns.age: expected a range"),
        ("step = 1", "step = 1e-9", "columns.age: step = 1e-09: expected a range"),
        ("step = 1", "step = 121", "columns.age: step = 121: expected a range"),
        ("step = 1", "step = 0", "columns.age: step = 0: expected a range"),
        ("step = 1", "mean = 3", "columns.age: expected both mean and deviation"),
        ("deviation = 20", "deviation = 0", "deviation = 0: use a number > 0"),
        ('"clip"', '"zero"', "outside = 'zero': expected 'refuse' or 'clip'"),
        ('"zero"', '"clip"', "outside = 'clip': expected 'refuse' or 'zero'"),
        ('[1, 2, "3a"]', "[]", "columns.grade: values = .*expected at least one category"),
        ('[1, 2, "3a"]', "[1, 1]", "columns.grade: values: a category is listed twice"),
        ('[1, 2, "3a"]', "3", "columns.grade.values = 3: expected a list"),
        ("[columns.age]", "[columns.split]", "'split' column cannot be a feature too"),
        ("[columns.age]", "[columns.age", "not valid TOML"),
        ("# A comment.", "columns = 3 #", "TOML|columns must be tables"),
    ],
)
def test_what_is_wrong_in_a_file_is_named_with_the_file(tmp_path, old, new, message):
    path = tmp_path / "agreed.toml"
    assert old in TOML
    path.write_text(TOML.replace(old, new))
    with pytest.raises(ConfigError, match=rf"agreed\.toml: .*{message}"):
        Schema.load(path)


@pytest.mark.parametrize("content", ["columns = 3\nlabel = 'y'", "label = 'y'\nclasses = ['a']"])
def test_a_schema_without_columns_is_refused(content):
    with pytest.raises(ConfigError, match="columns"):
        Schema.parsed(content)


def test_a_column_that_is_no_table_is_refused():
    with pytest.raises(ConfigError, match=r"columns\.age: expected a table"):
        Schema.parsed("label = 'y'\nclasses = ['a']\n[columns]\nage = 3")


def test_files_that_are_not_there_or_not_text_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"none\.toml: cannot be read"):
        Schema.load(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"bad\.toml"):
        Schema.load(tmp_path / "bad.toml")


# Cells


def test_numbers_are_standardized_by_their_range_or_by_mean_and_deviation():
    by_range = NumberColumn(range=(0.0, 120.0))
    assert by_range.scale == (60.0, 120 / math.sqrt(12))
    even = np.linspace(0, 120, 100_001)  # values spread evenly end up with deviation one
    assert by_range.encoded(even).std() == pytest.approx(1, abs=1e-4)
    given_ = NumberColumn(mean=50.0, deviation=4.0)
    assert given_.encoded(np.array([50.0, 58.0, 48.0])).tolist() == [[0], [2], [-0.5]]
    both = NumberColumn(range=(0.0, 120.0), mean=50.0, deviation=4.0)
    assert both.scale == (50.0, 4.0)


@pytest.mark.parametrize("cell", ["", "NA", "NaN", "nan", "null", None, float("nan"), "  "])
def test_gaps_are_refused_or_indicated(cell):
    table = cells(age=[61, cell, 80])
    with pytest.raises(
        DataError, match=r"ward\.csv: row 2: 'age' is missing; .*missing = 'indicate'"
    ):
        schema(age=NumberColumn(range=(0.0, 120.0))).read(table)
    column = NumberColumn(range=(0.0, 120.0), missing="indicate")
    read = schema(age=column).read(table)["age"]
    assert column.encoded(read)[:, 1].tolist() == [0, 1, 0]
    assert column.encoded(read)[1, 0] == 0


@pytest.mark.parametrize("cell", ["sixty", "1,5", "inf", "-inf", "1_000", True, "0x10"])
def test_what_is_not_a_number_is_refused_by_row(cell):
    table = cells(age=["61", cell])
    with pytest.raises(DataError, match=r"ward\.csv: row 2: age = .* is not a finite number"):
        schema(age=NumberColumn(mean=0.0, deviation=1.0, missing="indicate")).read(table)


def test_a_gap_that_is_not_declared_is_refused():
    declared = Schema(
        label="y",
        classes=("no", "yes"),
        columns={"age": NumberColumn(range=(0.0, 120.0), missing="indicate")},
        blank=("-9",),
    )
    assert np.isnan(declared.read(cells(age=["-9"]))["age"]).all()
    for word in ("nan", "NA", ""):
        with pytest.raises(DataError, match="is not a finite number"):
            declared.read(cells(age=[word]))


def test_values_outside_the_range_are_refused_or_clipped():
    table = Table(name="ward.csv", columns={"age": ["0", "120", "120.5", "-3"]}, start=40)
    with pytest.raises(DataError, match=r"row 43: age = 120\.5 is outside .* from 0 to 120"):
        schema(age=NumberColumn(range=(0.0, 120.0))).read(table)
    clipped = schema(age=NumberColumn(range=(0.0, 120.0), outside="clip")).read(table)["age"]
    assert clipped.tolist() == [0, 120, 120, 0]


def test_categories_are_ones_and_zeros():
    column = CategoryColumn(values=("1", "2", "f"), outside="zero", missing="indicate")
    read = schema(c=column).read(cells(c=["f", 2, 1.0, "x", None, "NA"]))["c"]
    assert column.encoded(read).tolist() == [
        [0, 0, 1, 0],
        [0, 1, 0, 0],
        [1, 0, 0, 0],
        [0, 0, 0, 0],
        [0, 0, 0, 1],
        [0, 0, 0, 1],
    ]


def test_unknown_categories_and_gaps_are_refused_by_row():
    strict = schema(sex=CategoryColumn(values=("f", "m")))
    with pytest.raises(DataError, match=r"ward\.csv: row 3: sex = 'F' is not among f, m"):
        strict.read(cells(sex=["f", "m", "F", "", "x"]))
    with pytest.raises(DataError, match=r"ward\.csv: row 2: 'sex' is missing"):
        strict.read(cells(sex=["f", "", "F"]))


def test_a_listed_word_is_a_category_even_if_it_stands_for_a_gap_elsewhere():
    read = schema(c=CategoryColumn(values=("NA", "EU"))).read(cells(c=["EU", "NA"]))
    assert read["c"].tolist() == [1, 0]


def test_a_column_that_is_not_there_is_refused_with_a_proposal():
    with pytest.raises(DataError, match=r"ward\.csv: column 'age' is missing; did you mean 'Age'"):
        schema(age=NumberColumn(range=(0.0, 120.0))).read(cells(Age=[3]))


def test_classes_are_coded_in_the_agreed_order():
    agreed = Schema(
        label="y", classes=("yes", "no", "2"), columns={"a": CategoryColumn(values=("x",))}
    )
    assert agreed.codes(cells(y=["no", " yes", 2, 2.0])).tolist() == [1, 0, 2, 2]
    with pytest.raises(DataError, match=r"row 2: y = 'maybe' is not among the classes yes, no, 2"):
        agreed.codes(cells(y=["no", "maybe"]))
    with pytest.raises(DataError, match="row 1: y = ''"):
        agreed.codes(cells(y=[None]))


# Drafts


@given(finite, finite)
def test_drafted_ranges_hold_what_was_seen_and_not_much_more(a, b):
    low, high = min(a, b), max(a, b)
    bottom, top = rounded_outwards(low, high)
    assert bottom <= low <= high <= top
    assert bottom < top
    width = (high - low) or abs(low) or 1.0
    assert low - bottom <= width * (1 + 1e-9)
    assert top - high <= width * (1 + 1e-9)
    if low >= 0:
        assert bottom >= 0


def test_drafted_ranges_hold_values_next_to_a_round_number():
    above = math.nextafter(3.6, 4)  # divided by the unit, a tenth, it is rounded to 36
    assert rounded_outwards(3.2, above) == (3.2, above)


def test_a_draft_tells_numbers_from_categories_and_leaves_out_what_is_neither():
    many = [f"word {i}" for i in range(150)]
    table = cells(
        **{"": list(range(150))},
        whole=[str(i % 60) for i in range(150)],
        tenth=[f"{i / 10}" for i in range(150)],
        tiny=["1e-7", *["2.5"] * 149],
        gaps=["", *["4"] * 149],
        code=["a", "b", "NA"] * 50,
        mixed=["7", "x"] * 75,
        name=many,
        nothing=[None] * 150,
        huge=["-1e308", "1e308"] * 75,
        id=many,
        y=["b", "a"] * 75,
    )
    made, left_out = draft([table], label="y", without=["id"])
    assert made.classes == ("a", "b")
    assert made.columns == {
        "whole": NumberColumn(range=(0.0, 60.0), step=1.0),
        "tenth": NumberColumn(range=(0.0, 20.0), step=0.1),
        "tiny": NumberColumn(range=(0.0, 3.0)),
        "gaps": NumberColumn(range=(4.0, 5.0), step=1.0, missing="indicate"),
        "code": CategoryColumn(values=("a", "b"), missing="indicate"),
        "mixed": CategoryColumn(values=("7", "x")),
    }
    assert left_out == {
        "": "has no name",
        "name": "has more than 100 different words",
        "nothing": "has no values",
        "huge": "has a range that is not finite",
    }


def test_a_draft_fits_the_table_it_was_made_from():
    rng = np.random.default_rng(0)
    table = cells(a=rng.normal(size=50), b=rng.integers(0, 9, 50), y=["x", "z"] * 25)
    made, _ = draft([table], label="y")
    assert set(made.read(table)) == {"a", "b"}


def test_a_draft_is_the_same_however_the_file_is_read(tmp_path):
    path = tmp_path / "a.csv"
    rng = np.random.default_rng(1)
    lines = [f"{rng.normal():.3f},{rng.choice(['f', 'm', ''])},{k % 3}" for k in range(40)]
    path.write_text("\n".join(["dose,sex,y", *lines]))
    drafts = {draft(read_tables(path, rows=rows), label="y")[0].digest for rows in (1, 7, 100)}
    assert len(drafts) == 1


def test_test_rows_have_no_say_in_a_draft(tmp_path):
    table = cells(a=[1, 2, 999], c=["f", "f", "m"], y=["x", "z", "w"], split=[0, 1, 2])
    made, _ = draft([table], label="y")
    assert made.columns["a"].range == (1.0, 2.0)
    assert made.columns["c"].values == ("f",)
    assert made.classes == ("w", "x", "z")
    path = tmp_path / "a.csv"
    path.write_text("a,c,y,split\n1,f,x,0\n2,f,z,1\n999,m,w,2\n")
    own, _ = draft_for_file(path, label="y")
    assert (own.columns["a"].mean, own.columns["a"].deviation) == (1.5, 0.5)
    assert own.read(table)["a"].tolist() == [1, 2, 2]
    assert own.read(table)["c"].tolist() == [0, 0, -1]


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ({"a": [1], "y": [None]}, {}, "'y' is missing in some rows"),
        ({"a": [1], "y": [1]}, {"label": "z"}, "column 'z' is missing"),
        ({"a": [1], "y": [1]}, {"without": ["b"]}, "column 'b' is missing"),
        ({"a": [1], "y": [1]}, {"without": ["a"]}, "no feature columns"),
        ({"y": [1]}, {}, "no feature columns"),
    ],
)
def test_tables_that_cannot_be_drafted_are_refused(columns, options, message):
    with pytest.raises(DataError, match=message):
        draft([cells(**columns)], **{"label": "y", **options})


# Numbers at the edge of what floats can represent


def test_negative_zero_does_not_change_a_schema():
    agreed, signed = (
        Schema(
            label="y",
            classes=("no", "yes"),
            columns={
                "a": NumberColumn(range=(zero, 1.0)),
                "b": NumberColumn(range=(-1.0, zero), mean=zero, deviation=1.0),
            },
            anchor=zero,
        )
        for zero in (0.0, -0.0)
    )
    assert signed.digest == agreed.digest
    assert Schema.parsed(signed.toml()).digest == signed.digest
    assert math.copysign(1, signed.columns["a"].range[0]) == 1


@pytest.mark.parametrize("high", ["5e-324", "1e-320", "0." + "0" * 400 + "1"])
def test_a_column_of_the_smallest_numbers_is_left_out_of_a_draft(high):
    table = cells(a=["0.0", high], b=["1", "2"], y=["no", "yes"])
    agreed, left_out = draft([table], label="y")
    if float(high):
        assert "too narrow" in left_out["a"]
        assert rounded_outwards(0.0, float(high))[1] >= float(high)
    else:  # the number is zero as a float
        assert agreed.columns["a"].range == (0.0, 1.0)
    assert "b" in agreed.columns


def test_a_range_too_narrow_for_its_steps_is_refused():
    with pytest.raises(ConfigError, match="too narrow"):
        NumberColumn(range=(0.0, 5e-324))
