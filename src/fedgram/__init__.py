"""Federated learning that is solved, not trained: sums that are exact to the last bit.

Everything public is imported from here. Names are loaded when they are first used, so that
``import fedgram`` is fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedgram.core.additive import Additive as Additive
    from fedgram.core.additive import schema_field as schema_field
    from fedgram.core.codec import register as register
    from fedgram.core.out_of_core import DiskStatistics as DiskStatistics
    from fedgram.core.samples import Features as Features
    from fedgram.core.samples import Labels as Labels
    from fedgram.core.samples import Samples as Samples
    from fedgram.core.samples import Space as Space
    from fedgram.core.shared import Shared as Shared
    from fedgram.core.statistics import Statistics as Statistics
    from fedgram.core.tally import Tally as Tally
    from fedgram.core.weighted import Weighted as Weighted
    from fedgram.data.dataset import Dataset as Dataset
    from fedgram.data.partition import partition as partition
    from fedgram.data.plan import PartitionPlan as PartitionPlan
    from fedgram.data.sources import load_dataset as load_dataset
    from fedgram.engines.in_process import InProcess as InProcess
    from fedgram.errors import FedgramError as FedgramError
    from fedgram.estimator.classifier import FederatedClassifier as FederatedClassifier
    from fedgram.estimator.regressor import FederatedRegressor as FederatedRegressor
    from fedgram.experiments.reader import read_runs as read_runs
    from fedgram.experiments.result import Result as Result
    from fedgram.experiments.result import Results as Results
    from fedgram.experiments.runner import ScoringSchedule as ScoringSchedule
    from fedgram.experiments.runner import run as run
    from fedgram.export.folder import export_model as export_model
    from fedgram.features.grid import Grid as Grid
    from fedgram.features.lift import Lift as Lift
    from fedgram.federation.client import Client as Client
    from fedgram.federation.client import Site as Site
    from fedgram.federation.federated_dataset import FederatedDataset as FederatedDataset
    from fedgram.federation.federated_dataset import federate as federate
    from fedgram.federation.method import Method as Method
    from fedgram.federation.method import create_method as create_method
    from fedgram.federation.method import find_method as find_method
    from fedgram.federation.protocol import Federation as Federation
    from fedgram.federation.scoring import Metrics as Metrics
    from fedgram.federation.step import step as step
    from fedgram.models.linear import Linear as Linear
    from fedgram.models.linear import Predictor as Predictor
    from fedgram.models.model import Model as Model
    from fedgram.models.model import predict as predict

_HOME = {
    "Additive": "fedgram.core.additive",
    "Client": "fedgram.federation.client",
    "Dataset": "fedgram.data.dataset",
    "DiskStatistics": "fedgram.core.out_of_core",
    "Features": "fedgram.core.samples",
    "FederatedClassifier": "fedgram.estimator.classifier",
    "FederatedDataset": "fedgram.federation.federated_dataset",
    "Federation": "fedgram.federation.protocol",
    "FederatedRegressor": "fedgram.estimator.regressor",
    "FedgramError": "fedgram.errors",
    "Grid": "fedgram.features.grid",
    "InProcess": "fedgram.engines.in_process",
    "Labels": "fedgram.core.samples",
    "Lift": "fedgram.features.lift",
    "Linear": "fedgram.models.linear",
    "Method": "fedgram.federation.method",
    "Metrics": "fedgram.federation.scoring",
    "Model": "fedgram.models.model",
    "PartitionPlan": "fedgram.data.plan",
    "Predictor": "fedgram.models.linear",
    "Result": "fedgram.experiments.result",
    "Results": "fedgram.experiments.result",
    "Samples": "fedgram.core.samples",
    "ScoringSchedule": "fedgram.experiments.runner",
    "Shared": "fedgram.core.shared",
    "Site": "fedgram.federation.client",
    "Space": "fedgram.core.samples",
    "Statistics": "fedgram.core.statistics",
    "Tally": "fedgram.core.tally",
    "Weighted": "fedgram.core.weighted",
    "create_method": "fedgram.federation.method",
    "export_model": "fedgram.export.folder",
    "federate": "fedgram.federation.federated_dataset",
    "find_method": "fedgram.federation.method",
    "load_dataset": "fedgram.data.sources",
    "partition": "fedgram.data.partition",
    "predict": "fedgram.models.model",
    "read_runs": "fedgram.experiments.reader",
    "register": "fedgram.core.codec",
    "run": "fedgram.experiments.runner",
    "schema_field": "fedgram.core.additive",
    "step": "fedgram.federation.step",
}

__all__ = [  # a test compares it with the names above
    "__version__",
    *_HOME,
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from fedgram.runtime.version import own_version

        return own_version()
    if name not in _HOME:
        raise AttributeError(f"module 'fedgram' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
