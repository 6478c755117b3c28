"""Names that enter, texts that are printed, cells of CSV files: hostile ones among them."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgram.errors import DataError
from fedgram.runtime.text import clean_name, csv_cell, escaped, normalized, one_line

ANY = st.text(st.characters(), max_size=30)  # surrogates and controls among them
NAMES = st.text(st.characters(categories=["L", "M", "N", "P", "S"]), min_size=1, max_size=30)


@given(NAMES)
def test_all_spellings_of_a_name_are_one_name(name):
    clean = clean_name(name)
    for form in ("NFC", "NFD"):
        assert clean_name(f"  {unicodedata.normalize(form, name)}\n") == clean
    assert clean_name(clean) == clean == normalized(name)


@given(ANY)
def test_a_clean_name_can_be_printed_and_written(name):
    try:
        clean = clean_name(name)
    except DataError as error:
        assert "\n" not in str(error)  # noqa: PT017
        return
    assert clean.isprintable()
    assert clean.encode()
    assert clean == clean.strip() != ""


@pytest.mark.parametrize(
    "name",
    ["", "  ", "a\x00b", "a\x1b[2J", "a\nb", "a\u202eb", "\ud800", "a\u200bb", "a" * 1001, 5],
)
def test_names_that_deceive_are_refused(name):
    with pytest.raises(DataError, match="client"):
        clean_name(name, "client")


@given(ANY)
def test_what_is_printed_has_no_control_characters(text):
    assert escaped(text).isprintable()
    assert one_line(text).isprintable()
    assert escaped(text, keep="\n").replace("\n", "").isprintable()
    assert escaped(escaped(text)) == escaped(text)
    if text.isprintable():
        assert escaped(text) == text


@given(ANY | st.sampled_from(["=1+1", "@a", "+a", "-a", "\ta", "\ra", "-1", "+2e5", "-inf"]))
def test_no_cell_is_a_formula(text):
    cell = csv_cell(text)
    if cell[:1] in tuple("=+-@\t\r"):
        float(cell)  # a number, and nothing to compute
    assert cell.lstrip("'") == text.lstrip("'")


@given(st.floats() | st.integers() | st.none())
def test_numbers_stay_numbers(value):
    assert csv_cell(value) is value
