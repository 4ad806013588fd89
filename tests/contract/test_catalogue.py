"""Meta-tests: what is public has a row in the catalogue, a kind in the codec, and a name in its package."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
import pkgutil
from collections.abc import Iterable
from typing import Any

import pytest

from sparkdl import nn, ops, optim
from sparkdl.nn import codec, zoo
from sparkdl.nn.layer import kind_of
from tests import catalogue
from tests.catalogue import GOLDEN, golden_layers


def modules_of(package: Any) -> list[Any]:
    found = pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    return [importlib.import_module(info.name) for info in found]


def public_classes(package: Any, base: type) -> set[type]:
    """Concrete subclasses of base that some module of the package exports."""
    exported = (getattr(module, name) for module in modules_of(package) for name in module.__all__)
    return {c for c in exported if inspect.isclass(c) and issubclass(c, base) and not inspect.isabstract(c)}


def inner_layers(layer: nn.Layer, in_shape: nn.Shape) -> Iterable[nn.Layer]:
    yield layer
    if isinstance(layer, nn.Container):
        for _, child, shape in layer.children(in_shape):
            yield from inner_layers(child, shape)


def test_layers_have_rows() -> None:
    rows = {type(case.layer) for case in catalogue.LAYERS}
    assert public_classes(nn, nn.Layer) == rows


def test_losses_have_rows() -> None:
    assert public_classes(nn, nn.Loss) == {type(case.loss) for case in catalogue.LOSSES}


def test_optimizers_have_rows() -> None:
    assert public_classes(optim, optim.Optimizer) == {type(case.optimizer) for case in catalogue.OPTIMIZERS}


def test_schedules_have_rows() -> None:
    assert public_classes(optim, optim.Schedule) == {type(case.schedule) for case in catalogue.SCHEDULES}


def test_networks_have_rows() -> None:
    assert set(zoo.ZOO) == {case.id for case in catalogue.NETWORKS}
    assert set(zoo.ZOO) | {"ZOO"} == set(zoo.__all__)


def test_booleans_and_optional_parts_are_tested_off_and_on() -> None:
    """A field of type bool, or one that may be None, takes both values somewhere in the rows."""
    seen: dict[tuple[type, str], set[bool]] = {}
    for case in catalogue.LAYERS:
        for layer in inner_layers(case.layer, case.in_shape):
            for f in dataclasses.fields(layer):
                if f.type == "bool" or str(f.type).endswith("| None"):
                    seen.setdefault((type(layer), f.name), set()).add(bool(getattr(layer, f.name)))
    assert (nn.Dense, "bias") in seen
    assert {key for key, values in seen.items() if values != {False, True}} == set()


@pytest.mark.parametrize(
    "section", ["LAYERS", "LOSSES", "OPTIMIZERS", "SCHEDULES", "STRATEGIES", "METRICS", "NETWORKS"]
)
def test_ids_are_unique(section: str) -> None:
    ids = [case.id for case in getattr(catalogue, section)]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize(
    ("registry", "base"), [(codec.LAYERS, nn.Layer), (codec.LOSSES, nn.Loss)], ids=["layers", "losses"]
)
def test_registries_are_complete(registry: dict[str, type], base: type) -> None:
    assert set(registry.values()) == public_classes(nn, base)
    assert all(kind_of(cls) == kind for kind, cls in registry.items())


def test_initializers_are_registered() -> None:
    exported = {c for n in nn.initializers.__all__ if inspect.isclass(c := getattr(nn.initializers, n))}
    assert set(codec.INITIALIZERS.values()) == exported


def test_kinds_are_unambiguous() -> None:
    assert not set(codec.LAYERS) & set(codec.INITIALIZERS)
    assert not (set(codec.LAYERS) | set(codec.INITIALIZERS)) & set(codec.LOSSES)


@pytest.mark.parametrize("package", [nn, zoo, ops, optim], ids=lambda p: p.__name__)
def test_all_names_what_exists(package: Any) -> None:
    for module in [package, *modules_of(package)]:
        assert [name for name in module.__all__ if not hasattr(module, name)] == [], module.__name__


@pytest.mark.parametrize(
    ("package", "base"),
    [(nn, nn.Layer), (nn, nn.Loss), (optim, optim.Optimizer), (optim, optim.Schedule)],
    ids=["layers", "losses", "optimizers", "schedules"],
)
def test_packages_export_what_their_modules_do(package: Any, base: type) -> None:
    assert {cls.__name__ for cls in public_classes(package, base)} <= set(package.__all__)
    assert {cls.__name__ for cls in codec.INITIALIZERS.values()} <= set(nn.__all__)


def test_golden_parameter_names_and_shapes() -> None:
    golden = json.loads((GOLDEN / "layers.json").read_text(encoding="utf-8"))
    current = golden_layers()
    hint = "Saved models depend on these. If the change is meant, write the file anew: python -m tests.catalogue"
    assert list(golden) == list(current), hint
    for case, shapes in golden.items():
        assert list(shapes.items()) == list(current[case].items()), f"{case}: {hint}"
