"""Values, named arrays and bytes: what travels, what is refused, what is kept on disk."""

import contextlib
import gc
import json
import pickle
import subprocess
import sys
import weakref
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load as unpacked
from safetensors.numpy import save as packed

from fedgram import Features, Grid, Lift, Linear, Space
from fedgram.core import codec, disk_store
from fedgram.core.codec import decode, digest, encode
from fedgram.core.disk_store import DiskStore
from fedgram.core.weighted import Weighted
from fedgram.errors import DataError, FedgramError, UnknownTypeError
from fedgram.methods.scaffold import Corrected


def crafted(header):
    """Return a sound safetensors message with any header of ours."""
    return packed({}, metadata={"fedgram": header})


def valued(skeleton):
    return crafted(json.dumps({"format": codec.FORMAT, "value": skeleton}))


@pytest.mark.parametrize(
    ("low", "high", "sent"),
    [
        (-128, 127, np.int8),
        (-129, 0, np.int16),
        (0, 128, np.int16),
        (-(2**15), 2**15 - 1, np.int16),
        (0, 2**15, np.int32),
        (-(2**31), 2**31 - 1, np.int32),
        (0, 2**31, np.int64),
        (-(2**63), 2**63 - 1, np.int64),
    ],
)
def test_integers_travel_in_the_smallest_width(low, high, sent):
    value = np.array([low, 0, high])
    (array,) = unpacked(encode([value])).values()
    assert array.dtype == sent
    (back,) = decode(encode([value]))
    assert back.dtype == np.int64
    assert np.array_equal(back, value)


def test_other_numbers_keep_their_width():
    for dtype in (np.int8, np.int16, np.int32, np.uint64, np.float32, np.float64, bool):
        (array,) = unpacked(encode([np.ones(3, dtype)])).values()
        assert array.dtype == dtype


def test_the_order_of_a_dictionary_changes_nothing():
    ones, twos = np.ones(3), np.full(2, 2)
    here, there = {"a": ones, "b": {"d": 1, "c": twos}}, {"b": {"c": twos, "d": 1}, "a": ones}
    assert encode(here) == encode(there)
    assert digest(here) == digest(there)


def test_the_layout_in_memory_changes_nothing():
    rows = np.arange(12).reshape(3, 4)
    strided = np.arange(24).reshape(3, 8)[:, ::2] // 2
    for same in (np.asfortranarray(rows), rows.astype(">i8"), strided + 0 * rows):
        assert np.array_equal(decode(encode(same)), same)
    assert encode(np.asfortranarray(rows)) == encode(rows)
    assert digest(rows.astype(">i8")) == digest(rows)


def test_digests_tell_kinds_of_values_apart():
    values = [
        None, 0, 1, 1.0, True, "1", [], (), {}, [1], (1,), {"a": 1}, "a", [[1]],
        np.array([1]), np.array([1.0]), np.array([[1]]), np.array([1], np.int32), np.zeros(0),
    ]  # fmt: skip
    assert len({digest(value) for value in values}) == len(values)


def test_known_digests():
    assert (
        digest({"a": [1, (2.5, "x")], "b": np.arange(3)})
        == "481689b96ed9b8e9fe3885712b4af72e43502f0782149999c0350aa724b7c4fe"
    )


def test_empty_arrays_and_single_numbers_come_back():
    for value in (np.zeros((0, 3)), np.zeros((3, 0), np.int64), np.array(7), np.array(2.5)):
        back = decode(encode({"x": value}))["x"]
        assert (back.dtype, back.shape) == (value.dtype, value.shape)
        assert np.array_equal(back, value)


@pytest.mark.parametrize(
    "value",
    [
        {"a.b": np.array([1]), "a": {"b": np.array([2])}},
        {"a": [np.array([1])], "a.0": np.array([2])},
        {"": {"a": np.array([1])}, "a": np.array([2])},
        {"__metadata__": np.array([1])},
        {"$": np.array([1]), "items": 3, "name": "x"},
    ],
)
def test_names_never_run_into_each_other(value):
    back = decode(encode(value))
    assert digest(back) == digest(value)
    assert encode(back) == encode(value)
    assert repr(back) == repr(decode(encode(dict(reversed(value.items())))))
    for name, item in value.items():
        if isinstance(item, np.ndarray):
            assert np.array_equal(back[name], item)


def test_keys_that_are_not_texts_are_refused_and_not_changed():
    for key in (1, None, 2.5, True):
        with pytest.raises(TypeError):
            encode({key: 3})


def test_what_is_not_registered_is_refused():
    @dataclass(frozen=True)
    class Point:
        x: int

    for value in (Point(3), {1, 2}, b"bytes", 3j, object()):
        with pytest.raises(TypeError, match="cannot be encoded"):
            encode(value)


def test_another_class_of_a_registered_name_is_refused():
    @dataclass(frozen=True)
    class Lift:
        width: int

    with pytest.raises(TypeError, match="Lift cannot be encoded"):
        encode(Lift(3))


def test_features_are_the_same_whatever_was_remembered_of_them():
    plain = Grid()(np.eye(4))
    remembering = replace(plain, cache={})
    before = encode(remembering)
    Lift(width=3)(remembering)
    assert encode(remembering) == before == encode(plain)
    assert digest(remembering) == digest(plain)
    assert isinstance(decode(before), Features)


# Bytes that are not ours.


@pytest.mark.parametrize("length", [0, 1, 7, 8, 9, 50, -20, -1])
def test_a_message_cut_short_is_refused(length):
    whole = encode({"a": np.arange(100), "b": "text"})
    with pytest.raises(DataError, match="reply of client 3: "):
        decode(whole[:length], origin="reply of client 3")


@pytest.mark.parametrize(
    "data", [b"", b"PK\x03\x04 a zip", b"\x80\x04\x95", b"{}", b"\xff" * 30, bytes(64)]
)
def test_foreign_bytes_are_refused(data):
    with pytest.raises(DataError, match="not a fedgram file, or truncated"):
        decode(data)


def test_safetensors_of_somebody_else_are_refused():
    for foreign in (packed({"w": np.ones(3)}), packed({}, metadata={"format": "pt"})):
        with pytest.raises(DataError, match="not a fedgram file"):
            decode(foreign)


def test_a_later_format_asks_for_an_upgrade():
    later = crafted(json.dumps({"format": codec.FORMAT + 1, "value": None}))
    with pytest.raises(DataError, match="upgrade fedgram"):
        decode(later)


@pytest.mark.parametrize(
    "skeleton",
    [
        {"$": "array", "name": "nowhere", "dtype": "int64"},
        {"$": "Unheard", "items": {}},
        {"$": "Space", "items": {"depth": 3}},
        {"$": "Space", "items": {}},
        {"$": "Lift", "items": {"activation": "rely"}},
        {"$": ["dict"], "items": {}},
        {"$": "dict", "items": [1]},
        {"$": "tuple", "items": 3},
        {"$": "Features", "items": {"values": 3, "space": 4}},
        {"items": {}},
        {},
    ],
)
def test_a_sound_message_of_unsound_content_is_refused(skeleton):
    with pytest.raises(FedgramError):
        decode(valued(skeleton))


# Decoding costs what the bytes cost.


def bomb(skeleton, arrays):
    """Return a message with a right checksum whose value is the skeleton."""
    about = codec._about(skeleton, codec._hash(skeleton, arrays))
    return packed(arrays, metadata={"fedgram": about})


def array(dtype="int64", name="0 a"):
    return {"$": "array", "name": name, "dtype": dtype}


BOMBS = {
    "an array 8,000 times": ([array()] * 8000, np.zeros(1000, np.int8)),
    "complex256": (array("complex256"), np.zeros(1_000_000, np.int8)),
    "long texts": (array("S4000"), np.zeros(1_000_000, np.int8)),
    "objects": (array("O"), np.zeros(10, np.int8)),
    "dates": (array("M8[s]"), np.zeros(10, np.int64)),
    "floats of integers": (array("float64"), np.zeros(10, np.int8)),
    "integers of floats": (array("int64"), np.zeros(10, np.float32)),
    "narrower than stored": (array("int8"), np.zeros(10, np.int64)),
    "a type that is no text": (array(["int64"]), np.zeros(10, np.int64)),
    "an array that no value has": ([], np.zeros(10, np.int8)),
}


@pytest.mark.parametrize(("skeleton", "values"), BOMBS.values(), ids=BOMBS)
def test_an_array_is_decoded_once_and_in_its_own_type(skeleton, values):
    with pytest.raises(DataError, match="damaged or foreign content"):
        decode(bomb(skeleton, {"0 a": values}))


@pytest.mark.parametrize("kind", [list, dict])
def test_deep_nesting_is_refused(kind):
    def nested(depth):
        value = 1
        for _ in range(depth):
            value = [value] if kind is list else {"$": "dict", "items": {"a": value}}
        return value

    assert decode(bomb(nested(codec.MOST_DEPTH), {})) is not None
    with pytest.raises(DataError, match="nested deeper"):
        decode(bomb(nested(codec.MOST_DEPTH + 1), {}))


@pytest.mark.parametrize(
    ("limit", "value"),
    [("MOST_TEXT", "x" * 300), ("MOST_ITEMS", ["x"] * 300), ("MOST_NAME", {"x" * 300: 1})],
)
def test_what_is_not_read_is_not_written(monkeypatch, limit, value):
    data = encode(value)
    monkeypatch.setattr(codec, limit, 200)
    with pytest.raises(DataError, match=r"at most 200|more than 200"):
        encode(value)
    with pytest.raises(DataError, match=r"not a fedgram file|at most 200"):
        decode(data)


@pytest.mark.parametrize(
    ("written", "other"),
    [('"a":1', '"a":2,"a":1'), ('"a":1', '"a": 1'), ('{"format":1,', '{"format":1,"more":2,')],
    ids=["a key twice", "a space", "more than is read"],
)
def test_a_value_is_written_in_one_way(written, other):
    skeleton = {"$": "dict", "items": {"a": 1}}
    about = codec._about(skeleton, codec._hash(skeleton, {}))
    assert decode(crafted(about)) == {"a": 1}
    assert written in about
    with pytest.raises(DataError, match="damaged or foreign content"):
        decode(crafted(about.replace(written, other)))


def test_a_million_names_are_refused_before_one_is_made(monkeypatch):
    names = {"$": "tuple", "items": [f"c{k}" for k in range(1_000_000)]}
    data, arrays = bomb(names, {}), {f"{k} a": np.zeros(0, np.int8) for k in range(100_000)}
    many = packed(arrays, metadata={"fedgram": "{}"})
    assert len(data) < codec.MOST_TEXT

    def parsed(*_):
        raise AssertionError("the header was parsed")

    monkeypatch.setattr(codec.json, "loads", parsed)
    for each in (data, many, bomb([[]] * 1_000_000, {})):
        with pytest.raises(DataError, match="not a fedgram file"):
            decode(each)


def test_a_list_of_100000_names_is_read():
    names = tuple(f"class {k}" for k in range(100_000))
    assert decode(encode(names)) == names


@pytest.mark.parametrize("shape", [(0, 2**50), (2**40, 0), (2**20, 0, 2**20)])
def test_an_array_without_entries_has_no_huge_lengths(shape):
    with pytest.raises(DataError, match="without entries"):
        decode(bomb(array(), {"0 a": np.empty(shape, np.int64)}))


def test_half_a_character_is_refused():
    for skeleton in ("\ud800", {"$": "dict", "items": {"\udfff": 1}}):
        with pytest.raises(DataError):
            decode(bomb(skeleton, {}))


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "7" * 1_000_000])
def test_numbers_that_fedgram_does_not_write_are_refused(number):
    about = codec._about(12345678, codec._hash(12345678, {}))
    assert decode(crafted(about)) == 12345678
    with pytest.raises(DataError):
        decode(crafted(about.replace("12345678", number)))


def test_a_long_name_is_shown_in_part():
    with pytest.raises(UnknownTypeError) as error:
        decode(bomb({"$": "T" * 100_000, "items": {}}, {}))
    assert len(str(error.value)) < 500


@pytest.mark.skipif(sys.platform != "linux", reason="limits of memory are Linux's")
def test_a_bomb_takes_no_memory():
    """In a process of its own with little memory; without the rule the arrays take 64 GB."""
    script = """
import resource, sys
import numpy as np
from fedgram.core.codec import decode
from fedgram.errors import DataError
data = sys.stdin.buffer.read()
kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
resource.setrlimit(resource.RLIMIT_DATA, (2**30, 2**30))
try:
    decode(data)
except DataError:
    more = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - kilobytes
    print("refused", more < 100_000)
"""
    data = bomb([array()] * 8000, {"0 a": np.zeros(1_000_000, np.int8)})
    done = subprocess.run(
        [sys.executable, "-c", script], input=data, capture_output=True, timeout=60
    )
    assert done.stdout.split() == [b"refused", b"True"], done.stderr


@pytest.mark.parametrize("header", ["[1]", "3", "null", '"text"', "[" * 100_000, ""])
def test_a_header_that_is_no_table_is_refused(header):
    with pytest.raises(DataError):
        decode(crafted(header))


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_a_changed_byte_of_the_header_never_escapes_as_another_error(place, change):
    head = Linear(weights=np.ones((2, 2)), space=Space(width=2), classes=("a", "b"))
    whole = bytearray(encode(head))
    size = int.from_bytes(whole[:8], "little")
    whole[place % (8 + size)] ^= change
    with contextlib.suppress(FedgramError):
        decode(bytes(whole))


def test_nothing_is_ever_unpickled(monkeypatch):
    def refused(*_):
        raise AssertionError("pickle was used")

    for name in ("loads", "load", "dumps", "dump"):
        monkeypatch.setattr(pickle, name, refused)
    value = {"head": Linear(weights=np.ones((2, 2)), space=Space(width=2), classes=("a", "b"))}
    assert digest(decode(encode(value))) == digest(value)


# Files.


def test_files_are_whole_or_not_there(tmp_path, monkeypatch):
    path = tmp_path / "deep" / "model.safetensors"
    codec.save(path, {"n": 1})
    assert codec.load(path) == {"n": 1}
    with pytest.raises(TypeError):
        codec.save(path, {"n": object()})
    assert codec.load(path) == {"n": 1}
    codec.save(path, {"n": 2})
    assert codec.load(path) == {"n": 2}
    assert [p.name for p in path.parent.iterdir()] == ["model.safetensors"]


def test_files_that_cannot_be_read_are_named(tmp_path):
    with pytest.raises(DataError, match=r"nothing\.st: cannot be read"):
        codec.load(tmp_path / "nothing.st")
    (tmp_path / "other.st").write_bytes(b"something else")
    with pytest.raises(DataError, match=r"other\.st: not a fedgram file"):
        codec.load(tmp_path / "other.st")


@pytest.mark.parametrize(("most", "held"), [(0, 1), (20, 2), (2**26, 5)])
def test_a_shelf_keeps_values_under_any_name_and_cleans_up(monkeypatch, most, held):
    """In memory, on disk, or some here and some there."""
    monkeypatch.setattr(disk_store, "_MOST_HELD", most)
    names = ["client/1", "../up", "", "two words", "é"]
    with DiskStore() as shelf:
        for number, name in enumerate(names):
            shelf[name] = {"n": np.arange(number)}
        shelf["client/1"] = 5
        assert list(shelf) == names
        assert shelf["client/1"] == 5
        assert [len(shelf[name]["n"]) for name in names[1:]] == [1, 2, 3, 4]
        assert shelf._bytes <= most
        assert len(shelf._held) == held
    assert shelf._file.closed


def test_nothing_is_kept_alive_by_encoding():
    """A cycle would keep every array that was ever sent until the garbage is collected."""
    kept = []
    gc.disable()
    try:
        for _ in range(3):
            value = {"a": np.arange(10)}
            kept.append(weakref.ref(value["a"]))
            codec.encode(value)
            codec.digest(value)
            codec.size(value)
            codec.decode(codec.encode(value))
            del value
        assert [alive() for alive in kept] == [None, None, None]
    finally:
        gc.enable()


_leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=20),
    st.builds(
        lambda shape, kind, high: np.full(shape, high, kind),
        st.lists(st.integers(0, 4), max_size=3).map(tuple),
        st.sampled_from([np.int64, np.float32, np.int8, bool]),
        st.sampled_from([0, 1, 100]),
    ),
    st.integers(0, 2**62).map(lambda high: np.array([0, high])),
)
_values = st.recursive(
    _leaves,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=12,
)


@given(value=_values)
def test_the_size_is_that_of_the_bytes(value):
    assert codec.size(value) == len(encode(value))


def test_the_text_of_a_value_serves_the_next_only_if_arrays_alone_differ():
    digests, one, two = codec.Digests(), np.array([1, 2]), np.array([3, 4])
    plain = Weighted(weight=one, total=two, places=24)
    values = [
        *(plain, replace(plain, total=one), replace(plain, diverged=1), plain),
        *(replace(plain, fine=two), replace(plain, fine=one), replace(plain, total=two[:1])),
        *(replace(plain, total=two.astype(np.int8)), plain, [plain, plain], plain.weight),
        *(Corrected(theta=plain), Corrected(theta=replace(plain, places=54))),
    ]
    for value in (*values, *reversed(values), *values[::2]):
        assert digests(value) == digest(value)


def test_digests_of_values_with_parts_in_common_are_those_of_single_values():
    digests, parts = codec.Digests(), [np.arange(4.0), np.arange(4.0) + 1, np.zeros((2, 2))]
    values = [[a, b] for a in parts for b in parts] + [parts, parts[:1], {"a": parts[2]}]
    for value in (*values, *reversed(values)):
        assert digests(value) == codec.digest(value)
    assert digests([np.arange(4.0), parts[1]]) == codec.digest([parts[0], parts[1]])
