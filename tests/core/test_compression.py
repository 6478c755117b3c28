"""Compressed messages: the same bytes after expansion, smaller, and no message expands far."""

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from fedgram.core import codec
from fedgram.core.compression import MOST_RATIO, client_label, compress, expand
from fedgram.core.statistics import Statistics
from fedgram.errors import DataError
from fedgram.ledger.contribution import Contribution


@given(st.binary(max_size=300) | st.integers(0, 5000).map(lambda n: b"ab" * n))
def test_expanding_undoes_compressing(content):
    if not content.startswith(b"\x28\xb5\x2f\xfd"):
        assert expand(compress(content)) == content
        assert len(compress(content)) <= len(content)


@given(st.text(max_size=40))
def test_a_label_stands_in_front_as_it_is(name):
    label, content = client_label(name), bytes(range(256)) * 20 + name.encode()
    message = compress(content, label=label)
    assert expand(message) == content
    assert label in message[: 8 + len(label)]
    for damaged in (message[:7], message[:12], message[:4] + b"\xff\xff\xff\xff" + message[8:]):
        with pytest.raises(DataError, match="with a label"):
            expand(damaged)


def test_the_label_is_the_name_as_the_codec_writes_it():
    for name in ("north", "nördlich", 'a "b"'):
        message = codec.encode(Contribution(client=name, statistics=Statistics.zero(), tag=""))
        assert client_label(name) in message


def test_statistics_take_about_half_the_bytes(gridded):
    samples = gridded(200, 100)
    message = codec.encode(Statistics.of(samples.features, samples.labels))
    assert len(compress(message)) < 0.75 * len(message)
    assert codec.decode(expand(compress(message))).count == 200


def test_a_message_that_would_expand_far_is_refused_before_it_is_expanded():
    bomb = zstandard.ZstdCompressor().compress(bytes(10**9))
    assert len(bomb) < 10**5
    with pytest.raises(DataError, match=f"the limit is {MOST_RATIO} times its bytes"):
        expand(bomb)
    compressor = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    silent = compressor.compress(bytes(10**6)) + compressor.flush()
    with pytest.raises(DataError, match=r"unknown size|limit is"):
        expand(silent)


def test_short_messages_are_sent_as_they_are():
    assert compress(b"ab" * 500) == b"ab" * 500
    assert len(compress(bytes(range(64)) * 20)) < 1024 < 64 * 20


def test_what_compresses_too_well_is_sent_as_it_is():
    zeros = codec.encode(np.zeros(100_000))
    assert compress(zeros) == zeros


def test_damaged_and_too_long_messages_are_refused():
    message = compress(codec.encode(list(range(1000))))
    with pytest.raises(DataError, match="expands to"):
        expand(message, most=100)
    for damaged in (message[:-9], message[:30], message[:4], message[:20] + b"\0\0" + message[22:]):
        with pytest.raises(DataError):
            codec.decode(expand(damaged))
