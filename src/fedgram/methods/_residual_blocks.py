"""Residual blocks on frozen features in closed form (DeepAFL), and methods on top of them.

Each block is one sum and one solve. The method on top runs unchanged on clients with deep features.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self, cast

import numpy as np
import scipy.linalg

from fedgram.core import codec
from fedgram.core.census import DataSchema
from fedgram.core.samples import Features, Floats, Samples, Space
from fedgram.core.shared import Shared, provenance
from fedgram.core.solve import require_ridge, ridge_solve, unpack_symmetric
from fedgram.core.statistics import Statistics
from fedgram.errors import ConfigError
from fedgram.features.lift import Lift
from fedgram.features.residual import Block, Residual, concat, concat_space
from fedgram.federation.client import Client
from fedgram.federation.method import Method
from fedgram.federation.protocol import Federation, Total
from fedgram.federation.shared import PerClient
from fedgram.federation.step import Nested, Reply, Step, named_step, step, step_name
from fedgram.models.linear import Linear, Predictor, require_space
from fedgram.runtime import flops
from fedgram.runtime.threads import single_threaded_blas

_ROWS_AT_A_TIME = 8192  # bounds the memory of concatenated features
_KEPT = "deep"  # key of the client's deep features in its state, between exchanges


@codec.register("Deepened/1")
@dataclass(frozen=True, eq=False, kw_only=True)
class ResidualModel(Shared):
    """A model on deep features.

    Parameters
    ----------
    below
        The residual blocks, which compute the deep features.
    model
        The model on the deep features.
    """

    below: Residual
    model: Any

    @property
    def space(self) -> Space:
        """The feature space of the inputs."""
        return self.below.inputs

    @property
    def classes(self) -> tuple[str, ...]:
        """The class list, in the order of the scores."""
        classes: tuple[str, ...] = self.model.classes
        return classes

    def __call__(self, features: Features) -> Floats:
        require_space(self.space, features.space)
        scores: Floats = self.model(self.below(features))
        return scores

    def predictor(self) -> ResidualModel | None:
        """Return the predictor on deep features; None if nothing shared predicts."""
        top = self.model.predictor() if isinstance(self.model, Shared) else self.model
        return None if top is None else ResidualModel(below=self.below, model=top)

    def provenance(self) -> str:
        """Digest of the totals behind the model; their space identifies all blocks."""
        return codec.digest({"deep": provenance(self.model)})


@codec.register("Above/1")
@dataclass(frozen=True, eq=False, kw_only=True)
class InnerStep(Nested):
    """A request to run a step of the method on top, on deep features."""

    below: Residual
    broadcast: Any


@dataclass(frozen=True, kw_only=True)
class ResidualBlocks(Method[Any]):
    """Base class of methods on residual blocks, which are solved one after another from sums.

    Parameters
    ----------
    ridge
        Weight of the heads' squared norms (lambda in the paper), for features of unit size; 0 is
        plain least squares.
    blocks
        Number of residual blocks, >= 0; 0 for no blocks.
    block_ridge
        Weight of a block's squared norm (gamma in the paper), > 0.
    width
        Number of random features of each block, without the constant, >= 1.
    activation
        Activation of the random features: identity, relu, leaky-relu, gelu, tanh, sigmoid,
        hardswish or softshrink.
    lift
        Random projection and activation before the first block; width 0 for no lift.
    seed
        Public seed of the blocks' random features; the number of the block is added.
    """

    ridge: float = 100.0
    blocks: int = 10
    block_ridge: float = 10.0
    width: int = 1024
    activation: str = "gelu"
    lift: Lift = Lift()
    seed: int = 1

    def __post_init__(self) -> None:
        if self.blocks < 0:
            raise ConfigError(f"blocks = {self.blocks}: use 0 for none, or more")
        if self.width < 1:
            raise ConfigError(f"width = {self.width}: use at least one random feature in a block")
        if not 0 < self.block_ridge < float("inf"):
            raise ConfigError(f"block_ridge = {self.block_ridge}: use a finite number > 0")
        require_ridge(self.ridge)
        self.random(0), self.random(self.blocks)

    def shortened(self, *, search: bool = True) -> Self:
        """Return the method with at most one narrow block."""
        del search
        return replace(self, blocks=min(1, self.blocks), width=min(16, self.width))

    def random(self, number: int) -> Lift:
        """Return the random features of a block; blocks are numbered from 0."""
        return Lift(width=self.width, activation=self.activation, seed=self.seed + number)

    # Steps at a client

    @step
    def opening(self, client: Client, _: None) -> DataSchema:
        """Return the feature space and the class list of the client."""
        return DataSchema(space=client.train.features.space, classes=client.train.labels.classes)

    @step
    def depth_statistics(self, client: Client, below: Residual) -> Statistics:
        """Return the statistics of deep features concatenated with the next block's random ones."""
        samples = deepened(client, below, keep=True).samples
        if len(below.blocks) >= self.blocks:
            return Statistics.of(samples.features, samples.labels)
        lift = self.random(len(below.blocks))
        parts = (
            samples.take(slice(start, start + _ROWS_AT_A_TIME))
            for start in range(0, max(1, len(samples)), _ROWS_AT_A_TIME)
        )
        return Statistics.over((concat(part.features, lift), part.labels) for part in parts)

    # At the server

    def start(self, federation: Federation) -> Residual:
        """Return the residual network before the first block."""
        return Residual(inputs=federation.sum(self.opening).space, lift=self.lift)

    def deeper(self, federation: Federation, below: Residual) -> Iterator[tuple[Linear, Residual]]:
        """Yield the head at each depth, and the features one block deeper."""
        for number in range(self.blocks):
            lift = self.random(number)
            total = federation.sum(self.depth_statistics, below)
            require_space(concat_space(below.space, lift), total.space)
            head, block = self._solved(total, below.space, lift)
            below = below.deeper(block)
            yield head, below

    def _solved(self, total: Statistics, space: Space, lift: Lift) -> tuple[Linear, Block]:
        """Return the head, and the block that fits its residual."""
        gram, moment = (
            unpack_symmetric(total.gram, total.space.width),
            total.moment.astype(np.float64),
        )
        width = space.width
        stored = ridge_solve(
            gram[:width, :width],
            moment[:width],
            self.ridge / space.unit**2,
            samples=total.count,
        )
        flops.add(2 * (len(gram) - width) * width * stored.shape[1])
        with single_threaded_blas():
            left = moment[width:] - gram[width:, :width] @ stored  # random features by residuals
        weights = stored[space.without_constant]
        down = mixing(gram[width:, width:], left, weights, self.block_ridge)
        head = Linear(
            weights=stored / space.unit,
            space=space,
            classes=total.classes,
            origin=codec.digest({"total": total.digest(), "ridge": float(self.ridge)}),
        )
        order = np.argsort(total.classes)  # whatever the order of the class list
        return head, Block.of(lift, down[:, order], weights.T[order])


def mixing(gram: Floats, left: Floats, head: Floats, ridge: float) -> Floats:
    """Return D of the Omega = D head' that minimizes ``|R - F Omega head|^2 + ridge |Omega|^2``.

    In the eigenvectors V of F'F with eigenvalues s, and the right singular vectors U of the head
    with singular values t, entry by entry, ``V' D U = V' F'R U / (ridge + s t^2)``. The thin
    singular value decomposition of the head replaces an eigenproblem of the size of the features,
    and the rank of the minimizer is at most the number of classes.

    Parameters
    ----------
    gram
        F'F, the Gram matrix of the random features.
    left
        F'R, random features times residuals.
    head
        The head, features by classes.
    ridge
        Weight of the block's squared norm.

    Examples
    --------
    >>> one = np.array([[1.0]])
    >>> mixing(3 * one, 6 * one, 2 * one, 1.0) * 2  # 6 * 2 / (1 + 3 * 4)
    array([[0.92307692]])
    """
    flops.add(9 * len(gram) ** 3 + 4 * len(gram) ** 2 * left.shape[1])
    flops.add(6 * head.shape[0] * head.shape[1] ** 2)
    with single_threaded_blas():
        energies, vectors = scipy.linalg.eigh(gram, check_finite=False)
        _, singular, turned = scipy.linalg.svd(head, full_matrices=False, check_finite=False)
        weights = ridge + np.outer(np.maximum(energies, 0), singular**2)
        down: Floats = vectors @ ((vectors.T @ left @ turned.T) / weights) @ turned
    return down


@dataclass(frozen=True, kw_only=True)
class StackedMethod(ResidualBlocks):
    """Base class of methods on deep features: a subclass declares the inner method as `top`.

    Parameters
    ----------
    top
        Settings of the method on the deep features, as listed for that method.
    """

    top: Any = None

    def fit(self, federation: Federation) -> Iterator[Any]:
        """Solve the blocks, then yield the shared results of the method on top."""
        below = self.start(federation)
        for _, deeper in self.deeper(federation, below):
            below = deeper
        top: Method[Any] = self.top
        for shared in top.fit(_DeepFederation(self, federation, below)):
            yield _raised(below, shared)

    @step
    def above(self, client: Client, ask: InnerStep) -> Any:
        """Run a step of the method on top, on deep features."""
        inner = named_step(self.top, ask.step)
        return inner(_inner(client, ask.below), ask.broadcast)

    def shared_predictor(self, shared: Any) -> Any:
        """Return the model of the method on top for clients without samples."""
        deep: ResidualModel = shared.common if isinstance(shared, PerClient) else shared
        top: Method[Any] = self.top
        model = top.shared_predictor(deep.model)
        return None if model is None else ResidualModel(below=deep.below, model=model)

    def personalize(self, client: Client, shared: Any) -> Predictor:
        """Return the model of the method on top, on deep features."""
        deep: ResidualModel = shared
        top: Method[Any] = self.top
        own = top.personalize(_inner(client, deep.below), deep.model)
        return ResidualModel(below=deep.below, model=own)


class _DeepFederation:
    """A federation whose clients have deep features, for the method on top."""

    def __init__(self, method: StackedMethod, federation: Federation, below: Residual) -> None:
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


def deepened(client: Client, below: Residual, *, keep: bool = False) -> Client:
    """Return the client with deep features; with `keep` they are stored for deeper blocks."""
    samples = client.train + client.valid
    features = below.apply_from(samples.features, client.state.get(_KEPT))
    if keep:
        cast(MutableMapping[str, Any], client.state)[_KEPT] = features
    deep, train = Samples(features, samples.labels), len(client.train)
    return replace(client, train=deep.take(slice(train)), valid=deep.take(slice(train, None)))


def _inner(client: Client, below: Residual) -> Client:
    """Return the client of the method on top: deep features, and the totals of its steps."""
    outer = "above/"
    totals = {name.removeprefix(outer) for name in client.totals if name.startswith(outer)}
    return replace(deepened(client, below), totals=frozenset(totals))


def _raised(below: Residual, shared: Any) -> Any:
    if isinstance(shared, PerClient):
        own = {
            client: ResidualModel(below=below, model=part) for client, part in shared.own.items()
        }
        return PerClient(common=ResidualModel(below=below, model=shared.common), own=own)
    return ResidualModel(below=below, model=shared)
