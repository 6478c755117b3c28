from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from fedgram.core.gcv import resolved
from fedgram.core.samples import Floats, Samples
from fedgram.core.statistics import Statistics
from fedgram.errors import ConfigError
from fedgram.federation.client import Client
from fedgram.federation.protocol import Federation
from fedgram.federation.step import step
from fedgram.layerwise import filters, personal
from fedgram.layerwise.filters import LABELED
from fedgram.layerwise.patches import positions
from fedgram.layerwise.personal import (
    STRENGTHS,
    ClassProfiles,
    CorrectByStrength,
    GroupStatistics,
    PulledNetwork,
)
from fedgram.layerwise.solver import LayerwiseSolver, SolvedNetwork
from fedgram.layerwise.stack import LayerStack
from fedgram.models.linear import Predictor
from fedgram.selection.leave_one_out import PulledLeaveOneOut
from fedgram.selection.normal_equations import NormalEquations

_MOST_MOVES = 20  # updates of the groups' centers


@dataclass(frozen=True, kw_only=True)
class PFedACnnL(LayerwiseSolver):
    """pFedACnnL (Gu et al., arXiv 2502.06915): `fedacnnl` with personal heads or layers.

    The shared network is that of `fedacnnl`. A client's own head minimizes the squared error on its
    own samples plus `strength` times the squared distance to the shared head W,

        P_k = (G_k + (ridge + strength) I)^-1 (b_k + strength W),

    a formula derived from the paper's text. Hidden layers can be pulled in the same way, one after
    the other. With groups (the paper's first version) clients are clustered by their class
    frequencies, from sums alone, and are pulled towards the head that is solved from the statistics
    of their group. Only groups and a strength that is selected depend on the partition.

    Exchanges: the sums of `fedacnnl`; with strength "auto" the total of the head and counts of
    correct leave-one-out predictions; with groups a few sums of class frequencies.

    Parameters
    ----------
    strength
        Weight of the squared distance to the shared head, for features of unit size, >= 0; 0 is a
        local head on the shared layers. "auto" selects it by leave-one-out accuracy over all
        clients: clients receive the total and answer with counts of correct predictions.
    scope
        Personal layers: "head" or "all". Filters without targets (principal, random) are always
        shared.
    layer_strength
        Weight of the squared distance to the shared filters, per sample and position, >= 0; used
        with scope "all".
    groups
        Number of groups of clients with similar class frequencies; 1 for no groups.
    """

    strength: float | Literal["auto"] = 300.0
    scope: Literal["head", "all"] = "head"
    layer_strength: float = 1000.0
    groups: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("strength", "layer_strength"):
            weight = getattr(self, name)
            if weight != "auto" and not 0 <= weight < float("inf"):
                raise ConfigError(f"{name} = {weight}: use a finite weight >= 0")
        if self.groups < 1:
            raise ConfigError(f"groups = {self.groups}: use at least 1")

    # Steps at a client, beside those of the layers

    @step
    def profile(self, client: Client, centers: Floats) -> ClassProfiles:
        """Return a client's contribution to the centers of the groups."""
        return personal.profile(client.samples.labels, centers)

    @step
    def group_statistics(self, client: Client, task: dict[str, Any]) -> GroupStatistics:
        """Return the statistics of the outputs of the layers, for the client's group."""
        samples, centers = client.samples, task["centers"]
        own = self.outcomes_of(samples, task["stack"])
        return GroupStatistics.of(own, personal.nearest(samples.labels, centers), len(centers))

    @step
    def right(self, client: Client, task: dict[str, Any]) -> CorrectByStrength:
        """Return the counts of correct leave-one-out predictions, for each strength."""
        pull: PulledNetwork = task["pull"]
        samples = client.samples
        head = pull.head(samples.labels)
        group = personal.nearest(samples.labels, pull.centers) if pull.heads else 0
        equations = NormalEquations(total=task["totals"][group], ridge=pull.ridge)
        common = self.lift(pull.model.stack(samples.features))
        own = self.lift(self._layers(samples, pull.model.stack)(samples.features))
        left_out = PulledLeaveOneOut.of(own, common, samples.labels, equations, head.weights)
        counts = np.array(list(left_out.correct_counts(STRENGTHS)), np.int64)
        return CorrectByStrength(samples=len(samples), correct=counts)

    # At the server

    def fit(self, federation: Federation) -> Iterator[PulledNetwork]:
        census = federation.sum(self.census)
        stack, origins = self.solved(federation, census)
        centers = self._centers(federation, len(census.classes))
        pull, totals = self._headed(federation, stack, origins, centers)
        if self.strength == "auto":
            found = federation.sum(self.right, {"pull": pull, "totals": totals})
            # The first maximum is the largest strength.
            pull = replace(pull, strength=STRENGTHS[int(found.correct.argmax())])
        yield pull

    def personalize(self, client: Client, shared: Any) -> Predictor:
        pull: PulledNetwork = shared
        samples = client.samples
        stack = self._layers(samples, pull.model.stack)
        head = personal.pulled_head(
            self.lift(stack(samples.features)),
            samples.labels,
            pull.head(samples.labels),
            ridge=pull.ridge,
            strength=pull.strength,
        )
        return SolvedNetwork(stack=stack, head=head)

    def _centers(self, federation: Federation, classes: int) -> Floats:
        """Move the centers of the groups to the means of their members until convergence."""
        if self.groups == 1:
            return np.zeros((0, classes))
        centers = personal.blocks_of_classes(self.groups, classes)
        for _ in range(_MOST_MOVES):
            moved = federation.sum(self.profile, centers).centers(centers)
            if np.array_equal(moved, centers):
                break
            centers = moved
        return centers

    def _headed(
        self, federation: Federation, stack: LayerStack, origins: tuple[str, ...], centers: Floats
    ) -> tuple[PulledNetwork, list[Statistics]]:
        """Return the network with its head, or one head for each group, and their totals."""
        strength = 0.0 if self.strength == "auto" else self.strength
        if not len(centers):
            total = federation.sum(self.head_statistics, stack)
            ridge = resolved(self.ridge, total)
            model = self.headed(stack, total, origins, ridge)
            return PulledNetwork(model=model, ridge=ridge, strength=strength), [total]
        slots = federation.sum(self.group_statistics, {"stack": stack, "centers": centers})
        parts = slots.by_group()
        total = sum(parts[1:], parts[0])
        # A group without members gets the shared head.
        totals = [part if part.count else total for part in parts]
        ridge = resolved(self.ridge, total)
        pull = PulledNetwork(
            model=self.headed(stack, total, origins, ridge),
            ridge=ridge,
            strength=strength,
            centers=centers,
            heads=tuple(self.headed(stack, part, (), ridge).head for part in totals),
        )
        return pull, totals

    def _layers(self, samples: Samples, shared: LayerStack) -> LayerStack:
        """Return a client's own layers, each solved on the outputs of its own layers below."""
        if self.scope == "head" or self.filters not in LABELED:
            return shared
        own = replace(shared, solved=(), cells=0)
        for index, layer in enumerate(self.hidden(shared.inputs)):
            statistics = self.patches_of(samples, own, None)
            strength = self.layer_strength * positions(layer, own.maps)
            solved = filters.pulled(
                statistics,
                shared.solved[index],
                layer,
                ridge=self.layer_ridge,
                strength=strength,
            )
            own = own.plus(solved)
        return replace(own, cells=shared.cells)
