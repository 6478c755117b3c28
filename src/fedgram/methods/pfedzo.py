from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fedgram.core.samples import Array
from fedgram.federation.client import Randomness
from fedgram.methods.pfedme import PFedMe
from fedgram.models.mlp import TrainingRows, ignore_overflow
from fedgram.training.descent import LocalDescent
from fedgram.training.loop import RoundModel
from fedgram.training.zeroth_order import ZerothOrderMethod, in_double, loss_function


@dataclass(frozen=True, kw_only=True)
class PFedZO(ZerothOrderMethod, PFedMe):
    """pFedZO (Chen et al., ICPP 2024): personal models from values of the loss alone.

    The public summary of the paper names its parts: an infimal convolution of personal and global
    objective, and a zeroth-order estimate of the gradient. The formulas are derived from it here,
    and no agreement with the paper is claimed: the infimal convolution with a quadratic is the
    Moreau envelope, so the objective and the steps are those of `pfedme`, with the gradients of
    `fedzo`. The proximal term is known and not estimated. With ``directions`` 0 it is `pfedme`, up
    to the error of the differences.

    Exchanges: in each round the local models w, averaged by sample counts; personal models are
    never sent.
    """

    def approach(
        self,
        model: RoundModel,
        personal: Array,
        local: Array,
        batch: TrainingRows,
        randomness: Randomness,
    ) -> Iterable[LocalDescent]:
        moved, rate = in_double(personal), self.inner_rate or model.rate
        loss_of = loss_function(model.shape, batch)
        with ignore_overflow():  # of a rate that is too large, which the search leaves
            for _ in range(self.inner_steps):
                pull = self.strength * (moved - local)
                moved -= rate * (self.estimated(loss_of, moved, randomness.generator) + pull)
            personal[...] = moved
        return []  # all steps are done, from values of the loss
