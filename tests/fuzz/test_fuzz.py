"""Hostile bytes at every reader: a value or an error of fedgram, in little time and memory.

Numbers and seed: FEDGRAM_FUZZ_INPUTS inputs in all, of the seed FEDGRAM_FUZZ_SEED. A finding names
both; the same seed gives it again.
"""

import gc
import json
import os
import random
import signal
import sys
import tomllib

import pytest

from fedgram.errors import DataError
from fedgram.runtime import parse

from . import child, mutate
from .child import attempt, forked, fuzz
from .findings import FINDINGS
from .readers import ALL, Reader, parsed

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits of memory are Linux's")

INPUTS = int(os.environ.get("FEDGRAM_FUZZ_INPUTS", "4000"))
SEED = int(os.environ.get("FEDGRAM_FUZZ_SEED", "0"))
LEAST = 25
SHARE = sum(1 / reader.cost for reader in ALL.values())


def number_of_inputs(reader: Reader) -> int:
    return max(LEAST, round(INPUTS / reader.cost / SHARE))


@pytest.mark.parametrize("name", ALL)
def test_every_reader_reads_or_refuses(name):
    found = fuzz(name, ALL[name], seed=SEED, numbers=range(number_of_inputs(ALL[name])))
    assert not found, f"{name}, seed {SEED}: " + "\n\n".join(map(str, found))


@pytest.mark.parametrize("name", FINDINGS)
def test_what_was_found_once_stays_refused(name):
    def tried(prepared):
        for number, data in enumerate(FINDINGS[name]):
            yield f"at {number}"
            if (finding := attempt(prepared[0], number, data)) is not None:
                yield finding

    found = forked(tried, name, ALL[name])
    assert not found, "\n\n".join(map(str, found))


def test_a_child_does_not_end_what_other_tests_left():
    # A session of onnxruntime waits at its end for threads that a fork does not have.
    class Left:
        def __init__(self):
            self.itself = self

        def __del__(self):
            if os.getpid() != parent:
                os.abort()

    def collected(_):
        gc.collect()
        return ()

    parent = os.getpid()
    gc.disable()  # until the fork
    try:
        Left()
        found = forked(collected, "left", planted(len))
    finally:
        gc.enable()
    assert not found, found[0]


# The law itself is tested on readers with a mistake.


def planted(read):
    return Reader(prepare=lambda _: (read, [b'{"a": [1, 2, {"b": "c"}]}']), mutate=mutate.of_json)


def found_in(read, inputs=200):
    findings = fuzz("planted", planted(read), seed=0, numbers=range(inputs))
    return [finding.problem for finding in findings]


def only_at_first(mistake):
    """Return a reader that is sound for its valid input, and makes a mistake afterwards."""

    def read(data):
        if data != b'{"a": [1, 2, {"b": "c"}]}':
            mistake()

    return read


def endless():
    while True:
        pass


def test_an_error_that_is_not_of_fedgram_is_found():
    assert any("JSONDecodeError" in problem for problem in found_in(json.loads))
    assert any("TypeError" in problem for problem in found_in(lambda data: _careless(data)["a"]))


def _careless(data):
    try:
        return json.loads(data)
    except ValueError as error:
        raise DataError("not valid") from error


def test_a_hang_is_found(monkeypatch):
    monkeypatch.setattr(child, "SECONDS", 0.2)
    assert any("TooLong" in problem for problem in found_in(only_at_first(endless), 2))


def test_memory_beyond_the_limit_is_found():
    mistake = only_at_first(lambda: bytearray(1 << 30).count(b"x"))
    assert any("MemoryError" in problem for problem in found_in(mistake, 2))


def test_the_end_of_the_process_is_found():
    problems = found_in(only_at_first(lambda: os.kill(os.getpid(), signal.SIGSEGV)), 2)
    assert any("ended with -11" in problem for problem in problems)


def test_plain_parsers_are_found():
    """Python's own parsers raise more than they say; `fedgram.runtime.parse` does not."""

    def toml(text):
        try:
            return tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise DataError("not valid") from error

    def tried(prepared):
        for number, data in enumerate(FINDINGS["TOML"][:2]):
            if (finding := attempt(lambda data: toml(data.decode()), number, data)) is not None:
                yield finding

    problems = [finding.problem for finding in forked(tried, "TOML", ALL["TOML"])]
    assert any("RecursionError" in problem for problem in problems)
    assert any("digits" in problem for problem in problems)


def test_the_same_seed_gives_the_same_inputs():
    corpus = parsed(parse.json_value)(None)[1]
    one, two = (mutate.of_json(random.Random("7 a 3"), corpus) for _ in range(2))
    assert one == two
