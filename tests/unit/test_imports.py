"""The shape of the code: who imports whom, what is exported, how long functions and modules are."""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "sparkdl"
FILES = sorted(PACKAGE.rglob("*.py"))

# What a package may import of sparkdl besides itself; all may import the errors, limits of fields, and what compiles.
FOUNDATIONS = {"ops", "nn", "optim", "comm", "data"}
MAY_IMPORT = {
    "compiled": set(),
    "errors": set(),
    "fields": set(),
    "ops": set(),
    "optim": set(),
    "comm": set(),
    "control": {"comm"},
    "nn": {"ops"},
    "data": set(),
    "simulate": {"comm"},
    "train": {"nn", "optim", "comm", "data"},
    "backends": {"train", "comm", "data"},
    "strategies": {"train", "comm", "control", "simulate", "data", "nn", "optim", "backends"},
    "config": {*FOUNDATIONS, "simulate", "train", "strategies"},
    "__main__": {"config", "ml"},
    "ml": {*FOUNDATIONS, "simulate", "train", "backends", "strategies", "config"},
    "lake": {*FOUNDATIONS, "train", "backends", "strategies", "config", "ml"},
}
# Libraries of others, by package; what stands in no row may be imported nowhere.
LIBRARIES = {
    "numpy": set(MAY_IMPORT) - {"errors", "fields"},
    "pyarrow": {"data", "ml", "lake"},
    "safetensors": {"train", "ml", "lake"},
    "threadpoolctl": {"compiled"},
    "tqdm": {"train"},
    "numba": {"compiled"},
    "llvmlite": {"compiled"},
    "matplotlib": {"train", "ml"},
    "PIL": {"data"},
    "mlflow": {"train"},
    "tensorboard": {"train"},
    "onnx": {"nn"},
}
SPARK = ("sparkdl/backends/spark", "sparkdl/data/spark", "sparkdl/ml/", "sparkdl/lake/")
# `sparkdl/strategies` sees of the backends only the contract.
CONTRACT = "sparkdl.backends.base"

FUNCTION_LINES, MODULE_LINES = 45, 320
LONGER: dict[str, str] = {}  # "path" or "path:function" -> why it may be
PRINTING = {
    "sparkdl/ml/cli.py": "what the jobs share: their messages, and the one that ends them",
    "sparkdl/compiled/__main__.py": "a command",
    "sparkdl/__main__.py": "a command's results",
}


class Import(NamedTuple):
    """One imported module, by its full name, and the line of the statement."""

    module: str
    line: int


@functools.cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def imports(path: Path) -> Iterator[Import]:
    """All import statements of a file, those inside functions and TYPE_CHECKING blocks too."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute"
            assert node.module is not None
            if node.module == "sparkdl":
                yield from (Import(f"sparkdl.{alias.name}", node.lineno) for alias in node.names)
            else:
                yield Import(node.module, node.lineno)


def package_of(module: str) -> str:
    """`sparkdl.nn.layer` -> `nn`; "" for the top of the package."""
    return module.partition(".")[2].partition(".")[0]


def violations(path: Path, name: str) -> Iterator[str]:
    """What a file at `name` (relative to the project) imports and may not."""
    own = Path(name).with_suffix("").parts[1]
    if own == "__init__":
        return  # the top re-exports
    for module, line in imports(path):
        top, place = module.split(".")[0], f"{name}:{line}: imports {module}"
        if top == "sparkdl":
            other = package_of(module)
            # The top itself (`import sparkdl`) is for its version; its names would pull in the whole package.
            if other not in {own, "compiled", "errors", "fields", "", "__version__"} and other not in MAY_IMPORT[own]:
                yield place
            if own == "strategies" and other == "backends" and module != CONTRACT:
                yield place
        elif top in {"pyspark", "py4j"}:
            if not name.startswith(SPARK):
                yield place
        elif top not in sys.stdlib_module_names and own not in LIBRARIES.get(top, set()):
            yield place


def names(files: list[Path]) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in files]


@pytest.mark.parametrize("name", names(FILES))
def test_imports_go_downward_only(name: str) -> None:
    assert not list(violations(ROOT / name, name))


@pytest.mark.parametrize(
    ("name", "statement", "bad"),
    [
        ("sparkdl/ops/conv.py", "import numpy as np", False),
        ("sparkdl/ops/conv.py", "from sparkdl.nn import Layer", True),
        ("sparkdl/ops/conv.py", "def f():\n    from sparkdl.nn.layer import Layer", True),
        ("sparkdl/nn/dense.py", "from sparkdl.ops.softmax import softmax", False),
        ("sparkdl/nn/dense.py", "from sparkdl.errors import SparkdlError", False),
        ("sparkdl/nn/dense.py", "from sparkdl import optim", True),
        ("sparkdl/nn/dense.py", "import pandas", True),
        ("sparkdl/data/shards.py", "import pyspark", True),
        ("sparkdl/data/spark.py", "from pyspark.sql import DataFrame", False),
        ("sparkdl/backends/local.py", "import pyspark.sql", True),
        ("sparkdl/strategies/x.py", "from sparkdl.backends.base import Backend", False),
        ("sparkdl/strategies/x.py", "from sparkdl.backends.spark import SparkBackend", True),
        ("sparkdl/train/loop.py", "from sparkdl.strategies import Strategy", True),
    ],
)
def test_the_rules_catch_what_they_should(tmp_path: Path, name: str, statement: str, bad: bool) -> None:
    path = tmp_path / "module.py"
    path.write_text(statement)
    assert bool(list(violations(path, name))) is bad


@pytest.mark.parametrize("name", [name for name in names(FILES) if name not in PRINTING])
def test_the_package_never_prints(name: str) -> None:
    for node in ast.walk(tree(ROOT / name)):
        called = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id
        assert called not in {"print", "exit", "quit", "breakpoint"}, f"{name}:{getattr(node, 'lineno', 0)}"


def public_names(module: ast.Module) -> set[str]:
    """Classes, functions and UPPERCASE-free assignments that a module defines without a leading underscore."""
    defined = (node.name for node in module.body if isinstance(node, ast.ClassDef | ast.FunctionDef))
    return {name for name in defined if not name.startswith("_")}


def exported(module: ast.Module) -> list[str] | None:
    for node in module.body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
            return [ast.literal_eval(element) for element in node.value.elts]  # type: ignore[attr-defined]
    return None


@pytest.mark.parametrize("name", names(FILES))
def test_all_is_complete(name: str) -> None:
    module = tree(ROOT / name)
    listed = exported(module)
    if not module.body:
        return  # an empty __init__.py
    assert listed is not None, f"{name} has no __all__"
    assert sorted(set(listed)) == sorted(listed), f"{name}: __all__ names something twice"
    assert not public_names(module) - set(listed), f"{name}: public but not in __all__"
    bound = {n.id for n in ast.walk(module) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    bound |= {n.name for n in module.body if isinstance(n, ast.ClassDef | ast.FunctionDef)}
    bound |= {a.asname or a.name for n in ast.walk(module) if isinstance(n, ast.ImportFrom) for a in n.names}
    assert not set(listed) - bound, f"{name}: in __all__ but not defined"


@pytest.mark.parametrize("name", [n for n in names(FILES) if n.endswith("__init__.py")])
def test_init_files_only_re_export(name: str) -> None:
    allowed: tuple[type[ast.stmt], ...] = (ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign, ast.Expr)
    lazy = name == "sparkdl/__init__.py"  # the top imports on first use: `if TYPE_CHECKING` and `__getattr__`
    others = [n for n in tree(ROOT / name).body if not isinstance(n, allowed)]
    assert not [n for n in others if not (lazy and (isinstance(n, ast.If) or getattr(n, "name", "") == "__getattr__"))]


def too_long(name: str, source: str) -> Iterator[str]:
    """Functions (without their docstring) and modules beyond the limits, save those that say why."""
    if source.count("\n") > MODULE_LINES and name not in LONGER:
        yield f"{name}: {source.count(chr(10))} lines"
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        body = node.body[1:] if ast.get_docstring(node) else node.body
        size = (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0
        if size > FUNCTION_LINES and f"{name}:{node.name}" not in LONGER:
            yield f"{name}:{node.lineno} {node.name}: {size} lines"


def test_long_functions_and_modules_say_why() -> None:
    found = [line for name in names(FILES) for line in too_long(name, (ROOT / name).read_text(encoding="utf-8"))]
    assert not found, "\n".join(["Split these, or give a reason in LONGER:", *found])


def test_the_limits_catch_what_they_should() -> None:
    body = "\n".join(["    x = 1"] * 46)
    assert list(too_long("a.py", f"def f():\n{body}\n")) == ["a.py:1 f: 46 lines"]
    assert list(too_long("a.py", f'def f():\n    """Doc."""\n{body[:-10]}\n')) == []
    assert list(too_long("a.py", "x = 1\n" * 321)) == ["a.py: 321 lines"]
