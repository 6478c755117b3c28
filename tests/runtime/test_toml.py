"""TOML as it is written: Python's own reader gives the settings back."""

import tomllib

from hypothesis import given
from hypothesis import strategies as st

from fedgram.experiments.config import Config, read
from fedgram.runtime.toml import written

texts = st.text(st.characters(exclude_categories=["Cs"]))
numbers = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False)
values = st.recursive(
    st.booleans() | numbers | texts,
    lambda some: st.lists(some, max_size=3) | st.dictionaries(texts, some, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(texts, st.dictionaries(texts, values, max_size=3) | values, max_size=4))
def test_what_is_written_is_read_back(settings):
    assert tomllib.loads(written(settings)) == settings


def test_what_is_none_is_left_out():
    settings = {"a": None, "b": {"c": None, "d": 1}, "e": {"f": {"g": {"h": None}}}}
    assert tomllib.loads(written(settings)) == {"b": {"d": 1}, "e": {"f": {"g": {}}}}


def test_a_configuration_is_read_back():
    config = read(
        {
            "data": {"clients": 3, "dirichlet": 1e-5},
            "grid": "off",
            "methods": ["apfl"],
            "method": {"apfl": {"primary": {"width": 64}, "balance": 0.25}},
        }
    )
    for one in (config, Config()):
        assert read(tomllib.loads(written(one.to_dict()))) == one
