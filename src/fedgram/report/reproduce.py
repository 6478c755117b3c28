"""How to run recorded runs again: settings as TOML, and the commands that read them."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from fedgram.experiments.run_record import RunRecord
from fedgram.runtime.toml import written

_SEEDED = ("data", "engine")  # tables whose seeds distinguish repetitions


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A file of settings, and the commands to be given with it.

    ``settings`` are complete, the methods' defaults among them, so that they mean the same to a
    fedgram whose defaults are others.
    """

    name: str
    settings: Mapping[str, Any]
    repetitions: tuple[Mapping[str, Any], ...]  # seeds by the name they are set with

    @property
    def toml(self) -> str:
        """The content of the file."""
        return written(self.settings)

    @property
    def commands(self) -> list[str]:
        """One command for each choice of seeds; the first one is in the file."""
        out = f"runs/{self.name.removesuffix('.toml')}"
        if len(self.repetitions) == 1:
            return [f"fedgram run {self.name} --out {out}"]
        return [
            f"fedgram run {self.name}{_changes(seeds, self.repetitions[0])} --out {out}-{place}"
            for place, seeds in enumerate(self.repetitions)
        ]


def recipes(runs: Iterable[RunRecord]) -> list[Recipe]:
    """Return the smallest number of settings files that reproduce all runs."""
    together: list[dict[str, Any]] = []
    for run in runs:
        _join(together, run)
    found: dict[str, Recipe] = {}
    for settings in together:
        seeds = {
            f"{name}.seed": settings[name]["seed"]
            for name in _SEEDED
            if "seed" in settings.get(name, {})
        }
        apart = {
            key: {k: v for k, v in value.items() if k != "seed"} if key in _SEEDED else value
            for key, value in settings.items()
        }
        key = json.dumps(apart, sort_keys=True, default=str)
        number = len(found) + 1
        name = "settings.toml" if number == 1 else f"settings-{number}.toml"
        known = found.setdefault(key, Recipe(name=name, settings=settings, repetitions=()))
        found[key] = replace(known, repetitions=(*known.repetitions, seeds))
    return list(found.values())


def _join(together: list[dict[str, Any]], run: RunRecord) -> None:
    """Add a run to the first settings it is compatible with, or to new ones."""
    base = {key: value for key, value in run.config.items() if key not in ("methods", "method")}
    parameters = dict(run.parameters)
    for settings in together:
        rest = {key: value for key, value in settings.items() if key not in ("methods", "method")}
        known = settings["method"].setdefault(run.method, parameters) if rest == base else None
        if known == parameters:
            settings["methods"] = list(dict.fromkeys([*settings["methods"], run.method]))
            return
    together.append({**base, "methods": [run.method], "method": {run.method: parameters}})


def _changes(seeds: Mapping[str, Any], first: Mapping[str, Any]) -> str:
    changed = {key: value for key, value in seeds.items() if first.get(key) != value}
    return "".join(f" -s {shlex.quote(f'{key}={value}')}" for key, value in changed.items())
