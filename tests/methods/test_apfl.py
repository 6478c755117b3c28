"""The two forms of APFL: the paper's, with lifts in both streams, and the linear one."""

import numpy as np
import pytest

from fedgram.checks.federations import partitioned
from fedgram.errors import ConfigError
from fedgram.experiments.runner import run
from fedgram.features.lift import Lift
from fedgram.federation.method import create_method


def test_both_streams_have_a_projection_and_an_activation_of_their_own_by_default():
    apfl, linear = create_method("apfl"), create_method("apfl-linear")
    assert apfl.primary == Lift(width=1024, activation="relu", seed=0)
    assert apfl.refinement == Lift(width=1024, activation="relu", seed=1)
    assert (apfl.ridge, apfl.refinement_ridge, apfl.balance) == ("auto", "auto", "auto")
    assert (linear.primary.width, linear.refinement.width) == (0, 0)


@pytest.mark.parametrize("stream", ["primary", "refinement"])
def test_the_linear_form_refuses_a_lift(stream):
    with pytest.raises(ConfigError, match=f"got {stream}.width = 5; use the method apfl"):
        create_method("apfl-linear", {stream: {"width": 5}})


@pytest.mark.parametrize("width", [0, 40])
def test_with_one_lift_and_a_balance_of_1_it_is_dittos_objective(width):
    everybody, lift = partitioned(clients=3), {"width": width, "seed": 7}
    given = {"ridge": 10.0, "refinement_ridge": 100.0, "balance": 1.0}
    apfl = run(create_method("apfl", {**given, "primary": lift, "refinement": lift}), everybody)
    settings = {"ridge": 10.0, "strength": 100.0, "lift": lift}
    ditto = run(create_method("closed-ditto", settings), everybody)
    for site in everybody.members:
        rows = site.train.features
        scores = ditto.models[site.id](rows)
        assert np.allclose(apfl.models[site.id](rows), scores, rtol=0, atol=1e-12)
