"""A trained model as a folder: what it is, its weights, and how it came about. No pickle, nothing half written.

model.json           format and package version, net, loss, input shape, data description, metrics, date; the seal
                     of the weights
weights.safetensors  one tensor for each parameter, under its name in the layout
history.json         the training history, a JSON list of records
"""

from __future__ import annotations

import json
import logging
import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import numpy as np

import sparkdl
from sparkdl.errors import ConfigError, ModelFormatError
from sparkdl.nn import Array, Layer, Layout, Loss, Model
from sparkdl.nn.codec import decode_layer, decode_loss, encode
from sparkdl.nn.torchvision import from_torchvision, is_torchvision
from sparkdl.train.files import Files, publish_folder
from sparkdl.train.history import History
from sparkdl.train.metrics import METRICS, Metric, decode_metric, encode_metric
from sparkdl.train.tensors import check_layout, check_seal, pack, seal, unpack

__all__ = ["FORMAT_VERSION", "ModelState", "load_model", "load_weights", "save_model"]

log = logging.getLogger(__name__)

FORMAT_VERSION = 1
MODEL, WEIGHTS, HISTORY = "model.json", "weights.safetensors", "history.json"


@dataclass(frozen=True)
class ModelState:
    """A trained model and what must stay with it.

    `params` is the flat vector of `model.layout`; `data` describes the data it was trained on, input schema and label
    mapping among it, as plain JSON that belongs to the data layer. `created` is the UTC time of saving, ISO 8601.
    """

    model: Model
    params: Array
    data: dict[str, Any] = field(default_factory=dict)
    metrics: tuple[Metric, ...] = ()
    history: History = field(default_factory=History)
    created: str = ""


def save_model(files: Files, path: str, state: ModelState, overwrite: bool = False) -> None:
    """Write the model's folder, whole or not at all; an older model gives way only to a complete new one.

    Errors: ConfigError where the path exists and overwrite is off; ValueError for a custom layer that is no dataclass.
    """
    model, params = state.model, state.params
    assert params.shape == (model.layout.size,), (params.shape, model.layout.size)
    weights = pack(model.layout.views(params))
    description = {
        "format_version": FORMAT_VERSION,
        "sparkdl_version": sparkdl.__version__,
        "created": state.created or datetime.now(UTC).isoformat(timespec="seconds"),
        "net": encode(model.net),
        "loss": encode(model.loss),
        "in_shape": list(model.in_shape),
        "dtype": str(params.dtype),
        "data": state.data,
        "metrics": _metrics_data(state.metrics),
        "weights": seal(weights),
    }
    contents = {
        WEIGHTS: weights,
        HISTORY: (state.history.to_json() + "\n").encode(),
        MODEL: (json.dumps(description, indent=2, allow_nan=False) + "\n").encode(),
    }
    try:
        publish_folder(files, path, contents, overwrite)
    except FileExistsError as e:
        raise ConfigError(f"The model folder {path} exists. Choose another, or allow it to be overwritten.") from e


def load_model(
    files: Files,
    path: str,
    layers: Mapping[str, type[Layer]] | None = None,
    losses: Mapping[str, type[Loss]] | None = None,
) -> ModelState:
    """Read what `save_model` wrote; `layers` and `losses` name the custom classes that the model may contain.

    Errors: ModelFormatError where the folder is no model, is damaged, or was written by a newer version.
    """
    raw = _read(files, path)
    try:
        text: dict[str, Any] = json.loads(raw[MODEL])
        _check_version(path, text)
        check_seal(raw[WEIGHTS], text["weights"])
        net, loss = decode_layer(text["net"], layers), decode_loss(text["loss"], losses)
        model = Model(net, loss, tuple(text["in_shape"]))
        return ModelState(
            model,
            _params(path, unpack(raw[WEIGHTS]), model.layout, text["dtype"]),
            text["data"],
            tuple(decode_metric(m) for m in text["metrics"]),
            History.from_json(raw[HISTORY].decode()),
            text["created"],
        )
    except (KeyError, TypeError, ValueError) as e:
        what = f"{MODEL} has no {e}" if isinstance(e, KeyError) else str(e)
        raise ModelFormatError(f"The model in {path} cannot be read: {what}") from e


def load_weights(files: Files, path: str, layout: Layout, params: Array) -> None:
    """Fill params (layout.size,), in place, from a model's folder or a safetensors file of the same layout.

    The file may also be a state dict of torchvision's ResNet or VGG, for the same network of the zoo.
    Errors: ModelFormatError where there are no weights or where they belong to another model.
    """
    name = path if path.endswith(".safetensors") else posixpath.join(path, WEIGHTS)
    try:
        tensors = unpack(files.read_bytes(name))
        if is_torchvision(tensors):
            tensors = from_torchvision(layout, tensors)
    except FileNotFoundError as e:
        raise ModelFormatError(f"There are no weights in {path}: {name} does not exist.") from e
    except ValueError as e:
        raise ModelFormatError(f"The weights in {name} cannot be read: {e}") from e
    _fill(params, name, tensors, layout)


def _read(files: Files, path: str) -> dict[str, bytes]:
    if not files.exists(path):
        raise ModelFormatError(f"There is no model in {path}: the folder does not exist.")
    found = files.listdir(path)
    missing = [name for name in (MODEL, WEIGHTS, HISTORY) if name not in found]
    if missing:
        raise ModelFormatError(
            f"{path} is not a model's folder: it lacks {', '.join(missing)} and holds "
            f"{', '.join(found[:5]) or 'nothing'}. Give the folder that training has written."
        )
    return {name: files.read_bytes(posixpath.join(path, name)) for name in (MODEL, WEIGHTS, HISTORY)}


def _metrics_data(metrics: tuple[Metric, ...]) -> list[dict[str, Any]]:
    """The metrics as data; custom ones, without which a model is whole, are left out rather than fail its saving."""
    custom = [m.name for m in metrics if type(m) not in METRICS.values()]
    if custom:
        log.warning("custom metrics are not saved with the model: %s", ", ".join(custom))
    return [encode_metric(m) for m in metrics if m.name not in custom]


def _check_version(path: str, text: Mapping[str, Any]) -> None:
    if text["format_version"] > FORMAT_VERSION:
        raise ModelFormatError(
            f"The model in {path} has format version {text['format_version']}, written by sparkdl "
            f"{text.get('sparkdl_version', '(unknown)')}; this is sparkdl {sparkdl.__version__}, which reads "
            f"versions up to {FORMAT_VERSION}. Upgrade sparkdl, or save the model with an older one."
        )


def _params(path: str, tensors: Mapping[str, Array], layout: Layout, dtype: str) -> Array:
    """The flat vector of the named tensors."""
    params = np.empty(layout.size, dtype)
    _fill(params, path, tensors, layout)
    return params


def _fill(params: Array, path: str, tensors: Mapping[str, Array], layout: Layout) -> None:
    """Copy the named tensors into the flat vector, once they are known to be those of the layout."""
    names = [*layout.shapes(), *sorted(tensors)]
    check_layout(path, {n: tensors[n].shape for n in names if n in tensors}, layout)
    for name, view in layout.views(params).items():
        view[...] = tensors[name]
