"""Values survive the journey through bytes, in type and content."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedgram import Lift, Linear, Space
from fedgram.core import codec
from fedgram.models.adjusted import Blend, ClassMasked
from fedgram.models.mlp import MLP, TrainedModel
from fedgram.training.loop import RoundModel

from . import law, planted
from .law import CODEC, repeats, returns
from .test_group_laws import statistics, tallies

SPACE = Space(width=2, unit=0.5, bound=127, steps=("input(2 features)", "grid(8 bits)"))
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
SIZES = hnp.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=4)
ARRAYS = st.one_of(
    hnp.arrays(np.int64, SIZES, elements=st.integers(-300, 300)),
    hnp.arrays(np.int64, SIZES, elements=st.integers(-(2**63), 2**63 - 1)),
    hnp.arrays(
        st.sampled_from([np.float64, np.float32, np.int8, np.int16, np.uint8, np.uint64, bool]),
        SIZES,
    ),
)
LINEARS = st.builds(
    Linear,
    weights=hnp.arrays(np.float64, (2, 3)),
    space=st.just(SPACE),
    classes=st.just(("yes", "no", "perhaps")),
    lift=st.builds(Lift, width=st.integers(0, 9), seed=st.integers(0, 2**64 - 1)),
    origin=st.text(),
)
BLENDS = st.builds(Blend, first=LINEARS, second=LINEARS, balance=FLOATS)
NETWORKS = st.builds(
    TrainedModel,
    theta=hnp.arrays(st.sampled_from([np.float32, np.float64]), 6),
    shape=st.just(MLP(width=2, hidden=0, classes=3)),
    space=st.just(SPACE),
    classes=st.just(("yes", "no", "perhaps")),
    offset=hnp.arrays(np.float64, st.sampled_from([0, 2])),
)
MODELS = st.builds(
    RoundModel,
    network=NETWORKS,
    rate=FLOATS,
    round=st.integers(0, 9),
    pilot=st.booleans(),
    more=st.dictionaries(st.text("ab", max_size=3), hnp.arrays(np.float32, 2), max_size=2),
)
RESTRICTED = st.builds(ClassMasked, model=st.one_of(LINEARS, NETWORKS), allowed=hnp.arrays(bool, 3))
NAMES = st.text(alphabet="abcdefgh$ _", min_size=1, max_size=5)
NESTED = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), FLOATS, st.text(max_size=8), ARRAYS),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(NAMES, inner, max_size=3),
    ),
    max_leaves=8,
)
KINDS = {
    "Statistics": statistics(),
    "Tally": tallies(),
    "Linear": LINEARS,
    "Blend": BLENDS,
    "Network": NETWORKS,
    "Model": MODELS,
    "Restricted": RESTRICTED,
    "nested": NESTED,
}
# Numbers at and beyond the edges of narrow integers, which random ones meet by luck alone: these
# come first, as the simplest of all examples is always tried.
EDGES = [[-128, 128, 255], [-129, 127], [2**15, -(2**15)], [2**31, -(2**31)]]
ANY = st.one_of(st.sampled_from(EDGES).map(np.array), ARRAYS, *KINDS.values())


@pytest.mark.parametrize("values", KINDS.values(), ids=KINDS)
def test_every_kind_of_value_comes_back(values):
    returns(planted.Codec, values)
    repeats(planted.Codec, values)


@law.EXAMPLES
@given(ANY)
def test_the_size_of_a_message_is_that_of_its_bytes(value):
    assert codec.size(value) == len(codec.encode(value))


@pytest.mark.parametrize("law", CODEC.values(), ids=CODEC)
def test_the_codec_keeps_its_laws(law):
    law(planted.Codec, ANY)


@pytest.mark.parametrize(
    ("law", "broken"),
    [
        ("returns", planted.DropsSign),
        ("returns", planted.NarrowsTooFar),
        ("returns", planted.KeepsNarrow),
        ("returns", planted.ForgetsTuples),
        ("repeats", planted.DropsSign),
        ("repeats", planted.Numbered),
        ("narrows", planted.DropsSign),
        ("narrows", planted.NarrowsTooFar),
        ("narrows", planted.KeepsNarrow),
        ("narrows", planted.NeverNarrows),
        ("guards", planted.Trusting),
        ("digests", planted.HashesMessage),
    ],
)
def test_the_law_fails_on_a_broken_codec(law, broken):
    with pytest.raises(AssertionError):
        CODEC[law](broken, ANY)
