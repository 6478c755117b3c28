"""JSON and TOML: the values of Python's parsers, and ValueError where those fail otherwise."""

import json
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgram.runtime.parse import MOST_DEPTH, MOST_TOML, json_object, json_value, toml_table
from fedgram.runtime.toml import written

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)
SETTINGS = st.dictionaries(
    st.text("abc-_ .\"'#[]{}=", min_size=1, max_size=9),
    st.booleans() | st.integers(-9, 9) | TEXTS | st.lists(TEXTS, max_size=3),
    max_size=4,
)


@given(PLAIN)
def test_json_is_read_as_python_reads_it(value):
    for text in (json.dumps(value), json.dumps(value, ensure_ascii=False)):
        assert json_value(text) == value


@given(SETTINGS)
def test_toml_is_read_as_python_reads_it(settings):
    text = written({"a": settings, **settings})
    assert toml_table(text) == tomllib.loads(text)


def strings(kind):
    """Return texts with strings that look like structure, which they are not."""
    many = {"deep": "[" * 500 + "{" * 500, "dotted": ".".join("a" * 500), "quote": "'" * 3}
    if kind == "json":
        return json.dumps([*many.values(), '\\"[' * 200])
    return (
        f"a = \"{many['deep']}\"\nb = '{many['dotted']}'\n# {many['deep']} don't\n"
        f'c = """{many["deep"]}\n" "" \\""" {many["dotted"]}"""\n'
        f"d = '''{many['dotted']} ' '' {many['deep']}'''\n"
        f'e = """""{many["deep"]}"""""\nf = ""\ng = \'\'\n'
    )


def test_structure_inside_strings_does_not_count():
    assert json_value(strings("json"))[0] == "[" * 500 + "{" * 500
    assert toml_table(strings("toml")) == tomllib.loads(strings("toml"))


def test_the_limit_of_depth_is_one_for_all_ways_to_nest():
    def nested(depth):
        return "[" * depth + "]" * depth

    assert json_value(nested(MOST_DEPTH)) is not None
    assert toml_table(f"a = {nested(MOST_DEPTH - 1)}")
    dotted = ".".join("a" * 32)
    for wrong in (
        f"a = {nested(MOST_DEPTH + 1)}",
        f"{dotted} = {{ {dotted} = {{ {dotted} = 1 }} }}",
    ):
        with pytest.raises(ValueError, match="deeper"):
            toml_table(wrong)
    for long in ('"a b"' + ".a" * 70 + " = 1", "[" + " . ".join(['"a.b"'] * 70) + "]"):
        with pytest.raises(ValueError, match="a key of more than 64 names"):  # before it is parsed
            toml_table(long)
    with pytest.raises(ValueError, match="deeper"):
        json_value(nested(MOST_DEPTH + 1))


@pytest.mark.parametrize("text", ["9" * 301, "-" + "9" * 5000, '{"a": ' + "1" * 10**6 + "}"])
def test_integers_that_no_float_holds_are_refused(text):
    with pytest.raises(ValueError, match="digits"):
        json_value(text)


@pytest.mark.parametrize("text", ["9" * 5000, "9223372036854775808", "0x" + "f" * 5000, "-0"])
def test_integers_of_toml_have_64_bits(text):
    if text == "-0":
        assert toml_table(f"a = {text}") == {"a": 0}
        return
    with pytest.raises(ValueError, match=r"64 bits|digits"):
        toml_table(f"a = {text}")


def test_a_long_text_is_not_parsed():
    with pytest.raises(ValueError, match="at most"):
        toml_table("#" * (MOST_TOML + 1))


@pytest.mark.parametrize("text", ['"\\ud800"', '{"\\uDFFF": 1}', '["\\uD83D"]'])
def test_half_a_character_is_refused(text):
    with pytest.raises(ValueError, match="surrogates"):
        json_value(text)
    assert json_value('"\\ud83d\\ude00"') == "\U0001f600"


@pytest.mark.parametrize("text", ['{"a": 1, "a": 2}', '{"b": {"a": 1, "a": 1}}', "[]", "1", "null"])
def test_an_object_has_each_key_once(text):
    with pytest.raises(ValueError, match=r"twice|expected an object"):
        json_object(text)
