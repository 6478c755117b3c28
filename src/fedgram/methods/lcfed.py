from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Self, cast

import numpy as np

from fedgram.core import codec
from fedgram.core.samples import Array
from fedgram.core.weighted import Weighted
from fedgram.errors import ConfigError
from fedgram.federation.client import Client
from fedgram.federation.protocol import Federation
from fedgram.federation.step import step
from fedgram.methods.fedprox import FedProx
from fedgram.models.linear import Predictor
from fedgram.models.mlp import ignore_overflow, loss
from fedgram.training.client_clusters import clustered, low_rank_directions
from fedgram.training.descent import run_batched
from fedgram.training.loop import RoundModel

_NONE = -1  # the cluster of a client that has not taken part


@codec.register("ClusteredModel/1", fields={"trial": "attempt"})
@dataclass(frozen=True, eq=False, kw_only=True)
class ClusteredModel(RoundModel):
    """A shared embedding with one head for each cluster; a client receives that of its cluster.

    The parameters of `network` are the embedding and the mean of all clients' heads.

    Parameters
    ----------
    heads
        Clusters by parameters of the head; none before the first round.
    groups
        The cluster of each client that has taken part; stays at the server.
    """

    heads: Array = field(default_factory=lambda: np.zeros((0, 0), np.float32))
    groups: dict[str, int] = codec.local_field(default_factory=dict)

    def part_for(self, client: str) -> Self:
        """Return the model of the client's cluster; to other clients, the heads of all clusters."""
        return self.of_clusters[self.groups[client]] if client in self.groups else self

    @property
    def common(self) -> Self:
        """The model of clients that have not taken part: the embedding with the mean head."""
        return replace(self, heads=self.heads[:0], groups={})

    @cached_property
    def of_clusters(self) -> list[Self]:
        """The model of each cluster: the embedding with its head."""
        base = self.theta[: self.shape.base]
        return [self.common.at(np.concatenate([base, head])) for head in self.heads]


@dataclass(frozen=True, kw_only=True)
class LCFed(FedProx):
    """LCFed (Zhang et al., ICASSP 2025, arXiv 2501.01850): an embedding for all, heads by cluster.

    The public summaries of the paper name its parts, and the formulas are derived from them here;
    no agreement with the paper is claimed. The layers below the head (the embedding) are averaged
    over all clients, and the head (the decision part) over the clients of a cluster. Clients train
    from their cluster's model and are pulled towards it (`strength`). After each round the server
    clusters the clients again: by k-means with the cosines of their heads, in the coordinates of
    the first principal axes (the low-rank models of the paper), starting from the clusters of the
    round before. A client that has not taken part chooses the cluster with the smallest loss on
    its own samples, and so do all clients in the pilots of the rate. With one cluster
    and all clients in each round it is `fedprox`, to the bit. With ``hidden`` 0 there is no
    embedding, and each cluster trains a model of its own.

    The server sees the model of each client. A federation that allows sums only refuses it.

    Exchanges: in each round the model parameters of each client are gathered, cluster by cluster.

    Parameters
    ----------
    clusters
        Number of clusters at most, >= 1.
    rank
        Number of principal axes of the clients' heads at most, >= 1.
    """

    clusters: int = 4
    rank: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("clusters", "rank"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} = {getattr(self, name)}: use at least 1")

    def begin(self, federation: Federation, model: RoundModel) -> RoundModel:
        return ClusteredModel(**{each.name: getattr(model, each.name) for each in fields(model)})

    def round(self, federation: Federation, model: RoundModel) -> RoundModel:
        known = cast(ClusteredModel, model)
        replies = self._replies(federation, known)
        mean = known.at(sum(replies.values(), Weighted.zero()).mean())
        groups = self._groups(known, replies)
        # A cluster without members in this round keeps its head; at first it has the mean one.
        common = mean.theta[mean.shape.base :]
        renewed = known.heads.copy() if len(known.heads) else np.tile(common, (self.clusters, 1))
        for cluster in set(groups.values()):
            members = [replies[name] for name in groups if groups[name] == cluster]
            own = known.at(sum(members, Weighted.zero()).mean())
            renewed[cluster] = own.theta[own.shape.base :]
        return replace(mean, heads=renewed, groups={**known.groups, **groups})

    @step
    def update(self, client: Client, model: RoundModel) -> Weighted:
        """Train on the client's samples from the model of its cluster."""
        rows, theta = self.rows(client, model), model.theta.copy()
        run_batched(self.descend(client, model, theta, rows))
        return self.weighted(theta, len(rows))

    def personalize(self, client: Client, shared: Any) -> Predictor:
        model: ClusteredModel = shared
        if not len(model.heads):
            return model.network
        rows = self.rows(client, model)
        with ignore_overflow():
            losses = [loss(each.shape, each.theta, rows) for each in model.of_clusters]
        return model.of_clusters[int(np.argmin(losses))].network

    def _replies(self, federation: Federation, model: ClusteredModel) -> dict[str, Weighted]:
        """Return the trained models by client: one exchange for each cluster."""
        asked = self.participants(federation) or federation.clients
        clusters = sorted({model.groups.get(name, _NONE) for name in asked})
        replies: dict[str, Weighted] = {}
        for cluster in clusters:
            members = [name for name in asked if model.groups.get(name, _NONE) == cluster]
            start = model.common if cluster == _NONE else model.of_clusters[cluster]
            replies.update(federation.gather(self.update, start, clients=members))
        return dict(sorted(replies.items()))

    def _groups(self, model: ClusteredModel, replies: Mapping[str, Weighted]) -> dict[str, int]:
        """Return the cluster of each client that replied."""
        heads = np.stack([reply.mean()[model.shape.base :] for reply in replies.values()])
        known = np.array([model.groups.get(name, _NONE) for name in replies])
        start = known if (known != _NONE).any() else None
        found = clustered(low_rank_directions(heads, self.rank), self.clusters, start)
        return dict(zip(replies, found.tolist(), strict=True))
