"""What a step may see of a client, and what only the score step may see."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any, cast

import numpy as np

from fedgram.core.samples import Samples


@dataclass(frozen=True, eq=False, kw_only=True)
class Client:
    """One member of a federation as its own steps see it: there is no test data here.

    Parameters
    ----------
    id
        Name, unique in the federation.
    train, valid
        Labelled samples; `valid` is for choices and may be empty.
    state
        What the client keeps between asks; it never leaves.
    reserve_valid
        Whether `valid` is for choices only, whatever the method.
    rng
        Randomness of this ask, from the run's seed, the client's name and the ask's number.

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
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    @cached_property
    def samples(self) -> Samples:
        """All labelled samples: closed-form methods need none of them for choices.

        Without the validation samples where they are reserved, so that all methods train alike.
        """
        return self.train if self.reserve_valid else self.train + self.valid

    @property
    def in_total(self) -> bool:
        """Whether this client's samples are in the total that later steps leave samples out of."""
        return bool(self.state.get("in_total"))

    def remember(self, **values: Any) -> None:
        """Keep values until the next ask."""
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

    def client(self, rng: np.random.Generator, *, frozen: bool = False) -> Client:
        """Return what a step may see; `frozen` makes its state read-only."""
        state = MappingProxyType(self.state) if frozen else self.state
        return Client(
            id=self.id,
            train=self.train,
            valid=self.valid,
            state=state,
            reserve_valid=self.reserve_valid,
            rng=rng,
        )
