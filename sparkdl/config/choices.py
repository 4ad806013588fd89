"""Which names a configuration may use, and the two sections with a form of their own: [model] and [schedule]."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, get_type_hints

from sparkdl.comm.compress import COMPRESSORS, Compressor
from sparkdl.comm.gossip import TOPOLOGIES, Topology
from sparkdl.config.places import Where, nearest
from sparkdl.config.schema import PATH, Codec, Named, Schema, rule, slots
from sparkdl.data import AUGMENTATIONS, Augmentation
from sparkdl.errors import ConfigError
from sparkdl.nn import Layer, Loss, Sequential, Shape
from sparkdl.nn.codec import INITIALIZERS, LAYERS, LOSSES
from sparkdl.nn.layer import Initializer
from sparkdl.nn.zoo import ZOO
from sparkdl.optim import OPTIMIZERS, OUTER, SCHEDULES, Optimizer, OuterOptimizer, Schedule, WarmUp
from sparkdl.strategies import STRATEGIES, Strategy
from sparkdl.train.metrics import METRICS, Metric

__all__ = ["SCHEMA", "ModelConfig", "find_function"]

FORMS = ("name", "function", "layers")
GIVEN = ("in_shape", "classes")  # what the data tell a builder; everything else stands in [model]
WARM_UP = {"warmup_steps": "steps", "warmup_epochs": "epochs"}


@dataclass(frozen=True)
class ModelConfig:
    """[model]: a network of the zoo (`name`), one that `function = "module:function"` builds, or a list of `layers`.

    Further keys are arguments of the builder, which is called as `builder(in_shape, classes, **args)`; a function that
    does not name `in_shape` or `classes` is called without it. `weights` is a model directory or safetensors file whose
    weights training starts from; for a ResNet or VGG of the zoo it may be a state dict of torchvision's.
    """

    name: str | None = None
    function: str | None = None
    layers: tuple[Layer, ...] = ()
    args: Mapping[str, Any] = field(default_factory=dict)
    weights: str | None = None

    def net(self, in_shape: Shape, classes: int) -> Layer:
        """The network for samples (*in_shape). Errors: ConfigError where they do not fit, or nothing fit is built."""
        if self.layers:
            return Sequential(self.layers)
        builder = _builder(self, Where("configuration", "model"))
        given = {key: value for key, value in zip(GIVEN, (in_shape, classes), strict=True) if _takes(builder, key)}
        try:
            net = builder(**given, **self.args)
        except (TypeError, ValueError) as e:
            raise ConfigError(f"[model] {self.name or self.function}: {e}") from e
        if not isinstance(net, Layer):
            raise ConfigError(f"[model] {self.function} must return a Layer; got {type(net).__name__}.")
        return net


def find_function(text: str, where: Where) -> Callable[..., Any]:
    """The function that "module:function" names. Errors: ConfigError."""
    module_name, _, name = text.partition(":")
    if not module_name or not name:
        raise where.must_be('"module:function"', text)
    try:
        module = importlib.import_module(module_name)
    except Exception as e:  # whatever a user's module raises is the configuration's fault
        raise where.error(
            f"names the module {module_name}, which cannot be imported ({type(e).__name__}: {e}). "
            "Put its folder on PYTHONPATH, or ship it with --py-files."
        ) from e
    found = getattr(module, name, None)
    if not callable(found):
        near = nearest(name, (n for n, f in vars(module).items() if callable(f)))
        hint = f" Did you mean {module_name}:{near}?" if near else ""
        raise where.error(f"names no function: {module_name} has none of the name {name}.{hint}")
    return found  # type: ignore[no-any-return]


def _takes(builder: Callable[..., Any], key: str) -> bool:
    parameters = inspect.signature(builder).parameters
    return key in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def _read_model(table: Any, where: Where) -> ModelConfig:
    if not isinstance(table, Mapping):
        raise where.must_be("a table", table)
    forms = [key for key in FORMS if key in table]
    if len(forms) != 1:
        got = " and ".join(forms) or "none"
        raise ConfigError(f"{where.source}: [model] must have exactly one of {', '.join(FORMS)}; got {got}.")
    form, rest = forms[0], {key: value for key, value in table.items() if key not in (*FORMS, "weights")}
    kinds = {"name": str, "function": str, "layers": tuple[Layer, ...], "weights": Annotated[str, PATH]}
    own = {key: SCHEMA.convert(kinds[key], table[key], where.at(key)) for key in kinds if key in table}
    if form == "layers":
        for name in rest:
            raise where.unknown(name, ("layers", "weights"))
        if not own["layers"]:
            raise where.at("layers").must_be("a list of at least one layer", table["layers"])
        return ModelConfig(**own)
    if form == "name" and own["name"] not in ZOO:
        raise where.at("name").not_one_of(ZOO, own["name"])
    return ModelConfig(**own, args=_arguments(_builder(ModelConfig(**own), where), rest, where))


def _arguments(builder: Callable[..., Any], table: Mapping[str, Any], where: Where) -> dict[str, Any]:
    """The table as arguments of the builder, by its signature and annotations."""
    parameters, hints = inspect.signature(builder).parameters, _hints(builder)
    named = {n: p for n, p in parameters.items() if n not in GIVEN and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}
    for name in table:
        if not _takes(builder, name) or name in GIVEN:
            raise where.unknown(name, (*named, "weights"))
    for name, parameter in named.items():
        if parameter.default is parameter.empty and name not in table:
            raise where.at(name).required(rule(hints[name]) if name in hints else f"an argument of {where.key}")
    return {name: SCHEMA.convert(hints.get(name, Any), value, where.at(name)) for name, value in table.items()}


def _hints(builder: Callable[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(builder, include_extras=True)
    except (NameError, TypeError):  # an annotation that only a type checker sees; a callable that has none
        return {}


def _write_model(model: ModelConfig) -> dict[str, Any]:
    own = {"name": model.name, "function": model.function, "weights": model.weights}
    table = {key: value for key, value in own.items() if value is not None}
    if model.layers:
        return table | {"layers": SCHEMA.dump(model.layers, tuple[Layer, ...])}
    hints = _hints(_builder(model, Where("configuration", "model")))
    return table | {key: SCHEMA.dump(value, hints.get(key, Any)) for key, value in model.args.items()}


def _builder(model: ModelConfig, where: Where) -> Callable[..., Any]:
    return ZOO[model.name] if model.name else find_function(model.function or "", where.at("function"))


def _read_schedule(value: Any, where: Where) -> Schedule:
    """A schedule by name with its fields, or a warm-up alone, or both."""
    if not isinstance(value, Mapping):
        return _PLAIN.convert(Schedule, value, where)  # type: ignore[no-any-return]
    rest = {key: item for key, item in value.items() if key not in WARM_UP} or {"name": "constant"}
    name = rest.get("name")
    if isinstance(name, str) and name in SCHEDULES:
        known = ("name", *slots(SCHEDULES[name]), *WARM_UP)
        for key in rest:
            if key not in known:
                raise where.unknown(key, known)
    schedule: Schedule = _PLAIN.convert(Schedule, rest, where)
    kinds = {name: slot.kind for name, slot in slots(WarmUp).items()}
    warm = {n: _PLAIN.convert(kinds[n], value[key], where.at(key)) for key, n in WARM_UP.items() if key in value}
    try:
        return WarmUp(**warm, then=schedule) if warm else schedule
    except ValueError as e:
        raise where.placed(e, WARM_UP) from e


def _write_schedule(schedule: Schedule) -> dict[str, Any]:
    if not isinstance(schedule, WarmUp):
        return _PLAIN.dump(schedule, Schedule)  # type: ignore[no-any-return]
    warm = {key: n for key, name in WARM_UP.items() if (n := getattr(schedule, name))} or {"warmup_steps": 0}
    return {**_PLAIN.dump(schedule.then, Schedule), **warm}


_PLAIN = Schema({Schedule: Named(SCHEDULES)})
SCHEMA = Schema(
    {
        Compressor: Named(COMPRESSORS),
        Augmentation: Named(AUGMENTATIONS),
        Initializer: Named(INITIALIZERS, tag="kind"),
        Layer: Named(LAYERS, tag="kind"),
        Loss: Named(LOSSES),
        Metric: Named(METRICS),
        ModelConfig: Codec(_read_model, _write_model),
        Optimizer: Named(OPTIMIZERS),
        OuterOptimizer: Named(OUTER),
        Schedule: Codec(_read_schedule, _write_schedule),
        Strategy: Named(STRATEGIES),
        Topology: Named(TOPOLOGIES),
    }
)
