"""The reference configuration names every key with its default."""

from __future__ import annotations

import re
import tomllib
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import get_type_hints

from sparkdl.config import Config, from_dict, to_dict
from sparkdl.config.schema import slots

REFERENCE = Path(__file__).resolve().parents[2] / "conf" / "reference.toml"


def test_the_reference_holds_the_defaults() -> None:
    table = tomllib.loads(REFERENCE.read_text())
    required = {"data": {k: table["data"][k] for k in ("train", "features", "label", "shape")}, "model": table["model"]}
    assert table["schedule"].pop("warmup_steps") == 0  # the reference names it; without it there is no WarmUp at all
    assert to_dict(from_dict(table)) == to_dict(from_dict(required | {"optimizer": "adam"}))


def test_the_reference_names_every_key() -> None:
    sections = re.split(r"^\[(\w+)\]", REFERENCE.read_text(), flags=re.MULTILINE)[1:]
    named = {
        name: set(re.findall(r"^(?:# )?(\w+) = ", text, flags=re.MULTILINE))
        for name, text in zip(sections[::2], sections[1::2], strict=True)
    }
    hints = get_type_hints(Config)
    for section in fields(Config):
        if is_dataclass(hints[section.name]) and section.name != "model":
            assert set(slots(hints[section.name])) == named[section.name], section.name  # type: ignore[arg-type]
