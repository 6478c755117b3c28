"""Shared results of any method: with tuned settings, by client, and as a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fedgram.core import codec
from fedgram.core.shared import Shared, Wrapper, provenance
from fedgram.federation.earlier_names import current_name
from fedgram.federation.method import Method, create_method


@codec.register("Tailored/1")
@dataclass(frozen=True, eq=False, kw_only=True)
class PerClient(Wrapper, Shared):
    """A shared result with one part for each client; a client receives only its own part.

    Parameters
    ----------
    common
        What a client without a part of its own is sent.
    own
        Parts by client name.
    """

    common: Any
    own: dict[str, Any]

    @property
    def wrapped(self) -> Any:
        """The common part."""
        return self.common

    @property
    def tuned(self) -> Tuned | None:
        """The settings that were chosen for all clients."""
        return tuned_settings(self.common)

    def part_for(self, client: str) -> Any:
        """Return a client's own part, else the common one."""
        return self.own.get(client, self.common)

    def provenance(self) -> str:
        """Digest of the totals behind the parts."""
        return provenance(self.common)

    def predictor(self) -> Any:
        """Return the model of the common part."""
        return self.common.predictor() if isinstance(self.common, Shared) else None


@codec.register("Settled/1", fields={"description": "told", "left_out_accuracy": "reasons"})
@dataclass(frozen=True, eq=False, kw_only=True)
class Tuned(Wrapper, Shared):
    """A shared result, with the settings that were chosen for all clients.

    Parameters
    ----------
    shared
        The shared result with these settings.
    setting
        The chosen settings, by name.
    description
        The settings in words.
    left_out_accuracy
        Leave-one-out accuracy of the chosen settings and of others.
    invariant
        Whether the settings are the same for every partition of the samples over clients.
    notes
        More about the fit, for the record; nothing depends on it.
    """

    shared: Any
    setting: dict[str, Any]
    description: str = ""
    left_out_accuracy: dict[str, float] = field(default_factory=dict)
    invariant: bool = False
    notes: dict[str, Any] = field(default_factory=dict)

    @property
    def wrapped(self) -> Any:
        """The shared result."""
        return self.shared

    @property
    def tuned(self) -> Tuned:
        """These settings."""
        return self

    def predictor(self) -> Any:
        """Return the model of the shared result."""
        return self.shared.predictor() if isinstance(self.shared, Shared) else None

    def provenance(self) -> str:
        """Digest of the shared result and of the settings."""
        return codec.digest({"shared": provenance(self.shared), "setting": self.setting})

    def to_dict(self) -> dict[str, Any]:
        """Return the settings and accuracies as plain numbers and texts, for JSON."""
        return {
            "settings": self.setting,
            "description": self.description,
            "left_out_accuracy": self.left_out_accuracy,
            "notes": self.notes,
        }


def tuned_settings(shared: Any) -> Tuned | None:
    """Return the settings that were chosen for all clients; None without a choice."""
    tuned: Tuned | None = shared.tuned if isinstance(shared, Shared) else None
    return tuned


def unwrap(shared: Any, **given: Any) -> tuple[Any, dict[str, Any]]:
    """Return the shared result and its settings: the chosen ones, else the given ones."""
    if isinstance(shared, Tuned):
        return shared.shared, {**given, **shared.setting}
    return shared, given


@codec.register("Published/1")
@dataclass(frozen=True, eq=False, kw_only=True)
class Published:
    """The file of a shared result: with the name and the parameters of the method.

    Examples
    --------
    >>> Published(method="afl", settings={"ridge": 3.0}, shared=None).make({})
    AFL(ridge=3.0, lift=Lift(width=0, activation='relu', seed=0, scale=1.0, copies=1))
    """

    method: str
    settings: dict[str, Any]
    shared: Any

    @property
    def name(self) -> str:
        """Today's name of the method; `method` is the one in the file."""
        return current_name(self.method, self.settings)

    def predictor(self) -> Any:
        """Return the model of a client without samples; None if there is no such model."""
        return self.make({}).shared_predictor(self.shared)

    def make(self, changes: Mapping[str, Any]) -> Method[Any]:
        """Return the method, with some of its parameters changed."""
        return create_method(self.name, {**self.settings, **changes})
