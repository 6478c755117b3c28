"""Class counts: the same from shares and from sites, and back from what is recorded."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgram import Labels, Samples, Site
from fedgram.data.partition import partition
from fedgram.data.plan import PartitionPlan
from fedgram.experiments.partition_summary import PartitionSummary, summary_of, summary_of_indices
from fedgram.federation.federated_dataset import FederatedDataset, federate


@pytest.mark.parametrize("kind", ["iid", "dirichlet", "quantity", "shards"])
def test_counts_are_those_of_the_samples_whoever_counts(clusters, kind):
    data, plan = clusters(), PartitionPlan(clients=7, partition=kind, holdout_clients=2)
    shares = partition(data, plan)
    dealt = summary_of_indices(data, shares)
    assert dealt == summary_of(federate(data, plan))
    assert [client.holdout for client in dealt.clients] == [share.holdout for share in shares]
    for share, client in zip(shares, dealt.clients, strict=True):
        for part in ("train", "valid", "test"):
            held = data.y[getattr(share, part)].tolist()
            assert list(getattr(client, part)) == [held.count(c) for c in range(4)]
    total = dealt.summary()
    assert total["train"]["total"] + total["valid"]["total"] + total["test"]["total"] == len(data)


def test_sites_that_list_their_classes_differently_are_counted_by_name(gridded):
    samples = gridded(6, 3, 2)
    features = samples.features

    def site(name, codes, classes):
        some = Samples(features, Labels(np.array(codes), classes))
        return Site(id=name, train=some, valid=some.take([]), test=some.take([]))

    members = [
        site("b", [0, 0, 0, 1, 1, 1], ("dog", "cat")),
        site("a", [0, 0, 0, 0, 0, 1], ("cat", "emu")),
    ]
    dealt = summary_of(FederatedDataset(members=members, holdout=[], test=members[0].test))
    assert dealt.classes == ("dog", "cat", "emu")
    assert {c.client: c.train for c in dealt.clients} == {"a": (0, 5, 1), "b": (3, 3, 0)}
    assert [client.client for client in dealt.clients] == ["a", "b"]


@given(st.integers(1, 6), st.integers(0, 3))
def test_what_is_recorded_is_read_back(clients, held):
    from fedgram.data.sources import load_dataset

    data = load_dataset("digits")
    plan = PartitionPlan(clients=clients, partition="iid", holdout_clients=min(held, clients - 1))
    dealt = summary_of_indices(data, partition(data, plan))
    assert PartitionSummary.read(json.loads(json.dumps(dealt.to_dict()))) == dealt


GOOD = {"client": "a", "holdout": False, "train": [1, 2], "valid": [0, 0], "test": [0, 0]}


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"format": 2},
        {"format": 1, "classes": ["x", "y"]},
        {"format": 1, "classes": ["x", "y"], "clients": []},
        {"format": 1, "classes": [], "clients": [{**GOOD, "train": [], "valid": [], "test": []}]},
        {"format": 1, "classes": ["x", "y"], "clients": [{**GOOD, "train": [1]}]},
        {"format": 1, "classes": ["x", "y"], "clients": [{**GOOD, "train": [1, -1]}]},
        {"format": 1, "classes": ["x", "y"], "clients": [{**GOOD, "train": 3}]},
        {"format": 1, "classes": ["x", "y"], "clients": ["a"]},
    ],
)
def test_what_is_no_record_of_a_partition_is_refused(content):
    with pytest.raises(ValueError, match=r"it |format .* reads format 1|client a"):
        PartitionSummary.read(content)
    assert PartitionSummary.read({"format": 1, "classes": ["x", "y"], "clients": [GOOD]}).classes


def test_the_summary_tells_the_smallest_the_median_and_the_largest():
    def client(name, train):
        return {**GOOD, "client": name, "train": train}

    clients = [client("a", [1, 0]), client("b", [5, 5]), client("c", [0, 4])]
    dealt = PartitionSummary.read({"format": 1, "classes": ["x", "y"], "clients": clients})
    assert dealt.summary()["train"] == {"min": 1, "median": 4, "max": 10, "total": 15}
    assert dealt.summary()["classes"] == {"min": 1, "median": 1, "max": 2}
