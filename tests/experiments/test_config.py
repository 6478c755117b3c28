"""Configurations: TOML tables, overrides, and what is refused."""

import json
import tomllib
from dataclasses import asdict

import pytest

from fedgram.errors import ConfigError
from fedgram.experiments.config import DEFAULT_METHODS, VERSION, Config, Data, load, read
from fedgram.features.grid import Grid
from fedgram.features.lift import Lift
from fedgram.federation.method import create_method, names


def refused(settings):
    with pytest.raises(ConfigError) as caught:
        read(settings)
    message = str(caught.value)
    assert "\n" not in message
    return message


def written(tmp_path, text):
    path = tmp_path / "run.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_nothing_gives_the_defaults():
    assert read({}) == load(None) == Config()
    assert Config().methods == DEFAULT_METHODS


def test_tables_are_read_from_a_file(tmp_path):
    text = """
        version = 1
        methods = ["afl", "fedhip"]
        [data]
        clients = 7
        partition = "shards"
        [grid]
        bits = 4
        [engine]
        workers = 2
        [method.fedhip]
        alpha = 3
        lift = { width = 32, activation = "gelu" }
    """
    config = load(written(tmp_path, text))
    assert config.data == Data(clients=7, partition="shards")
    assert config.grid == Grid(bits=4)
    assert config.engine.workers == 2
    assert config.methods == ("afl", "fedhip")
    fedhip = config.make("fedhip")
    assert (fedhip.alpha, fedhip.lift) == (3.0, Lift(width=32, activation="gelu"))


@pytest.mark.parametrize(
    ("settings", "proposal"),
    [
        ({"dta": {}}, "'data'"),
        ({"data": {"client": 3}}, "'clients'"),
        ({"engine": {"worker": 3}}, "'workers'"),
        ({"grid": {"bit": 3}}, "'bits'"),
        ({"methods": ["fedhipp"]}, "'fedhip'"),
        ({"method": {"afll": {}}}, "'afl'"),
        ({"method": {"afl": {"rigde": 1}}}, "'ridge'"),
        ({"method": {"afl": {"lift": {"widht": 1}}}}, "'width'"),
    ],
)
def test_unknown_names_are_refused_with_the_nearest(settings, proposal):
    assert f"did you mean {proposal}?" in refused(settings)


@pytest.mark.parametrize(
    ("settings", "where"),
    [
        ({"data": {"clients": "many"}}, "data.clients"),
        ({"data": {"dirichlet": "small"}}, "data.dirichlet"),
        ({"data": 3}, "data"),
        ({"engine": {"private": "yes"}}, "engine.private"),
        ({"grid": {"bits": 17}}, "grid.bits"),
        ({"grid": "on"}, "grid.bits"),
        ({"method": 3}, "method"),
        ({"method": {"afl": 3}}, "method.afl"),
        ({"method": {"afl": {"ridge": "large"}}}, "method.afl.ridge"),
        ({"method": {"afl": {"lift": 3}}}, "method.afl.lift"),
        ({"methods": "afl"}, "methods"),
        ({"methods": []}, "methods"),
        ({"methods": [3]}, "methods"),
        ({"methods": [["afl"]]}, "methods"),
    ],
)
def test_wrong_values_are_refused_by_name(settings, where):
    assert where in refused(settings)


def test_another_version_is_refused():
    assert "upgrade" in refused({"version": VERSION + 1})
    assert read({"version": VERSION}) == Config()


OF_VERSION_1 = {  # what settings then meant, as today's names and settings
    "its default": ({}, "apfl-linear", {}),
    "a setting": ({"method": {"apfl": {"balance": 0.3}}}, "apfl-linear", {"balance": 0.3}),
    "every method's": ({"every": {"ridge": 3.0}}, "apfl-linear", {"ridge": 3.0}),
    "a lift of one stream": (
        {"method": {"apfl": {"refinement": {"width": 9}}}, "every": {"ridge": 3.0}},
        "apfl",
        {
            "ridge": 3.0,
            "refinement_ridge": 300.0,
            "balance": 0.5,
            "primary": {"width": 0},
            "refinement": {"width": 9, "seed": 1},
        },
    ),
}


@pytest.mark.parametrize(("more", "name", "given"), OF_VERSION_1.values(), ids=OF_VERSION_1)
def test_apfl_of_version_1_has_its_defaults_of_then(more, name, given):
    config = read({"version": 1, "methods": ["apfl"], **more})
    assert config.methods == (name,)
    assert config.make(name) == create_method(name, given)
    today = read({"methods": ["apfl"], **more})
    assert today.methods == ("apfl",)
    assert today.make("apfl") != config.make(name)


def test_the_grid_may_be_switched_off_in_one_word():
    assert read({"grid": "off"}).grid == read({"grid": {"bits": "off"}}).grid == Grid(bits="off")


def test_a_method_is_listed_once():
    assert read({"methods": ["afl", "local", "afl"]}).methods == ("afl", "local")


def test_settings_of_a_method_that_is_not_run_are_checked_too():
    assert "rigde" in refused({"methods": ["local"], "method": {"afl": {"rigde": 1}}})


# Overrides


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("data.clients=50", {"data": {"clients": 50}}),
        ("data.dirichlet = 0.5", {"data": {"dirichlet": 0.5}}),
        ("data.partition=iid", {"data": {"partition": "iid"}}),
        ('data.partition="iid"', {"data": {"partition": "iid"}}),
        ("engine.private=true", {"engine": {"private": True}}),
        ("grid=off", {"grid": "off"}),
        ("methods=['afl']", {"methods": ["afl"]}),
        ("method.apfl.balance=0.3", {"method": {"apfl": {"balance": 0.3}}}),
        ("method.afl.lift.width=32", {"method": {"afl": {"lift": {"width": 32}}}}),
        ("method.afl.lift={width=32}", {"method": {"afl": {"lift": {"width": 32}}}}),
        ("data.source=a=b.npz", {"data": {"source": "a=b.npz"}}),
    ],
)
def test_an_override_is_a_setting(text, expected):
    assert load(None, [text]) == read(expected)


def test_overrides_go_before_the_file_and_later_ones_before_earlier_ones(tmp_path):
    path = written(tmp_path, "[data]\nclients = 7\nshards = 4\n")
    config = load(path, ["data.clients=8", "data.clients=9"])
    assert (config.data.clients, config.data.shards) == (9, 4)


def test_chosen_methods_go_before_the_file(tmp_path):
    path = written(tmp_path, 'methods = ["afl"]\n')
    assert load(path).methods == ("afl",)
    assert load(path, methods=["local", "apfl"]).methods == ("local", "apfl")


@pytest.mark.parametrize("text", ["data.clients", "=3", " = 3", ""])
def test_an_override_must_be_a_key_and_a_value(text):
    with pytest.raises(ConfigError, match="write key=value"):
        load(None, [text])


def test_a_value_is_not_a_table(tmp_path):
    with pytest.raises(ConfigError, match="clients is a value, not a table"):
        load(written(tmp_path, "[data]\nclients = 7\n"), ["data.clients.x=3"])


# Files


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"none\.toml: cannot be read"):
        load(tmp_path / "none.toml")


@pytest.mark.parametrize(
    "content", [b"data = ", b"[data]\nclients = 1\nclients = 2\n", b"\xff\xfe"]
)
def test_a_file_that_is_not_toml_is_refused(tmp_path, content):
    path = tmp_path / "run.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"run\.toml: not valid TOML"):
        load(path)


# Round trips


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"data": {"clients": 3, "split": "within-client"}, "grid": "off"},
        {"methods": ["afl"], "method": {"afl": {"ridge": 2, "lift": {"width": 8}}}},
    ],
)
def test_what_is_recorded_reads_back_as_the_same_configuration(settings):
    config = read(settings)
    recorded = json.loads(json.dumps(config.to_dict()))
    again = read(recorded)
    assert again == config
    for name in config.methods:
        assert again.make(name) == config.make(name)


def toml(table):
    """Write plain settings as an inline TOML table."""
    if isinstance(table, dict):
        return "{" + ", ".join(f"{key} = {toml(value)}" for key, value in table.items()) + "}"
    return json.dumps(table)


@pytest.mark.parametrize("name", names())
def test_every_methods_parameters_round_trip_through_toml(name):
    method = Config().make(name)
    text = f"[method]\n{name} = {toml(asdict(method))}\n"
    assert read(tomllib.loads(text)).make(name) == method
