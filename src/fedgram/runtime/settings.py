"""Plain settings, as TOML and the command line give them, made into dataclasses."""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Iterable, Mapping
from typing import Any, get_args, get_origin, get_type_hints

from fedgram.errors import ConfigError

_LONGEST = 300  # characters of a wrong value that are shown


def build(
    kind: type[Any], settings: Mapping[str, Any], where: str, *, default: object = None
) -> Any:
    """Return a dataclass made from plain settings, as a TOML table gives them.

    Parameters
    ----------
    kind
        The dataclass.
    settings
        Values by field; a table for a field that is a dataclass itself changes only the settings
        that the table names, and keeps those of the field's own default.
    where
        The name of the settings in error messages.
    default
        A value of the dataclass whose settings are kept where none are given; without one, the
        defaults of the dataclass.
    """
    hints = get_type_hints(kind)
    fields = {field.name: field for field in dataclasses.fields(kind)}
    values = {}
    for key, value in settings.items():
        if key not in fields:
            raise ConfigError(f"{where}.{key} is not a setting; {propose(key, fields)}")
        own = _default(fields[key]) if default is None else getattr(default, key)
        values[key] = _converted(value, hints[key], f"{where}.{key}", own)
    missing = [name for name, field in fields.items() if name not in values and _required(field)]
    if missing and default is None:
        raise ConfigError(f"{where}.{missing[0]} is missing; give it a value")
    return kind(**values) if default is None else dataclasses.replace(default, **values)  # type: ignore[type-var]


def _default(field: dataclasses.Field[Any]) -> Any:
    """Return the default of a field, None without one."""
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return None if field.default is dataclasses.MISSING else field.default


def _required(field: dataclasses.Field[Any]) -> bool:
    none = field.default is field.default_factory is dataclasses.MISSING
    return none and field.init


def propose(word: str, known: Iterable[str]) -> str:
    """Return the known word with the nearest spelling, or all words if none is near."""
    known = list(known)
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    near = near or [each for each in known if each.lower() == word.lower()]
    return f"did you mean {near[0]!r}?" if near else "there are: " + ", ".join(known)


def _converted(value: Any, hint: Any, where: str, default: Any = None) -> Any:
    options = _options(hint)
    if value is None and type(None) in options:
        return None
    for option in options:
        if isinstance(option, type) or get_origin(option) in (tuple, dict):
            fitting = _fitted(value, option, where, default)
            if fitting is not None:
                return fitting
        elif value == option and type(value) is type(option):
            return value
    expected = " or ".join(_expected(o) for o in options if o is not type(None))
    raise ConfigError(f"{where} = {_shown(value)}: expected {expected}")


def _shown(value: Any) -> str:
    """Return a value as written, shortened; an integer may be too long to be written."""
    if isinstance(value, int) and abs(value) >= 2**63:
        return "an integer of more than 64 bits"
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _fitted(value: Any, kind: Any, where: str, default: Any) -> Any:
    """Return the value as one of this type, None if it has another type."""
    if get_origin(kind) is tuple:
        return _listed(value, get_args(kind), where)
    if get_origin(kind) is dict:
        return _tabled(value, get_args(kind)[1], where)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind) and isinstance(value, Mapping):
        return build(kind, value, where, default=default if type(default) is kind else None)
    if isinstance(value, bool) and kind is not bool:
        return None
    if kind is float and isinstance(value, int | float):
        return _float(value)
    return value if isinstance(value, kind) else None


def _float(value: float) -> float | None:
    """Return a number as float, None if it is not finite or no float holds it."""
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def _listed(value: Any, hints: tuple[Any, ...], where: str) -> tuple[Any, ...] | None:
    """Return a list as a tuple of these types, ``...`` for any number; None if it is not a list."""
    if not isinstance(value, list | tuple):
        return None
    if hints[-1] is Ellipsis:
        hints = hints[:1] * len(value)
    if len(hints) != len(value):
        return None
    pairs = zip(value, hints, strict=True)
    return tuple(_converted(item, hint, f"{where}[{i}]") for i, (item, hint) in enumerate(pairs))


def _tabled(value: Any, hint: Any, where: str) -> dict[str, Any] | None:
    """Return a table whose values have this type; None if it is not a table."""
    if not isinstance(value, Mapping):
        return None
    return {str(key): _converted(item, hint, f"{where}.{key}") for key, item in value.items()}


def _options(hint: Any) -> list[Any]:
    """Return the types and words that a type hint admits."""
    if isinstance(hint, type) or not get_args(hint) or get_origin(hint) in (tuple, dict):
        return [hint]
    return [option for part in get_args(hint) for option in _options(part)]


def _expected(option: Any) -> str:
    if option is float:
        return "a finite number"
    if get_origin(option) is tuple:
        kinds = get_args(option)
        return "a list" if kinds[-1] is Ellipsis else f"a list of {len(kinds)}"
    if get_origin(option) is dict:
        return "a table"
    if not isinstance(option, type):
        return repr(option)
    return {int: "an integer", str: "a text", bool: "true or false"}.get(option, "a table")
