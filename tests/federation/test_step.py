"""A site runs the steps that a method declares, and nothing else of the method."""

import pytest

from fedgram import create_method, find_method
from fedgram.errors import DataError
from fedgram.federation.method import names
from fedgram.federation.step import declared_steps, named_step

METHODS = [name for name in names() if name != "local"]  # which asks for nothing


@pytest.mark.parametrize("name", METHODS)
def test_every_method_declares_steps_and_only_functions_of_a_client(name):
    method = create_method(name)
    declared = declared_steps(type(method))
    assert declared
    for step in declared:
        assert callable(named_step(method, step))
    assert not {"fit", "personalize", "settings", "shortened"} & set(declared)


@pytest.mark.parametrize(
    "other", ["rows", "descend", "descent", "train", "begin", "participants", "fit"]
)
def test_what_reads_the_samples_and_is_not_declared_is_refused(other):
    method = create_method("fedavg")
    assert callable(getattr(method, other, None)) or other == "descend"
    with pytest.raises(DataError, match="is not a step of FedAvg; declared with @step: "):
        named_step(method, other)


def test_a_step_that_is_overridden_stays_declared():
    assert "update" in declared_steps(find_method("fedrep"))
    assert "update" in declared_steps(find_method("ditto"))
