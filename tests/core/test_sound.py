"""Models and shared results from outside: parts of other types are refused by name."""

import dataclasses

import numpy as np
import pytest

from fedgram.core.samples import Space
from fedgram.core.sound import require_sound
from fedgram.errors import DataError
from fedgram.features.lift import Lift
from fedgram.models.linear import Linear

GOOD = Linear(weights=np.zeros((3, 2)), space=Space(width=3), classes=("a", "b"), lift=Lift())


def test_a_model_is_sound():
    require_sound({"of a site": [GOOD]}, "message")


@pytest.mark.parametrize(
    "change",
    [
        {"space": "a text"},
        {"classes": 3},
        {"weights": "a text"},
        {"weights": np.full((3, 2), np.inf)},
        {"weights": np.zeros((2, 3))},
    ],
    ids=str,
)
def test_parts_that_do_not_fit_are_refused_with_the_origin(change):
    with pytest.raises(DataError, match=r"^message: .*create or copy the file again"):
        require_sound([dataclasses.replace(GOOD, **change)], "message")
