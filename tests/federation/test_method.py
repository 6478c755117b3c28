"""How methods are found, made and described."""

import dataclasses
import json

import pytest

from fedgram.data.sources import load_dataset
from fedgram.errors import ConfigError
from fedgram.experiments.runner import run
from fedgram.features.lift import Lift
from fedgram.federation.federated_dataset import federate
from fedgram.federation.method import create_method, find_method, names, parameters, summary

METHODS = names()


def changed(value, width):
    """Return another value of the same kind that a parameter may well take."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, Lift):
        return Lift(width=width, activation="tanh", seed=5)
    return {float: lambda: value / 2 or 0.25, int: lambda: value + 1}.get(
        type(value), lambda: value
    )()


@pytest.mark.parametrize("name", METHODS)
def test_a_method_is_a_frozen_keyword_only_dataclass_with_defaults(name):
    kind = find_method(name)
    method = kind()
    assert all(field.kw_only for field in dataclasses.fields(kind))
    for field in dataclasses.fields(kind):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(method, field.name, None)


@pytest.mark.parametrize("name", METHODS)
def test_a_method_is_made_of_plain_settings(name):
    plain = json.loads(json.dumps(dataclasses.asdict(find_method(name)())))
    assert create_method(name, plain) == create_method(name) == find_method(name)()


@pytest.mark.parametrize("name", METHODS)
def test_changed_parameters_round_trip(name):
    method = find_method(name)()
    width = 0 if name == "apfl-linear" else 8  # which refuses lifts
    fields = [field.name for field in dataclasses.fields(method)]
    other = dataclasses.replace(
        method, **{field: changed(getattr(method, field), width) for field in fields}
    )
    assert create_method(name, json.loads(json.dumps(dataclasses.asdict(other)))) == other != method


@pytest.mark.parametrize("name", METHODS)
def test_every_parameter_is_described_with_its_default(name):
    kind = find_method(name)
    described = {p.name: p for p in parameters(kind)}
    assert set(described) == {field.name for field in dataclasses.fields(kind)}
    for parameter in described.values():
        assert parameter.text
        assert parameter.default == getattr(kind(), parameter.name)
    assert summary(kind)
    assert "\n" not in summary(kind)


@pytest.mark.parametrize("name", METHODS)
def test_an_unknown_parameter_is_refused_by_name(name):
    with pytest.raises(ConfigError, match=rf"method\.{name}\.zzz is not a setting"):
        create_method(name, {"zzz": 1})


@pytest.mark.parametrize("name", ["", "zzz", "__init__", "AFL", "afl "])
def test_an_unknown_method_is_refused(name):
    with pytest.raises(ConfigError, match="is not known"):
        find_method(name)


# Methods of one's own

OWN = '''
from dataclasses import dataclass

from fedgram import Lift, Linear, Method, Statistics, step


@dataclass(frozen=True, kw_only=True)
class Mine(Method[Linear]):
    """Mine: a method in a file of its own.

    Parameters
    ----------
    ridge
        A weight.
    lift
        A projection.
    """

    ridge: float = 100.0
    lift: Lift = Lift()

    @step
    def statistics(self, client, _):
        return Statistics.of(self.lift(client.samples.features), client.samples.labels)

    def fit(self, federation):
        yield Linear.of(federation.sum(self.statistics), ridge=self.ridge, lift=self.lift)

    def personalize(self, client, shared):
        return shared
'''


@pytest.fixture(params=["", "from __future__ import annotations\n"], ids=["plain", "future"])
def own(request, tmp_path):
    """A method's file, with annotations as types or, like all of fedgram's, as texts."""
    path = tmp_path / "mine.py"
    path.write_text(request.param + OWN, encoding="utf-8")
    return str(path)


def test_a_file_of_ones_own_is_a_method(own):
    method = create_method(own, {"ridge": 3, "lift": {"width": 8}})
    assert (method.ridge, method.lift) == (3.0, Lift(width=8))
    everybody = federate(load_dataset("digits"))
    known = create_method("afl", dataclasses.asdict(method))
    assert run(method, everybody).model_digest == run(known, everybody).model_digest


def test_a_file_of_ones_own_is_described_like_any_method(own):
    kind = find_method(own)
    assert summary(kind) == "Mine: a method in a file of its own."
    assert [p.text for p in parameters(kind)] == ["A weight.", "A projection."]


def test_a_file_named_like_a_known_module_is_a_method_too(tmp_path):
    path = tmp_path / "json.py"
    path.write_text("from __future__ import annotations\n" + OWN, encoding="utf-8")
    assert create_method(str(path), {"lift": {"width": 8}}).lift == Lift(width=8)
    assert json.dumps({}) == "{}"


def test_two_files_of_one_name_are_two_methods(tmp_path):
    for folder, ridge in (("a", "1.0"), ("b", "2.0")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.py").write_text(OWN.replace("100.0", ridge), encoding="utf-8")
    assert [create_method(str(tmp_path / f / "mine.py")).ridge for f in "ab"] == [1.0, 2.0]


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="no such file"):
        find_method(str(tmp_path / "none.py"))
    with pytest.raises(ConfigError):
        find_method("a" * 300 + ".py")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", 0),
        ("from fedgram import Method\nclass Plain(Method): ...\n", "one that is not"),
        (OWN + OWN.replace("class Mine", "class Yours"), 2),
        ("from fedgram.methods.afl import AFL\n", 0),
    ],
)
def test_a_file_without_exactly_one_dataclass_is_refused(tmp_path, text, found):
    path = tmp_path / "mine.py"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=f"expected one dataclass.*found {found}"):
        find_method(str(path))
