"""Contributions: what they are called, how they travel, and how class lists merge by name."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ledger_support import BOUND, CLASSES, Sent, summed

from fedgram import Grid, Labels, Lift, Space, Statistics
from fedgram.core import codec
from fedgram.errors import FedgramError, MismatchError
from fedgram.ledger.contribution import Contribution, checked_classes, merged

WIDTH = 6

samples = st.lists(st.tuples(st.integers(1, 40), st.sampled_from(CLASSES)), max_size=6)
lists = st.lists(st.sampled_from(CLASSES), unique=True)


@st.composite
def pieces(draw):
    """Samples of one client over a class list of its own, in an order of its own."""
    drawn = draw(samples)
    names = dict.fromkeys([*draw(lists), *(name for _, name in drawn)])
    return Sent(tuple(drawn), tuple(names))


def of(*classes, number=1):
    """Return the statistics of a sample per class."""
    return summed([(number + k, name) for k, name in enumerate(classes)], classes, WIDTH)


# Names


def test_equal_contributions_have_equal_ids():
    one, two = (Contribution(client="a", statistics=of("ant", "bee")) for _ in range(2))
    assert one.id == two.id


@pytest.mark.parametrize(
    "change", [{"client": "b"}, {"tag": "second"}, {"statistics": of("ant", "bee", number=9)}]
)
def test_client_tag_and_content_all_count_in_the_id(change):
    plain = {"client": "a", "statistics": of("ant", "bee"), "tag": ""}
    assert Contribution(**plain).id != Contribution(**{**plain, **change}).id


def test_a_removal_has_another_id_than_what_it_removes():
    part = of("ant")
    assert (
        Contribution(client="a", statistics=part).id
        != Contribution(client="a", statistics=-part).id
    )


def test_a_contribution_keeps_its_id_through_a_file(tmp_path):
    sent = Contribution(client="ward 3 é", statistics=-of("ant", "bee"), tag="May")
    codec.save(tmp_path / "sent", sent)
    came = codec.load(tmp_path / "sent")
    assert (came.client, came.tag, came.id) == (sent.client, sent.tag, sent.id)
    assert came.statistics == sent.statistics
    assert came.statistics.gram.dtype == np.int64


# Sums by the names of classes


@given(st.lists(pieces(), max_size=5), st.randoms(use_true_random=False))
def test_merged_is_the_sum_of_all_samples_over_the_sorted_union_in_any_order(parts, random):
    shuffled = random.sample(parts, len(parts))
    total = merged(part.statistics(WIDTH) for part in shuffled)
    if not any(part.classes for part in parts):
        assert total.count == 0
        return
    union = sorted({name for part in parts for name in part.classes})
    expected = summed([s for part in parts for s in part.samples], union, WIDTH)
    assert total == expected
    assert codec.encode(total) == codec.encode(expected)
    assert total.digest() == expected.digest()


@given(pieces(), pieces(), pieces())
def test_merged_may_be_nested(a, b, c):
    one, two, three = (part.statistics(WIDTH) for part in (a, b, c))
    assert merged([merged([one, two]), three]) == merged([one, merged([two, three])])


@given(st.lists(pieces(), min_size=1, max_size=4), st.permutations(CLASSES))
def test_with_a_fixed_list_the_columns_are_those_of_the_list(parts, fixed):
    total = merged((part.statistics(WIDTH) for part in parts), fixed)
    assert total == summed([s for part in parts for s in part.samples], fixed, WIDTH)


def test_merged_of_nothing_is_zero_and_zero_changes_nothing():
    assert merged([]) == merged([Statistics.zero()]) == Statistics.zero()
    assert merged([], CLASSES) == Statistics.zero()
    part = of("ant", "bee")
    assert merged([Statistics.zero(), part, Statistics.zero()]) == part


def test_what_is_taken_away_again_leaves_only_columns_of_zeros():
    rest = merged([of("ant", "bee"), of("cat", number=5), -of("cat", number=5)])
    assert rest == summed([(1, "ant"), (2, "bee")], ("ant", "bee", "cat"), WIDTH)


def test_merging_leaves_its_parts_as_they_were():
    one, two = of("bee", "ant"), of("cat", number=5)
    before = codec.digest([one, two])
    merged([one, two])
    merged([one, two], CLASSES)
    assert codec.digest([one, two]) == before


# Lists that cannot mean the same thing


@pytest.mark.parametrize(
    "pair", [("ant", "Ant"), ("ant", "ANT"), ("ant", " ant "), ("ß", "SS"), ("\u00fc", "u\u0308")]
)
def test_names_that_differ_only_in_case_or_spaces_are_refused(pair):
    with pytest.raises(MismatchError, match="differ only in case or spaces; agree on one name"):
        merged([of(pair[0]), of(pair[1])])
    with pytest.raises(MismatchError, match="differ only in case or spaces"):
        merged([of(*pair)])
    with pytest.raises(MismatchError, match="differ only in case or spaces"):
        checked_classes(pair)


def test_named_and_numbered_lists_are_refused_either_way():
    for pair in [("0", "ant"), ("ant", "0")]:
        with pytest.raises(MismatchError, match="has class names and the other only class numbers"):
            merged([of(pair[0]), of(pair[1])])


def test_numbered_lists_merge_and_so_do_names_with_digits():
    assert merged([of("1", "0"), of("10", "2")]).classes == ("0", "1", "10", "2")
    assert merged([of("ant", "7"), of("bee")]).classes == ("7", "ant", "bee")


def test_classes_outside_a_fixed_list_are_refused_by_name():
    with pytest.raises(
        MismatchError, match="classes cat, dog are not in the fixed list of classes"
    ):
        merged([of("ant"), of("dog", "cat")], ["ant", "bee"])


def test_a_list_may_not_name_a_class_twice():
    with pytest.raises(FedgramError, match="ant"):
        checked_classes(["ant", "bee", "ant"])


# Spaces that must not be added


@pytest.mark.parametrize(
    ("grid", "lift", "features", "named"),
    [
        (Grid(bits=6), Lift(), 5, "grid"),
        (Grid(bits="off"), Lift(), 5, "grid"),
        (Grid(clip=3.0), Lift(), 5, "clip 3"),
        (Grid(), Lift(width=5), 5, "lift"),
        (Grid(), Lift(), 7, "7 features"),
    ],
)
def test_other_spaces_are_refused_by_what_differs(grid, lift, features, named):
    def made(grid, lift, features):
        rows = grid(np.random.default_rng(0).normal(size=(3, features)))
        return Statistics.of(lift(rows), Labels(np.array([0, 1, 1]), ("ant", "bee")))

    with pytest.raises(MismatchError, match=named):
        merged([made(Grid(), Lift(), 5), made(grid, lift, features)])


def test_the_space_is_part_of_the_id():
    plain = of("ant")
    spaces = (Space(width=WIDTH, bound=BOUND), Space(width=WIDTH, bound=BOUND, unit=0.5))
    ids = {
        Contribution(
            client="a",
            statistics=Statistics(
                count=1, gram=plain.gram, moment=plain.moment, space=space, classes=plain.classes
            ),
        ).id
        for space in spaces
    }
    assert len(ids) == 2
