"""Plain settings, as TOML and the command line give them, made into dataclasses."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Mapping
from typing import Any, get_args, get_type_hints

from fedgram.errors import ConfigError


def build(kind: type[Any], settings: Mapping[str, Any], where: str) -> Any:
    """Return a dataclass made from plain settings, as a TOML table gives them."""
    hints = get_type_hints(kind)
    fields = {field.name: hints[field.name] for field in dataclasses.fields(kind)}
    values = {}
    for key, value in settings.items():
        if key not in fields:
            raise ConfigError(f"{where}.{key} is not a setting; {propose(key, fields)}")
        values[key] = _converted(value, fields[key], f"{where}.{key}")
    return kind(**values)


def propose(word: str, known: Iterable[str]) -> str:
    """Return the nearest right spelling, or all of them where none is near."""
    known = list(known)
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else "there are: " + ", ".join(known)


def _converted(value: Any, hint: Any, where: str) -> Any:
    if dataclasses.is_dataclass(hint) and isinstance(value, Mapping):
        return build(hint, value, where)  # type: ignore[arg-type]
    options = get_args(hint)
    if options and not isinstance(hint, type):  # a union or a Literal
        return _one_of(value, options, where)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    plain = hint if isinstance(hint, type) else None
    if plain is None or (isinstance(value, plain) and not (plain is int and value is True)):
        return value
    raise ConfigError(f"{where} = {value!r}: a {plain.__name__} is wanted")


def _one_of(value: Any, options: tuple[Any, ...], where: str) -> Any:
    if value in [option for option in options if isinstance(option, str)]:
        return value
    for option in options:
        if isinstance(option, str):
            continue
        try:
            return _converted(value, option, where)
        except ConfigError:
            continue
    wanted = " or ".join(getattr(o, "__name__", repr(o)) for o in options)
    raise ConfigError(f"{where} = {value!r}: {wanted} is wanted")
