"""Bytes of remote runs: compressed in plain runs, and independent of the samples under masks."""

import pytest
from remote_support import served

from fedgram.core.compression import expand
from fedgram.experiments.record import read_lines

MAGIC = (b"\x28\xb5\x2f\xfd", b"\x50\x2a\x4d\x18")  # without a label, and with one
DATA = {"clients": 3, "dirichlet": 1.0, "test_fraction": 0.5}


def exchanges(out):
    return [
        line for line in read_lines(out / "afl" / "exchanges.jsonl") if line["phase"] == "train"
    ]


def test_a_plain_run_sends_less_than_its_messages_and_records_both(tmp_path):
    out, _, carrier, _ = served(tmp_path, "afl", clients=3, data=DATA)
    (line,) = exchanges(out)
    sent = [content for content in carrier.answered if content.startswith(MAGIC)]
    assert line["sent_up"] < 0.8 * line["bytes_up"]
    assert {len(content) for content in sent} >= {max(map(len, carrier.answered))}
    largest = sorted((content for content in sent), key=len)[-3:]
    assert line["sent_up"] == sum(map(len, largest))
    assert line["bytes_up"] == sum(len(expand(content)) for content in largest)


def test_under_masks_nothing_is_compressed_and_no_length_depends_on_the_samples(tmp_path):
    pytest.importorskip("cryptography")
    lengths = []
    for seed in (0, 1):
        (tmp_path / str(seed)).mkdir()
        out, _, carrier, _ = served(
            tmp_path / str(seed),
            "afl",
            clients=3,
            data={**DATA, "seed": seed},
            engine={"secure": True},
        )
        assert not any(content.startswith(MAGIC) for content in carrier.answered)
        assert not any(content.startswith(MAGIC) for _, content in carrier.sent)
        assert all(line["sent_up"] == line["bytes_up"] for line in exchanges(out))
        lengths.append([line["bytes_up"] for line in exchanges(out)])
    assert lengths[0] == lengths[1]


def test_a_rule_of_the_federation_switches_compression_off(tmp_path):
    rules = {"compress": False}
    out, _, carrier, _ = served(tmp_path, "afl", clients=3, data=DATA, rules=rules)
    (line,) = exchanges(out)
    assert line["sent_up"] == line["bytes_up"]
    assert not any(content.startswith(MAGIC) for content in carrier.answered)
    assert not any(content.startswith(MAGIC) for _, content in carrier.sent)
