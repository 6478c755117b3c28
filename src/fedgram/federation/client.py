"""The client that steps see, and the site, whose test data only the score step sees."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any, cast

import numpy as np

from fedgram.core.samples import Samples


class Randomness:
    """A random generator that is made when it is first used: most steps use none.

    Parameters
    ----------
    source
        The seed of the generator, a generator, or a function that makes one.

    Examples
    --------
    >>> Randomness([0, 7]).generator.random() == Randomness([0, 7]).generator.random()
    True
    """

    def __init__(
        self, source: np.random.Generator | Sequence[int] | Callable[[], np.random.Generator]
    ) -> None:
        self._source = source

    @cached_property
    def generator(self) -> np.random.Generator:
        """The generator, one and the same at each use."""
        if isinstance(self._source, np.random.Generator):
            return self._source
        if callable(self._source):
            return self._source()
        return np.random.default_rng(np.random.SeedSequence(self._source))

    def child(self) -> Randomness:
        """Return random numbers of their own, of a generator that the generator spawns."""
        return Randomness(lambda: self.generator.spawn(1)[0])


@dataclass(frozen=True, eq=False, kw_only=True)
class Client:
    """One member of a federation as its steps see it, without test data.

    Parameters
    ----------
    id
        Name, unique in the federation.
    train, valid
        Labelled samples; `valid` is for model selection and may be empty.
    state
        Values that the client keeps between steps; they never leave the client.
    reserve_valid
        Whether `valid` is for model selection only, with any method.
    randomness
        Random numbers of this step, from the run's seed, the client's name and the number of
        the call.
    totals
        Names of the steps whose last total includes this client's reply, from the federation.

    Examples
    --------
    >>> from fedgram.core.samples import Features, Labels, Space
    >>> rows = Features(np.array([[1], [2], [3]], dtype=np.int8), Space(width=1, bound=127))
    >>> samples = Samples(rows, Labels(np.array([0, 1, 1]), ("no", "yes")))
    >>> client = Client(id="north", train=samples.take([0, 1]), valid=samples.take([2]))
    >>> len(client.train), len(client.samples), hasattr(client, "test")
    (2, 3, False)
    """

    id: str
    train: Samples
    valid: Samples
    state: Mapping[str, Any] = field(default_factory=dict)
    reserve_valid: bool = False
    randomness: Randomness = field(default_factory=lambda: Randomness([0]))
    totals: frozenset[str] = frozenset()

    @property
    def rng(self) -> np.random.Generator:
        """Random generator of this step."""
        return self.randomness.generator

    @cached_property
    def samples(self) -> Samples:
        """The samples of closed-form methods: training and validation samples.

        If validation samples are reserved, training samples only.
        """
        return self.train if self.reserve_valid else self.train + self.valid

    @property
    def in_total(self) -> bool:
        """Whether this client's statistics are in the method's total, for leave-one-out steps."""
        return self.in_total_of("statistics")

    def in_total_of(self, step: str) -> bool:
        """Whether this client's reply is in the last total of the step of this name."""
        return step in self.totals

    def remember(self, **values: Any) -> None:
        """Keep values for later steps."""
        cast(MutableMapping[str, Any], self.state).update(values)


@dataclass(frozen=True, eq=False, kw_only=True)
class Site:
    """A client together with its test data, which only the score step sees.

    Examples
    --------
    >>> from fedgram.core.samples import Features, Labels, Space
    >>> rows = Features(np.array([[1], [2], [3]], dtype=np.int8), Space(width=1, bound=127))
    >>> samples = Samples(rows, Labels(np.array([0, 1, 1]), ("no", "yes")))
    >>> site = Site(id="north", train=samples, valid=samples.take([]), test=samples.take([2]))
    >>> site.client(np.random.default_rng(0)).id
    'north'
    """

    id: str
    train: Samples
    valid: Samples
    test: Samples
    state: MutableMapping[str, Any] = field(default_factory=dict)
    reserve_valid: bool = False

    def client(
        self,
        rng: np.random.Generator | Randomness,
        *,
        frozen: bool = False,
        totals: frozenset[str] = frozenset(),
    ) -> Client:
        """Return the client without test data.

        Parameters
        ----------
        rng
            Random generator of the step, made already or not.
        frozen
            Whether the client's state is read-only.
        totals
            Names of the steps whose last total includes the client's reply.
        """
        state = MappingProxyType(self.state) if frozen else self.state
        return Client(
            id=self.id,
            train=self.train,
            valid=self.valid,
            state=state,
            reserve_valid=self.reserve_valid,
            randomness=rng if isinstance(rng, Randomness) else Randomness(rng),
            totals=totals,
        )
