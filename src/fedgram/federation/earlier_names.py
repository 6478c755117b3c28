"""What earlier versions called a method, in recorded runs, model files and settings.

Settings of version 1 and their records have the name `apfl` for what is `apfl-linear` now: without
lifts its streams are linear. With a lift in a stream it is `apfl` still.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

SETTINGS_VERSION = 2
_LIFTED, _LINEAR = "apfl", "apfl-linear"
_STREAMS = ("primary", "refinement")
# The defaults of `apfl` in settings of version 1.
_DEFAULTS = {
    "ridge": 100.0,
    "refinement_ridge": 300.0,
    "balance": 0.5,
    "primary": {"width": 0},
    "refinement": {"width": 0},
}


def current_name(name: str, settings: Mapping[str, Any]) -> str:
    """Return today's name of a method that has these settings, all of which are given.

    Examples
    --------
    >>> current_name("apfl", {"primary": {"width": 0}, "refinement": {"width": 0}})
    'apfl-linear'
    >>> current_name("apfl", {"primary": {"width": 512}, "refinement": {"width": 0}})
    'apfl'
    """
    return _LINEAR if name == _LIFTED and not _has_lift(settings) else name


def upgraded(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return settings of version 1 as today's; others as they are.

    Examples
    --------
    >>> upgraded({"version": 1, "methods": ["apfl"], "method": {"apfl": {"balance": 0.3}}})
    {'version': 2, 'methods': ['apfl-linear'], 'method': {'apfl-linear': {'balance': 0.3}}}
    """
    if settings.get("version") != 1:
        return settings
    methods, method = settings.get("methods"), settings.get("method", {})
    own = method.get(_LIFTED, {}) if isinstance(method, Mapping) else {}
    common = settings.get("every", {})
    if not (isinstance(own, Mapping) and isinstance(common, Mapping)):
        return settings  # refused where it is read
    settings = {**settings, "version": SETTINGS_VERSION}
    if _has_lift({**common, **own}):
        given = {key: value for key, value in _DEFAULTS.items() if key not in common}
        settings["method"] = {**method, _LIFTED: {**given, **own}}
        return settings
    if isinstance(methods, Sequence) and not isinstance(methods, str):
        settings["methods"] = [_LINEAR if name == _LIFTED else name for name in methods]
    if isinstance(method, Mapping) and method:
        settings["method"] = {
            _LINEAR if name == _LIFTED else name: table for name, table in method.items()
        }
    return settings


def _has_lift(settings: Mapping[str, Any]) -> bool:
    """Whether a stream has a lift; streams that are not given have none."""
    streams = (settings.get(stream) for stream in _STREAMS)
    return any(isinstance(lift, Mapping) and lift.get("width") for lift in streams)
