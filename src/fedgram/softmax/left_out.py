"""Scores of left-out samples under the softmax heads of folds, with each client's own part.

A sample of a fold is scored by the shared head that was fitted without this fold, plus an own part
that is fitted to the client's samples of the other folds. Parts of equal shapes are solved together
for many clients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedgram.core.samples import Array, Floats, Integers
from fedgram.runtime.threads import single_threaded_blas
from fedgram.softmax.personal import OwnRows

_ENTRIES_AT_A_TIME = 2**18  # of the arrays of a stack


@dataclass(frozen=True, eq=False, kw_only=True)
class FoldLogits:
    """A client's samples with the logits of the shared heads.

    Parameters
    ----------
    rows
        Features in real units, samples by features, in the precision of the own part.
    targets
        One-hot labels, samples by classes.
    fold
        The fold in which each sample is held out; -1 for never.
    logits
        Logits of the head of each fold that holds samples of this client out, by its number.
    """

    rows: Array
    targets: Floats
    fold: Integers
    logits: dict[int, Floats]


@dataclass(frozen=True, eq=False)
class _FoldPart:
    """The held-out and the other samples of one client in one fold."""

    scores: Array  # of the client, which are written, (strengths, samples, classes)
    client: FoldLogits
    logits: Floats
    out: Integers
    rest: Integers

    @property
    def shape(self) -> tuple[object, ...]:
        return self.client.rows.dtype, len(self.out), len(self.rest)


def left_out_logits(clients: Sequence[FoldLogits], strengths: Sequence[float]) -> list[Array]:
    """Return the logits of the samples of each client, (strengths, samples, classes).

    In single precision. Those of samples that no fold holds out are zero.

    Parameters
    ----------
    clients
        Samples with logits, of equal numbers of features and classes.
    strengths
        Weights of the own part's squared norm; 0 for no own part.
    """
    found, groups = [], dict[tuple[object, ...], list[_FoldPart]]()
    for client in clients:
        scores = np.zeros((len(strengths), *client.targets.shape), np.float32)
        found.append(scores)
        for number, logits in client.logits.items():
            out, rest = (np.flatnonzero(where) for where in _sides(client.fold, number))
            scores[:, out] = logits[out]
            part = _FoldPart(scores, client, logits, out, rest)
            groups.setdefault(part.shape, []).append(part)
    used = [place for place, strength in enumerate(strengths) if strength]
    for parts in groups.values():
        number, together = _stack_size(parts[0], len(used))
        for start in range(0, len(parts), number):
            some = _FoldStack(parts[start : start + number])
            for first in range(0, len(used), together):
                places = used[first : first + together]
                some.add_own_parts(places, [strengths[place] for place in places])
    return found


def _sides(fold: Integers, number: int) -> tuple[Array, Array]:
    out = fold == number
    return out, ~out


def _stack_size(part: _FoldPart, strengths: int) -> tuple[int, int]:
    """Return how many parts of this shape, and how many strengths, are computed together."""
    rows, classes = part.client.rows, part.logits.shape[1]
    samples, width = len(part.rest) + len(part.out), rows.shape[1]
    each = max(1, classes * max(samples, width), samples * min(samples, width))
    together = max(1, min(strengths, _ENTRIES_AT_A_TIME // each))
    return max(1, _ENTRIES_AT_A_TIME // max(each * together, samples * width)), together


class _FoldStack:
    """The arrays of parts of equal shapes."""

    def __init__(self, parts: list[_FoldPart]) -> None:
        self._parts = parts
        self._own = OwnRows.of(_stacked([part.client.rows[part.rest] for part in parts]))
        self._logits = _stacked([part.logits[part.rest] for part in parts])
        self._targets = _stacked([part.client.targets[part.rest] for part in parts])
        self._out = _stacked([part.client.rows[part.out] for part in parts])

    def add_own_parts(self, places: list[int], strengths: list[float]) -> None:
        """Add the logits of the own parts to the scores, for each of the strengths."""
        added = self._own.corrections(self._logits, self._targets, strengths)
        with single_threaded_blas():
            logits = np.matmul(self._out[:, None], added).astype(np.float32, copy=False)
        for part, more in zip(self._parts, logits, strict=True):
            part.scores[np.array(places)[:, None], part.out] += more


def _stacked(arrays: list[Array]) -> Array:
    return arrays[0][None] if len(arrays) == 1 else np.stack(arrays)  # no copy of a large one
