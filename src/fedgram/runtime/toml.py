"""Plain settings written as TOML, which Python reads but does not write."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def written(settings: Mapping[str, Any]) -> str:
    """Return nested settings as TOML; what is None is left out, for TOML has no word for it.

    Examples
    --------
    >>> print(written({"methods": ["afl"], "data": {"clients": 5, "split": None}}), end="")
    methods = ["afl"]
    <BLANKLINE>
    [data]
    clients = 5
    >>> print(written({"method": {"my/own.py": {"ridge": 1.0, "lift": {"width": 0}}}}), end="")
    [method."my/own.py"]
    ridge = 1.0
    lift = { width = 0 }
    """
    return "\n".join(_table(settings, ())).strip("\n") + "\n"


def _table(table: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    """Write a table's values, then the tables in it; from the third level on they are values."""
    deep = len(path) >= 2
    inner = {k: v for k, v in table.items() if isinstance(v, Mapping) and not deep}
    values = {k: v for k, v in table.items() if k not in inner and v is not None}
    if path and (values or not inner):
        yield f"\n[{'.'.join(map(_key, path))}]"
    for key, value in values.items():
        yield f"{_key(key)} = {_value(value)}"
    for key, value in inner.items():
        yield from _table(value, (*path, key))


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _text(name)


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        pairs = [f"{_key(k)} = {_value(v)}" for k, v in value.items() if v is not None]
        return f"{{ {', '.join(pairs)} }}" if pairs else "{}"
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, Sequence):
        return f"[{', '.join(map(_value, value))}]"
    return repr(value).lower()  # true, 3, 0.1, 1e-05, inf, nan


def _text(value: str) -> str:
    # JSON's escapes are TOML's, except for the one control character that JSON lets through.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
