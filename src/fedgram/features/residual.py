"""Residual blocks on frozen features, in exact integers.

A block adds to features a solved mix of random features of them. What was solved is rounded to a
public grid of integers before it is used, so what comes out is integers again, and the sums of the
next depth are exact too.
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

SOLVED_BITS = 12  # of a solved matrix, sign included
STREAM_BITS = 12  # of the features that pass through blocks: one block adds less than an 8-bit step
_ENTRIES_AT_A_TIME = 2**21  # bounds the wide intermediate arrays


@codec.register("Block/1")
@dataclass(frozen=True, eq=False, kw_only=True)
class Block:
    """Features plus a mix of random features of them; the constant stays as it is.

    The mix is the product of two solved matrices, ``down up``, through as many numbers as there
    are classes. It is evaluated in integers and rounded once, to the grid of the features.

    Parameters
    ----------
    lift
        Makes the random features.
    down, up
        Integers: random features (and their constant) by classes, classes by features.
    places
        Binary places of the product of the two.

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
        """Return a block whose solved matrices are rounded to the public grid."""
        (down_steps, down_places), (up_steps, up_places) = rounded(down), rounded(up)
        return cls(lift=lift, down=down_steps, up=up_steps, places=down_places + up_places)

    def __call__(self, features: Features) -> Features:
        """Return the deeper features."""
        space = self.space(features.space)
        values = features.values.copy()
        rows_at_a_time = max(1, _ENTRIES_AT_A_TIME // max(self.lift.width, space.width))
        for start in range(0, len(values), rows_at_a_time):
            part = slice(start, start + rows_at_a_time)
            more = self._mixed(self.lift(features.take(part)))
            if space.exact:
                more += values[part, :-1]
                np.clip(np.rint(more, out=more), -space.bound, space.bound, out=more)
                values[part, :-1] = more
            else:
                values[part, :-1] += more
        return Features(values, space)

    def space(self, inputs: Space) -> Space:
        """Return the space of what this block makes of features in the space `inputs`."""
        step = f"block({self.lift.width} wide, {codec.digest(self)[:16]})"
        return replace(inputs, steps=(*inputs.steps, step))

    def _mixed(self, lifted: Features) -> Floats:
        """Return the mix in stored units, before it is rounded."""
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
    """Frozen features, lifted, and passed through residual blocks.

    Parameters
    ----------
    inputs
        The space of the features that go in.
    lift
        Applied first; width 0 for none.
    blocks
        Applied one after another.

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
        """Return the deep features; kept where `features` have room for it.

        Only those of the greatest depth are kept, from which the next depth is one block away.
        """
        memo = features.cache
        if memo is None:
            return self.apply_from(features)
        if self.space not in memo:
            known = [memo[space] for space in self._spaces if space in memo]
            memo[self.space] = replace(self.apply_from(features, *known[-1:]), cache={})
            for shallow in known:
                memo.pop(shallow.space, None)
        return memo[self.space]

    def apply_from(self, features: Features, kept: Features | None = None) -> Features:
        """Return the deep features; those `kept` from a lesser depth are gone on from."""
        spaces = self._spaces
        done = spaces.index(kept.space) if kept is not None and kept.space in spaces else None
        deep = kept if kept is not None and done is not None else self.lift(_finer(features))
        for block in self.blocks[done or 0 :]:
            deep = block(deep)
        return deep

    def deeper(self, block: Block) -> Residual:
        """Return the same with one more block."""
        return replace(self, blocks=(*self.blocks, block))

    @property
    def space(self) -> Space:
        """The space of the deep features."""
        return self._spaces[-1]

    @cached_property
    def _spaces(self) -> list[Space]:
        """The spaces at every depth, from none on."""
        spaces = [self.lift.space(_finer_space(self.inputs))]
        for block in self.blocks:
            spaces.append(block.space(spaces[-1]))
        return spaces


def concat(features: Features, lift: Lift) -> Features:
    """Return features and random features of them, side by side.

    Examples
    --------
    >>> rows = Features(np.array([[3, 4]], dtype=np.int16), Space(width=2, bound=127))
    >>> concat(rows, Lift(width=1, activation="relu")).values.shape
    (1, 4)
    """
    lifted = lift(features)
    return Features(np.hstack([features.values, lifted.values]), concat_space(features.space, lift))


def concat_space(inputs: Space, lift: Lift) -> Space:
    """Return the space of features with random features of them."""
    lifted = lift.space(inputs)
    return replace(
        lifted, width=inputs.width + lifted.width, steps=(*lifted.steps, "beside its inputs")
    )


def rounded(matrix: Floats) -> tuple[Array, int]:
    """Return a solved matrix as integers of a public grid, and their binary places.

    The step is the power of two with which the largest entry just fits.

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
    """Return features with binary places to spare for small changes."""
    values, spare = features.values, _spare(features.space)
    if spare:
        values = values.astype(np.int16) * np.int16(2**spare)
    return Features(values, _finer_space(features.space))


def _finer_space(space: Space) -> Space:
    spare = _spare(space)
    if not spare:
        # Nothing is known of the backbone's vectors here: a total does not tell its lift.
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
