"""Bytes of many replies are those of each reply, of which one of each kind is encoded."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedgram.core import codec
from fedgram.core.reply_sizes import narrow_types, of_type, total_size, types_of_rows

EDGES = sorted({s * (2**b + d) for b in (7, 15, 31) for d in (-1, 0, 1) for s in (1, -1)} | {0})
INTEGERS = st.sampled_from(EDGES) | st.integers(-(2**63), 2**63 - 1)


@given(st.lists(st.lists(INTEGERS, min_size=3, max_size=3), min_size=1, max_size=6))
def test_the_bytes_are_those_of_all_replies(rows):
    replies = np.array(rows, np.int64)
    kinds = types_of_rows(replies)[:, None]
    whole = total_size(kinds, lambda place: of_type(place, 3))
    assert whole == sum(len(codec.encode(reply)) for reply in replies)


@given(INTEGERS, INTEGERS)
def test_types_are_those_of_the_codec(one, other):
    found = codec._narrow(np.array([one, other]))
    place = narrow_types(np.array([min(one, other)]), np.array([max(one, other)]))[0]
    assert found is (np.int8, np.int16, np.int32, np.int64)[place]
    assert codec._narrow(of_type(place, 2, 3)) is found


def test_rows_without_entries_have_a_type():
    assert types_of_rows(np.zeros((2, 0), np.int64)).tolist() == [0, 0]
