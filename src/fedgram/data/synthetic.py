"""The synthetic data set Synthetic(alpha, beta): clients with different models and features.

As defined by Li et al., Federated Optimization in Heterogeneous Networks (FedProx, section 5.1),
and used since by pFedMe and others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedgram.core.samples import Array, Floats, Integers
from fedgram.errors import DataError
from fedgram.runtime.settings import build

NAME = "synthetic"
FEATURES, CLASSES = 60, 10
_FORM = "synthetic:ALPHA,BETA or synthetic:iid, then any of clients=30, times=1, seed=0"
_DEVIATIONS = np.arange(1.0, FEATURES + 1) ** -0.6  # variances j^-1.2


@dataclass(frozen=True, kw_only=True)
class Synthetic:
    """Parameters of the synthetic data.

    The entries of the linear model of client k are drawn from N(u_k, 1) with u_k ~ N(0, alpha), and
    the entries of the mean of its features from N(B_k, 1) with B_k ~ N(0, beta). As in the authors'
    code, alpha and beta are standard deviations. A label is the class with the highest score of the
    client's model. The models of clients differ even if alpha = beta = 0. Alpha shifts the scores
    of all classes equally, so it changes no label.

    Parameters
    ----------
    alpha
        Standard deviation between the clients' models.
    beta
        Standard deviation between the means of the clients' features.
    iid
        Use one model and one mean for all clients instead.
    clients
        Number of clients: 30 in FedProx, 100 in pFedMe.
    times
        Factor for the sizes of clients (50 plus a lognormal number): 1 in FedProx, 5 in pFedMe.
    seed
        Seed of all draws. The samples of a client depend only on the seed and the client's number.

    Examples
    --------
    >>> Synthetic(alpha=1.0, beta=1.0, clients=3).arrays()["x"].shape
    (303, 60)
    """

    alpha: float = 0.0
    beta: float = 0.0
    iid: bool = False
    clients: int = 30
    times: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("alpha", 0), ("beta", 0), ("seed", 0), ("clients", 1), ("times", 1)):
            if not getattr(self, name) >= least:
                raise DataError(f"synthetic data with {name} = {getattr(self, name)}: use {_FORM}")

    def arrays(self) -> dict[str, Array]:
        """Return the samples of all clients, as the arrays of a feature file."""
        drawn = [self._drawn(k) for k in range(self.clients)]
        digits = len(str(self.clients - 1))
        names = [f"c{k:0{digits}d}" for k in range(self.clients)]
        return {
            "x": np.vstack([x for x, _ in drawn]),
            "y": np.concatenate([y for _, y in drawn]),
            "classes": np.array([str(code) for code in range(CLASSES)]),
            "client": np.repeat(names, [len(y) for _, y in drawn]),
        }

    def _drawn(self, client: int) -> tuple[Array, Integers]:
        rng = np.random.default_rng([self.seed, client])
        size = (int(rng.lognormal(4, 2)) + 50) * self.times
        if self.iid:
            mean = np.zeros(FEATURES)
            weights, offsets = _model(np.random.default_rng(self.seed), 0.0)
        else:
            around = rng.normal(0, self.alpha)
            mean = rng.normal(rng.normal(0, self.beta), 1, FEATURES)
            weights, offsets = _model(rng, around)
        x = rng.normal(mean, _DEVIATIONS, (size, FEATURES))
        return x, (x @ weights + offsets).argmax(axis=1)


def read(source: str) -> Synthetic:
    """Return the parameters in a source such as ``synthetic:0.5,0.5,clients=100``.

    Examples
    --------
    >>> read("synthetic:0.5,1,seed=3")
    Synthetic(alpha=0.5, beta=1.0, iid=False, clients=30, times=1, seed=3)
    >>> read("synthetic:0.5")
    Traceback (most recent call last):
    ...
    fedgram.errors.DataError: data.source = 'synthetic:0.5': write synthetic:ALPHA,BETA or
    synthetic:iid, then any of clients=30, times=1, seed=0
    """
    words = source.removeprefix(f"{NAME}:").split(",")
    if words[0] == "iid":
        given: dict[str, Any] = {"iid": True}
        words = words[1:]
    else:
        given = dict(zip(("alpha", "beta"), words[:2], strict=False))
        words = words[2:]
    try:
        given |= {key: float(given[key]) for key in ("alpha", "beta") if not given.get("iid")}
        pairs = [word.split("=") for word in words]
        more = {key: int(value) for key, value in pairs}
        if not more.keys() <= {"clients", "times", "seed"}:
            raise ValueError
    except (ValueError, KeyError):
        raise DataError(f"data.source = {source!r}: write {_FORM}") from None
    kind: Synthetic = build(Synthetic, {**given, **more}, source)
    return kind


def _model(rng: np.random.Generator, around: float) -> tuple[Floats, Floats]:
    return rng.normal(around, 1, (FEATURES, CLASSES)), rng.normal(around, 1, CLASSES)
