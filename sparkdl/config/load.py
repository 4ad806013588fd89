"""From a TOML file and `--set` overrides to a Config, and from a Config back to plain data."""

from __future__ import annotations

import hashlib
import json
import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, get_type_hints

from sparkdl.config.choices import SCHEMA
from sparkdl.config.places import Where, show
from sparkdl.config.schema import PATH, arms, slots, split
from sparkdl.config.sections import Config, LinksConfig
from sparkdl.errors import ConfigError

__all__ = ["digest", "from_dict", "links_at", "load", "to_dict"]

APART = ("checkpoint", "output", "simulate")  # what does not change what a run computes


def load(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """The configuration in a TOML file, changed by overrides `section.key=value`.

    A value is read as TOML, and as a string where it is none: `optimizer.lr=0.1`, `optimizer.name=adam`,
    `data.features=["x", "y"]`. Relative paths start from the folder of the file; in an override, which a shell
    completes, from the current folder. Errors: ConfigError naming file and key.
    """
    table = _read(path)
    for text in overrides:
        _override(table, text)
    return from_dict(table, str(path), os.path.dirname(os.path.abspath(path)))


def from_dict(table: Mapping[str, Any], source: str = "configuration", folder: str = "") -> Config:
    """The configuration in a table of tables; `source` names it in errors, `folder` starts relative paths."""
    return SCHEMA.build(Config, table, Where(source, folder=folder))


def to_dict(config: Config) -> dict[str, Any]:
    """Tables of plain values, defaults included, that `from_dict` makes an equal configuration of."""
    return SCHEMA.dump(config)  # type: ignore[no-any-return]


def digest(config: Config) -> str:
    """16 hexadecimal digits that tell configurations apart which train differently."""
    tables = {name: table for name, table in to_dict(config).items() if name not in APART}
    return hashlib.sha256(json.dumps(tables, sort_keys=True).encode()).hexdigest()[:16]


def links_at(path: str | Path) -> LinksConfig:
    """The links in a TOML or JSON file. Errors: ConfigError naming file and key."""
    table = _read(path, "JSON" if str(path).endswith(".json") else "TOML")
    return SCHEMA.build(LinksConfig, table, Where(str(path)))


def _read(path: str | Path, form: str = "TOML") -> dict[str, Any]:
    try:
        text = Path(path).read_text(encoding="utf-8-sig")  # some editors begin with a byte order mark
        table = json.loads(text) if form == "JSON" else tomllib.loads(text)
    except OSError as e:
        raise ConfigError(f"{path}: cannot be read: {e.strerror}.") from e
    except ValueError as e:  # syntax, or bytes that are not UTF-8
        raise ConfigError(f"{path}: is not {form}: {e}.") from e
    if not isinstance(table, dict):
        raise ConfigError(f"{path}: must be an object of keys; got {show(table)}.")
    return table


def _override(table: dict[str, Any], text: str) -> None:
    """Set one key, in place."""
    path, equals, value = text.partition("=")
    *sections, key = (part.strip() for part in path.split("."))
    if not equals or not sections or not all((*sections, key)):
        raise ConfigError(f"--set needs section.key=value; got {show(text)}.")
    for i, name in enumerate(sections):
        table = table.setdefault(name, {})
        if not isinstance(table, dict):
            raise ConfigError(f"--set {text}: {'.'.join(sections[: i + 1])} is {show(table)}, not a table of keys.")
    name, parsed = ".".join((*sections, key)), _value(value.strip())
    kind = _path_kinds().get(name)
    table[key] = SCHEMA.convert(kind, parsed, Where("--set", name, os.getcwd())) if kind else parsed


def _value(text: str) -> Any:
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return parsed["value"] if len(parsed) == 1 else text


def _path_kinds() -> dict[str, Any]:
    """The keys that hold paths, as an override names them, and what they may hold."""
    hints = get_type_hints(Config)
    kinds = {
        f"{section.name}.{name}": slot.kind
        for section in fields(Config)
        if is_dataclass(hints[section.name])
        for name, slot in slots(hints[section.name]).items()
        if any(PATH in split(arm)[1] for arm in arms(slot.kind))
    }
    return kinds | {"model.weights": Annotated[str, PATH]}
