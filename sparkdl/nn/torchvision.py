"""Weights of torchvision's ResNet and VGG for the same networks here, by a map from name to name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from sparkdl.nn.layer import Array, Shape
from sparkdl.nn.layout import Layout

__all__ = ["from_torchvision", "is_torchvision", "torchvision_names"]

# The last parts of names, ours -> theirs.
LEAVES = {
    "W": "weight",
    "b": "bias",
    "gamma": "weight",
    "beta": "bias",
    "mean": "running_mean",
    "var": "running_var",
}
COUNTER = "num_batches_tracked"  # kept beside running statistics; nothing here needs it
PLACE = re.compile(r"(\w+?)_(\d+)")


def is_torchvision(state: Mapping[str, Array]) -> bool:
    """Whether a state dict has the names of torchvision's ResNet or VGG."""
    return "features.0.weight" in state or {"conv1.weight", "fc.weight"} <= set(state)


def torchvision_names(layout: Layout) -> dict[str, str]:
    """Names of parameters -> names in torchvision's state dict, for the layout of a zoo's ResNet or VGG.

    Raises ValueError for the layout of another network.
    """
    names = list(layout.shapes())
    layers = list(dict.fromkeys(name.rpartition("/")[0] for name in names))
    pairs = dict(_resnet(layers) if any(layer.startswith("residual_") for layer in layers) else _vgg(layers))
    unknown = [layer for layer in layers if layer not in pairs]
    if unknown:
        raise ValueError(f"{unknown[0]} has no counterpart in torchvision's ResNet or VGG; build the net by the zoo.")
    split = (name.rpartition("/") for name in names)
    return {f"{layer}/{leaf}": f"{pairs[layer]}.{LEAVES[leaf]}" for layer, _, leaf in split}


def from_torchvision(layout: Layout, state: Mapping[str, Array], head: bool = True) -> dict[str, Array]:
    """Arrays by the layout's names from a state dict of torchvision's ResNet or VGG of the same depth.

    W (kh, kw, C, F) <- weight (F, C, kh, kw), W (D, units) <- weight (units, D); VGG's first dense layer reads pixels
    channels last here, so its rows change places too. gamma, beta, mean, var <- weight, bias, running_mean,
    running_var. Without `head` the last dense layer is left out, for other classes than the weights were made for.

    Raises ValueError where names or shapes do not match.
    """
    names, shapes = torchvision_names(layout), layout.shapes()
    dense = [name.rpartition("/")[0] for name in names if _kind(name.rpartition("/")[0]) == "dense"]
    known = set(names.values())
    extra = [name for name in state if name not in known and not name.endswith(COUNTER)]
    missing = [name for name in known if name not in state]
    if extra or missing:
        what = f"has no {min(missing)}" if missing else f"holds {min(extra)}, which the network has not"
        raise ValueError(f"The state dict {what}. Is it of another depth, or with or without batch normalisation?")
    found: dict[str, Array] = {}
    for ours, theirs in names.items():
        layer = ours.rpartition("/")[0]
        if head or layer != dense[-1]:
            found[ours] = _converted(state[theirs], _channels(shapes) if layer == dense[0] else 0)
            if found[ours].shape != shapes[ours]:
                raise ValueError(
                    f"{theirs} {state[theirs].shape} does not fit {ours} {shapes[ours]}. "
                    f"Build the network for the images and classes of the weights, or take them without their head?"
                )
    return found


def _resnet(layers: list[str]) -> Iterator[tuple[str, str]]:
    """A block that is not the first and has a shortcut begins a stage."""
    blocks = list(dict.fromkeys(layer.split("/")[0] for layer in layers if layer.startswith("residual_")))
    stage, place, prefix = 1, -1, dict[str, str]()
    for i, block in enumerate(blocks):
        begins = i > 0 and f"{block}/shortcut/conv2d_0" in layers
        stage, place = (stage + 1, 0) if begins else (stage, place + 1)
        prefix[block] = f"layer{stage}.{place}"
    for layer in layers:
        block, _, inner = layer.partition("/")
        if not inner:
            yield layer, {"conv2d": "conv1", "batch_norm": "bn1", "dense": "fc"}[_kind(layer)]
        elif inner.startswith("shortcut/"):
            yield layer, f"{prefix[block]}.downsample.{_number(inner)}"
        else:  # conv, norm, ReLU, conv, ...
            yield layer, f"{prefix[block]}.{'conv' if 'conv2d' in inner else 'bn'}{_number(inner) // 3 + 1}"


def _vgg(layers: list[str]) -> Iterator[tuple[str, str]]:
    """Convolutions and norms stand at the same places; between dense layers lie a ReLU and dropout."""
    dense = 0
    for layer in layers:
        if _kind(layer) in {"conv2d", "batch_norm"}:
            yield layer, f"features.{_number(layer)}"
        elif _kind(layer) == "dense":
            yield layer, f"classifier.{3 * dense}"
            dense += 1


def _kind(layer: str) -> str:
    match = PLACE.fullmatch(layer)
    return match[1] if match else ""


def _number(layer: str) -> int:
    """The place of the last layer of a path."""
    return int(PLACE.findall(layer)[-1][1])


def _channels(shapes: Mapping[str, Shape]) -> int:
    """Those of the last convolution."""
    return [shape[3] for name, shape in shapes.items() if name.endswith("/W") and len(shape) == 4][-1]


def _converted(a: Array, channels: int) -> Array:
    """One array as we have it; that of a dense layer may read flattened images of so many channels."""
    if a.ndim == 4:
        return a.transpose(2, 3, 1, 0)
    if a.ndim == 2 and channels and a.shape[1] % channels == 0:  # (units, C H W) -> (H W C, units)
        return a.reshape(len(a), channels, -1).transpose(2, 1, 0).reshape(a.shape[::-1])
    return a.T
