"""The checks of scikit-learn itself, none of which is left out."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("sklearn")

CODE = """
import sys, warnings
import fedgram as fg
from sklearn.exceptions import SkipTestWarning
from sklearn.utils.estimator_checks import check_estimator
warnings.simplefilter("error", SkipTestWarning)
check_estimator(getattr(fg, sys.argv[1])(sys.argv[2], clients=3))
"""


@pytest.mark.wide
@pytest.mark.parametrize("method", ["auto", "afl"])
@pytest.mark.parametrize("estimator", ["FederatedClassifier", "FederatedRegressor"])
def test_the_checks_of_scikit_learn_pass(estimator, method):
    """In a process of its own: scipy reads the variable, without which a check is left out."""
    done = subprocess.run(
        [sys.executable, "-c", CODE, estimator, method],
        env={**os.environ, "SCIPY_ARRAY_API": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
