"""Models written for onnxruntime and read again, and models of others read, all against onnxruntime."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from sparkdl.nn import (
    LSTM,
    MSE,
    Array,
    Concat,
    Conv2D,
    Ctx,
    Dense,
    Flatten,
    GlobalAvgPool,
    Graph,
    Layer,
    Layout,
    Model,
    Node,
    Permute,
    ReLU,
    Sequential,
    Shape,
)
from sparkdl.nn.onnx import Imported, from_onnx, to_onnx
from sparkdl.nn.onnx.common import library
from sparkdl.nn.zoo import ZOO
from tests.catalogue import LAYERS, LayerCase

RNG = np.random.default_rng(11)


class AnyLoss(MSE):
    """For nets with outputs of any shape."""

    def check(self, out_shape: Shape) -> None:
        pass


def onnx_outputs(model: Any, x: Array) -> Array:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    y: Array = session.run(None, {model.graph.input[0].name: x})[0]
    return y


def outputs(got: Imported, x: Array) -> Array:
    return got.net.forward(Layout(got.net.specs(got.in_shape)).tree(got.params), x, Ctx())[0]


def close(a: Array, b: Array) -> None:
    assert a.shape == b.shape
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5 * max(1, np.abs(b).max(initial=0)))


def random_params(net: Layer, in_shape: Shape) -> Array:
    layout = Layout(net.specs(in_shape))
    vec = layout.init(RNG) + 0.1 * RNG.standard_normal(layout.size)
    vec[layout.num_trainable :] = 0.5 + RNG.random(layout.size - layout.num_trainable)
    return vec.astype(np.float32)


def ops(model: Any) -> Counter[str]:
    return Counter(node.op_type for node in model.graph.node)


def check_both_ways(net: Layer, in_shape: Shape, x: Array) -> tuple[Any, Imported]:
    model, vec = Model(net, AnyLoss(), in_shape), random_params(net, in_shape)
    written = to_onnx(model, vec)
    y = onnx_outputs(written, x)
    close(y, model.outputs(vec, x))
    read = from_onnx(written)
    assert read.in_shape == in_shape
    close(outputs(read, x), y)
    return written, read


def speaks_onnx(case: LayerCase) -> bool:
    """Masked steps and locally connected layers have no words in ONNX."""
    return case.mark is None and not case.id.startswith("locally") and "classifier-tokens" not in case.id


@pytest.mark.parametrize("case", [c for c in LAYERS if speaks_onnx(c)], ids=lambda case: case.id)
def test_layers_say_the_same_in_onnx_and_back(case: LayerCase) -> None:
    x = case.make_x(RNG, (3, *case.in_shape)).astype(np.float32)
    check_both_ways(case.layer, case.in_shape, x)


@pytest.mark.parametrize("case", [c for c in LAYERS if not speaks_onnx(c)], ids=lambda case: case.id)
def test_layers_that_onnx_has_no_words_for_are_refused(case: LayerCase) -> None:
    model = Model(case.layer, AnyLoss(), case.in_shape)
    reason = "has no operator" if case.id.startswith("locally") else "no word for steps that do not count"
    with pytest.raises(ValueError, match=f"^to_onnx: .*{reason}"):
        to_onnx(model, model.init(RNG))


@pytest.mark.parametrize(
    ("name", "in_shape", "transposes", "kind"),
    [
        ("densenet121", (28, 28, 1), 1, Graph),
        ("googlenet", (28, 28, 3), 1, Graph),
        ("inception_v3", (28, 28, 3), 1, Graph),
        ("lstm_classifier", (7, 5), 1, Sequential),
        ("mobilenet_v1", (28, 28, 3), 1, Sequential),
        ("resnet20", (28, 28, 3), 1, Graph),
        ("resnet50", (28, 28, 3), 1, Graph),
        ("transformer_classifier", (7, 5), 0, Graph),
        ("vgg11", (28, 28, 3), 1, Sequential),
        ("lenet5", (28, 28, 3), 2, Sequential),
    ],
)
def test_networks_of_the_zoo(name: str, in_shape: Shape, transposes: int, kind: type) -> None:
    """At most one Transpose goes in, and one goes out unless the pixels are averaged."""
    net = ZOO[name](in_shape, 10)
    x = RNG.standard_normal((2, *in_shape)).astype(np.float32)
    written, read = check_both_ways(net, in_shape, x)
    assert ops(written)["Transpose"] == transposes
    assert type(read.net) is kind


@pytest.mark.parametrize("rows", [0, 1, 5])
def test_any_number_of_rows(rows: int) -> None:
    net = Sequential([Conv2D(3, 3), ReLU(), Flatten(), Dense(2)])
    check_both_ways(net, (4, 5, 2), RNG.standard_normal((rows, 4, 5, 2)).astype(np.float32))


def test_a_chain_comes_back_as_it_was() -> None:
    net = Sequential([Dense(3), ReLU(), Dense(2, bias=False)])
    model, vec = Model(net, MSE(), (4,)), random_params(net, (4,))
    read = from_onnx(to_onnx(model, vec))
    assert (read.net, read.in_shape) == (net, (4,))
    assert np.array_equal(read.params, vec)


def test_float64_becomes_float32() -> None:
    model = Model(Dense(2), MSE(), (3,))
    vec = RNG.random(8)
    assert np.array_equal(from_onnx(to_onnx(model, vec)).params, vec.astype(np.float32))


def test_files_and_bytes(tmp_path: Path) -> None:
    model = Model(Dense(2), MSE(), (3,))
    vec = random_params(model.net, (3,))
    written = to_onnx(model, vec)
    onnx.save(written, tmp_path / "net.onnx")
    for source in (tmp_path / "net.onnx", str(tmp_path / "net.onnx"), written.SerializeToString()):
        assert np.array_equal(from_onnx(source).params, vec)


@dataclass(frozen=True)
class Doubled(Layer):
    """A layer of one's own."""

    def out_shape(self, in_shape: Shape) -> Shape:
        return in_shape

    def forward(self, p: Any, x: Array, ctx: Ctx) -> tuple[Array, None]:
        return 2 * x, None

    def backward(self, p: Any, cache: None, dy: Array, g: Any, ctx: Ctx) -> Array:
        return 2 * dy


def test_layers_of_ones_own_are_refused() -> None:
    model = Model(Sequential([Dense(2), Doubled()]), MSE(), (3,))
    with pytest.raises(ValueError, match=r"^to_onnx: .*Doubled\(\) cannot be written: ONNX has no operator for it"):
        to_onnx(model, model.init(RNG))


def test_without_onnx_the_remedy_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    library.cache_clear()
    monkeypatch.setitem(sys.modules, "onnx", None)
    model = Model(Dense(1), MSE(), (1,))
    for act in (lambda: to_onnx(model, model.init(RNG)), lambda: from_onnx(b"")):
        with pytest.raises(ImportError, match=r"pip install 'sparkdl-train\[onnx\]'"):
            act()
    library.cache_clear()


class Foreign:
    """A model that another tool might write: channels first, weights as it likes."""

    def __init__(self, in_shape: Sequence[int | str], opset: int = 17) -> None:
        self.in_shape, self.opset = in_shape, opset
        self.nodes: list[Any] = []
        self.weights: list[Any] = []

    def weight(self, *shape: int) -> str:
        return self.constant((RNG.random(shape) - 0.3).astype(np.float32))

    def constant(self, array: Any) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def add(self, op: str, *inputs: str, outputs: int = 1, which: int = 0, **options: Any) -> str:
        names = [f"t{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(op, list(inputs), names, **options))
        return names[which]

    def build(self, *outputs: str) -> Any:
        infos = [
            [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in pairs]
            for pairs in ([("in", ["N", *self.in_shape])], [(name, None) for name in outputs])
        ]
        graph = helper.make_graph(self.nodes, "foreign", *infos, self.weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=8)


def conv_net(f: Foreign) -> str:
    y = f.add("Conv", "in", f.weight(6, 3, 3, 3), f.weight(6), auto_pad="SAME_UPPER", strides=[2, 2])
    y = f.add("BatchNormalization", y, f.weight(6), f.weight(6), f.weight(6), f.constant(np.ones(6, np.float32)))
    y = f.add("Relu", y)
    y = f.add("MaxPool", y, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    y = f.add("Add", f.add("Conv", y, f.weight(6, 1, 3, 3), group=6, pads=[1, 1, 1, 1]), f.weight(1, 6, 1, 1))
    y = f.add("Dropout", f.add("Mul", y, f.add("Sigmoid", y)))
    y = f.add("Flatten", f.add("GlobalAveragePool", y))
    return f.add("Gemm", y, f.weight(4, 6), f.weight(4), transB=1)


def flattened(f: Foreign) -> str:
    y = f.add("Conv", f.add("Pad", "in", f.constant([0, 0, 1, 2, 0, 0, 2, 1]), mode="reflect"), f.weight(2, 3, 2, 3))
    y = f.add("Concat", y, f.add("Tanh", y), axis=1)
    y = f.add("Reshape", y, f.constant([0, -1]))
    return f.add("Add", f.weight(5), f.add("MatMul", y, f.weight(4 * 10 * 10, 5)))


def channels_kept(f: Foreign) -> str:
    y = f.add("Slice", "in", f.constant([1, 2]), f.constant([-1, 2**31]), f.constant([2, 3]))
    y = f.add("Pad", y, f.constant([0, 1, 0, 0, 0, 2, 0, 0]))
    y = f.add("Sum", y, f.add("Elu", y), f.add("InstanceNormalization", y, f.weight(6), f.weight(6)))
    y = f.add("Resize", y, "", f.constant(np.array([1, 1, 2, 3], np.float32)), mode="linear")
    return f.add("Softmax", f.add("AveragePool", y, kernel_shape=[3, 3], pads=[0, 1, 1, 0], ceil_mode=1), axis=1)


def means(f: Foreign) -> str:
    y = f.add("ReduceMean", f.add("ConvTranspose", "in", f.weight(3, 2, 2, 2), strides=[2, 2]), axes=[2, 3])
    return f.add("Sub", f.add("Squeeze", y, f.constant([2, 3])), f.add("ReduceMean", "in", axes=[1, 3], keepdims=0))


FOREIGN = {"conv_net": conv_net, "flattened": flattened, "channels_kept": channels_kept, "means": means}


@pytest.mark.parametrize("name", FOREIGN)
@pytest.mark.parametrize("channels_last", [False, True])
def test_models_with_channels_first(name: str, channels_last: bool) -> None:
    if name == "means":
        f = Foreign((3, 2, 7))
        model = f.build(FOREIGN[name](f))
    else:
        f = Foreign((3, 8, 9))
        model = f.build(FOREIGN[name](f))
    x = RNG.standard_normal((2, *f.in_shape)).astype(np.float32)
    read = from_onnx(model, channels_last=channels_last)
    assert read.in_shape == ((*f.in_shape[1:], 3) if channels_last else f.in_shape)
    expected = onnx_outputs(model, x)
    close(outputs(read, np.moveaxis(x, 1, -1) if channels_last else x), expected)


def test_with_channels_last_a_chain_needs_no_permute() -> None:
    f = Foreign((3, 8, 9))
    y = f.add("Relu", f.add("Conv", "in", f.weight(6, 3, 3, 3)))
    model = f.build(f.add("Gemm", f.add("Flatten", f.add("GlobalAveragePool", y)), f.weight(6, 2)))
    assert from_onnx(model, channels_last=True).net == Sequential(
        [Conv2D(6, (3, 3), (1, 1), ((0, 0), (0, 0)), (1, 1), bias=False), ReLU(), GlobalAvgPool(), Dense(2, bias=False)]
    )
    net = from_onnx(model).net
    assert isinstance(net, Sequential)
    assert net.layers[0] == Permute((1, 2, 0))


@pytest.mark.parametrize(("op", "gates"), [("RNN", 1), ("LSTM", 4), ("GRU", 3)])
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
@pytest.mark.parametrize("all_steps", [False, True])
def test_recurrent_operators(op: str, gates: int, direction: str, all_steps: bool) -> None:
    f, h, ways = Foreign((5, 3)), 4, 1 + (direction == "bidirectional")
    options = {"linear_before_reset": 1} if op == "GRU" else {}
    inputs = [f.add("Transpose", "in", perm=[1, 0, 2])]
    inputs += [f.weight(ways, gates * h, 3), f.weight(ways, gates * h, h), f.weight(ways, 2 * gates * h)]
    y = f.add(op, *inputs, outputs=2, which=1 - all_steps, hidden_size=h, direction=direction, **options)
    if all_steps:
        y = f.add("Reshape", f.add("Transpose", y, perm=[2, 0, 1, 3]), f.constant([0, 0, ways * h]))
    elif ways == 1:
        y = f.add("Squeeze", y, f.constant([0]))
    else:
        y = f.add("Reshape", f.add("Transpose", y, perm=[1, 0, 2]), f.constant([-1, 2 * h]))
    model, x = f.build(y), RNG.standard_normal((3, 5, 3)).astype(np.float32)
    read = from_onnx(model)
    close(outputs(read, x), onnx_outputs(model, x))
    assert isinstance(read.net, Sequential)
    assert len(read.net.layers) == 1


def test_open_sizes_are_given() -> None:
    f = Foreign((3, "H", "W"))
    model = f.build(f.add("Conv", "in", f.weight(2, 3, 1, 1)))
    with pytest.raises(ValueError, match=r"in leaves sizes open \(0 in \[3, 0, 0\]\). Give in_shape"):
        from_onnx(model)
    assert from_onnx(model, in_shape=(3, 4, 5)).in_shape == (3, 4, 5)


def refused_by(op: str, *inputs: Any, **options: Any) -> Callable[[Foreign], str]:
    return lambda f: f.add(op, *(i if isinstance(i, str) else f.constant(i) for i in inputs), **options)


FLAT, CUBE = (4,), (3, 6, 6)
ONES = np.ones((4, 4), np.float32)
REFUSED: list[tuple[tuple[int, ...], Callable[[Foreign], str], str]] = [
    (FLAT, refused_by("Erf", "in"), "Erf .*: it has no counterpart here. Known: Add,"),
    (FLAT, refused_by("Mul", "in", ONES[0]), "Mul .*: its input 1 is a constant; it must be computed"),
    (FLAT, refused_by("Add", "in", ONES[0]), r"a constant \(4,\) is known as the bias of a linear layer"),
    (FLAT, refused_by("Gemm", "in", ONES, ONES[0], alpha=2.0), "without factors"),
    (FLAT, refused_by("MatMul", "in", "in"), "a product of two computed values"),
    (FLAT, refused_by("Softmax", "in", axis=0), "it works along the rows"),
    (FLAT, refused_by("Concat", "in", "in", axis=0), "it works along the rows"),
    (FLAT, refused_by("Flatten", "in", axis=0), "it must keep the first axis"),
    (FLAT, refused_by("Reshape", "in", np.array([2, -1])), "does not keep the rows of samples"),
    (CUBE, refused_by("Conv", "in", np.ones((2, 3, 3, 3), np.float32), auto_pad="SAME_LOWER"), "the odd element"),
    (CUBE, refused_by("Conv", "in", np.ones((2, 4, 3, 3), np.float32)), "from_onnx: conv2d_1/W is of shape"),
    (CUBE, refused_by("ReduceMean", "in", axes=[1]), "means are over all steps, or over all pixels"),
    (CUBE, refused_by("MaxPool", "in", kernel_shape=[2, 2], dilations=[2, 2]), "without dilation or indices"),
    (CUBE, refused_by("Slice", "in", np.array([1, 1]), np.array([2, 2]), np.array([1, 3])), "only the sides of"),
    (CUBE, refused_by("LayerNormalization", "in", np.ones((6, 6), np.float32), axis=2), "over several axes"),
    (CUBE, refused_by("Resize", "in", "", np.array([1, 1, 2, 2], np.float32)), "images grow by whole factors"),
    (CUBE, refused_by("Split", "in", axis=1, outputs=3), "only a model's input"),
]


@pytest.mark.parametrize(("in_shape", "build", "message"), REFUSED)
def test_what_has_no_counterpart_is_refused(in_shape: Any, build: Callable[[Foreign], str], message: str) -> None:
    f = Foreign(in_shape)
    with pytest.raises(ValueError, match=message):
        from_onnx(f.build(build(f)))


def test_padding_that_only_a_convolution_knows() -> None:
    f = Foreign(CUBE)
    model = f.build(f.add("Relu", f.add("Pad", "in", f.constant([0, 0, 1, 1, 0, 0, 1, 1]), mode="edge")))
    with pytest.raises(ValueError, match="padding of mode 'replicate' is known before a convolution only"):
        from_onnx(model)


def test_recurrent_forms_that_are_refused() -> None:
    for options, extra in (({"direction": "reverse"}, []), ({}, [np.array([5, 5], np.int32)])):
        f = Foreign((5, 3))
        inputs = [f.add("Transpose", "in", perm=[1, 0, 2]), f.weight(1, 16, 3), f.weight(1, 16, 4), f.weight(1, 32)]
        y = f.add("LSTM", *inputs, *(f.constant(a) for a in extra), hidden_size=4, **options)
        with pytest.raises(ValueError, match="only its plain form is known"):
            from_onnx(f.build(y))


def test_one_input_and_one_output() -> None:
    f = Foreign((4,))
    first, second = f.add("Relu", "in"), f.add("Tanh", "in")
    with pytest.raises(ValueError, match="the model has 2 outputs; a network has one"):
        from_onnx(f.build(first, second))
    model = f.build(first)
    model.graph.input.append(helper.make_tensor_value_info("more", TensorProto.FLOAT, ["N", 2]))
    with pytest.raises(ValueError, match="the model has the inputs in, more; a network has one"):
        from_onnx(model)


def test_what_the_output_does_not_need_is_left_out() -> None:
    f = Foreign((4,))
    f.add("Tanh", "in")
    assert from_onnx(f.build(f.add("Relu", "in"))).net == Sequential([ReLU()])


def test_several_uses_of_weights_are_written_once() -> None:
    net = Graph([Node("a", "input", Dense(3)), Node("b", "a", shares="a")], "b")
    model = Model(net, AnyLoss(), (3,))
    written = to_onnx(model, model.init(RNG))
    assert ops(written)["Gemm"] == 2
    assert len(written.graph.initializer) == 2


def test_one_tensor_read_in_two_orders() -> None:
    """A Permute is not written; what it permutes must not be taken for what it was."""
    turned = Sequential([Permute((1, 0, 2)), Conv2D(2, 3), Permute((1, 0, 2))])
    net = Concat([Conv2D(2, 3), turned, Sequential([Permute((1, 0, 2)), Permute((1, 0, 2))])])
    check_both_ways(net, (4, 5, 3), RNG.standard_normal((2, 4, 5, 3)).astype(np.float32))


def test_a_bias_goes_into_the_layer_only_if_nobody_else_reads_it() -> None:
    f = Foreign((4,))
    y = f.add("MatMul", "in", f.weight(4, 3))
    model = f.build(f.add("Add", f.add("Relu", y), f.add("Add", f.add("Identity", y), f.weight(3))))
    with pytest.raises(ValueError, match=r"a constant \(3,\) is known as the bias of a linear layer"):
        from_onnx(model)


def test_one_permute_serves_all_branches() -> None:
    f = Foreign((3, 4, 5))
    model = f.build(f.add("Concat", *(f.add("Conv", "in", f.weight(2, 3, 1, 1)) for _ in range(3)), axis=1))
    net = from_onnx(model).net
    assert isinstance(net, Graph)
    assert sum(isinstance(node.layer, Permute) for node in net.nodes) == 2  # in and out


def test_pooling_with_more_padding_than_layers_take() -> None:
    for pads, in_shape in (([0, 0, 2, 2], (1, 5, 5)), ([0, 0, 3, 3], (1, 9, 9))):
        f = Foreign(in_shape)
        size = 3 if pads[2] == 2 else 5
        model = f.build(f.add("MaxPool", "in", kernel_shape=[size, size], strides=[2, 2], pads=pads))
        x = RNG.standard_normal((2, *in_shape)).astype(np.float32)
        close(outputs(from_onnx(model), x), onnx_outputs(model, x))
    f = Foreign((1, 5, 5))
    model = f.build(f.add("MaxPool", "in", kernel_shape=[5, 5], strides=[4, 4], pads=[0, 0, 3, 3]))
    with pytest.raises(ValueError, match="its padding is more than half its size"):
        from_onnx(model)


def test_stacked_layers_come_back_one_by_one() -> None:
    net = LSTM(3, layers=2)
    _, read = check_both_ways(net, (4, 2), RNG.standard_normal((2, 4, 2)).astype(np.float32))
    assert read.net == Sequential([LSTM(3, return_sequences=True), LSTM(3)])
