"""Networks in words: what is read, what is refused, and the shapes that come out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgram.core.samples import Space
from fedgram.errors import ConfigError
from fedgram.features.lift import ACTIVATIONS
from fedgram.models.architecture import PRESETS, Conv, Dense, MapShape, maps_of, read, shapes

CONVS = st.builds(
    Conv,
    channels=st.integers(1, 99),
    kernel=st.integers(1, 9),
    stride=st.integers(1, 3),
    padding=st.integers(0, 4),
    pool=st.integers(1, 4),
    pooling=st.sampled_from(["max", "mean"]),
    activation=st.sampled_from(list(ACTIVATIONS)),
).map(lambda conv: conv if conv.pool > 1 else Conv(**{**vars(conv), "pooling": "max"}))
DENSES = st.builds(
    Dense, channels=st.integers(1, 99), activation=st.sampled_from(list(ACTIVATIONS))
)


@given(st.lists(CONVS, max_size=3), st.lists(DENSES, max_size=3))
def test_what_is_written_is_read_back(convs, denses):
    layers = (*convs, *denses)
    assert read(", ".join(map(str, layers))) == layers


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_what_its_words_say(name):
    assert read(name) == read(PRESETS[name])
    image = MapShape(height=28, width=28, channels=1)
    start = MapShape(channels=64) if name == "mlp" else image
    assert shapes(read(name), start)[-1].size > 0


@given(CONVS, st.integers(1, 12), st.integers(1, 12))
def test_a_convolution_has_as_many_places_as_patches_fit(conv, height, width):
    def fitting(side):
        starts = range(0, side + 2 * conv.padding - conv.kernel + 1, conv.stride)
        return len(starts)

    maps = MapShape(height=height, width=width, channels=2)
    places = fitting(height), fitting(width)
    if 0 in places:
        with pytest.raises(ConfigError, match="does not fit"):
            conv.filtered(maps)
        return
    out = conv.filtered(maps)
    assert (out.height, out.width, out.channels) == (*places, conv.channels)
    if min(places) >= conv.pool:
        after = conv.after(maps)
        assert (after.height, after.width) == (places[0] // conv.pool, places[1] // conv.pool)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("conv 8", "expected .conv 32 5x5"),
        ("conv 0 3x3", "expected .conv 32 5x5"),
        ("conv 8 3x5", "expected a square kernel"),
        ("conv 8 3x3 pad", "expected .conv 32 5x5"),
        ("conv 8 3x3 pad -1", "expected .conv 32 5x5"),
        ("conv 8 3x3 max 2 mean 2", "expected .conv 32 5x5"),
        ("conv 8 3x3 rely", "did you mean 'relu'"),
        ("dense", "expected .conv 32 5x5"),
        ("dense 8 8", "unknown activation"),
        ("lenets", "or one of lenet"),
        ("dense 8, conv 8 3x3", "a convolution above a dense layer"),
    ],
)
def test_what_is_no_network_is_refused(text, cause):
    with pytest.raises(ConfigError, match=cause):
        read(text)


def test_layers_that_do_not_fit_are_refused_by_name():
    with pytest.raises(ConfigError, match="'conv 16 5x5 max 2' does not fit maps of 4x4x6"):
        shapes(read("lenet"), MapShape(height=8, width=8, channels=1))
    with pytest.raises(ConfigError, match="'conv 2 3x3 max 9' pools maps of 6x6x2 to nothing"):
        shapes(read("conv 2 3x3 max 9"), MapShape(height=8, width=8, channels=1))
    with pytest.raises(ConfigError, match="expected images, got vectors"):
        shapes(read("conv 2 3x3"), MapShape(channels=64))


@pytest.mark.parametrize("image", [(8, 8), (8, 8, 2), (8, -8, -1)])
def test_an_image_that_is_not_of_the_features_is_refused(image):
    with pytest.raises(ConfigError, match="with the product 64"):
        maps_of(Space(width=65), image)


def test_features_know_whether_they_are_pixels():
    pixels = Space(width=49, inputs=48, backbone="pixels:4 pixels:4")
    assert maps_of(pixels) == MapShape(height=4, width=4, channels=3)
    lifted = Space(width=49, inputs=16, backbone="image 4x4x1")
    assert maps_of(lifted) == MapShape(channels=48)
