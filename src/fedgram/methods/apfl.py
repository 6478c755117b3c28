from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, Self

from fedgram.core.gcv import Ridge
from fedgram.features.lift import Lift
from fedgram.methods._dual_stream import DualStream

_NARROW = 64  # width of the lifts in quick checks


@dataclass(frozen=True, kw_only=True)
class APFL(DualStream):
    """APFL, Analytic Personalized FL (Fan et al., arXiv 2508.10732): dual-stream least squares.

    Each stream has a random projection and an activation of its own (eqs. 3 and 11). The primary
    stream, shared by all clients, is the ridge regression of the summed statistics (eqs. 4 to 10;
    as in `afl` the sum is solved directly, with one ridge whatever the number of clients). The
    refinement stream, one per client, fits the residual of the primary stream (eqs. 12 and 13).
    Prediction adds the two (eq. 14). The bodies of the equations are derived from the paper's text.
    `apfl-linear` is the same without projections, which is often better on features of a strong
    backbone: compare the two. Adaptive Personalized FL (Deng et al., 2020) has the same acronym and
    is another method.

    Exchanges: the sum of `afl` on lifted features; with "auto" settings also counts of correct
    leave-one-out predictions.

    Parameters
    ----------
    ridge
        Ridge of the primary stream (beta in the paper; 0.01 to 1 there, for features of another
        size): weight of the head's squared norm, for features of unit size; 0 is plain least
        squares. "auto" selects the smallest ridge with nearly the smallest generalized
        cross-validation error, which the sum alone determines.
    primary
        Lift of the primary stream: random projection and activation; width 0 for no lift. The width
        of 1,024 follows from the communication that the paper reports.
    refinement
        Lift of the refinement stream, with another projection; width 0 for no lift.
    """

    ridge: Ridge = "auto"
    refinement_ridge: float | Literal["auto"] = "auto"
    balance: float | Literal["auto"] = "auto"
    primary: Lift = Lift(width=1024)
    refinement: Lift = Lift(width=1024, seed=1)

    def shortened(self, *, search: bool = True) -> Self:
        """Return the same with narrow lifts."""
        del search
        return replace(self, primary=_narrow(self.primary), refinement=_narrow(self.refinement))


def _narrow(lift: Lift) -> Lift:
    return replace(lift, width=min(lift.width, _NARROW))
