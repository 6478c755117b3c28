"""A Ray cluster of two nodes on this machine, for all tests of this folder."""

import os
from collections.abc import Iterator
from typing import Any

import pytest

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"

NODE = {"num_cpus": 4, "object_store_memory": 100 << 20, "include_dashboard": False}


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[Any]:
    """Return the cluster, with this process connected to it."""
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args=NODE)
    cluster.add_node(**NODE)
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    try:
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()
