"""Layouts: what the name of a backbone states about the inputs of a feature space."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedgram
from fedgram.core.layouts import ImageLayout, TableLayout, downsampled, layout_of
from fedgram.core.samples import Space
from fedgram.data.tabular.columns import NumberColumn
from fedgram.data.tabular.schema import Schema
from fedgram.features.backbones.plain import Pixels

SOURCE = Path(fedgram.__file__).parent
sides = st.integers(1, 9999)


@given(height=sides, width=sides, channels=sides)
def test_an_image_layout_is_read_back_from_its_name(height, width, channels):
    layout = ImageLayout(height=height, width=width, channels=channels)
    assert layout_of(layout.backbone) == layout


@given(st.text("0123456789abcdef", min_size=16, max_size=16))
def test_a_table_layout_is_read_back_from_its_name(schema):
    assert layout_of(TableLayout(schema=schema).backbone) == TableLayout(schema=schema)


@given(sides)
def test_downsampled_images_are_read_back_with_and_without_a_digest(side):
    expected = ImageLayout(height=side, width=side, channels=3)
    assert layout_of(downsampled(side)) == layout_of(f"{downsampled(side)} 0123") == expected


@pytest.mark.parametrize(
    "name", ["", "resnet18", "image", "image 2x2", "image 2x2x2x2", "pixels:", "tables 01", "mini"]
)
def test_other_names_have_no_layout(name):
    assert layout_of(name) is None


def test_names_are_those_of_the_backbones():
    assert layout_of(Pixels(side=4).name).shape == (4, 4, 3)
    columns = {"age": NumberColumn(range=(0.0, 120.0))}
    schema = Schema(label="y", classes=("no", "yes"), columns=columns)
    assert layout_of(schema.backbone) == TableLayout(schema=schema.digest[:16])


def test_features_of_a_lifted_image_are_not_pixels():
    name = ImageLayout(height=4, width=4, channels=1).backbone
    assert Space(width=17, inputs=16, backbone=name).image == (4, 4, 1)
    lifted = Space(width=49, inputs=16, backbone=name)
    assert lifted.image == ()
    assert lifted.layout == layout_of(name)


READS = re.compile(
    r"backbone\.(r?split|r?partition|startswith|removeprefix)\(|re\.\w+\(.*, [\w.]*backbone\)"
)


def test_only_one_module_reads_the_names_of_backbones():
    found = {
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.py")
        if READS.search(path.read_text("utf-8"))
    }
    assert found == {"core/layouts.py"}


@pytest.mark.parametrize(
    "line", ['space.backbone.split(" ")[0]', 're.fullmatch(r"image (.*)", space.backbone)']
)
def test_a_second_reader_is_noticed(line):
    assert READS.search(line)
