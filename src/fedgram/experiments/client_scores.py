"""The scores of all clients as arrays, for any number of clients."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedgram.core.samples import Floats
from fedgram.experiments.run_record import ClientScore
from fedgram.federation.union_scoring import UnionScores
from fedgram.models.linear import Predictor
from fedgram.runtime.lazy_sequence import LazySequence


@dataclass(frozen=True, eq=False, kw_only=True)
class UnionRows(LazySequence[ClientScore]):
    """The rows of clients that were scored together; each is made when it is asked for."""

    scores: UnionScores

    def __len__(self) -> int:
        return len(self.scores.names)

    def make(self, place: int) -> ClientScore:
        """Return the row of one client."""
        found = self.scores
        return ClientScore(
            client=found.names[place],
            samples=int(found.test.samples[place]),
            correct=int(found.test.correct[place]),
            seconds=found.seconds(place),
            model_digest=found.made.digests[found.made.place(place)],
            valid_samples=int(found.valid.samples[place]),
            valid_correct=int(found.valid.correct[place]),
        )


def accuracies(rows: Sequence[ClientScore]) -> Floats:
    """Return the accuracy of every client that has test samples."""
    if isinstance(rows, UnionRows):
        test = rows.scores.test
        return test.shares[test.samples > 0]
    found = [row.accuracy for row in rows]
    return np.array([accuracy for accuracy in found if accuracy is not None])


def model_digests(rows: Sequence[ClientScore]) -> list[str]:
    """Return the different digests of the clients' models, sorted."""
    if isinstance(rows, UnionRows):
        return sorted(set(rows.scores.made.digests))
    return sorted({row.model_digest for row in rows})


class SameModel(Mapping[str, Predictor]):
    """The models of clients that all have the same one, by client."""

    def __init__(self, names: Sequence[str], model: Predictor) -> None:
        self._names = names
        self.model = model

    def __getitem__(self, client: str) -> Predictor:
        place = bisect_left(self._names, client)
        if place == len(self._names) or self._names[place] != client:
            raise KeyError(client)
        return self.model

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
