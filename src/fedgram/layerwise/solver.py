"""Networks solved layer by layer in closed form (FedACnnL): settings, steps and the model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedgram.core import codec
from fedgram.core.census import Census
from fedgram.core.exact import require_gram
from fedgram.core.gcv import Ridge
from fedgram.core.samples import Array, Features, Floats, Samples, Space
from fedgram.core.shared import Shared
from fedgram.core.statistics import Statistics
from fedgram.errors import ConfigError
from fedgram.features.lift import Lift
from fedgram.federation.client import Client
from fedgram.federation.method import Method
from fedgram.federation.protocol import Federation
from fedgram.federation.step import step
from fedgram.layerwise import filters
from fedgram.layerwise.filters import LABELED, FilterKind, Scaling
from fedgram.layerwise.label_codes import codes_seed, table
from fedgram.layerwise.patches import PatchSums, batch_size, positions
from fedgram.layerwise.stack import LayerStack, SolvedLayer, head_input_shape
from fedgram.models.architecture import Dense, Layer, maps_of, read, shapes
from fedgram.models.linear import Linear
from fedgram.runtime import memory

FOR_IMAGES = "conv 32 5x5 pad 2 max 2, conv 64 3x3 pad 1 max 2"
FOR_VECTORS = "mlp"


@codec.register("Deep/1")
@dataclass(frozen=True, eq=False, kw_only=True)
class SolvedNetwork(Shared):
    """A solved network: layers and a linear head.

    Parameters
    ----------
    stack
        The hidden layers.
    head
        The linear head, from the outputs of the layers to one score for each class.
    origins
        Digests of the totals of the layers and the head, in this order.
    """

    stack: LayerStack
    head: Linear
    origins: tuple[str, ...] = ()

    @property
    def space(self) -> Space:
        """The feature space of the inputs."""
        return self.stack.inputs

    @property
    def classes(self) -> tuple[str, ...]:
        """The class list, in the order of the scores."""
        return self.head.classes

    def __call__(self, features: Features) -> Floats:
        return self.head(self.stack(features))

    def predictor(self) -> SolvedNetwork:
        """Return this network."""
        return self

    def provenance(self) -> str:
        """Digest of the totals of all layers and the head."""
        return codec.digest(list(self.origins))


@dataclass(frozen=True, kw_only=True)
class LayerwiseSolver(Method[Any]):
    """A network that is solved layer by layer.

    Parameters
    ----------
    layers
        Description of the hidden layers, or a preset: lenet, acnnl5 or mlp; "auto" selects
        convolutions for images and dense layers for vectors.
    image
        Height, width and channels, if the features are the pixels of images; by default from the
        data.
    filters
        The filters of hidden layers. principal: the leading principal axes of all clients'
        patches, with both signs. position, shared, backward: the ridge regression of codes of the
        classes on the patches; the codes are random for each position, random and equal for all
        positions, or the classes pulled back through random layers. Controls: random (untrained)
        and none (head only).
    scaling
        Normalization of filters. length: equal norm. rms: equal RMS of the outputs over all
        clients' patches. whitened: as rms, except for outputs that hardly vary.
    cells
        The input of the head: the mean outputs of every layer over `cells` by `cells` cells, or
        with 0 the outputs of the last layer at every position.
    ridge
        Weight of the head's squared norm, for features of unit size; "auto" selects the smallest
        ridge with nearly the smallest generalized cross-validation error.
    layer_ridge
        Ridge of filters that are regressions, per patch.
    lift
        Random projection and activation before the head; width 0 for no lift.
    seed
        Public seed of codes and random filters.
    batch_seconds
        Time budget in seconds for a batch at a client: slow clients sum over smaller batches. The
        result is the same to the bit. 0 for no budget: batches as large as memory allows.
    """

    layers: str = "auto"
    image: tuple[int, ...] = ()
    filters: FilterKind = "principal"
    scaling: Scaling = "length"
    cells: int = 0
    ridge: Ridge = 100.0
    layer_ridge: float = 1e-4
    lift: Lift = Lift()
    seed: int = 0
    batch_seconds: float = codec.added_field(0.0)

    def __post_init__(self) -> None:
        if self.layers != "auto":
            read(self.layers)
        if not 0 <= self.seed < 2**47:
            raise ConfigError(f"seed = {self.seed}: use a number from 0 to 2^47 - 1")
        if self.cells < 0:
            raise ConfigError(f"cells = {self.cells}: use a number > 0, or 0 for the last layer")
        if not 0 <= self.layer_ridge < float("inf"):
            raise ConfigError(f"layer_ridge = {self.layer_ridge}: use a finite weight >= 0")
        if not 0 <= self.batch_seconds < float("inf"):
            raise ConfigError(f"batch_seconds = {self.batch_seconds}: use a number >= 0")

    # Steps at a client

    @step
    def census(self, client: Client, _: None) -> Census:
        samples = client.samples
        return Census(
            count=len(samples), space=samples.features.space, classes=samples.labels.classes
        )

    @step
    def layer_statistics(self, client: Client, task: dict[str, Any]) -> Statistics:
        """Return the statistics of the input patches of the next layer."""
        return self.patches_of(client.samples, task["stack"], task["codes"])

    @step
    def head_statistics(self, client: Client, stack: LayerStack) -> Statistics:
        """Return the statistics of the outputs of the layers."""
        return self.outcomes_of(client.samples, stack)

    # At the server

    def start(self, space: Space) -> LayerStack:
        """Return a stack without layers, for features of this space."""
        maps = maps_of(space, self.image)
        # Raises ConfigError if layers do not fit.
        out = head_input_shape(shapes(self.hidden(space), maps), self.cells)
        memory.require(
            24 * (self.lift.width or out.size) ** 2,
            f"the head above outputs of {out}",
            "use more pooling, fewer channels, or a narrower lift",
        )
        return LayerStack(inputs=space, image=(maps.height, maps.width, maps.channels))

    def hidden(self, space: Space) -> tuple[Layer, ...]:
        """Return the hidden layers for features of this space."""
        if self.filters == "none":
            return ()
        if self.layers != "auto":
            return read(self.layers)
        return read(FOR_IMAGES if maps_of(space, self.image).places > 1 else FOR_VECTORS)

    def solved(self, federation: Federation, census: Census) -> tuple[LayerStack, tuple[str, ...]]:
        """Solve the hidden layers; return them with the digests of their totals."""
        stack, origins = self.start(census.space), []
        for _ in self.hidden(census.space):
            task = {"stack": stack, "codes": self.codes(stack, census.classes)}
            total = federation.sum(self.layer_statistics, task)
            origins.append(total.digest())
            stack = stack.plus(self.next_layer(stack, total))
        return replace(stack, cells=self.cells), tuple(origins)

    def next_layer(self, stack: LayerStack, total: Statistics) -> SolvedLayer:
        """Return the next layer of a stack, solved from the total of its input patches."""
        index = len(stack.solved)
        return filters.solve(
            total,
            self.hidden(stack.inputs)[index],
            self.filters,
            ridge=self.layer_ridge,
            scaling=self.scaling,
            seed=codes_seed(self.seed, index) + 1,
        )

    def headed(
        self, stack: LayerStack, total: Statistics, origins: tuple[str, ...], ridge: float
    ) -> SolvedNetwork:
        """Return the network with its head, solved from the statistics of the outputs.

        Parameters
        ----------
        stack
            The hidden layers.
        total
            Statistics of the outputs of the layers, over all clients.
        origins
            Digests of the totals of the layers.
        ridge
            Weight of the head's squared norm.
        """
        head = Linear(
            weights=total.solve(ridge),
            space=total.space,
            classes=total.classes,
            lift=self.lift,
            origin=total.digest(),
        )
        return SolvedNetwork(stack=stack, head=head, origins=(*origins, head.origin))

    # Sums over a client's samples

    def codes(self, stack: LayerStack, classes: tuple[str, ...]) -> Array | None:
        """Return the targets of the next layer; None if clients draw them from the seed."""
        return self._table(stack, classes) if self.filters == "backward" else None

    def patches_of(self, samples: Samples, stack: LayerStack, codes: Array | None) -> Statistics:
        """Return the statistics of the input patches of the next layer.

        Parameters
        ----------
        samples
            The client's samples.
        stack
            The layers so far.
        codes
            Targets of the layer; None to draw them from the seed.
        """
        layer, maps = self.hidden(stack.inputs)[len(stack.solved)], stack.maps
        classes = samples.labels.classes
        sums = PatchSums(layer, maps, stack.space, len(classes))
        most = batch_size(layer, maps)
        for features, labels in stack.batches(samples, most, self.batch_seconds):
            sums.add(features.values[:, stack.space.without_constant], labels.codes)
        moment, energy = np.zeros((layer.fan_in(maps) + 1, 0), sums.dtype), 0
        if self.filters in LABELED:
            codes = self._table(stack, classes) if codes is None else codes
            moment = sums.moment(codes)
            energy = int(sums.counts @ np.sum(codes.astype(np.int64) ** 2, axis=(1, 2)))
        return Statistics(
            count=len(samples) * positions(layer, maps),
            gram=sums.gram(),
            moment=moment,
            energy=energy,
            space=replace(
                stack.space,
                width=layer.fan_in(maps) + 1,
                steps=(*stack.space.steps, f"patches({layer})"),
            ),
            classes=tuple(f"channel {k}" for k in range(moment.shape[1])),
        )

    def outcomes_of(self, samples: Samples, stack: LayerStack) -> Statistics:
        """Return the statistics of the outputs of a stack: the input of the head."""
        if self.lift.width:
            require_gram(self.lift.width + 1, len(samples.labels.classes))
        whole = Dense(channels=1)  # like a dense layer, the head has one patch per sample
        most = batch_size(whole, stack.maps)
        batches = stack.batches(samples, most, self.batch_seconds)
        return Statistics.over((self.lift(features), labels) for features, labels in batches)

    def _table(self, stack: LayerStack, classes: tuple[str, ...]) -> Array:
        layers = self.hidden(stack.inputs)
        return table(
            self.filters,
            classes,
            layers,
            shapes(layers, stack.shapes[0]),
            len(stack.solved),
            self.seed,
        )
