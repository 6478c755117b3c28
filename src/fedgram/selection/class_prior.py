"""How often classes are, at one client and everywhere."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from scipy.special import gammaln

from fedgram.core import codec
from fedgram.core.additive import Additive
from fedgram.core.samples import Floats, Integers, Labels, Space
from fedgram.core.statistics import Statistics
from fedgram.errors import DataError, MismatchError, SolveError
from fedgram.models.linear import Linear

TEMPERATURES = (10_000.0, 160.0, 80.0, 40.0, 20.0, 10.0, 5.0)  # from the least personal on
MOST_REPEATS = 64
_ABSENT = 0.5  # a class that nobody has counts as half a sample
# Of a client's class prior, from the most personal to the least.
PSEUDO_COUNTS = (0.3, 0.7, 1.5, 3.0, 7.0, 15.0, 30.0, 70.0, 150.0, 300.0, 1000.0, 3000.0, 10_000.0)
_EVIDENCE_BITS = 20  # a log-likelihood is summed in steps of 2^-20


@codec.register("Informed/1")
@dataclass(frozen=True, eq=False, kw_only=True)
class HeadWithClassCounts:
    """A shared head, and how often each class is among everybody's samples.

    Parameters
    ----------
    head
        Shared by all.
    counts
        Samples of each class.
    """

    head: Linear
    counts: Floats

    @property
    def space(self) -> Space:
        """The space of the head."""
        return self.head.space

    @property
    def classes(self) -> tuple[str, ...]:
        """The class list, in the order of the scores."""
        return self.head.classes

    def provenance(self) -> str:
        """Digest of what the head was solved from."""
        return self.head.provenance()


def counts_of(labels: Labels) -> Floats:
    """Return the number of samples of each class.

    Examples
    --------
    >>> counts_of(Labels(np.array([1, 1]), ("cat", "dog")))
    array([0., 2.])
    """
    return np.bincount(labels.codes, minlength=len(labels.classes)).astype(np.float64)


def class_counts(total: Statistics) -> tuple[Floats, float]:
    """Return the samples of each class, and the constant feature in real units.

    Both are read off the last feature, which is the same number in every sample.
    """
    square_of_constant = total.gram[-1] / total.count
    constant = float(np.sqrt(square_of_constant))
    counts: Floats = total.moment[-1] / constant
    if not np.allclose(counts, np.rint(counts)) or round(counts.sum()) != total.count:
        raise MismatchError("the last feature is not constant; this method needs one that is")
    return np.rint(counts), constant * total.space.unit


def repeats(counts: Floats) -> Integers:
    """Return how often each class's samples must count for all classes to count about alike.

    Whole numbers, so that sums stay exact; as often as the most frequent class is larger.

    Examples
    --------
    >>> repeats(np.array([60.0, 19.0, 0.0, 1.0]))
    array([ 1,  3,  1, 60])
    """
    times = np.rint(counts.max(initial=1.0) / np.maximum(counts, 1))
    whole: Integers = np.where(counts > 0, np.clip(times, 1, MOST_REPEATS), 1).astype(np.int64)
    return whole


def log_odds(own: Floats, everybody: Floats, smoothing: float) -> Floats:
    """Return how much more often each class is at a client than everywhere, as a logarithm.

    The client's frequencies are smoothed by `smoothing` samples of everybody's. A client that is
    like everybody gets zeros.

    Examples
    --------
    >>> log_odds(np.array([3.0, 3.0]), np.array([50.0, 50.0]), 1.0)
    array([0., 0.])
    """
    shares = np.maximum(everybody, _ABSENT) / max(1.0, everybody.sum())
    odds: Floats = np.log((own / shares + smoothing) / (own.sum() + smoothing))
    return odds


def left_out_log_odds(
    codes: Integers, own: Floats, everybody: Floats, smoothing: float, *, counted: bool
) -> Floats:
    """Return the same for each sample, as if it had never been counted, (samples, classes).

    `counted` says whether the client's samples are among everybody's.
    """
    rows = np.zeros((len(own), len(own)))
    for code in np.unique(codes):
        one = np.zeros(len(own))
        one[code] = 1
        rows[code] = log_odds(own - one, everybody - one if counted else everybody, smoothing)
    return rows[codes]


@codec.register("PriorEvidence/1")
@dataclass(frozen=True, eq=False, kw_only=True)
class PriorEvidence(Additive):
    """How likely clients' class counts are, for each pseudo-count of their class prior.

    A client's class frequencies are drawn from a Dirichlet distribution around the federation's,
    the closer the larger the pseudo-count; its class counts are drawn from its frequencies.

    Parameters
    ----------
    clients
        Number of clients.
    likelihood
        Sum of log-likelihoods in steps of 2^-20, one for each of `PSEUDO_COUNTS`.

    Examples
    --------
    >>> alike, apart = np.array([50.0, 50.0]), np.array([100.0, 0.0])
    >>> everything = np.array([500.0, 500.0])
    >>> (prior_evidence(alike, everything) + prior_evidence(alike, everything)).best
    10000.0
    >>> (prior_evidence(apart, everything) + prior_evidence(apart[::-1], everything)).best
    0.3
    """

    clients: int = 0
    likelihood: Integers = field(default_factory=lambda: np.zeros(len(PSEUDO_COUNTS), np.int64))

    def validate(self, sites: int = 1) -> None:
        rounding = 2**_EVIDENCE_BITS
        if self.clients < 0 or (self.likelihood > rounding).any():
            raise DataError("class prior: expected counts of at least 0, likelihoods of at most 1")
        if (self.likelihood < -(2**62) // max(1, sites)).any():
            raise DataError("class prior: likelihoods leave no room for those of the other sites")

    @property
    def best(self) -> float:
        """The likeliest pseudo-count."""
        if self.clients <= 0:
            raise SolveError("no client has counted its classes; ask at least one")
        return PSEUDO_COUNTS[int(self.likelihood.argmax())]


def prior_evidence(own: Floats, everything: Floats) -> PriorEvidence:
    """Return a client's part: the Dirichlet-multinomial log-likelihood of its class counts."""
    shares = np.maximum(everything, _ABSENT) / max(1.0, everything.sum())
    found = []
    for strength in PSEUDO_COUNTS:
        each = gammaln(own + strength * shares) - gammaln(strength * shares)
        found.append(gammaln(strength) - gammaln(own.sum() + strength) + each.sum())
    steps = np.rint(np.array(found) * 2.0**_EVIDENCE_BITS).astype(np.int64)
    return PriorEvidence(clients=1, likelihood=steps)
