"""Shared results of any method: with tuned settings, by client, and as a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fedgram.core import codec
from fedgram.core.samples import Space
from fedgram.core.shared import Shared, provenance
from fedgram.federation.method import Method, create_method


@codec.register("Tailored/1")
@dataclass(frozen=True, eq=False, kw_only=True)
class PerClient(Shared):
    """A shared result of which each client is sent its own part only.

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
    def space(self) -> Space:
        """The space of the common part."""
        space: Space = self.common.space
        return space

    @property
    def classes(self) -> tuple[str, ...]:
        """The class list of the common part."""
        classes: tuple[str, ...] = self.common.classes
        return classes

    @property
    def tuned(self) -> Tuned | None:
        """The settings that were chosen for all clients."""
        return tuned_settings(self.common)

    def part_for(self, client: str) -> Any:
        """Return a client's own part, else the common one."""
        return self.own.get(client, self.common)

    def provenance(self) -> str:
        """Digest of what the parts were made from."""
        return provenance(self.common)

    def predictor(self) -> Any:
        """Return the model of the common part."""
        return self.common.predictor() if isinstance(self.common, Shared) else None


@codec.register("Settled/1", fields={"description": "told", "left_out_accuracy": "reasons"})
@dataclass(frozen=True, eq=False, kw_only=True)
class Tuned(Shared):
    """What is shared, with the settings that were chosen for everybody.

    Parameters
    ----------
    shared
        What a method with these settings shares.
    setting
        The chosen ones, by name.
    description
        The same in words.
    left_out_accuracy
        What speaks for them: accuracy on samples that were left out, of them and of others.
    invariant
        Whether the settings are the same however samples are spread over clients.
    notes
        What else is recorded of the fit; nothing depends on it.
    """

    shared: Any
    setting: dict[str, Any]
    description: str = ""
    left_out_accuracy: dict[str, float] = field(default_factory=dict)
    invariant: bool = False
    notes: dict[str, Any] = field(default_factory=dict)

    @property
    def space(self) -> Space:
        """The space of what is shared."""
        space: Space = self.shared.space
        return space

    @property
    def classes(self) -> tuple[str, ...]:
        """The class list of what is shared."""
        classes: tuple[str, ...] = self.shared.classes
        return classes

    @property
    def tuned(self) -> Tuned:
        """These settings."""
        return self

    def predictor(self) -> Any:
        """Return the model of what is shared."""
        return self.shared.predictor() if isinstance(self.shared, Shared) else None

    def provenance(self) -> str:
        """Digest of what is shared and of the settings."""
        return codec.digest({"shared": provenance(self.shared), "setting": self.setting})

    def to_dict(self) -> dict[str, Any]:
        """Return the choice and its reasons as plain numbers and texts, for JSON."""
        return {
            "settings": self.setting,
            "description": self.description,
            "left_out_accuracy": self.left_out_accuracy,
            "notes": self.notes,
        }


def tuned_settings(shared: Any) -> Tuned | None:
    """Return the settings that were chosen for all clients, None where none were."""
    tuned: Tuned | None = shared.tuned if isinstance(shared, Shared) else None
    return tuned


def unwrap(shared: Any, **given: Any) -> tuple[Any, dict[str, Any]]:
    """Return what is shared and the settings: those chosen for everybody, else the given ones."""
    if isinstance(shared, Tuned):
        return shared.shared, {**given, **shared.setting}
    return shared, given


@codec.register("Published/1")
@dataclass(frozen=True, eq=False, kw_only=True)
class Published:
    """What a method shares, as a file: with the method's name and parameters.

    Examples
    --------
    >>> Published(method="afl", settings={"ridge": 3.0}, shared=None).make({})
    AFL(ridge=3.0, lift=Lift(width=0, activation='relu', seed=0))
    """

    method: str
    settings: dict[str, Any]
    shared: Any

    def predictor(self) -> Any:
        """Return the model of a client without samples of its own; None where there is none."""
        return self.make({}).shared_predictor(self.shared)

    def make(self, changes: Mapping[str, Any]) -> Method[Any]:
        """Return the method, with some of its parameters changed."""
        return create_method(self.method, {**self.settings, **changes})
