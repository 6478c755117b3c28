"""A model as one ONNX file that onnxruntime runs alone: images or features to classes."""

from __future__ import annotations

import json
from typing import Any, Literal

import numpy as np

from fedgram.export.formula import Formula
from fedgram.export.graph import IR_VERSION, Graph, onnx_package
from fedgram.export.onnx_features import grid_rows, probabilities, scores, with_constant
from fedgram.export.onnx_images import image_features, image_shape, network_of, opset_of
from fedgram.features.backbones.registry import Backbone

OnnxInput = Literal["image", "features", "grid"]


def onnx_model(
    formula: Formula, *, backbone: Backbone | None = None, stored: bool = False, about: str = ""
) -> Any:
    """Return a model as an ONNX `ModelProto`.

    The input is ``image`` (decoded images, uint8, samples by height by width by colors) with a
    backbone, else ``features`` (double, as the backbone gives them), or ``grid`` (the integers of a
    feature file, without the constant). The outputs are ``label`` (class codes), ``class`` (class
    names), ``scores`` and, if they are known, ``probabilities``; of a regression ``values``.

    Parameters
    ----------
    formula
        The model.
    backbone
        The backbone of images that becomes a part of the graph.
    stored
        Whether the input is the integers of a feature file.
    about
        A description for the file.
    """
    onnx = onnx_package()
    tensor, types = onnx.helper.make_tensor_value_info, onnx.TensorProto
    network = network_of(backbone)
    graph = Graph(opset_of(network))
    width = formula.space.inputs
    if backbone is not None:
        given = tensor("image", types.UINT8, image_shape(backbone))
        vectors = image_features(graph, "image", backbone, network)
        rows = grid_rows(graph, vectors, formula)
    elif stored:
        given = tensor("grid", types.INT16, ["samples", width])
        rows = with_constant(graph, graph.cast("grid", np.float64), formula.space)
    else:
        given = tensor("features", types.DOUBLE, ["samples", width])
        rows = grid_rows(graph, "features", formula)
    outputs = _outputs(graph, rows, formula)
    made = onnx.helper.make_graph(
        graph.nodes, "fedgram", [given], outputs, initializer=graph.constants
    )
    opsets = [onnx.helper.make_opsetid("", graph.opset)]
    if network is not None:
        opsets += [each for each in network.opset_import if each.domain not in ("", "ai.onnx")]
    model = onnx.helper.make_model(
        made,
        opset_imports=opsets,
        ir_version=max(IR_VERSION, 0 if network is None else network.ir_version),
        producer_name="fedgram",
        doc_string=about,
        functions=None if network is None else list(network.functions),
    )
    names = json.dumps(list(formula.classes), ensure_ascii=False)
    onnx.helper.set_model_props(model, {"outputs" if formula.outputs else "classes": names})
    onnx.checker.check_model(model, full_check=True)
    return model


def _outputs(graph: Graph, rows: str, formula: Formula) -> list[Any]:
    """Add what is computed from rows on the grid; return the outputs of the graph."""
    onnx = onnx_package()
    tensor, types = onnx.helper.make_tensor_value_info, onnx.TensorProto
    count, found = len(formula.classes), scores(graph, rows, formula)
    if formula.outputs:
        graph.op("Identity", found, out="values")
        return [tensor("values", types.DOUBLE, ["samples", count])]
    scored = graph.op("Identity", found, out="scores")
    label = graph.op("ArgMax", scored, out="label", axis=1, keepdims=0)
    names = graph.const(np.array(formula.classes, object))
    graph.op("Gather", names, label, out="class", axis=0)
    outputs = [
        tensor("label", types.INT64, ["samples"]),
        tensor("class", types.STRING, ["samples"]),
        tensor("scores", types.DOUBLE, ["samples", count]),
    ]
    if formula.probabilities is not None:
        probabilities(graph, scored, formula.probabilities, "probabilities")
        outputs.append(tensor("probabilities", types.DOUBLE, ["samples", count]))
    return outputs
