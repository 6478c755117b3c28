"""Class priors: class frequencies of one client and of the federation, with pseudo-counts."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from scipy.special import gammaln

from fedgram.core import codec
from fedgram.core.additive import Additive, require_shape
from fedgram.core.reply_sizes import of_type, total_size, types_of_rows
from fedgram.core.samples import Floats, Integers, Labels
from fedgram.core.shared import Shared, Wrapper
from fedgram.core.statistics import Statistics
from fedgram.errors import DataError, MismatchError, SolveError
from fedgram.models.linear import Linear

TEMPERATURES = (10_000.0, 160.0, 80.0, 40.0, 20.0, 10.0, 5.0)  # the least personal first
MOST_REPEATS = 64
_ABSENT = 0.5  # count of a class without samples
# Of a client's class prior, the most personal first.
PSEUDO_COUNTS = (0.3, 0.7, 1.5, 3.0, 7.0, 15.0, 30.0, 70.0, 150.0, 300.0, 1000.0, 3000.0, 10_000.0)
_EVIDENCE_BITS = 20  # a log-likelihood is summed in steps of 2^-20
# Of one sample's log-likelihood: log((n + a) / (a p)), with n, 1 / p < 2^64 and a >= 0.3.
_MOST_NATS = 91


@codec.register("Informed/1")
@dataclass(frozen=True, eq=False, kw_only=True)
class HeadWithClassCounts(Wrapper, Shared):
    """A shared head with the class counts of the federation.

    Parameters
    ----------
    head
        The shared head.
    counts
        Number of samples of each class, over all clients.
    """

    head: Linear
    counts: Floats

    @property
    def wrapped(self) -> Linear:
        """The shared head."""
        return self.head

    def predictor(self) -> Linear:
        """Return the head without a class prior."""
        return self.head

    def provenance(self) -> str:
        """Digest of the total that the head was solved from."""
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
    """Return the number of samples of each class, and the constant feature in real units.

    Both follow from the last feature, which is equal in all samples.
    """
    # diagonal = count * constant^2, moment = counts * constant
    place = total.space.constant
    square_of_constant = total.diagonal()[place] / total.count
    constant = float(np.sqrt(square_of_constant))
    counts: Floats = total.moment[place] / constant
    if not np.allclose(counts, np.rint(counts)) or round(counts.sum()) != total.count:
        raise MismatchError("expected a constant as last feature; this method needs it")
    return np.rint(counts), constant * total.space.unit


def repeats(counts: Floats) -> Integers:
    """Return an integer weight for the samples of each class that balances the classes.

    The ratio of the largest class to the class, rounded, so that sums stay exact.

    Examples
    --------
    >>> repeats(np.array([60.0, 19.0, 0.0, 1.0]))
    array([ 1,  3,  1, 60])
    """
    times = np.rint(counts.max(initial=1.0) / np.maximum(counts, 1))
    repeated: Integers = np.where(counts > 0, np.clip(times, 1, MOST_REPEATS), 1).astype(np.int64)
    return repeated


def log_odds(own: Floats, federation: Floats, smoothing: float) -> Floats:
    """Return the log ratio of a client's class frequencies to those of the federation.

    ``log((n_c + smoothing p_c) / (n + smoothing)) - log p_c`` for class counts n_c of the client
    and class frequencies p_c of the federation.

    Parameters
    ----------
    own
        Class counts of the client, along the last axis.
    federation
        Class counts of all clients.
    smoothing
        Pseudo-count: samples with the federation's class frequencies, added to the client's.

    Examples
    --------
    >>> log_odds(np.array([3.0, 3.0]), np.array([50.0, 50.0]), 1.0)
    array([0., 0.])
    """
    total = np.maximum(1.0, federation.sum(axis=-1, keepdims=True))
    shares = np.maximum(federation, _ABSENT) / total
    samples = own.sum(axis=-1, keepdims=True)
    odds: Floats = np.log((own / shares + smoothing) / (samples + smoothing))
    return odds


def left_out_log_odds(
    codes: Integers, own: Floats, federation: Floats, smoothing: float, *, in_total: bool
) -> Floats:
    """Return the leave-one-out `log_odds` of each sample, (samples, classes).

    Parameters
    ----------
    codes
        Class codes of the client's samples.
    own
        Class counts of the client.
    federation
        Class counts of all clients.
    smoothing
        Pseudo-count, as in `log_odds`.
    in_total
        Whether the client's samples are in the federation's class counts.
    """
    present, places = np.unique(codes, return_inverse=True)
    one = np.zeros((len(present), len(own)))
    one[np.arange(len(present)), present] = 1
    odds = log_odds(own - one, federation - one if in_total else federation, smoothing)
    return odds[places]


@codec.register("PriorEvidence/1")
@dataclass(frozen=True, eq=False, kw_only=True)
class PriorEvidence(Additive):
    """Log-likelihood of the clients' class counts, for each pseudo-count of the class prior.

    The model is a Dirichlet-multinomial distribution: a client's class frequencies have a
    Dirichlet distribution around those of the federation, the closer the larger the pseudo-count.

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

    def claimed_samples(self) -> int:
        """Return the least number of samples that can be as unlikely as this.

        The next sample is of class c with probability (n_c + a p_c) / (n + a), for n samples before
        it, of which n_c are of this class. This is at least a p_c / (n + a).
        """
        lowest = min(0, int(self.likelihood.min(initial=0)))
        return -lowest // (_MOST_NATS << _EVIDENCE_BITS)

    def validate(self, sites: int = 1) -> None:
        super().validate(sites)
        require_shape("PriorEvidence.likelihood", self.likelihood, len(PSEUDO_COUNTS))
        rounding = 2**_EVIDENCE_BITS
        if self.clients not in (0, 1) or (self.likelihood > rounding).any():
            raise DataError("class prior: expected one client, and likelihoods of at most 1")
        if (self.likelihood < -(2**62) // max(1, sites)).any():
            raise DataError("class prior: likelihoods are too small: a sum may overflow")

    @property
    def best(self) -> float:
        """The pseudo-count with the largest likelihood."""
        if self.clients <= 0:
            raise SolveError("the class prior needs the class counts of at least one client")
        return PSEUDO_COUNTS[int(self.likelihood.argmax())]


def prior_evidence(own: Floats, everything: Floats) -> PriorEvidence:
    """Return the Dirichlet-multinomial log-likelihood of one client's class counts."""
    return PriorEvidence(clients=1, likelihood=_evidence(own[None], everything)[0])


def summed_evidence(counts: Floats, everything: Floats) -> tuple[PriorEvidence, int]:
    """Return the sum of `prior_evidence` of many clients, and the sum of their bytes.

    Parameters
    ----------
    counts
        Class counts of each client, (clients, classes).
    everything
        Class counts of all clients of the federation.
    """
    likelihood = _evidence(counts, everything)

    def like(place: int) -> PriorEvidence:
        return PriorEvidence(clients=1, likelihood=of_type(place, len(PSEUDO_COUNTS)))

    size = total_size(types_of_rows(likelihood)[:, None], like)
    return PriorEvidence(clients=len(counts), likelihood=likelihood.sum(axis=0)), size


def _evidence(own: Floats, everything: Floats) -> Integers:
    """Return the log-likelihoods of the clients' class counts, (clients, pseudo-counts)."""
    # log G(a) - log G(n + a) + sum_c log G(n_c + a p_c) - log G(a p_c), for pseudo-count a
    shares = np.maximum(everything, _ABSENT) / max(1.0, everything.sum())
    found = np.empty((len(own), len(PSEUDO_COUNTS)))
    for place, strength in enumerate(PSEUDO_COUNTS):
        each = gammaln(own + strength * shares) - gammaln(strength * shares)
        apart = gammaln(strength) - gammaln(own.sum(axis=1) + strength)
        found[:, place] = apart + each.sum(axis=1)
    return np.rint(found * 2.0**_EVIDENCE_BITS).astype(np.int64)
