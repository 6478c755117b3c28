"""Plain settings become dataclasses; wrong ones are refused by name."""

from dataclasses import dataclass, field
from typing import Literal

import pytest

from fedgram.errors import ConfigError
from fedgram.runtime.settings import build, propose


@dataclass(frozen=True, kw_only=True)
class Inner:
    width: int = 0
    name: str = "relu"


@dataclass(frozen=True, kw_only=True)
class Outer:
    ridge: float = 1.0
    rounds: int = 3
    private: bool = False
    clients: int | None = None
    solver: Literal["auto", "server"] = "auto"
    bits: int | Literal["off"] = 8
    mean: float | tuple[float, ...] = 0.5
    inner: Inner = field(default_factory=Inner)
    words: tuple[str, ...] = ()
    ends: tuple[float, float] | None = None


def built(**settings):
    return build(Outer, settings, "table")


def refused(**settings):
    with pytest.raises(ConfigError) as caught:
        built(**settings)
    return str(caught.value)


def test_nothing_gives_the_defaults():
    assert built() == Outer()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("ridge", 2.5),
        ("rounds", 7),
        ("private", True),
        ("clients", 5),
        ("clients", None),
        ("solver", "server"),
        ("bits", 4),
        ("bits", "off"),
        ("mean", 0.25),
        ("mean", (0.25, 1.0)),
    ],
)
def test_values_of_the_right_type_are_taken(key, value):
    assert built(**{key: value}) == Outer(**{key: value})


def test_whole_numbers_stand_for_floats():
    ridge = built(ridge=3).ridge
    assert (ridge, type(ridge)) == (3.0, float)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("ridge", "much"),
        ("ridge", True),
        ("rounds", 2.0),
        ("rounds", "2"),
        ("rounds", True),
        ("rounds", False),
        ("private", 1),
        ("private", "yes"),
        ("clients", 2.5),
        ("clients", True),
        ("clients", False),
        ("solver", "client"),
        ("solver", 3),
        ("bits", "on"),
        ("bits", False),
        ("inner", 3),
        ("inner", "relu"),
        ("ridge", [1.0]),
        ("ridge", {"a": 1.0}),
    ],
)
def test_values_of_another_type_are_refused_by_name(key, value):
    message = refused(**{key: value})
    assert message.startswith(f"table.{key} = {value!r}: ")
    assert "\n" not in message


def test_a_choice_is_refused_with_the_words_that_are_right():
    message = refused(solver="client")
    assert "'auto'" in message
    assert "'server'" in message


def test_a_word_besides_a_type_is_named_too():
    assert "off" in refused(bits="on")


def test_lists_are_taken_item_by_item():
    assert built(mean=[0, 0.5]).mean == (0.0, 0.5)
    assert refused(mean=[0.5, "gray"]).startswith(
        "table.mean[1] = 'gray': expected a finite number"
    )
    assert "a finite number or a list" in refused(mean="gray")


def test_tables_nest():
    assert built(inner={"width": 16}) == Outer(inner=Inner(width=16))
    assert built(inner={}) == Outer()


def test_errors_name_the_nested_key():
    assert refused(inner={"width": "wide"}).startswith("table.inner.width = 'wide'")
    assert "table.inner.widht is not a setting; did you mean 'width'?" in refused(
        inner={"widht": 1}
    )


def test_an_unknown_key_is_refused_with_the_nearest():
    assert refused(rigde=1.0) == "table.rigde is not a setting; did you mean 'ridge'?"


def test_an_unknown_key_that_is_near_to_none_is_refused_with_all():
    message = refused(xyz=1)
    assert all(name in message for name in ("ridge", "rounds", "private", "inner"))


def test_a_proposal_names_one_near_word_or_all():
    assert propose("cleint", ["client", "server"]) == "did you mean 'client'?"
    assert propose("zzz", ["client", "server"]) == "there are: client, server"


def test_lists_become_tuples_of_the_wanted_types():
    assert built(words=["a", "b"], ends=[0, 2.5]) == Outer(words=("a", "b"), ends=(0.0, 2.5))
    assert built(words=[]) == Outer()


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("words", "a", "table.words = 'a': expected a list"),
        ("words", ["a", 3], "table.words[1] = 3: expected a text"),
        ("ends", [1, 2, 3], "table.ends = [1, 2, 3]: expected a list of 2"),
        ("ends", [1, float("nan")], "table.ends[1] = nan: expected a finite number"),
        ("ends", 3, "table.ends = 3: expected a list of 2"),
    ],
)
def test_lists_of_other_lengths_or_types_are_refused(key, value, message):
    assert refused(**{key: value}) == message


@dataclass(frozen=True, kw_only=True)
class Streams:
    first: Inner = field(default_factory=Inner)
    second: Inner = field(default_factory=lambda: Inner(width=5, name="tanh"))


def test_a_part_of_a_nested_table_keeps_the_rest_of_the_fields_own_default():
    found = build(Streams, {"second": {"width": 64}}, "table")
    assert found.second == Inner(width=64, name="tanh")
    assert found.first == Inner()


def test_the_second_stream_of_apfl_keeps_its_seed():
    from fedgram import create_method

    method = create_method("apfl", {"refinement": {"width": 64}})
    assert (method.refinement.width, method.refinement.seed) == (64, 1)
    assert method.primary.seed == 0
