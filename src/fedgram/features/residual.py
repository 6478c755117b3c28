"""Residual blocks on frozen features (DeepAFL), in exact integers.

A block adds to the features a solved linear map of their random features. The solved matrices are
rounded to integers of a public grid. So the output features are integers, and the sums of the next
depth are exact too.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from fedgram.core import codec
from fedgram.core.exact import exact_matmul
from fedgram.core.samples import Array, Features, Floats, Space
from fedgram.features.lift import Lift
from fedgram.runtime.threads import single_threaded_blas

SOLVED_BITS = 12  # bits of an entry of a solved matrix, sign included
STREAM_BITS = 12  # bits of a feature between blocks: a block adds less than one step of 8 bits
_ENTRIES_AT_A_TIME = 2**21  # bounds the wide intermediate arrays


@codec.register("Block/1")
@dataclass(frozen=True, eq=False, kw_only=True)
class Block:
    """One residual block: ``f + lift(f) down up``; the constant stays unchanged.

    The linear map is the product of two solved matrices, of rank at most the number of classes. It
    is evaluated in integers and rounded once, to the grid of the features.

    Parameters
    ----------
    lift
        Computes the random features.
    down, up
        Integers: random features (with their constant) by classes, classes by features.
    places
        Number of binary places of the product ``down up``.

    Examples
    --------
    >>> space = Space(width=3, unit=0.5, bound=127)
    >>> rows = Features(np.array([[10, -20, 2]], dtype=np.int16), space)
    >>> lift = Lift(width=1, activation="identity")
    >>> block = Block(lift=lift, down=np.array([[0], [3]]), up=np.array([[2, -5]]), places=1)
    >>> block(rows).values  # the constant 2 of the lift, times 3, times 2 and -5, halved
    array([[ 16, -35,   2]], dtype=int16)
    """

    lift: Lift
    down: Array
    up: Array
    places: int

    @classmethod
    def of(cls, lift: Lift, down: Floats, up: Floats) -> Block:
        """Return a block with the solved matrices, rounded to the public grid.

        Parameters
        ----------
        lift
            Computes the random features.
        down, up
            The solved matrices, in real units.
        """
        (down_steps, down_places), (up_steps, up_places) = rounded(down), rounded(up)
        return cls(lift=lift, down=down_steps, up=up_steps, places=down_places + up_places)

    def __call__(self, features: Features) -> Features:
        """Return the deeper features."""
        space = self.space(features.space)
        values, others = features.values.copy(), space.without_constant
        rows_at_a_time = max(1, _ENTRIES_AT_A_TIME // max(self.lift.width, space.width))
        for start in range(0, len(values), rows_at_a_time):
            part = slice(start, start + rows_at_a_time)
            more = self._mixed(self.lift(features.take(part)))
            if space.exact:
                more += values[part, others]
                np.clip(np.rint(more, out=more), -space.bound, space.bound, out=more)
                values[part, others] = more
            else:
                values[part, others] += more
        return Features(values, space)

    def space(self, inputs: Space) -> Space:
        """Return the feature space after this block, for features in the space `inputs`."""
        step = f"block({self.lift.width} wide, {codec.digest(self)[:16]})"
        return replace(inputs, steps=(*inputs.steps, step))

    def _mixed(self, lifted: Features) -> Floats:
        """Return ``lifted down up`` in stored units, before rounding."""
        bound = lifted.space.bound
        if bound:
            down, up = _longest(self.down), _longest(self.up)
            inner = exact_matmul(lifted.values, self.down, bound, longest=down)
            mixed = exact_matmul(inner, self.up, bound * down, longest=up).astype(
                np.float64, copy=False
            )
        else:
            with single_threaded_blas():
                mixed = lifted.values @ self.down.astype(np.float64) @ self.up.astype(np.float64)
        return np.ldexp(mixed, -self.places)


@codec.register("Residual/1")
@dataclass(frozen=True, eq=False, kw_only=True)
class Residual:
    """A lift and a sequence of residual blocks, applied to frozen features.

    Parameters
    ----------
    inputs
        The feature space of the inputs.
    lift
        Applied first; width 0 for no lift.
    blocks
        Applied one after the other.

    Examples
    --------
    >>> from fedgram.features.grid import Grid
    >>> rows = Grid(bits=8)(np.array([[3.0, 4.0]]))
    >>> Residual(inputs=rows.space)(rows).values  # sixteen times finer
    array([[288, 384, 336]], dtype=int16)
    """

    inputs: Space
    lift: Lift = Lift()
    blocks: tuple[Block, ...] = field(default=())

    def __call__(self, features: Features) -> Features:
        """Return the deep features, from the cache of `features` if there is one.

        The cache contains the deepest features only: the next depth needs one more block.
        """
        cache = features.cache
        if cache is None:
            return self.apply_from(features)
        known = [cache[space] for space in self._spaces if space in cache]
        deep = features.derived(
            self.space, lambda: replace(self.apply_from(features, *known[-1:]), cache={})
        )
        for shallow in known:
            if shallow is not deep:
                cache.pop(shallow.space, None)
        return deep

    def apply_from(self, features: Features, shallow: Features | None = None) -> Features:
        """Return the deep features, computed from `shallow` ones of a lesser depth if given."""
        spaces = self._spaces
        known = shallow is not None and shallow.space in spaces
        done = spaces.index(shallow.space) if shallow is not None and known else None
        deep = shallow if shallow is not None and known else self.lift(_finer(features))
        for block in self.blocks[done or 0 :]:
            deep = block(deep)
        return deep

    def deeper(self, block: Block) -> Residual:
        """Return a copy with one more block."""
        return replace(self, blocks=(*self.blocks, block))

    @property
    def space(self) -> Space:
        """The space of the deep features."""
        return self._spaces[-1]

    @cached_property
    def _spaces(self) -> list[Space]:
        """The feature space at every depth, from depth 0."""
        spaces = [self.lift.space(_finer_space(self.inputs))]
        for block in self.blocks:
            spaces.append(block.space(spaces[-1]))
        return spaces


def concat(features: Features, lift: Lift) -> Features:
    """Return features and their random features, concatenated.

    Examples
    --------
    >>> rows = Features(np.array([[3, 4]], dtype=np.int16), Space(width=2, bound=127))
    >>> concat(rows, Lift(width=1, activation="relu")).values.shape
    (1, 4)
    """
    lifted = lift(features)
    return Features(np.hstack([features.values, lifted.values]), concat_space(features.space, lift))


def concat_space(inputs: Space, lift: Lift) -> Space:
    """Return the feature space of `concat`."""
    lifted = lift.space(inputs)
    return replace(
        lifted, width=inputs.width + lifted.width, steps=(*lifted.steps, "beside its inputs")
    )


def rounded(matrix: Floats) -> tuple[Array, int]:
    """Return a solved matrix as integers of a public grid, and the number of binary places.

    The step is the smallest power of two with which the largest entry fits.

    Examples
    --------
    >>> rounded(np.array([[0.75, -0.001]]))
    (array([[1536,   -2]], dtype=int16), 11)
    """
    _, exponent = np.frexp(np.abs(matrix).max(initial=0.0))
    places = SOLVED_BITS - 1 - int(exponent)
    most = 2 ** (SOLVED_BITS - 1) - 1
    steps = np.clip(np.rint(np.ldexp(matrix, places)), -most, most)
    return steps.astype(np.int16), places


def _longest(matrix: Array) -> int:
    """Return the largest sum of a column's magnitudes."""
    return int(np.abs(matrix.astype(np.int64)).sum(axis=0).max(initial=0))


def _finer(features: Features) -> Features:
    """Return the features on a finer grid, so that small changes are not rounded away."""
    values, spare = features.values, _spare(features.space)
    if spare:
        values = values.astype(np.int16) * np.int16(2**spare)
    return Features(values, _finer_space(features.space))


def _finer_space(space: Space) -> Space:
    spare = _spare(space)
    if not spare:
        # inputs=0: the lift cannot be checked from a total in this space.
        return replace(space, inputs=0)
    return replace(
        space,
        unit=space.unit / 2**spare,
        bound=2**STREAM_BITS - 1,
        inputs=0,
        steps=(*space.steps, f"finer({spare} places)"),
    )


def _spare(space: Space) -> int:
    bits = space.bound.bit_length() + 1
    return max(0, STREAM_BITS - bits) if space.exact else 0
