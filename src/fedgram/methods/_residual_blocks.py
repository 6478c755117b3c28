"""Residual blocks on frozen features in closed form (DeepAFL): each is one sum and one solve."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass, replace
from typing import Any, Self, cast

import numpy as np
import scipy.linalg

from fedgram.core import codec
from fedgram.core.census import DataSchema
from fedgram.core.samples import Floats, Samples, Space
from fedgram.core.solve import require_ridge, ridge_solve, unpack_symmetric
from fedgram.core.statistics import Statistics
from fedgram.errors import ConfigError
from fedgram.features.lift import Lift
from fedgram.features.residual import Block, Residual, concat, concat_space
from fedgram.federation.client import Client
from fedgram.federation.method import Method
from fedgram.federation.protocol import Federation
from fedgram.federation.step import step
from fedgram.methods._stacked import FeatureMap, Stacked
from fedgram.models.linear import Linear, require_space
from fedgram.runtime import flops
from fedgram.runtime.threads import single_threaded_blas

_ROWS_AT_A_TIME = 8192  # bounds the memory of concatenated features
_KEPT = "deep"  # key of the client's deep features in its state, between exchanges


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
class StackedMethod(ResidualBlocks, Stacked):
    """Base class of methods on deep features: a subclass declares the inner method as `top`.

    Parameters
    ----------
    top
        Settings of the method on the deep features, as listed for that method.
    """

    top: Any = None

    @property
    def inner(self) -> Method[Any]:
        """The method on the deep features."""
        inner: Method[Any] = self.top
        return inner

    def fit(self, federation: Federation) -> Iterator[Any]:
        """Solve the blocks, then yield the shared results of the method on top."""
        below = self.start(federation)
        for _, deeper in self.deeper(federation, below):
            below = deeper
        yield from self.fit_inner(federation, below)

    def mapped(self, client: Client, below: FeatureMap) -> Client:
        """Return the client with deep features, from those that it keeps."""
        return deepened(client, cast(Residual, below))


def deepened(client: Client, below: Residual, *, keep: bool = False) -> Client:
    """Return the client with deep features; with `keep` they are stored for deeper blocks."""
    samples = client.train + client.valid
    features = below.apply_from(samples.features, client.state.get(_KEPT))
    if keep:
        cast(MutableMapping[str, Any], client.state)[_KEPT] = features
    deep, train = Samples(features, samples.labels), len(client.train)
    return replace(client, train=deep.take(slice(train)), valid=deep.take(slice(train, None)))
