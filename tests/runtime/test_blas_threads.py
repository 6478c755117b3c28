"""The number of BLAS threads of a process, which is decided once, when a command starts."""

import os
import subprocess
import sys

import pytest

from fedgram.runtime.threads import THREAD_VARIABLES, default_to_one_blas_thread

SCRIPT = """
import click
from fedgram.cli.root import main

@main.command("threads")
def threads():
    import numpy
    import scipy.linalg
    from threadpoolctl import threadpool_info
    print(sorted({each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"}))

main.list_commands = lambda ctx: ["threads"]
main(["threads"])
"""


def counts(**variables):
    """Return the BLAS threads that a command of a fresh process has."""
    kept = {key: value for key, value in os.environ.items() if key not in THREAD_VARIABLES}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=kept | variables, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_commands_use_one_thread():
    assert counts() == "[1]"


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="BLAS starts at most a thread per core")
@pytest.mark.parametrize("name", ["OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"])
def test_a_number_that_the_user_sets_stays(name):
    assert counts(**{name: "2"}) == "[2]"


@pytest.mark.parametrize("name", THREAD_VARIABLES)
def test_nothing_is_set_beside_a_number_of_the_user(monkeypatch, name):
    for each in THREAD_VARIABLES:
        monkeypatch.delenv(each, raising=False)
    monkeypatch.setenv(name, "3")
    default_to_one_blas_thread()
    assert {each: os.environ.get(each) for each in THREAD_VARIABLES if each in os.environ} == {
        name: "3"
    }
