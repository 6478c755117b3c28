"""Figures: where things lie, what they say, and that everybody can tell them apart."""

import itertools
import math
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgram.errors import ConfigError
from fedgram.experiments.measures import COST_AXES
from fedgram.experiments.partition_summary import ClientCounts, PartitionSummary
from fedgram.report.charts import palette
from fedgram.report.charts.axes import Scale, axis_for, linear_ticks, log_ticks
from fedgram.report.charts.clients import ClientPair, gains, spread_of_clients
from fedgram.report.charts.curves import NARROW, WIDE, curves, sensitivity
from fedgram.report.charts.frame import LETTER, ROW, TITLE_LETTER, dodged
from fedgram.report.charts.partition import MOST_CLIENTS, partition
from fedgram.report.markup import joined, number, tag, text

SVG = "{http://www.w3.org/2000/svg}"
CURVES = {"local": [(1, 0.6, 0.0)], "fedavg": [(1, 0.2, 0.01), (5, 0.5, 0.02), (9, 0.7, 0.01)]}
names = st.text(max_size=20)
shares = st.floats(0, 1)
costs = st.just(0.0) | st.floats(1e-9, 1e15)


def parsed(picture):
    """Return the elements of a drawing, which must be well-formed XML."""
    return ET.fromstring(picture)


def titles(picture):
    return [title.text for title in parsed(picture).iter(f"{SVG}title")]


def texts(picture):
    return [element.text for element in parsed(picture).iter(f"{SVG}text")]


def circles(picture, class_="mark"):
    """Return the centres of marks that are circles."""
    found = parsed(picture).iter(f"{SVG}circle")
    return [(float(c.get("cx")), float(c.get("cy"))) for c in found if c.get("class") == class_]


# Markup


@given(st.text())
def test_any_text_is_shown_and_nothing_else(content):
    shown = ET.fromstring(tag("p", content)).text or ""
    forbidden = r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]"
    # XML reads every kind of line end as the same one.
    wanted = re.sub("\r\n?", "\n", re.sub(forbidden, "\ufffd", content))
    assert shown == wanted


@given(st.text(alphabet="<>&\"' a"))
def test_any_text_may_be_an_attribute(content):
    assert ET.fromstring(tag("p", title=content)).get("title") == content


def test_markup_is_kept_and_text_in_lists_is_escaped():
    assert joined([tag("b", "<"), "<"], ">") == "<b>&lt;</b>&lt;&gt;"
    assert text("<") == "&lt;"


@given(st.floats(-1e4, 1e4))
def test_a_coordinate_is_near_the_number_and_short(value):
    assert abs(float(number(value)) - value) <= 0.005001
    assert not number(value).endswith((".", ".0"))
    assert number(value) != "-0"


# Axes


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6), st.integers(2, 10))
def test_linear_ticks_are_round_within_the_range_and_few(low, width, count):
    ticks = linear_ticks(low, low + width, count)
    assert len(ticks) <= count + 1
    assert ticks == sorted(set(ticks))
    slack = width * 1e-6 + abs(low) * 1e-12
    assert all(low - slack <= tick <= low + width + slack for tick in ticks)


@given(st.floats(1e-6, 1e6), st.floats(1.5, 1e12), st.integers(3, 9))
def test_logarithmic_ticks_lie_within_the_range_and_are_few(low, ratio, count):
    ticks = log_ticks(low, low * ratio, count)
    assert ticks
    assert len(ticks) <= max(count + 1, 8)
    assert ticks == sorted(ticks)
    assert all(low * 0.99 <= tick <= low * ratio * 1.01 for tick in ticks)


@given(st.lists(costs, min_size=1), st.booleans())
def test_an_axis_holds_its_values_in_their_order(values, logarithmic):
    axis = axis_for(values, 10, 110, logarithmic=logarithmic)
    places = [axis(value) for value in sorted(values)]
    assert all(10 <= place <= 110 for place in places)
    assert all(a <= b + 1e-9 for a, b in itertools.pairwise(places))


def test_zero_has_a_place_of_its_own_on_a_logarithmic_axis():
    axis = axis_for([0, 1, 1000], 0, 100, logarithmic=True)
    assert 0 < axis(0) < axis.gap < axis(1) < axis(1000) < 100
    assert axis_for([1, 1000], 0, 100, logarithmic=True).gap is None


@given(st.lists(st.floats(0, 300), max_size=18))
def test_names_keep_a_row_apart_and_stay_in_order(heights):
    placed = dodged(sorted(heights), 0.0, 300.0)
    assert all(b - a >= ROW - 1e-9 for a, b in itertools.pairwise(placed))
    assert all(place <= 300 for place in placed)


# Curves


def heights(picture):
    """Return the accuracies at the ends of the y axis."""
    low, high, *_ = parsed(picture).get("data-y").split()
    return float(low), float(high)


def test_early_rounds_do_not_squash_the_others_and_are_told_of():
    rounds = [(r, min(0.9, 0.1 + 0.08 * r), 0.0) for r in range(1, 41)]
    series = {"afl": [(1, 0.92, 0.0)], "fedavg": rounds}
    picture = curves("t", series, axis="rounds")
    low, high = heights(picture)
    assert low > 0.6
    assert high > 0.92
    below = sum(mean < low for _, mean, _ in rounds)
    assert f"{below} early points of fedavg below the axis" in texts(picture)
    assert float(parsed(picture).get("data-low")) == rounds[0][1]


@pytest.mark.parametrize("sheet", [WIDE, NARROW], ids=["wide", "narrow"])
@pytest.mark.parametrize("y_name", ["client mean accuracy, %", "R2 of a client, %"])
def test_what_lies_below_the_axis_is_written_where_no_curve_and_no_other_text_is(sheet, y_name):
    rounds = [(r, min(0.9, 0.1 + 0.08 * r), 0.0) for r in range(1, 41)]
    series = {"afl": [(1, 0.92, 0.0)], "fedavg": rounds, "a long name": rounds}
    root = parsed(curves("t", series, axis="rounds", y_name=y_name, sheet=sheet))
    (below,) = (text for text in root.iter(f"{SVG}text") if "below" in text.text)
    (name,) = (text for text in root.iter(f"{SVG}text") if text.text == y_name)
    assert float(below.get("y")) == float(name.get("y"))
    starts = float(below.get("x")) - LETTER * len(below.text)
    assert starts > float(name.get("x")) + LETTER * len(y_name)


def test_what_is_solved_at_once_and_the_end_of_a_curve_are_always_on_the_axis():
    worse = {"a": [(1, 0.1, 0.0)], "b": [(r, 0.9, 0.0) for r in range(1, 20)]}
    assert heights(curves("t", worse, axis="rounds"))[0] <= 0.1
    falling = {"b": [(r, 0.9 - 0.04 * r, 0.0) for r in range(1, 21)]}
    assert heights(curves("t", falling, axis="rounds"))[0] <= 0.1
    few = {"b": [(1, 0.1, 0.0), (2, 0.9, 0.0), (3, 0.9, 0.0)]}
    assert heights(curves("t", few, axis="rounds"))[0] <= 0.1


def test_on_a_small_screen_names_are_below_the_plot():
    series = {f"a longer method {k}": [(1, 0.5, 0)] for k in range(5)}
    root = parsed(curves("t", series, axis="rounds", sheet=NARROW))
    assert float(root.get("width")) <= 350
    (plot,) = (e for e in root.iter(f"{SVG}svg") if e.get("class") == "plot")
    bottom = float(plot.get("y")) + float(plot.get("height"))
    names = [e for e in root.iter(f"{SVG}text") if (e.text or "").startswith("a longer")]
    assert len(names) == 5
    assert all(float(e.get("y")) > bottom for e in names)


def test_the_accuracy_that_is_drawn_is_named():
    assert "client mean accuracy, %" in texts(
        curves("t", CURVES, axis="rounds", y_name="client mean accuracy, %")
    )
    pairs = [ClientPair(client="a", ours=0.9, alone=0.6, samples=10)]
    shown = texts(gains("apfl", pairs))
    assert {"accuracy with apfl, %", "accuracy of training alone, %"} <= set(shown)


@pytest.mark.parametrize("axis", COST_AXES)
def test_a_curve_lies_where_its_numbers_say(axis):
    picture = curves("t", {"a": [(10, 0.2, 0), (20, 0.4, 0), (30, 0.9, 0)]}, axis=axis)
    (x0, y0), (x1, y1), (x2, y2), _ = circles(picture)  # the last is the legend's
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.02)
    assert (y0 - y2) / (y0 - y1) == pytest.approx(3.5, abs=0.01)


def test_what_is_solved_at_once_is_a_mark_with_a_dashed_line_and_the_others_are_curves():
    picture = curves("t", CURVES, axis="rounds")
    paths = list(parsed(picture).iter(f"{SVG}path"))
    drawn = [path.get("d") for path in paths if path.get("class") == "reach"]
    assert [d.count("H") for d in drawn if "H" in d] == [1]
    (curve,) = [p.get("d") for p in paths if p.get("class") == "line" and "L" in p.get("d")]
    assert curve.count("L") == 2


def test_marks_tell_their_numbers():
    told = titles(curves("t", CURVES, axis="bytes"))
    assert "local: 60.00 % at 1 B (communication per client, bytes)" in told
    assert "fedavg: 50.00 ± 2.00 % at 5 B (communication per client, bytes)" in told


def test_deviations_end_where_the_axis_does():
    picture = curves("t", {"a": [(1, 0.98, 0.3)], "b": [(2, 0.5, 0.1)]}, axis="rounds")
    whiskers = [
        p.get("d") for p in parsed(picture).iter(f"{SVG}path") if p.get("class") == "whisker"
    ]
    tops = [float(re.match(r"M\S+ ([\d.]+)V", d)[1]) for d in whiskers]
    assert tops[0] == 56  # where the plot begins
    assert tops[0] < tops[1]


def test_the_chosen_round_gets_a_ring_at_its_point():
    picture = curves("t", CURVES, axis="rounds", chosen={"fedavg": 5.0, "local": 1.0})
    (ring,) = circles(picture, "ring")
    d = next(p.get("d") for p in parsed(picture).iter(f"{SVG}path") if p.get("class") == "line")
    assert [float(v) for v in d.split("L")[1].split()] == list(ring)


def test_costs_far_apart_are_drawn_on_a_logarithmic_axis():
    far = {"a": [(0, 0.5, 0)], "b": [(1e3, 0.6, 0)], "c": [(1e4, 0.6, 0), (1e7, 0.8, 0)]}
    shown = texts(curves("t", far, axis="bytes"))
    assert {"0 B", "1 kB", "10 kB", "10 MB"} <= set(shown)


def test_rounds_are_whole_numbers_from_the_first():
    shown = texts(curves("t", {"a": [(1, 0.1, 0), (3, 0.2, 0)]}, axis="rounds"))
    assert [label for label in shown if label in ["1", "1.5", "2", "2.5", "3"]] == ["1", "2", "3"]


def test_points_that_are_no_numbers_are_left_out_and_colors_stay():
    series = {"a": [(math.nan, 0.5, 0)], "b": [(1, 0.5, 0), (2, math.nan, 0)]}
    picture = curves("t", series, axis="rounds")
    assert titles(picture) == ["b: 50.00 % at 1 (rounds of communication)", "b"]
    assert 'class="s1"' in picture
    assert 'class="s0"' not in picture


def test_a_figure_without_points_says_so():
    assert "nothing recorded" in texts(curves("t", {"a": []}, axis="flops"))


def test_an_unknown_axis_is_refused_with_the_right_spelling():
    with pytest.raises(ConfigError, match="did you mean 'rounds'"):
        curves("t", CURVES, axis="round")


@given(
    st.dictionaries(names, st.lists(st.tuples(costs, shares, st.floats(0, 0.5)), max_size=15)),
    names,
    st.sampled_from(list(COST_AXES)),
)
def test_any_series_give_well_formed_figures_with_all_marks_inside(series, title, axis):
    for picture in (
        curves(title, series, axis=axis),
        sensitivity(title, "x", series, logarithmic=True),
        sensitivity(title, "x", series, logarithmic=False),
    ):
        root = parsed(picture)
        width, height = float(root.get("width")), float(root.get("height"))
        for x, y in circles(picture) + circles(picture, "strip"):
            assert 0 <= x <= width
            assert y >= 0
            assert y <= height or root.get("data-low")  # below the axis, where it is cut off


def test_figures_are_the_same_bytes_in_every_process():
    script = "from test_report_figures import example; print(example())"
    found = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1


def example():
    """Draw one of each."""
    pairs = [ClientPair(client=f"c{k}", ours=0.5 + k / 20, alone=0.7, samples=k) for k in range(9)]
    return "".join(
        [
            curves("c", CURVES, axis="seconds", chosen={"fedavg": 5}),
            sensitivity("s", "ridge", CURVES, logarithmic=True),
            gains("g", pairs),
            spread_of_clients("o", {"a": [0.1, 0.2], "b": [0.3]}),
            partition("p", dealt(5, 4)),
        ]
    )


# Sensitivity


def test_a_parameter_is_marked_at_the_values_that_were_tried():
    series = {"digits": [(0, 0.5, 0.1), (0.25, 0.6, 0.1), (1, 0.7, 0.1)]}
    shown = texts(sensitivity("t", "balance", series, logarithmic=False))
    assert {"0", "0.25", "1", "balance"} <= set(shown)


def test_a_negative_parameter_has_no_place_on_a_logarithmic_axis():
    with pytest.raises(ConfigError, match="negative"):
        sensitivity("t", "shift", {"a": [(-1, 0.5, 0)]}, logarithmic=True)


# Clients


def test_clients_above_the_line_gain_and_below_it_lose():
    pairs = [
        ClientPair(client="up", ours=0.9, alone=0.6, samples=10),
        ClientPair(client="down", ours=0.6, alone=0.9, samples=40),
        ClientPair(client="even", ours=0.8, alone=0.8, samples=10),
    ]
    picture = gains("apfl", pairs)
    assert {"1 better", "1 worse", "1 the same"} <= set(texts(picture))
    groups = [g for g in parsed(picture).iter(f"{SVG}g") if g.get("class") in ("s0", "s1")]
    told = {g.get("class"): [t.text.split(":")[0] for t in g.iter(f"{SVG}title")] for g in groups}
    assert told == {"s0": ["up"], "s1": ["down"]}


def test_many_clients_are_drawn_as_one_shape():
    pairs = [ClientPair(client=f"c{k}", ours=0.9, alone=0.5, samples=9) for k in range(5000)]
    picture = gains("apfl", pairs)
    assert "5000 better" in texts(picture)
    assert titles(picture) == []
    assert len(picture) < 400_000


def test_a_client_far_below_the_others_is_drawn_at_the_edge_and_told_of():
    pairs = [ClientPair(client=f"c{k}", ours=0.9, alone=0.8, samples=9) for k in range(99)]
    picture = gains("apfl", [*pairs, ClientPair(client="z", ours=0.0, alone=0.9, samples=1)])
    assert "1 further out" in texts(picture)
    assert "1 further out" not in texts(gains("apfl", pairs))


# Partitions


def dealt(clients, classes, *, most=9):
    rng = np.random.default_rng(0)
    counts = rng.integers(0, most, size=(clients, classes)).tolist()
    return PartitionSummary(
        classes=tuple(f"class {c}" for c in range(classes)),
        clients=tuple(
            ClientCounts(
                client=f"c{k:04}",
                holdout=k == 1,
                train=tuple(row),
                valid=(0,) * classes,
                test=tuple(row),
            )
            for k, row in enumerate(counts)
        ),
    )


def test_the_area_of_a_dot_is_the_number_of_samples():
    many, few = (16, 0), (4, 1)
    empty = (0, 0)
    clients = [
        ClientCounts(client=name, holdout=False, train=train, valid=empty, test=empty)
        for name, train in (("a", many), ("b", few))
    ]
    picture = partition("t", PartitionSummary(classes=("cat", "dog"), clients=tuple(clients)))
    radius = {
        circle.find(f"{SVG}title").text.partition(":")[0]: float(circle.get("r"))
        for circle in parsed(picture).iter(f"{SVG}circle")
        if circle.find(f"{SVG}title") is not None
    }
    assert set(radius) == {"a, class cat", "b, class cat", "b, class dog"}
    assert radius["a, class cat"] == pytest.approx(2 * radius["b, class cat"], abs=0.01)
    assert radius["b, class cat"] == pytest.approx(2 * radius["b, class dog"], abs=0.01)


@pytest.mark.parametrize("shape", [(1, 2), (20, 10), (100, 10), (100, 100), (9, 300), (1000, 62)])
def test_names_of_clients_and_classes_do_not_overlap(shape):
    root = parsed(partition("t", dealt(*shape)))
    width, height = float(root.get("width")), float(root.get("height"))
    assert width <= 1000
    assert height <= 900
    labels = [e for e in root.iter(f"{SVG}text") if re.fullmatch(r"c\d+|class \d+", e.text)]
    rows = sorted(float(e.get("y")) for e in labels if e.text.startswith("class"))
    assert all(b - a >= 11 for a, b in itertools.pairwise(rows))
    columns = [e for e in labels if not e.text.startswith("class")]
    places = sorted(float(e.get("x")) for e in columns)
    room = 11 if any(e.get("transform") for e in columns) else 6.2 * 5
    assert all(b - a >= room for a, b in itertools.pairwise(places))


@pytest.mark.parametrize("length", [5, 60, 5000])
def test_the_title_of_a_partition_is_as_wide_as_the_figure_at_most(length):
    client = ClientCounts(client="a", holdout=False, train=(3, 0), valid=(0, 0), test=(1, 0))
    summary = PartitionSummary(classes=("cat", "dog"), clients=(client,))
    root = parsed(partition("x" * length, summary))
    (title,) = (text for text in root.iter(f"{SVG}text") if text.get("class") == "title")
    assert title.text.startswith("xxxx")
    assert 12 + TITLE_LETTER * len(title.text) <= float(root.get("width")) < 1000


def test_every_cell_of_a_large_partition_is_drawn_in_the_shade_of_its_count():
    whole = dealt(100, 100, most=30)
    picture = partition("t", whole)
    cells = sum(path.get("d").count("M") for path in cell_paths(picture))
    assert cells == sum(count > 0 for client in whole.clients for count in client.train)
    assert len(picture) < 500_000


def cell_paths(picture):
    groups = (g for g in parsed(picture).iter(f"{SVG}g") if "cells" in (g.get("class") or ""))
    return [path for group in groups for path in group.iter(f"{SVG}path")]


@pytest.mark.parametrize("most", [1, 2, 5, 36, 500])
def test_the_key_to_shades_covers_every_count_once(most):
    counts = (most, *(1,) * 99)
    one = ClientCounts(client="a", holdout=False, train=counts, valid=counts, test=counts)
    picture = partition("t", PartitionSummary(classes=("x",) * 100, clients=(one,)))
    key = [label for label in texts(picture) if re.fullmatch(r"\d+(-\d+)?", label)]
    ranges = [tuple(map(int, label.split("-"))) for label in key if label != f"{sum(counts)}"]
    covered = [count for ends in ranges for count in range(ends[0], ends[-1] + 1)]
    assert covered == list(range(1, most + 1))


def test_more_clients_than_fit_are_thinned_out_from_the_largest_to_the_smallest():
    whole = dealt(1000, 3)
    picture = partition("t", whole)
    assert f"{MOST_CLIENTS} of the clients, evenly picked by size" in picture
    sizes = {client.client: sum(client.train) for client in whole.clients}
    told = [t.split(":")[0].split(",")[0] for t in titles(picture) if "classes in training" in t]
    shown = [sizes[name] for name in told]
    assert len(shown) == MOST_CLIENTS
    assert shown == sorted(sizes[name] for name in told)[::-1]
    assert (shown[0], shown[-1]) == (max(sizes.values()), min(sizes.values()))


# Colors

# Machado, Oliveira and Fernandes (2009), severity 1, on linear RGB.
SIGHTS = {
    "usual": np.eye(3),
    "protanopia": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "deuteranopia": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
    "tritanopia": np.array(
        [
            [1.255528, -0.076749, -0.178779],
            [-0.078411, 0.930809, 0.147602],
            [0.004733, 0.691367, 0.303900],
        ]
    ),
}
OKABE_ITO = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")


def linear(color):
    channels = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def oklab(rgb):
    to_cones = [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
    to_lab = [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
    return to_lab @ np.cbrt(to_cones @ np.clip(rgb, 0, 1))


def nearest(colors, sight):
    """Return how far apart the two colors are that look most alike to somebody."""
    seen = [oklab(sight @ linear(color)) for color in colors]
    return min(np.linalg.norm(a - b) for place, a in enumerate(seen) for b in seen[:place])


def contrast(one, other):
    low, high = sorted(linear(color) @ [0.2126, 0.7152, 0.0722] for color in (one, other))
    return (high + 0.05) / (low + 0.05)


BOUND = min(nearest(OKABE_ITO, sight) for sight in SIGHTS.values())


@pytest.mark.parametrize("colors", [palette.LIGHT, palette.DARK], ids=["light", "dark"])
@pytest.mark.parametrize("sight", SIGHTS)
def test_colors_are_told_apart_at_least_as_well_as_those_of_okabe_and_ito(colors, sight):
    assert nearest(colors, SIGHTS[sight]) >= BOUND


def test_the_measure_knows_colors_that_are_confused():
    olive, brown = "#6a7b23", "#a35c2c"
    assert nearest((olive, brown), SIGHTS["usual"]) > BOUND
    assert nearest((olive, brown), SIGHTS["deuteranopia"]) < BOUND


def test_colors_stand_out_from_the_paper():
    for colors, paper in (
        (palette.LIGHT, palette.PAPER),
        (palette.DARK, palette.DARK_PAPER),
    ):
        assert min(contrast(color, paper) for color in colors) >= 3
    assert contrast(palette.FAINT, palette.PAPER) >= 4.5
    assert contrast(palette.DARK_FAINT, palette.DARK_PAPER) >= 4.5


def test_series_of_the_same_color_have_different_markers_and_lines():
    first = [(palette.color_class(k), palette.marker(k, 0, 0)) for k in range(56)]
    assert len(set(first)) == 56
    assert palette.line_class(1) != palette.line_class(1 + len(palette.LIGHT))


def test_scales_put_the_ends_where_they_belong():
    axis = Scale(low=1, high=10, start=0, end=90, logarithmic=True)
    assert (axis(1), axis(10)) == (0, 90)
