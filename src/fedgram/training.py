"""Methods that train in rounds: what they have in common, so that a file says what is its own.

A round broadcasts a `Model`, every asked client descends from it on its own samples, and the
server divides a `Weighted` sum. The learning rate is climbed to on validation samples.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Self, cast

import numpy as np

from fedgram import codec
from fedgram.client import Client
from fedgram.descent import Descent, Task
from fedgram.errors import ConfigError, DataError, SolveError
from fedgram.features.lift import Lift
from fedgram.federation import Federation
from fedgram.heads import Predictor, predict
from fedgram.jointly import Descents, jointly
from fedgram.layers import read
from fedgram.network import Architecture, Network, Rows, Shape
from fedgram.samples import Array, Integers, Samples
from fedgram.stats import Opening, Tally
from fedgram.tower import Tower
from fedgram.weighted import DOUBLE, SINGLE, Weighted

MOST_PILOTS = 8
PILOT_FRACTION = 0.1  # of the training samples, where there are no validation samples
_DIVERGED = -1.0  # as a score: worse than any accuracy


@codec.register
@dataclass(frozen=True, eq=False, kw_only=True)
class Model:
    """What the server broadcasts: the shared network, and how this training goes.

    Parameters
    ----------
    network
        The shared parameters.
    rate
        Learning rate.
    round
        Number of finished rounds.
    attempt
        Number of this training; pilots come first, and leave nothing behind.
    pilot
        Whether this training only tries a rate.
    more
        What else a method shares.
    """

    network: Network
    rate: float
    round: int = 0
    attempt: int = 0
    pilot: bool = False
    more: dict[str, Any] = field(default_factory=dict)

    @property
    def theta(self) -> Array:
        """The shared parameters."""
        return self.network.theta

    @property
    def shape(self) -> Architecture:
        """The layers."""
        return self.network.shape

    @property
    def plain(self) -> Shape:
        """The layers, in methods that have one hidden layer at most."""
        return cast(Shape, self.network.shape)

    def at(self, theta: Array, **more: Any) -> Self:
        """Return the same with other parameters, in the precision of these."""
        moved = replace(self.network, theta=theta.astype(self.theta.dtype, copy=False))
        return replace(self, network=moved, more={**self.more, **more})


@dataclass(frozen=True, kw_only=True)
class Training:
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
        Learning rate; "auto" climbs the grid ..., 0.01, 0.03, 0.1, 0.3, 1, ... from 0.1 to the one
        that is best on validation samples after `pilot` rounds. Where there are no validation
        samples, pilots train on nine tenths of the training samples and are judged on the rest.
    pilot
        Rounds after which a rate is judged.
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
        attempt = 0
        if self.rate == "auto":
            attempt, rate = self._climbed(federation, opening)
        else:
            rate = self.rate
        start = replace(self._start(opening), rate=rate, attempt=attempt)
        yield from self.train(federation, start, self.rounds)

    def train(self, federation: Federation, model: Model, rounds: int) -> Iterator[Any]:
        """Yield the model after each of some rounds."""
        model = self.begin(federation, model)
        for number in range(1, rounds + 1):
            model = replace(self.round(federation, model), round=number)
            yield model

    def begin(self, federation: Federation, model: Model) -> Model:  # noqa: ARG002
        """Return the model to begin with, with what else the method shares."""
        return model

    def round(self, federation: Federation, model: Model) -> Model:
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

    def opening(self, client: Client, _: None) -> Opening:
        """Say what the samples of this client mean."""
        space = self.lift(client.train.features.take(slice(0))).space
        return Opening(space=space, classes=client.train.labels.classes)

    @jointly
    def update(self, client: Client, model: Model) -> Descents[Weighted]:
        """Train on the client's samples and return what is to be averaged."""
        rows = self.rows(client, model)
        theta = model.theta.copy()
        yield from self.descend(client, model, theta, rows)
        return self.weighted(theta, len(rows))

    def descend(self, client: Client, model: Model, theta: Array, rows: Rows) -> Iterable[Task]:
        """Return what is left to do to change parameters in place by this method's descent."""
        return [self.descent(model).task(model.shape, theta, rows, client.rng)]

    def personalize(self, client: Client, shared: Any) -> Predictor:  # noqa: ARG002
        """Return the shared model, unless the method says otherwise."""
        network: Network = shared.network
        return network

    def judge(self, client: Client, model: Model) -> Tally:
        """Score the personal model on validation samples."""
        valid = _parts(client, model)[1]
        predicted = predict(self.personalize(client, model), valid.features)
        return Tally.of(predicted, valid.labels)

    # What methods build on.

    def descent(self, model: Model, epochs: int | None = None) -> Descent:
        """Return the local descent, for `epochs` epochs if that is given."""
        epochs = self.epochs if epochs is None else epochs
        return Descent(rate=model.rate, epochs=epochs, batch=self.batch)

    def rows(self, client: Client, model: Model) -> Rows:
        """Return the client's training samples, ready for descent."""
        samples = _parts(client, model)[0]
        if not len(samples):
            raise DataError("there are no training samples; leave the client out of the data")
        return Rows.of(samples, self.lift, model.theta.dtype)

    def weighted(self, values: Array, weight: int | Integers, *beside: Array) -> Weighted:
        """Return a client's part of a weighted mean; what it keeps `beside` must not diverge."""
        places = SINGLE if self.precision == "single" else DOUBLE
        return Weighted.of(values, weight, places=places, beside=beside)

    def _start(self, opening: Opening) -> Model:
        space, classes = opening.space, len(opening.classes)
        shape: Architecture = (
            Tower.of(self.layers, space, classes, self.image)
            if self.layers
            else Shape(width=space.width, hidden=self.hidden, classes=classes)
        )
        dtype = np.float32 if self.precision == "single" else np.float64
        network = Network(
            theta=shape.start(dtype),
            shape=shape,
            space=opening.space,
            classes=opening.classes,
            lift=self.lift,
        )
        return Model(network=network, rate=grid_rate(0))

    def _climbed(self, federation: Federation, opening: Opening) -> tuple[int, float]:
        """Return the number of pilots and the best rate on the grid, found by climbing."""
        found: dict[int, float] = {}

        def score(place: int) -> float:
            if place not in found:
                start = replace(
                    self._start(opening), rate=grid_rate(place), attempt=len(found), pilot=True
                )
                found[place] = self._piloted(federation, start)
            return found[place]

        best = 0
        while len(found) < MOST_PILOTS and score(best + 1) > score(best):
            best += 1
        # Where even the best has diverged, there is a smaller one that does not.
        while len(found) < MOST_PILOTS and (
            score(best - 1) > score(best) or score(best) == _DIVERGED
        ):
            best -= 1
        return len(found), grid_rate(best)

    def _piloted(self, federation: Federation, start: Model) -> float:
        try:
            *_, model = self.train(federation, start, self.pilot)
        except SolveError:
            return _DIVERGED
        return federation.sum(self.judge, model).sample_mean


def grid_rate(place: int) -> float:
    """Return the rate at a place of the public grid.

    Examples
    --------
    >>> [grid_rate(place) for place in (-2, -1, 0, 1, 2)]
    [0.01, 0.03, 0.1, 0.3, 1.0]
    """
    decade, half = divmod(place, 2)
    return float(f"{3 if half else 1}e{decade - 1}")


def recalled(client: Client, model: Model) -> Mapping[str, Any]:
    """Return what the client kept in this training; nothing, if it is new to it."""
    if client.state.get("attempt") != model.attempt:
        return {}
    return client.state


def keep(client: Client, model: Model, **values: Any) -> None:
    """Keep values at the client until its next round; those of other trainings are dropped."""
    state = cast(MutableMapping[str, Any], client.state)
    state.clear()
    state.update(values, attempt=model.attempt)


def headless(model: Model) -> Model:
    """Return a model without its head: where heads are personal, they do not travel."""
    return model.at(model.theta[: model.shape.base])


def under(model: Model, head: Array | None) -> Array:
    """Return all parameters of a headless model under a client's head; at first of zeros."""
    if head is None:
        head = np.zeros(model.shape.size - model.shape.base, model.theta.dtype)
    return np.concatenate([model.theta, head])


def repeatable(client: Client, model: Model) -> np.random.Generator:
    """Return randomness that is the same whenever this client personalizes this model."""
    name = int.from_bytes(hashlib.sha256(client.id.encode()).digest()[:8], "little")
    return np.random.default_rng([name, model.attempt, model.round])


def tuned(method: Training, client: Client, model: Model, epochs: int) -> Network:
    """Return the client's own copy of the shared model, trained on for some epochs."""
    theta = model.theta.copy()
    rows = method.rows(client, model)
    method.descent(model, epochs)(model.shape, theta, rows, repeatable(client, model))
    return model.at(theta).network


def _parts(client: Client, model: Model) -> tuple[Samples, Samples]:
    """Return the samples to train on and to judge by."""
    if len(client.valid) or not model.pilot:
        return client.train, client.valid
    name = int.from_bytes(hashlib.sha256(client.id.encode()).digest()[:8], "little")
    order = np.random.default_rng(name).permutation(len(client.train))
    judged = min(round(PILOT_FRACTION * len(order)), len(order) - 1)
    return client.train.take(order[judged:]), client.train.take(order[:judged])
