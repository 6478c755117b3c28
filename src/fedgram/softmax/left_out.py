"""Scores of left-out samples under the softmax heads of folds, with each client's own part.

A sample of a fold is scored by the shared head that was fitted without this fold, plus an own part
that is fitted to the client's samples of the other folds. Parts of equal shapes are solved together
for many clients.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
        for some, places in _chunks(parts, used):
            _add_own_parts(some, places, [strengths[place] for place in places])
    return found


def _sides(fold: Integers, number: int) -> tuple[Array, Array]:
    out = fold == number
    return out, ~out


def _chunks(parts: list[_FoldPart], used: list[int]) -> Iterator[tuple[list[_FoldPart], list[int]]]:
    """Yield parts of equal shapes with places of strengths, in stacks of bounded size."""
    if not used:
        return
    rows, classes = parts[0].client.rows, parts[0].logits.shape[1]
    samples, width = len(parts[0].rest) + len(parts[0].out), rows.shape[1]
    each = max(1, classes * max(samples, width), samples * min(samples, width))
    together = max(1, min(len(used), _ENTRIES_AT_A_TIME // each))
    number = max(1, _ENTRIES_AT_A_TIME // max(each * together, samples * width))
    for start in range(0, len(parts), number):
        for first in range(0, len(used), together):
            yield parts[start : start + number], used[first : first + together]


def _add_own_parts(parts: list[_FoldPart], places: list[int], strengths: list[float]) -> None:
    """Add the logits of the own parts, for each of the strengths."""
    own = OwnRows.of(np.stack([part.client.rows[part.rest] for part in parts]))
    added = own.corrections(
        np.stack([part.logits[part.rest] for part in parts]),
        np.stack([part.client.targets[part.rest] for part in parts]),
        strengths,
    )
    out = np.stack([part.client.rows[part.out] for part in parts])
    with single_threaded_blas():
        logits = np.matmul(out[:, None], added).astype(np.float32, copy=False)
    for part, more in zip(parts, logits, strict=True):
        part.scores[np.array(places)[:, None], part.out] += more
