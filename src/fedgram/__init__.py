"""Federated learning that is solved, not trained: one round, exact to the last bit."""

from fedgram.client import Client, Site
from fedgram.data.partition import deal
from fedgram.data.plan import Plan
from fedgram.data.sources import Dataset, load
from fedgram.engines.inprocess import InProcess
from fedgram.errors import FedgramError
from fedgram.experiment.runner import Result, run
from fedgram.experiment.sites import Sites, sites
from fedgram.features.grid import Grid
from fedgram.features.lift import Lift
from fedgram.federation import Federation
from fedgram.group import Additive
from fedgram.heads import Linear, Predictor, predict
from fedgram.method import Method, find, make
from fedgram.samples import Features, Labels, Samples, Space
from fedgram.stats import Statistics, Tally

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
