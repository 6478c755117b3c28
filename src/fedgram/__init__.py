"""Federated learning that is solved, not trained: one round, exact to the last bit."""

from fedgram.core.additive import Additive
from fedgram.core.samples import Features, Labels, Samples, Space
from fedgram.core.statistics import Statistics, Tally
from fedgram.data.partition import deal
from fedgram.data.plan import Plan
from fedgram.data.sources import Dataset, load
from fedgram.engines.in_process import InProcess
from fedgram.errors import FedgramError
from fedgram.experiments.runner import Result, run
from fedgram.features.grid import Grid
from fedgram.features.lift import Lift
from fedgram.federation.client import Client, Site
from fedgram.federation.federated_dataset import Sites, sites
from fedgram.federation.method import Method, find, make
from fedgram.federation.protocol import Federation
from fedgram.models.linear import Linear, Predictor, predict

__all__ = [
    "Additive",
    "Client",
    "Dataset",
    "Features",
    "Federation",
    "FedgramError",
    "Grid",
    "InProcess",
    "Labels",
    "Lift",
    "Linear",
    "Method",
    "Plan",
    "Predictor",
    "Result",
    "Samples",
    "Site",
    "Sites",
    "Space",
    "Statistics",
    "Tally",
    "deal",
    "find",
    "load",
    "make",
    "predict",
    "run",
    "sites",
]
