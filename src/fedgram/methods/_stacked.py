"""Methods on top of a map of the features: the inner method runs unchanged on mapped features."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, get_args, get_type_hints

import numpy as np

from fedgram.core import codec
from fedgram.core.samples import Features, Floats, Samples, Space
from fedgram.core.shared import Shared, provenance
from fedgram.federation.client import Client
from fedgram.federation.method import Method, create_method, find_method
from fedgram.federation.protocol import Federation, Total
from fedgram.federation.shared import PerClient, Tuned, tuned_settings
from fedgram.federation.step import Nested, Reply, Step, named_step, step, step_name
from fedgram.models.linear import Predictor, require_space

Plain = int | float | str | bool


class FeatureMap(Protocol):
    """A public function from features to features."""

    @property
    def inputs(self) -> Space:
        """The feature space of the inputs."""

    @property
    def space(self) -> Space:
        """The feature space of the results."""

    def __call__(self, features: Features) -> Features:
        """Return the mapped features."""


@codec.register("Deepened/1")
@dataclass(frozen=True, eq=False, kw_only=True)
class StackedModel(Shared):
    """A model on mapped features.

    Parameters
    ----------
    below
        Maps the features: residual blocks, or a chain of maps.
    model
        The model on the mapped features.
    """

    below: Any
    model: Any

    @property
    def space(self) -> Space:
        """The feature space of the inputs."""
        space: Space = self.below.inputs
        return space

    @property
    def classes(self) -> tuple[str, ...]:
        """The class list, in the order of the scores."""
        classes: tuple[str, ...] = self.model.classes
        return classes

    def __call__(self, features: Features) -> Floats:
        require_space(self.space, features.space)
        scores: Floats = self.model(self.below(features))
        return scores

    def predictor(self) -> StackedModel | None:
        """Return the predictor on mapped features; None if nothing shared predicts."""
        top = self.model.predictor() if isinstance(self.model, Shared) else self.model
        return None if top is None else StackedModel(below=self.below, model=top)

    @property
    def tuned(self) -> Tuned | None:
        """The settings that the method on top chose for all clients."""
        return tuned_settings(self.model)

    def provenance(self) -> str:
        """Digest of the totals behind the model; their space identifies the map."""
        return codec.digest({"deep": provenance(self.model)})


@codec.register("Above/1")
@dataclass(frozen=True, eq=False, kw_only=True)
class InnerStep(Nested):
    """A request to run a step of the method on top, on mapped features."""

    below: Any
    broadcast: Any


@dataclass(frozen=True, kw_only=True)
class Top:
    """The method on top, by name, with its settings.

    Parameters
    ----------
    method
        Name of the method.
    settings
        Its settings; those that are not given keep their defaults. A ridge that can be "auto" is,
        since its default is for the features of a backbone.

    Examples
    --------
    >>> Top(method="local", settings={"ridge": 3.0}).make()
    Local(ridge=3.0, lift=Lift(width=0, activation='relu', seed=0, scale=1.0, copies=1))
    >>> Top(method="afl").make().ridge
    'auto'
    """

    method: str = "afl"
    settings: dict[str, Plain | dict[str, Plain]] = field(default_factory=dict)

    def make(self) -> Method[Any]:
        """Return the method."""
        return create_method(self.method, {**self._ridge(), **self.settings})

    def _ridge(self) -> dict[str, Plain]:
        hint = get_type_hints(find_method(self.method)).get("ridge")
        auto = any("auto" in get_args(option) for option in get_args(hint))
        return {"ridge": "auto"} if auto else {}

    def shortened(self, *, search: bool = True) -> Top:
        """Return the method with fewer rounds and sizes, as its `shortened`."""
        short = self.make().shortened(search=search).settings()
        whole = self.make().settings()
        changed = {name: value for name, value in short.items() if value != whole.get(name)}
        return replace(self, settings={**self.settings, **changed})


class Stacked(Method[Any]):
    """Base class of methods that map the features, then run an inner method on them.

    The inner method sees clients with mapped features. Its steps, broadcasts and totals are its
    own; each step travels as one step, `above`, with the map.
    """

    @property
    def inner(self) -> Method[Any]:
        """The method on the mapped features."""
        raise NotImplementedError

    def mapped(self, client: Client, below: FeatureMap) -> Client:
        """Return the client with mapped features."""
        samples = client.train + client.valid
        whole, train = Samples(below(samples.features), samples.labels), len(client.train)
        if train == len(samples):  # the same object, for which lifted rows may be cached
            return replace(client, train=whole, valid=whole.take(slice(0)))
        return replace(client, train=whole.take(slice(train)), valid=whole.take(slice(train, None)))

    def fit_inner(self, federation: Federation, below: FeatureMap) -> Iterator[Any]:
        """Yield the shared results of the inner method on mapped features."""
        for shared in self.inner.fit(_MappedFederation(self, federation, below)):
            yield _raised(below, shared)

    @step
    def above(self, client: Client, ask: InnerStep) -> Any:
        """Run a step of the inner method, on mapped features."""
        inner = named_step(self.inner, ask.step)
        return inner(self._inner_client(client, ask.below), ask.broadcast)

    def shared_predictor(self, shared: Any) -> Any:
        """Return the model of the inner method for clients without samples."""
        stacked: StackedModel = shared.common if isinstance(shared, PerClient) else shared
        model = self.inner.shared_predictor(stacked.model)
        return None if model is None else StackedModel(below=stacked.below, model=model)

    def personalize(self, client: Client, shared: Any) -> Predictor:
        """Return the model of the inner method, on mapped features."""
        stacked: StackedModel = shared
        own = self.inner.personalize(self._inner_client(client, stacked.below), stacked.model)
        return StackedModel(below=stacked.below, model=own)

    def _inner_client(self, client: Client, below: FeatureMap) -> Client:
        """Return the client of the inner method: mapped features, and the totals of its steps."""
        outer = "above/"
        totals = {name.removeprefix(outer) for name in client.totals if name.startswith(outer)}
        return replace(self.mapped(client, below), totals=frozenset(totals))


class _MappedFederation:
    """A federation whose clients have mapped features, for the inner method."""

    def __init__(self, method: Stacked, federation: Federation, below: FeatureMap) -> None:
        self._method = method
        self._federation = federation
        self._below = below

    @property
    def clients(self) -> Sequence[str]:
        return self._federation.clients

    @property
    def private(self) -> bool:
        return self._federation.private

    @property
    def contributors(self) -> Sequence[str]:
        return self._federation.contributors

    @property
    def rng(self) -> np.random.Generator:
        return self._federation.rng

    def sum(
        self, step: Step[Total], broadcast: Any = None, *, clients: Iterable[str] | None = None
    ) -> Total:
        total: Total = self._federation.sum(
            self._method.above, self._asked(step, broadcast), clients=clients
        )
        return total

    def gather(
        self, step: Step[Reply], broadcast: Any = None, *, clients: Iterable[str] | None = None
    ) -> Iterator[tuple[str, Reply]]:
        return self._federation.gather(
            self._method.above, self._asked(step, broadcast), clients=clients
        )

    def _asked(self, step: Step[Any], broadcast: Any) -> InnerStep:
        return InnerStep(below=self._below, step=step_name(step), broadcast=broadcast)


def _raised(below: FeatureMap, shared: Any) -> Any:
    if isinstance(shared, PerClient):
        own = {client: StackedModel(below=below, model=part) for client, part in shared.own.items()}
        return PerClient(common=StackedModel(below=below, model=shared.common), own=own)
    return StackedModel(below=below, model=shared)
