"""Federated learning that is solved, not trained: one round, exact to the last bit."""

from fedgram.core.additive import Additive
from fedgram.core.samples import Features, Labels, Samples, Space
from fedgram.core.statistics import Statistics
from fedgram.core.tally import Tally
from fedgram.data.dataset import Dataset
from fedgram.data.partition import partition
from fedgram.data.plan import PartitionPlan
from fedgram.data.sources import load_dataset
from fedgram.engines.in_process import InProcess
from fedgram.errors import FedgramError
from fedgram.experiments.runner import Result, run
from fedgram.features.grid import Grid
from fedgram.features.lift import Lift
from fedgram.federation.client import Client, Site
from fedgram.federation.federated_dataset import FederatedDataset, federate
from fedgram.federation.method import Method, create_method, find_method
from fedgram.federation.protocol import Federation
from fedgram.models.linear import Linear, Predictor, predict

__all__ = [
    "Additive",
    "Client",
    "Dataset",
    "Features",
    "FederatedDataset",
    "Federation",
    "FedgramError",
    "Grid",
    "InProcess",
    "Labels",
    "Lift",
    "Linear",
    "Method",
    "PartitionPlan",
    "Predictor",
    "Result",
    "Samples",
    "Site",
    "Space",
    "Statistics",
    "Tally",
    "create_method",
    "federate",
    "find_method",
    "load_dataset",
    "partition",
    "predict",
    "run",
]
