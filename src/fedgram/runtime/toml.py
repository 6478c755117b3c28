"""Settings written as TOML; Python's library reads TOML but does not write it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tomlkit


def written(settings: Mapping[str, Any]) -> str:
    """Return nested settings as the text of a TOML file. Keys whose value is None are left out.

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
    <BLANKLINE>
    [method."my/own.py".lift]
    width = 0
    """
    return tomlkit.dumps(_without_none(settings))


def _without_none(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    return [_without_none(item) for item in value] if isinstance(value, list | tuple) else value
