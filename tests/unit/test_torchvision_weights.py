"""State dicts of torchvision's networks, made up by name and shape, and by torch where it is installed."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from sparkdl.errors import ModelFormatError
from sparkdl.nn import Array, Ctx, Layout, from_torchvision
from sparkdl.nn.torchvision import is_torchvision, torchvision_names
from sparkdl.nn.zoo import ZOO
from sparkdl.train import LocalFiles, load_weights

RNG = np.random.default_rng(5)
Shapes = dict[str, tuple[int, ...]]


def norm(name: str, c: int) -> Shapes:
    own: Shapes = {f"{name}.{leaf}": (c,) for leaf in ("weight", "bias", "running_mean", "running_var")}
    return own | {f"{name}.num_batches_tracked": ()}


def resnet_shapes(blocks: tuple[int, ...], convolutions: int, classes: int = 10, stem: int = 7) -> Shapes:
    """The keys of torchvision's ResNet."""
    wide = 4 if convolutions == 3 else 1
    shapes: Shapes = {"conv1.weight": (64, 3, stem, stem), **norm("bn1", 64)}
    channels = 64
    for stage, count in enumerate(blocks, 1):
        width = 32 << stage
        for block in range(count):
            name = f"layer{stage}.{block}"
            kernels = (1, 3, 1) if convolutions == 3 else (3, 3)
            widths = (channels, width, width, width * wide) if convolutions == 3 else (channels, width, width)
            for i, k in enumerate(kernels):
                shapes[f"{name}.conv{i + 1}.weight"] = (widths[i + 1], widths[i], k, k)
                shapes |= norm(f"{name}.bn{i + 1}", widths[i + 1])
            if block == 0 and channels != width * wide:
                shapes[f"{name}.downsample.0.weight"] = (width * wide, channels, 1, 1)
                shapes |= norm(f"{name}.downsample.1", width * wide)
            channels = width * wide
    return shapes | {"fc.weight": (classes, channels), "fc.bias": (classes,)}


def vgg_shapes(stages: tuple[int, ...], bn: bool, side: int, hidden: tuple[int, ...], classes: int = 10) -> Shapes:
    """The keys of torchvision's VGG, for features of side x side pixels."""
    shapes: Shapes = {}
    place, channels = 0, 3
    for width, count in zip((64, 128, 256, 512, 512), stages, strict=True):
        for _ in range(count):
            shapes |= {f"features.{place}.weight": (width, channels, 3, 3), f"features.{place}.bias": (width,)}
            shapes |= norm(f"features.{place + 1}", width) if bn else {}
            place += 3 if bn else 2
            channels = width
        place += 1
    widths = (channels * side * side, *hidden, classes)
    for i, (d, units) in enumerate(itertools.pairwise(widths)):
        shapes |= {f"classifier.{3 * i}.weight": (units, d), f"classifier.{3 * i}.bias": (units,)}
    return shapes


def layout_of(name: str, side: int = 64, classes: int = 10, **options: Any) -> Layout:
    in_shape = (side, side, 3)
    return Layout(ZOO[name](in_shape, classes, **options).specs(in_shape))


def state_of(shapes: Shapes) -> dict[str, Array]:
    return {name: RNG.random(shape, np.float32) for name, shape in shapes.items()}


CASES: dict[str, tuple[str, tuple[int, ...], Shapes, dict[str, Any], int]] = {
    # name, samples, state dict, options of the builder, and how many tensors torchvision's file has
    "resnet18": ("resnet18", (64, 64, 3), resnet_shapes((2, 2, 2, 2), 2), {}, 122),
    "resnet18-small": ("resnet18", (32, 32, 3), resnet_shapes((2, 2, 2, 2), 2, stem=3), {}, 122),
    "resnet34": ("resnet34", (64, 64, 3), resnet_shapes((3, 4, 6, 3), 2), {}, 218),
    "resnet50": ("resnet50", (64, 64, 3), resnet_shapes((3, 4, 6, 3), 3), {}, 320),
    "vgg11": ("vgg11", (64, 64, 3), vgg_shapes((1, 1, 2, 2, 2), False, 2, (48, 32)), {"hidden": (48, 32)}, 22),
    "vgg16_bn": ("vgg16_bn", (64, 64, 3), vgg_shapes((2, 2, 3, 3, 3), True, 2, (8, 8)), {"hidden": (8, 8)}, 97),
}


@pytest.mark.parametrize("case", CASES)
def test_every_tensor_finds_its_place(case: str) -> None:
    name, in_shape, shapes, options, tensors = CASES[case]
    layout, state = Layout(ZOO[name](in_shape, 10, **options).specs(in_shape)), state_of(shapes)
    assert len(state) == tensors
    assert is_torchvision(state)
    found, names = from_torchvision(layout, state), torchvision_names(layout)
    assert {key: a.shape for key, a in found.items()} == layout.shapes()
    assert sorted(names.values()) == sorted(key for key in state if not key.endswith("num_batches_tracked"))
    for ours, theirs in names.items():
        assert found[ours].sum() == pytest.approx(state[theirs].sum(), rel=1e-3)


def test_axes_are_turned() -> None:
    state = state_of(CASES["resnet18"][2])
    found = from_torchvision(layout_of("resnet18"), state)
    for f, c, i, j in [(0, 1, 2, 3), (63, 2, 6, 0)]:
        assert found["conv2d_0/W"][i, j, c, f] == state["conv1.weight"][f, c, i, j]
    assert np.array_equal(
        found["residual_8/shortcut/conv2d_0/W"][0, 0], state["layer2.0.downsample.0.weight"][..., 0, 0].T
    )
    assert np.array_equal(found["residual_10/body/batch_norm_4/var"], state["layer2.1.bn2.running_var"])
    assert np.array_equal(found["residual_10/body/batch_norm_1/gamma"], state["layer2.1.bn1.weight"])
    assert np.array_equal(found["dense_21/W"], state["fc.weight"].T)


def test_flattened_images_have_their_channels_last() -> None:
    layout, state = (
        Layout(ZOO["vgg11"]((64, 64, 3), 10, hidden=(48, 32)).specs((64, 64, 3))),
        state_of(CASES["vgg11"][2]),
    )
    first = from_torchvision(layout, state)["dense_22/W"]
    for unit, c, h, w in [(0, 0, 0, 1), (47, 511, 1, 0), (5, 7, 1, 1)]:
        assert first[(h * 2 + w) * 512 + c, unit] == state["classifier.0.weight"][unit, (c * 2 + h) * 2 + w]


def test_the_head_may_be_ones_own() -> None:
    layout, state = Layout(ZOO["resnet18"]((64, 64, 3), 3).specs((64, 64, 3))), state_of(CASES["resnet18"][2])
    with pytest.raises(
        ValueError, match=r"fc.weight \(10, 512\) does not fit dense_21/W \(512, 3\). .*without their head"
    ):
        from_torchvision(layout, state)
    found = from_torchvision(layout, state, head=False)
    assert set(layout.shapes()) - set(found) == {"dense_21/W", "dense_21/b"}


def test_what_does_not_match_is_named() -> None:
    layout = layout_of("resnet34")
    with pytest.raises(ValueError, match=r"The state dict has no layer1.2.bn1.bias. Is it of another depth"):
        from_torchvision(layout, state_of(CASES["resnet18"][2]))
    shallow = layout_of("resnet18")
    with pytest.raises(ValueError, match=r"holds layer1.2.bn1.bias, which the network has not"):
        from_torchvision(shallow, state_of(CASES["resnet34"][2]))
    other = layout_of("densenet121", 32)
    with pytest.raises(ValueError, match=r"concat_3/sequential_1/batch_norm_0 has no counterpart"):
        torchvision_names(other)


def test_a_configuration_may_start_from_such_a_file(tmp_path: Path) -> None:
    state, path = state_of(CASES["resnet18"][2]), str(tmp_path / "resnet18.safetensors")
    save_file(state, path)
    layout = layout_of("resnet18")
    params = np.zeros(layout.size, np.float32)
    load_weights(LocalFiles(), path, layout, params)
    for name, a in from_torchvision(layout, state).items():
        assert np.array_equal(layout.views(params)[name], a)
    deeper = layout_of("resnet34")
    with pytest.raises(ModelFormatError, match=r"The weights in .* cannot be read: The state dict has no layer1.2"):
        load_weights(LocalFiles(), path, deeper, np.zeros(deeper.size, np.float32))


def torch_resnet18(nn: Any, torch: Any) -> Any:
    """torchvision's module tree: the same names, the same sums."""

    class Block(nn.Module):
        def __init__(self, c: int, width: int, stride: int) -> None:
            super().__init__()
            self.conv1, self.bn1 = nn.Conv2d(c, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
            self.conv2, self.bn2 = nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
            self.downsample = None
            if stride != 1 or c != width:
                self.downsample = nn.Sequential(nn.Conv2d(c, width, 1, stride, bias=False), nn.BatchNorm2d(width))

        def forward(self, x: Any) -> Any:
            y = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
            return torch.relu(y + (x if self.downsample is None else self.downsample(x)))

    class ResNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1, self.bn1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)
            self.maxpool = nn.MaxPool2d(3, 2, 1)
            for i, (c, width) in enumerate([(64, 64), (64, 128), (128, 256), (256, 512)], 1):
                setattr(self, f"layer{i}", nn.Sequential(Block(c, width, 1 + (i > 1)), Block(width, width, 1)))
            self.fc = nn.Linear(512, 10)

        def forward(self, x: Any) -> Any:
            x = self.maxpool(torch.relu(self.bn1(self.conv1(x))))
            x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
            return self.fc(x.mean((2, 3)))

    return ResNet()


def torch_vgg11(nn: Any, torch: Any) -> Any:
    """torchvision's module tree with other widths at its end."""
    features: list[Any] = []
    c = 3
    for width in (64, "M", 128, "M", 256, 256, "M", 512, 512, "M", 512, 512, "M"):
        if width == "M":
            features.append(nn.MaxPool2d(2, 2))
        else:
            features += [nn.Conv2d(c, width, 3, padding=1), nn.ReLU()]
            c = width
    classifier = [
        nn.Linear(2048, 48),
        nn.ReLU(),
        nn.Dropout(),
        nn.Linear(48, 32),
        nn.ReLU(),
        nn.Dropout(),
        nn.Linear(32, 10),
    ]

    class VGG(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.features, self.classifier = nn.Sequential(*features), nn.Sequential(*classifier)

        def forward(self, x: Any) -> Any:
            return self.classifier(torch.flatten(self.features(x), 1))

    return VGG()


@pytest.mark.parametrize(("name", "build"), [("resnet18", torch_resnet18), ("vgg11", torch_vgg11)])
def test_networks_with_weights_of_torch_say_the_same(name: str, build: Any) -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    module = build(torch.nn, torch).eval()
    for key, buffer in module.named_buffers():
        if key.endswith(("mean", "var")):
            buffer.copy_(0.5 + torch.rand(buffer.shape))
    state = {key: tensor.numpy() for key, tensor in module.state_dict().items()}
    assert {key: a.shape for key, a in state.items()} == CASES[name][2]
    in_shape, net = (64, 64, 3), ZOO[name]((64, 64, 3), 10, **CASES[name][3])
    layout = Layout(net.specs(in_shape))
    params = np.zeros(layout.size, np.float32)
    for key, a in from_torchvision(layout, state).items():
        layout.views(params)[key][...] = a
    x = RNG.standard_normal((2, *in_shape)).astype(np.float32)
    with torch.no_grad():
        expected = module(torch.from_numpy(x.transpose(0, 3, 1, 2).copy())).numpy()
    y = net.forward(layout.tree(params), x, Ctx())[0]
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())
