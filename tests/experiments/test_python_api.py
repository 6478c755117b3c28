"""The Python API as a user meets it: from arrays to labels, probabilities, frames and figures."""

import numpy as np
import pytest

import fedgram as fg
from fedgram.core import codec
from fedgram.data.dataset import Vectors
from fedgram.errors import ConfigError, DataError
from fedgram.experiments.calibration import calibration
from fedgram.experiments.progress import ProgressLine
from fedgram.models.model import Calibration


@pytest.fixture(scope="module")
def wards():
    """Three wards with class mixes of their own, and labels that are words."""
    rng = np.random.default_rng(0)
    y = rng.choice(["ill", "well", "unclear"], size=300)
    centres = {"ill": 0.0, "well": 1.0, "unclear": 2.0}
    x = rng.normal(size=(300, 8)) + np.array([centres[each] for each in y])[:, None]
    return fg.Dataset(x, y, clients=rng.choice(["north", "south", "west"], size=300))


@pytest.fixture(scope="module")
def federated(wards):
    return fg.federate(wards)


@pytest.fixture(scope="module")
def result(federated):
    return fg.run("apfl", federated, balance=0.3)


def test_the_data_name_their_clients(federated):
    assert [site.id for site in federated.members] == ["north", "south", "west"]
    assert all(len(site.test) for site in federated.members)


def test_settings_are_a_plan():
    digits = fg.load_dataset("digits")
    plan = fg.PartitionPlan(clients=5, partition="dirichlet", dirichlet=0.3, seed=2)
    one = fg.federate(digits, clients=5, partition="dirichlet", alpha=0.3, seed=2)
    other = fg.federate(digits, plan)
    assert one.made.plan == other.made.plan == plan
    assert [len(site.train) for site in one.members] == [len(site.train) for site in other.members]
    assert fg.federate(digits, plan, clients=4).made.plan.clients == 4


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"clints": 5}, "did you mean 'clients'"),
        ({"alpha": 0.1, "dirichlet": 0.1}, "alpha: expected alpha or dirichlet, got both"),
        ({"partition": "dirichle"}, "did you mean 'dirichlet'"),
        ({"plan": 20}, "plan: expected a PartitionPlan, got int; .*clients=20"),
    ],
)
def test_wrong_settings_are_refused_by_name(settings, words):
    with pytest.raises(ConfigError, match=words):
        fg.federate(fg.load_dataset("digits"), **settings)


def test_wrong_calls_say_what_was_expected(wards, federated):
    with pytest.raises(DataError, match=r"data: expected a Dataset, got ndarray; use Dataset\("):
        fg.federate(wards.x)
    with pytest.raises(ConfigError, match="sites: expected a FederatedDataset, got Dataset"):
        fg.run("apfl", wards)
    with pytest.raises(ConfigError, match="method: expected a name such as 'apfl'"):
        fg.run(3, federated)
    with pytest.raises(ConfigError, match="balanse is not a setting; did you mean 'balance'"):
        fg.run("apfl", federated, balanse=1)
    with pytest.raises(ConfigError, match="settings belong to a method that is given by its name"):
        fg.run(fg.create_method("apfl"), federated, balance=0.1)
    members = fg.FederatedDataset(members=federated.members, holdout=(), test=federated.test)
    with pytest.raises(ConfigError, match="seeds: expected a federation from federate"):
        fg.run("afl", members, seeds=[0])
    data = fg.Dataset(wards.x, wards.y, wards.client, split=np.where(wards.client == "west", 2, 0))
    with pytest.raises(DataError, match=r"west has no training samples"):
        fg.federate(data)
    with pytest.raises(DataError, match="expected at least 2 classes, got 1"):
        fg.federate(fg.Dataset(wards.x, ["a"] * 300))


def test_a_name_with_settings_is_the_method(federated, result):
    made = fg.run(fg.create_method("apfl", balance=0.3), federated)
    assert made.model_digest == result.model_digest
    assert fg.run("apfl", federated).model_digest != result.model_digest


def test_a_model_predicts_the_labels_that_were_given(wards, federated, result):
    site = federated.members[0]
    model = result.models["north"]
    assert model.classes_.tolist() == ["ill", "unclear", "well"]
    codes = result.predictors["north"](site.test.features).argmax(axis=1)
    assert model.predict(site.test).tolist() == model.classes_[codes].tolist()
    # Raw rows take the same way through the grid as those of the federation.
    assert model.predict(wards.x).tolist() == fg.predict(model, wards).tolist()
    truth = np.array(wards.classes)[wards.y]
    assert np.mean(model.predict(wards.x.tolist()) == truth) > 0.5


def test_integer_labels_come_back_as_integers():
    rng = np.random.default_rng(0)
    y = rng.choice([-1, 7], size=60)
    data = fg.Dataset(rng.normal(size=(60, 9)) + y[:, None], y)
    model = fg.run("afl", fg.federate(data, clients=2)).shared_model
    assert model.predict(data.x[:3]).dtype.kind == "i"
    assert set(model.predict(data.x)) == {-1, 7}


def test_frames_are_brought_in_the_order_of_the_training_columns(wards):
    pandas = pytest.importorskip("pandas")
    names = [f"f{k}" for k in range(8)]
    frame = pandas.DataFrame(wards.x, columns=names)
    data = fg.Dataset(frame, np.array(wards.classes)[wards.y], wards.client)
    model = fg.run("afl", fg.federate(data)).models["south"]
    shuffled = frame[names[::-1]].assign(other=0.0)
    np.testing.assert_array_equal(model.decision_function(shuffled), model.decision_function(frame))
    again = fg.Dataset(shuffled, wards.labels[wards.y])  # a data set of a frame too
    np.testing.assert_array_equal(model.decision_function(again), model.decision_function(frame))
    with pytest.raises(DataError, match="X: expected a column 'f3', which is missing"):
        model.predict(frame.drop(columns="f3"))
    with pytest.raises(DataError, match="X: expected 8 features, as the model was fitted on, got"):
        model.predict(wards.x[:, :5])
    with pytest.raises(DataError, match="X: expected finite numbers, got NaN in row 1"):
        model.predict(np.where(np.arange(3)[:, None] == 1, np.nan, wards.x[:3]))


def test_vectors_of_a_file_must_be_finite(wards):
    standardized = fg.run("afl", fg.federate(wards, standardize=True)).models["south"]
    broken = Vectors(x=np.where(np.arange(3)[:, None] == 1, np.nan, wards.x[:3]))
    with pytest.raises(DataError, match="X: expected finite numbers, got NaN in row 1"):
        standardized.predict(broken)


@pytest.mark.parametrize("method", ["afl", "apfl", "local", "auto", "logistic", "fedavg"])
def test_probabilities_keep_the_order_of_the_scores(federated, wards, method):
    settings = {"rounds": 2} if method == "fedavg" else {}
    model = fg.run(method, federated, **settings).models["west"]
    shares = model.predict_proba(wards.x)
    np.testing.assert_allclose(shares.sum(axis=1), 1)
    assert (np.argsort(shares, kind="stable") == np.argsort(model.decision_function(wards.x))).all()


def test_probabilities_are_calibrated_on_left_out_samples():
    """Half of the labels are noise: a model that knows must not be sure."""
    rng = np.random.default_rng(0)
    y = rng.integers(2, size=3000)
    seen = np.where(rng.random(3000) < 0.5, y, rng.integers(2, size=3000))
    x = rng.normal(size=(3000, 8)) * 0.1 + np.array([[-1.0] * 8, [1.0] * 8])[y]
    federated = fg.federate(fg.Dataset(x, seen), clients=5, partition="iid")
    for method in ("afl", "apfl"):
        model = fg.run(method, federated).models["c0"]
        assert model.predict_proba(x).max(axis=1).mean() == pytest.approx(0.75, abs=0.04)


def test_calibration_uses_no_test_samples(federated):
    method = fg.create_method("afl")
    empty = [
        fg.Site(id=site.id, train=site.train, valid=site.valid, test=site.test.take([]))
        for site in federated.members
    ]
    without = fg.FederatedDataset(members=empty, holdout=(), test=federated.test)
    assert calibration(method, without) == calibration(method, federated)


def test_a_calibration_is_its_formula_and_has_the_softmax_as_its_limit():
    scores = np.array([[-40.0, -0.2, 0.3, 0.9, 40.0]])
    found = Calibration(power=3.0, sharpness=8.0).logits(scores)
    np.testing.assert_allclose(found[0, 1:], 3 * np.log(np.log1p(np.exp(8 * scores[0, 1:]))))
    assert found[0, 0] == pytest.approx(3 * 8 * -40.0)
    near = Calibration(power=2 * np.log(2) / 1e-4, sharpness=1e-4).probabilities(scores[:, 1:4])
    np.testing.assert_allclose(near, Calibration().probabilities(scores[:, 1:4]), atol=1e-3)


def test_a_model_is_saved_with_its_calibration(result, wards, tmp_path):
    model = result.models["north"]
    codec.save(tmp_path / "north.safetensors", model.calibrated())
    again = codec.load(tmp_path / "north.safetensors")
    np.testing.assert_array_equal(again.predict_proba(wards.x), model.predict_proba(wards.x))
    assert again.predict(wards.x[:5]).tolist() == model.predict(wards.x[:5]).tolist()
    codec.save(tmp_path / "bare.safetensors", model)
    with pytest.raises(DataError, match="this model has no calibration"):
        codec.load(tmp_path / "bare.safetensors").predict_proba(wards.x)


def test_an_unknown_client_is_named(result):
    with pytest.raises(KeyError, match="no client 'nort'; did you mean 'north'"):
        result.models["nort"]


def test_numbers_name_clients_too(wards):
    ids = np.arange(300) % 2
    result = fg.run("afl", fg.federate(fg.Dataset(wards.x, wards.labels[wards.y], ids)))
    assert result.models[1].client == result.models["1"].client == "1"


def test_several_methods_and_seeds(federated):
    results = fg.run(["local", fg.create_method("apfl")], federated, seeds=[0, 1, 2])
    assert len(results) == 6
    assert results.methods == ["local", "apfl"]
    means = [each.accuracy["client_mean"] for each in results.of("local")]
    assert results.of("local").accuracy["client_mean"] == pytest.approx(np.mean(means))
    assert results.of("local").deviation["client_mean"] == pytest.approx(np.std(means, ddof=1))
    assert len(set(means)) > 1  # each seed is a partition of its own
    again = fg.run("local", federated, seeds=[1])[0]
    assert again.model_digest == results.of("local")[1].model_digest


def test_settings_go_to_the_methods_that_have_them(federated):
    one, other = fg.run(["apfl", "afl"], federated, balance=0.0)
    assert one.record.parameters["balance"] == 0.0
    assert "balance" not in other.record.parameters


def test_texts_are_short(federated, result, wards):
    results = fg.run(["local", "apfl"], federated)
    for value in (wards, federated, result, results, result.models, result.models["north"]):
        assert len(repr(value)) < 300
    for value in (wards, federated, result, results):
        assert len(value._repr_html_()) < 2000


def test_names_are_escaped_in_notebooks(wards):
    data = fg.Dataset(wards.x, wards.labels[wards.y], name="<script>")
    assert "<script>" not in data._repr_html_() + fg.federate(data, clients=2)._repr_html_()


def test_frames_have_a_row_for_each_client(result):
    pytest.importorskip("pandas")
    frame = result.to_frame()
    assert frame.columns[:4].tolist() == ["client", "method", "accuracy", "samples"]
    assert frame.client.tolist() == ["north", "south", "west"]
    assert not {"r2", "rmse", "mae", "run"} & set(frame.columns)
    assert frame.accuracy.mean() == pytest.approx(result.accuracy["client_mean"], abs=1e-9)
    assert len(result.summary_frame()) == 1


def test_a_figure_is_drawn_and_saved(result, tmp_path):
    path = result.plot().save(tmp_path / "figure.svg")
    assert path.read_text("utf-8").startswith("<svg")
    assert "<svg" in result.plot().save(tmp_path / "figure.html").read_text("utf-8")
    with pytest.raises(ConfigError, match=r"ends with \.svg or \.html"):
        result.plot().save(tmp_path / "figure.png")


def test_the_report_of_results_has_them_all(result, federated, tmp_path):
    both = fg.Results([result, fg.run("local", federated)])
    page = both.report(tmp_path / "report.html", title="Wards & clinics").read_text("utf-8")
    assert "<title>Wards &amp; clinics</title>" in page
    assert all(f">{each.method}<" in page for each in both)
    assert result.shared_digest in result.report(tmp_path / "one.html").read_text("utf-8")
    with pytest.raises(ConfigError, match=r"ends with \.html, got .*report\.pdf"):
        result.report(tmp_path / "report.pdf")


def test_callbacks_and_progress(federated, capsys):
    replies, rounds = [], []
    fg.run(
        "fedavg",
        federated,
        rounds=2,
        on_reply=lambda *given: replies.append(given),
        on_round=rounds.append,
        progress=True,
    )
    assert rounds == [1, 2]
    assert any(done == total == 3 for _, done, total in replies)
    drawn = capsys.readouterr().err
    assert "fedavg: round 2 of 2, " in drawn
    assert "client mean" in drawn


def test_no_progress_where_nobody_asked(federated, capsys):
    fg.run("afl", federated)
    assert capsys.readouterr().err == ""


def test_progress_in_a_notebook_is_one_updated_display(monkeypatch):
    shown = []

    class Handle:
        def update(self, content, raw):
            shown.append(content["text/plain"])

    class Display:
        @staticmethod
        def display(content, raw, display_id):
            shown.append(content["text/plain"])
            return Handle()

    monkeypatch.setattr("fedgram.experiments.progress.in_notebook", lambda: True)
    monkeypatch.setitem(__import__("sys").modules, "IPython.display", Display)
    line = ProgressLine("afl", 1)
    line.reply("statistics", 3, 3)
    line.end("done")
    assert shown == ["afl: sums of statistics, 3 of 3 clients", "afl: done"]


def test_the_same_method_with_other_settings_is_not_another_seed(federated):
    methods = [fg.create_method("apfl", balance=weight) for weight in (0.0, 0.9)]
    results = fg.run(methods, federated)
    assert "seeds" not in repr(results)
    assert "apfl (balance=0.0): " in repr(results)
    assert "apfl (balance=0.9)</td>" in results._repr_html_()
    with pytest.raises(DataError, match="same settings"):
        _ = results.of("apfl").accuracy


@pytest.mark.parametrize(
    ("methods", "more", "words"),
    [
        (["afl", "apfl"], {"balanse": 0.3}, "did you mean 'balance'"),
        (["afl", "afl"], {}, "got 'afl' more than once"),
        ([], {}, "got an empty list"),
        ("afl", {"seeds": 2}, r"a list such as \[0, 1, 2\]"),
        ("afl", {"seeds": [0, 0]}, "each once"),
        ("AFL", {}, "did you mean 'afl'"),
    ],
)
def test_lists_of_methods_and_seeds_are_checked(federated, methods, more, words):
    with pytest.raises(ConfigError, match=words):
        fg.run(methods, federated, **more)


def test_without_test_samples_there_is_no_accuracy():
    data = fg.Dataset([[0.0, 1.0], [1.0, 0.0]] * 4, ["a", "b"] * 4, clients=range(8))
    with pytest.warns(UserWarning, match="2 columns"):
        result = fg.run("afl", fg.federate(data))
    assert np.isnan(list(result.accuracy.values())).all()
