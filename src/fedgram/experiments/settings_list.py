"""Every setting of a run: meaning, default and current value, from the code that reads it."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass
from typing import Any

from fedgram.errors import ConfigError
from fedgram.experiments.config import TABLES, Config
from fedgram.federation.method import find_method, method_name, names, parameters
from fedgram.runtime.settings import propose

_LONGEST = 12  # characters of a number


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One setting.

    Parameters
    ----------
    key
        Its name, as ``-s`` and TOML files use it.
    default
        Its default.
    value
        Its current value.
    text
        Its meaning.
    """

    key: str
    default: Any
    value: Any
    text: str

    @property
    def changed(self) -> bool:
        """Whether the current value is not the default."""
        return bool(self.value != self.default)


def settings_of(config: Config, methods: Sequence[str] | None = None) -> list[Setting]:
    """Return all settings of a run; parameters are those of the methods of the configuration.

    Parameters
    ----------
    config
        The configuration.
    methods
        Methods whose parameters are listed; by default those of the configuration.

    Examples
    --------
    >>> config = Config(methods=("afl",))
    >>> [one.key for one in settings_of(config)][:3]
    ['methods', 'keep_models', 'calibrate']
    >>> settings_of(config)[-1].key
    'method.afl.lift'
    """
    found = list(_top(config))
    for table, kind in TABLES.items():
        found += _fields(table, kind, getattr(config, table))
    for name in config.methods if methods is None else methods:
        found += _of_method(config, name)
    return found


def selected(settings: Sequence[Setting], words: Sequence[str]) -> list[Setting]:
    """Return the settings whose key is one of some words or begins with it.

    Examples
    --------
    >>> [one.key for one in selected(settings_of(Config()), ["grid"])]
    ['grid.bits', 'grid.clip']
    """
    for word in words:
        if not any(_is_below(one.key, word) for one in settings):
            tables = dict.fromkeys(one.key.partition(".")[0] for one in settings)
            keys = [one.key for one in settings]
            raise ConfigError(f"{word}: no such setting; {propose(word, [*keys, *tables])}")
    return [one for one in settings if any(_is_below(one.key, word) for word in words)]


def keys() -> list[str]:
    """Return the keys of all settings, of all methods that come with fedgram."""
    methods = [
        f"method.{name}.{parameter.name}"
        for name in names()
        for parameter in parameters(find_method(name))
    ]
    return [one.key for one in settings_of(Config(), [])] + methods


def markdown(settings: Sequence[Setting]) -> str:
    """Return settings as the rows of a Markdown table: key, default, meaning."""
    rows = [f"| `{one.key}` | {_code(one.default)} | {_joined(one.text)} |" for one in settings]
    return "\n".join(["| key | default | meaning |", "|---|---|---|", *rows]) + "\n"


def plain(value: Any) -> Any:
    """Return a value of a setting as plain containers, numbers and texts."""
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return list(value) if isinstance(value, tuple) else value


def _is_below(key: str, word: str) -> bool:
    return key == word or key.startswith(f"{word}.")


def _top(config: Config) -> Iterator[Setting]:
    texts = {p.name: p.text for p in parameters(Config)}
    defaults = Config()
    for name in ("methods", "keep_models", "calibrate", "tracker", "every"):
        yield Setting(
            key=name,
            default=plain(getattr(defaults, name)),
            value=plain(getattr(config, name)),
            text=texts[name],
        )


def _fields(table: str, kind: type[Any], value: Any) -> Iterator[Setting]:
    """Yield the settings of a table in the order of their declaration, documented ones of bases."""
    texts = {p.name: p.text for p in parameters(kind)}
    for field in fields(kind):
        default = field.default if field.default is not MISSING else None
        yield Setting(
            key=f"{table}.{field.name}",
            default=plain(default),
            value=plain(getattr(value, field.name)),
            text=texts.get(field.name, ""),
        )


def _of_method(config: Config, name: str) -> Iterator[Setting]:
    made, key = config.make(name), method_name(name)
    for parameter in parameters(type(made)):
        yield Setting(
            key=f"method.{key}.{parameter.name}",
            default=plain(parameter.default),
            value=plain(getattr(made, parameter.name)),
            text=parameter.text,
        )


def _code(value: Any) -> str:
    return f"`{written(value)}`"


def written(value: Any) -> str:
    """Return a value as a TOML file has it; nothing is written for None.

    Examples
    --------
    >>> written(None), written({"width": 0, "activation": "relu"}), written(["afl"])
    ('none', '{width = 0, activation = "relu"}', '["afl"]')
    """
    if value is None:
        return "none"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {written(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(written, value)) + "]"
    text = json.dumps(value)
    return f"{value:.4g}" if isinstance(value, float) and len(text) > _LONGEST else text


def _joined(text: str) -> str:
    return re.sub(r"\s+", " ", inspect.cleandoc(text)).replace("|", "\\|").replace("``", "`")
