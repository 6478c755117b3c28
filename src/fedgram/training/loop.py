"""The training loop of gradient methods (FedAvg and its relatives): rounds of local SGD.

In each round the server broadcasts a `RoundModel`, every participating client runs local SGD on its
own samples, and the server averages the parameters (`Weighted`). The learning rate can be selected
by validation loss.
"""

from __future__ import annotations

import hashlib
import itertools
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
from fedgram.federation.client import Client, Randomness
from fedgram.federation.method import Method, for_all_clients
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
_FEWEST_BATCHES = 5  # with fewer batches a client does not hold out a whole batch


@codec.register("Model/1", fields={"trial": "attempt"})
@dataclass(frozen=True, eq=False, kw_only=True)
class RoundModel(Shared):
    """The broadcast of a round: the shared network and the state of the training.

    Parameters
    ----------
    network
        The shared parameters.
    rate
        Learning rate.
    round
        Number of finished rounds.
    trial
        Number of this training run: pilots first, then the final training. Client state of other
        trials is ignored.
    pilot
        Whether this training only evaluates a rate.
    more
        Further shared values of a method.
    search
        The pilots, if the rate was searched for; stays at the server.
    """

    network: TrainedModel
    rate: float
    round: int = 0
    trial: int = 0
    pilot: bool = False
    more: dict[str, Any] = field(default_factory=dict)
    search: RateSearch | None = codec.local_field(default=None)

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
        """The layers, in methods with at most one hidden layer."""
        return cast(MLP, self.network.shape)

    def at(self, theta: Array, **more: Any) -> Self:
        """Return a copy with other parameters, in the same precision."""
        moved = replace(self.network, theta=theta.astype(self.theta.dtype, copy=False))
        return replace(self, network=moved, more={**self.more, **more})


@dataclass(frozen=True, kw_only=True)
class GradientMethod(Method[Any]):
    """Base class of gradient methods: rounds of local SGD and averaging (FedAvg).

    Parameters
    ----------
    rounds
        Number of rounds.
    epochs
        Number of passes over a client's samples in each round.
    batch
        Samples per step; 0 for all.
    rate
        Learning rate. "auto" searches the rates ..., 0.01, 0.03, 0.1, 0.3, 1, ... in both
        directions from 0.1, by the validation loss in the last of `pilot` rounds. A rate whose
        loss increases is rejected if there is a stable rate; of rates that are equal within noise
        the smallest is selected. Without validation samples, pilots train on about 90 % of the
        training samples and are evaluated on the rest.
    pilot
        Number of rounds of a pilot.
    participation
        Fraction of the clients that take part in each round, drawn at random.
    hidden
        Width of a hidden layer (ReLU) between features and head; 0 for a linear head.
    layers
        Description of several hidden layers instead, with convolutions, or a preset (lenet,
        acnnl5, mlp), as in `fedacnnl`. Needs torch.
    image
        Height, width and channels, if the features are the pixels of images; by default from the
        data.
    precision
        "single" or "double".
    lift
        Random projection and activation before the network; width 0 for no lift.
    """

    # Validation samples are used to select rates and rounds, so they are not trained on.
    keeps_valid: ClassVar[bool] = True

    def number_of_rounds(self) -> int:
        """Return `rounds`."""
        return self.rounds

    def shortened(self, *, search: bool = True) -> Self:
        """Return the same with two rounds at most; without `search`, with a given rate."""
        rate = self.rate if search or self.rate != "auto" else 0.1
        return replace(self, rounds=min(2, self.rounds), pilot=min(1, self.pilot), rate=rate)

    # Whether `layers` may be set; otherwise the method supports at most one hidden layer.
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
            raise ConfigError(
                f"layers = {self.layers!r}: {name} supports at most one hidden layer; use hidden"
            )
        if self.hidden or not layers:
            raise ConfigError(
                f"layers = {self.layers!r}, hidden = {self.hidden}: use one of the two settings"
            )

    # At the server

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
        """Yield the model after each round.

        Parameters
        ----------
        federation
            The clients.
        model
            The initial model.
        rounds
            Number of rounds.
        """
        model = self.begin(federation, model)
        for number in range(1, rounds + 1):
            model = replace(self.round(federation, model), round=number)
            yield model

    def begin(self, federation: Federation, model: RoundModel) -> RoundModel:  # noqa: ARG002
        """Return the initial model with the further shared values of the method."""
        return model

    def round(self, federation: Federation, model: RoundModel) -> RoundModel:
        """Return the model after one more round."""
        total = federation.sum(self.update, model, clients=self.participants(federation))
        return model.at(total.mean())

    def participants(self, federation: Federation) -> list[str] | None:
        """Return the names of the clients in this round; None for all clients."""
        if self.participation == 1:
            return None
        clients = list(federation.clients)
        number = max(1, round(self.participation * len(clients)))
        return sorted(federation.rng.choice(clients, number, replace=False).tolist())

    # Steps at a client

    @step
    def opening(self, client: Client, _: None) -> DataSchema:
        """Return the feature space and the class list of the client."""
        space = self.lift(client.train.features.take(slice(0))).space
        return DataSchema(space=space, classes=client.train.labels.classes)

    @batched_step
    def update(self, client: Client, model: RoundModel) -> Descents[Weighted]:
        """Train on the client's samples and return its parameters for averaging."""
        rows = self.rows(client, model)
        theta = model.theta.copy()
        yield from self.descend(client, model, theta, rows)
        return self.weighted(theta, len(rows))

    def descend(
        self, client: Client, model: RoundModel, theta: Array, rows: TrainingRows
    ) -> Iterable[LocalDescent]:
        """Return the local descents that change `theta` in place.

        Parameters
        ----------
        client
            The client.
        model
            The broadcast model.
        theta
            The client's parameters.
        rows
            The client's training samples.
        """
        return [self.descent(model).task(model.shape, theta, rows, client.randomness)]

    @for_all_clients
    def personalize(self, client: Client, shared: Any) -> Predictor:  # noqa: ARG002
        """Return the shared model; personalized methods override this."""
        network: TrainedModel = shared.network
        return network

    @step
    def judge(self, client: Client, model: RoundModel) -> Loss:
        """Return the loss of the personal model on validation samples."""
        valid = self._train_and_valid(client, model)[1]
        if not len(valid):
            return Loss.zero()
        return Loss.of(self.personalize(client, model)(valid.features), valid.labels)

    # Helpers of methods

    def descent(self, model: RoundModel, epochs: int | None = None) -> SGD:
        """Return the local SGD; `epochs` overrides the number of epochs."""
        epochs = self.epochs if epochs is None else epochs
        return SGD(rate=model.rate, epochs=epochs, batch=self.batch)

    def rows(self, client: Client, model: RoundModel) -> TrainingRows:
        """Return the client's training samples as rows for SGD."""
        samples = self._train_and_valid(client, model)[0]
        if not len(samples):
            raise DataError("no training samples; remove the client from the data")
        return TrainingRows.of(samples, self.lift, model.theta.dtype)

    def batches(self, rows: TrainingRows, randomness: Randomness) -> Iterator[TrainingRows]:
        """Return the mini-batches of all epochs; a batch of all samples needs no random numbers."""
        if len(rows.batch_slices(self.batch)) == 1:
            return itertools.repeat(rows, self.epochs)
        return rows.batches(self.batch, self.epochs, randomness.generator)

    def weighted(self, values: Array, weight: int | Integers, *beside: Array) -> Weighted:
        """Return a client's term of a weighted mean; see `Weighted.of` for `beside`."""
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
        """Run pilots at rates of the grid until a rate is selected."""
        pilots: dict[int, Pilot] = {}
        while (place := RateSearch(pilots).next_index()) is not None:
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

    def _train_and_valid(self, client: Client, model: RoundModel) -> tuple[Samples, Samples]:
        """Return the samples for training and for validation.

        A pilot without validation samples holds out whole batches if possible. Then the last batch
        of its epochs is as small as in the final training: small batches are unstable at a large
        rate.
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
    """Return the state that the client saved in this training; empty if it has none."""
    if client.state.get("trial") != model.trial:
        return {}
    return client.state


def save_state(client: Client, model: RoundModel, **values: Any) -> None:
    """Save values at the client for its next round; state of other trainings is dropped."""
    state = cast(MutableMapping[str, Any], client.state)
    state.clear()
    state.update(values, trial=model.trial)


def without_head(model: RoundModel) -> RoundModel:
    """Return a model without its head: personal heads are not sent."""
    return model.at(model.theta[: model.shape.base])


def with_head(model: RoundModel, head: Array | None) -> Array:
    """Return the parameters of a model without head plus a client's head; zeros by default."""
    if head is None:
        head = np.zeros(model.shape.size - model.shape.base, model.theta.dtype)
    return np.concatenate([model.theta, head])


def deterministic_rng(client: Client, model: RoundModel) -> np.random.Generator:
    """Return a random generator that depends only on the client, the trial and the round."""
    name = int.from_bytes(hashlib.sha256(client.id.encode()).digest()[:8], "little")
    return np.random.default_rng([name, model.trial, model.round])


def fine_tuned(
    method: GradientMethod, client: Client, model: RoundModel, epochs: int
) -> TrainedModel:
    """Return the shared model, fine-tuned on the client's samples.

    Parameters
    ----------
    method
        The method.
    client
        The client.
    model
        The shared model.
    epochs
        Number of epochs.
    """
    theta = model.theta.copy()
    rows = method.rows(client, model)
    method.descent(model, epochs)(model.shape, theta, rows, deterministic_rng(client, model))
    return model.at(theta).network
