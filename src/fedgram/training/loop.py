"""Methods that train in rounds: what they have in common, so that a file says what is its own.

A round broadcasts a `RoundModel`, every asked client descends from it on its own samples, and the
server divides a `Weighted` sum. The learning rate is searched for by validation loss.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Self, cast

import numpy as np

from fedgram.core import codec
from fedgram.core.census import DataSchema
from fedgram.core.samples import Array, Integers, Samples, Space
from fedgram.core.shared import Shared
from fedgram.core.weighted import DOUBLE, SINGLE, Weighted
from fedgram.errors import ConfigError, DataError, SolveError
from fedgram.features.lift import Lift
from fedgram.federation.client import Client
from fedgram.federation.method import Method
from fedgram.federation.protocol import Federation
from fedgram.federation.step import step
from fedgram.models.architecture import read
from fedgram.models.linear import Predictor
from fedgram.models.mlp import MLP, Architecture, TrainedModel, TrainingRows
from fedgram.models.torch_network import TorchNetwork
from fedgram.training.batched import Descents, batched_step
from fedgram.training.descent import SGD, LocalDescent
from fedgram.training.pilots import Loss, Pilot, RateSearch, judged_rounds, rate_at

PILOT_FRACTION = 0.1  # of the training samples, where there are no validation samples
_FEWEST_BATCHES = 5  # of a client that can leave out a whole one


@codec.register("Model/1", fields={"trial": "attempt"})
@dataclass(frozen=True, eq=False, kw_only=True)
class RoundModel(Shared):
    """What the server broadcasts: the shared network, and how this training goes.

    Parameters
    ----------
    network
        The shared parameters.
    rate
        Learning rate.
    round
        Number of finished rounds.
    trial
        Number of this training; pilots come first, and leave nothing behind.
    pilot
        Whether this training only tries a rate.
    more
        What else a method shares.
    search
        The pilots, where the rate was searched for; it stays at the server.
    """

    network: TrainedModel
    rate: float
    round: int = 0
    trial: int = 0
    pilot: bool = False
    more: dict[str, Any] = field(default_factory=dict)
    search: RateSearch | None = field(default=None, metadata={"carried": False})

    @property
    def space(self) -> Space:
        """The space of the network."""
        return self.network.space

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the scores."""
        return self.network.classes

    def predictor(self) -> TrainedModel | None:
        """Return the network; None where heads are personal, and none is shared."""
        return self.network if len(self.theta) == self.shape.size else None

    @property
    def theta(self) -> Array:
        """The shared parameters."""
        return self.network.theta

    @property
    def shape(self) -> Architecture:
        """The layers."""
        return self.network.shape

    @property
    def mlp(self) -> MLP:
        """The layers, in methods that have one hidden layer at most."""
        return cast(MLP, self.network.shape)

    def at(self, theta: Array, **more: Any) -> Self:
        """Return the same with other parameters, in the precision of these."""
        moved = replace(self.network, theta=theta.astype(self.theta.dtype, copy=False))
        return replace(self, network=moved, more={**self.more, **more})


@dataclass(frozen=True, kw_only=True)
class GradientMethod(Method[Any]):
    """Rounds of local descent and averaging; a method says what is different.

    Parameters
    ----------
    rounds
        Number of rounds.
    epochs
        Passes over a client's samples in each round.
    batch
        Samples per step; 0 for all at once.
    rate
        Learning rate; "auto" searches the grid ..., 0.01, 0.03, 0.1, 0.3, 1, ... in both directions
        from 0.1, by the validation loss in the last of `pilot` rounds. A rate whose loss rises is
        refused if there is a stable one; of rates that are equal within noise the smallest is
        taken. Where there are no validation samples, pilots train on about nine tenths of the
        training samples and are judged on the rest.
    pilot
        Rounds of a pilot.
    participation
        Share of the clients asked in each round, drawn at random.
    hidden
        Width of a hidden layer (ReLU) between features and head; 0 for a linear head.
    layers
        Several hidden layers instead, convolutions too: in words, or a preset (lenet, acnnl5, mlp),
        as of `fedacnnl`. Needs torch.
    image
        Height, width and channels of the images that the features are the pixels of, where the
        data do not say.
    precision
        "single" or "double".
    lift
        Random projection and activation before the network; width 0 for none.
    """

    # Validation samples are for choices: rates and rounds.
    keeps_valid: ClassVar[bool] = True

    def number_of_rounds(self) -> int:
        """Return `rounds`."""
        return self.rounds

    def shortened(self, *, search: bool = True) -> Self:
        """Return the same with two rounds at most; without `search`, with a given rate."""
        rate = self.rate if search or self.rate != "auto" else 0.1
        return replace(self, rounds=min(2, self.rounds), pilot=min(1, self.pilot), rate=rate)

    # Whether `layers` may be set, or the method knows one hidden layer only.
    any_layers: ClassVar[bool] = True

    rounds: int = 200
    epochs: int = 3
    batch: int = 128
    rate: float | Literal["auto"] = "auto"
    pilot: int = 10
    participation: float = 1.0
    hidden: int = 0
    layers: str = ""
    image: tuple[int, ...] = ()
    precision: Literal["single", "double"] = "single"
    lift: Lift = Lift()

    def __post_init__(self) -> None:
        for name, least in (("rounds", 1), ("epochs", 1), ("pilot", 1), ("batch", 0)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} = {getattr(self, name)}: use at least {least}")
        if self.hidden < 0:
            raise ConfigError(f"hidden = {self.hidden}: use 0 for a linear head, or a width")
        if self.layers:
            self._require_layers()
        if not 0 < self.participation <= 1:
            raise ConfigError(f"participation = {self.participation}: use 0 < share <= 1")
        if self.rate != "auto" and not self.rate > 0:
            raise ConfigError(f"rate = {self.rate}: use a number > 0, or 'auto'")

    def _require_layers(self) -> None:
        layers = read(self.layers)
        if not self.any_layers:
            name = type(self).__name__
            raise ConfigError(f"layers = {self.layers!r}: {name} has one at most; use hidden")
        if self.hidden or not layers:
            raise ConfigError(f"layers = {self.layers!r}, hidden = {self.hidden}: use one of them")

    # What the server does.

    def fit(self, federation: Federation) -> Iterator[Any]:
        """Yield the shared model after each round."""
        opening = federation.sum(self.opening)
        start = self._start(opening)
        if self.rate == "auto":
            search = self._search(federation, start)
            rate, trial = search.pilots[search.chosen].rate, len(search.pilots)
            start = replace(start, rate=rate, trial=trial, search=search)
        else:
            start = replace(start, rate=self.rate)
        yield from self.train(federation, start, self.rounds)

    def train(self, federation: Federation, model: RoundModel, rounds: int) -> Iterator[Any]:
        """Yield the model after each of some rounds."""
        model = self.begin(federation, model)
        for number in range(1, rounds + 1):
            model = replace(self.round(federation, model), round=number)
            yield model

    def begin(self, federation: Federation, model: RoundModel) -> RoundModel:  # noqa: ARG002
        """Return the model to begin with, with what else the method shares."""
        return model

    def round(self, federation: Federation, model: RoundModel) -> RoundModel:
        """Return the model after one more round."""
        total = federation.sum(self.update, model, clients=self.asked(federation))
        return model.at(total.mean())

    def asked(self, federation: Federation) -> list[str] | None:
        """Return whom to ask in this round; None means everybody."""
        if self.participation == 1:
            return None
        everybody = list(federation.clients)
        some = max(1, round(self.participation * len(everybody)))
        return sorted(federation.rng.choice(everybody, some, replace=False).tolist())

    # What a client does.

    @step
    def opening(self, client: Client, _: None) -> DataSchema:
        """Say what the samples of this client mean."""
        space = self.lift(client.train.features.take(slice(0))).space
        return DataSchema(space=space, classes=client.train.labels.classes)

    @batched_step
    def update(self, client: Client, model: RoundModel) -> Descents[Weighted]:
        """Train on the client's samples and return what is to be averaged."""
        rows = self.rows(client, model)
        theta = model.theta.copy()
        yield from self.descend(client, model, theta, rows)
        return self.weighted(theta, len(rows))

    def descend(
        self, client: Client, model: RoundModel, theta: Array, rows: TrainingRows
    ) -> Iterable[LocalDescent]:
        """Return what is left to do to change parameters in place by this method's descent."""
        return [self.descent(model).task(model.shape, theta, rows, client.rng)]

    def personalize(self, client: Client, shared: Any) -> Predictor:  # noqa: ARG002
        """Return the shared model, unless the method says otherwise."""
        network: TrainedModel = shared.network
        return network

    @step
    def judge(self, client: Client, model: RoundModel) -> Loss:
        """Return the loss of the personal model on validation samples."""
        valid = self._parts(client, model)[1]
        if not len(valid):
            return Loss.zero()
        return Loss.of(self.personalize(client, model)(valid.features), valid.labels)

    # What methods build on.

    def descent(self, model: RoundModel, epochs: int | None = None) -> SGD:
        """Return the local descent, for `epochs` epochs if that is given."""
        epochs = self.epochs if epochs is None else epochs
        return SGD(rate=model.rate, epochs=epochs, batch=self.batch)

    def rows(self, client: Client, model: RoundModel) -> TrainingRows:
        """Return the client's training samples, ready for descent."""
        samples = self._parts(client, model)[0]
        if not len(samples):
            raise DataError("there are no training samples; leave the client out of the data")
        return TrainingRows.of(samples, self.lift, model.theta.dtype)

    def weighted(self, values: Array, weight: int | Integers, *beside: Array) -> Weighted:
        """Return a client's part of a weighted mean; what it keeps `beside` must not diverge."""
        places = SINGLE if self.precision == "single" else DOUBLE
        return Weighted.of(values, weight, places=places, beside=beside)

    def _start(self, opening: DataSchema) -> RoundModel:
        space, classes = opening.space, len(opening.classes)
        shape: Architecture = (
            TorchNetwork.of(self.layers, space, classes, self.image)
            if self.layers
            else MLP(width=space.width, hidden=self.hidden, classes=classes)
        )
        dtype = np.float32 if self.precision == "single" else np.float64
        network = TrainedModel(
            theta=shape.start(dtype),
            shape=shape,
            space=opening.space,
            classes=opening.classes,
            lift=self.lift,
        )
        return RoundModel(network=network, rate=rate_at(0))

    def _search(self, federation: Federation, start: RoundModel) -> RateSearch:
        """Return pilots at rates of the grid, until one of them is chosen."""
        pilots: dict[int, Pilot] = {}
        while (place := RateSearch(pilots).wanted()) is not None:
            fresh = replace(start, rate=rate_at(place), trial=len(pilots), pilot=True)
            pilots[place] = self._piloted(federation, fresh)
        return RateSearch(pilots)

    def _piloted(self, federation: Federation, start: RoundModel) -> Pilot:
        judged = judged_rounds(self.pilot)
        losses: list[Loss] = []
        try:
            for model in self.train(federation, start, self.pilot):
                if model.round in judged:
                    losses.append(federation.sum(self.judge, model))
        except SolveError:
            return Pilot(rate=start.rate)
        means = tuple(loss.mean for loss in losses)
        return Pilot(rate=start.rate, losses=means, error=losses[-1].error)

    def _parts(self, client: Client, model: RoundModel) -> tuple[Samples, Samples]:
        """Return the samples to train on and to judge by.

        A pilot leaves out whole batches where it can. Then its epochs end with a batch as small as
        in the training: the smaller it is, the more it disturbs at a large rate.
        """
        if len(client.valid) or not model.pilot:
            return client.train, client.valid
        samples = len(client.train)
        judged = min(round(PILOT_FRACTION * samples), samples - 1)
        if self.batch and samples >= _FEWEST_BATCHES * self.batch:
            judged = self.batch * max(1, round(judged / self.batch))
        name = int.from_bytes(hashlib.sha256(client.id.encode()).digest()[:8], "little")
        order = np.random.default_rng(name).permutation(samples)
        return client.train.take(order[judged:]), client.train.take(order[:judged])


def load_state(client: Client, model: RoundModel) -> Mapping[str, Any]:
    """Return what the client kept in this training; nothing, if it is new to it."""
    if client.state.get("trial") != model.trial:
        return {}
    return client.state


def save_state(client: Client, model: RoundModel, **values: Any) -> None:
    """Keep values at the client until its next round; those of other trainings are dropped."""
    state = cast(MutableMapping[str, Any], client.state)
    state.clear()
    state.update(values, trial=model.trial)


def without_head(model: RoundModel) -> RoundModel:
    """Return a model without its head: where heads are personal, they do not travel."""
    return model.at(model.theta[: model.shape.base])


def with_head(model: RoundModel, head: Array | None) -> Array:
    """Return all parameters of a headless model under a client's head; at first of zeros."""
    if head is None:
        head = np.zeros(model.shape.size - model.shape.base, model.theta.dtype)
    return np.concatenate([model.theta, head])


def deterministic_rng(client: Client, model: RoundModel) -> np.random.Generator:
    """Return randomness that is the same whenever this client personalizes this model."""
    name = int.from_bytes(hashlib.sha256(client.id.encode()).digest()[:8], "little")
    return np.random.default_rng([name, model.trial, model.round])


def fine_tuned(
    method: GradientMethod, client: Client, model: RoundModel, epochs: int
) -> TrainedModel:
    """Return the client's own copy of the shared model, trained on for some epochs."""
    theta = model.theta.copy()
    rows = method.rows(client, model)
    method.descent(model, epochs)(model.shape, theta, rows, deterministic_rng(client, model))
    return model.at(theta).network
