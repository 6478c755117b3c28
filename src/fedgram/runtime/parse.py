"""JSON and TOML of any origin: the value, or `ValueError`; no text gives another error.

Python's parsers raise RecursionError for deep nesting, accept integers that no float holds, and
take quadratic time for a long dotted key. All of these are refused here, before they cost anything.
"""

from __future__ import annotations

import json
import re
import tomllib
from typing import Any

MOST_DEPTH = 64  # tables and lists inside each other, and names in a dotted key
MOST_TOML = 4 << 20  # characters of a TOML text: settings and schemas that people write
_MOST_DIGITS = 300  # a float has up to 309 digits
_INT64 = range(-(2**63), 2**63)  # the integers of TOML
_BRACKET = re.compile(r"[\[\]{}]")
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]|[\ud800-\udfff]")
_JSON_STRING = re.compile(r'"(?:[^"\\]++|\\.)*+(?:"|\Z)', re.DOTALL)
# An unclosed string reaches to the end, so that no character is looked at twice.
_TOML_STRING = re.compile(
    r'"""(?:[^"\\]++|\\.|"{1,2}+(?!"))*+(?:"{3,5}|\Z)'
    r"|'''(?:[^']++|'{1,2}+(?!'))*+(?:'{3,5}|\Z)"
    r'|"(?:[^"\\\n]++|\\.)*+(?:"|$)'
    r"|'[^'\n]*+(?:'|$)"
    r"|#[^\n]*+",
    re.DOTALL | re.MULTILINE,
)
_LONG_KEY = re.compile(rf'(?<![\w"-])(?:[\w"-]++[ \t]*+\.[ \t]*+){{{MOST_DEPTH}}}')


def json_value(text: str) -> Any:
    """Return the value of a JSON text.

    Examples
    --------
    >>> json_value('{"a": [1, 2.5]}')
    {'a': [1, 2.5]}
    >>> json_value("[" * 100_000)
    Traceback (most recent call last):
    ...
    ValueError: nested deeper than 64
    >>> json_value("7" * 100_000)
    Traceback (most recent call last):
    ...
    ValueError: an integer of 100000 digits
    """
    return _json(text)


def json_object(text: str) -> dict[str, Any]:
    """Return the value of a JSON text that is an object, with each key once.

    Examples
    --------
    >>> json_object('{"client": "north", "client": "south"}')
    Traceback (most recent call last):
    ...
    ValueError: the key 'client' twice
    """
    value = _json(text, object_pairs_hook=_unique)
    if not isinstance(value, dict):
        raise ValueError(f"expected an object, got {type(value).__name__}")
    return value


def toml_table(text: str) -> dict[str, Any]:
    r"""Return the table of a TOML text.

    Examples
    --------
    >>> toml_table('[data]\nsource = "digits"')
    {'data': {'source': 'digits'}}
    >>> toml_table("seed = 0x" + "f" * 17)
    Traceback (most recent call last):
    ...
    ValueError: an integer of more than 64 bits
    >>> toml_table(".".join("a" * 100) + " = 1")
    Traceback (most recent call last):
    ...
    ValueError: a key of more than 64 names
    """
    if len(text) > MOST_TOML:
        raise ValueError(f"{len(text)} characters, expected at most {MOST_TOML}")
    bare = _TOML_STRING.sub('"', text)
    _require_shallow(bare)
    if _LONG_KEY.search(bare):
        raise ValueError(f"a key of more than {MOST_DEPTH} names")
    table = tomllib.loads(text)
    _require_plain(table)
    return table


def _json(text: str, **options: Any) -> Any:
    if text.count("[") + text.count("{") > MOST_DEPTH:
        _require_shallow(_JSON_STRING.sub("", text))
    value = json.loads(text, parse_int=_integer, **options)
    if _SURROGATE.search(text):
        require_unicode(value)
    return value


def require_unicode(value: Any) -> None:
    """Raise ValueError if a text in a value of JSON has half a character, which no file holds."""
    json.dumps(value, ensure_ascii=False).encode()


def _require_shallow(bare: str) -> None:
    """Raise ValueError if brackets are nested too deep; `bare` is a text without its strings."""
    depth = 0
    for found in _BRACKET.finditer(bare):
        depth += 1 if found[0] in "[{" else -1
        if depth > MOST_DEPTH:
            raise ValueError(f"nested deeper than {MOST_DEPTH}")


def _integer(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise ValueError(f"an integer of {len(digits)} digits")
    return int(digits)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for key, value in pairs:
        if key in table:
            raise ValueError(f"the key {key[:100]!r} twice")
        table[key] = value
    return table


def _require_plain(table: dict[str, Any]) -> None:
    """Raise ValueError for values that settings do not have; dotted keys add to the depth."""
    waiting: list[tuple[Any, int]] = [(table, 0)]
    while waiting:
        value, depth = waiting.pop()
        if depth > MOST_DEPTH:
            raise ValueError(f"nested deeper than {MOST_DEPTH}")
        if isinstance(value, dict | list):
            inside = value.values() if isinstance(value, dict) else value
            waiting.extend((item, depth + 1) for item in inside)
        elif isinstance(value, int) and value not in _INT64:
            raise ValueError("an integer of more than 64 bits")
