"""Where a value stands in a configuration, and the sentences that errors about it are made of."""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from sparkdl.errors import ConfigError

__all__ = ["Where", "nearest", "one_of", "resolve", "show"]

URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
SHOWN = 80  # characters of a wrong value that an error quotes
NEAR = 0.5  # similarity from which on a known name is offered for an unknown one


class Where(NamedTuple):
    """A place in a configuration: the file's name, the key, and the folder that relative paths start from."""

    source: str
    key: str = ""
    folder: str = ""

    def at(self, name: str | int) -> Where:
        """The place of an entry of the table or list that stands here."""
        key = f"{self.key}[{name}]" if isinstance(name, int) else f"{self.key}.{name}".removeprefix(".")
        return self._replace(key=key)

    def error(self, text: str) -> ConfigError:
        """An error whose sentence begins with the key."""
        return ConfigError(f"{self.source}: {self.key} {text}")

    def must_be(self, rule: str, value: Any, hint: str = "") -> ConfigError:
        """The uniform sentence, and what may be meant."""
        return self.error(f"must be {rule}; got {show(value)}.{hint}")

    def required(self, rule: str) -> ConfigError:
        """The error for a key that is missing."""
        return self.error(f"is required: {rule}.")

    def unknown(self, name: str, known: Iterable[str]) -> ConfigError:
        """The error for a key that nobody reads, with the nearest one that somebody does."""
        options = list(known)
        near = nearest(name, options)
        hint = f"did you mean {self.at(near).key}?" if near else f"known are {', '.join(options) or 'none'}."
        return ConfigError(f"{self.source}: unknown key {self.at(name).key}; {hint}")

    def not_one_of(self, options: Iterable[str], value: Any) -> ConfigError:
        """The error for a name that is none of the known ones, with the nearest one."""
        known = list(options)
        near = nearest(str(value), known)
        return self.must_be(one_of(known), value, f" Did you mean {show(near)}?" if near else "")

    def placed(self, error: Exception, keys: Iterable[str]) -> ConfigError:
        """What a class says of its arguments, put here; a message that opens with a key reads on as a sentence."""
        text = str(error)
        subject = text.partition(" ")[0].removeprefix(f"{self.key}.")
        if subject in keys:
            return ConfigError(f"{self.source}: {self.at(text.removeprefix(f'{self.key}.')).key}")
        return ConfigError(f"{self.source}: [{self.key}] {text}")


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that an unknown one may be meant for."""
    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=NEAR)), None)


def resolve(path: str, folder: str) -> str:
    """A relative path, taken from folder; an absolute one and a URI (`hdfs://...`) stay as they are."""
    return path if os.path.isabs(path) or URI.match(path) else os.path.normpath(os.path.join(folder, path))


def one_of(options: Iterable[Any]) -> str:
    """The rule of a choice."""
    shown = [show(option) for option in options]
    return shown[0] if len(shown) == 1 else f"one of {', '.join(shown)}"


def show(value: Any) -> str:
    """A value much as a TOML file has it, cut where it is long."""
    if isinstance(value, Mapping):
        text = "{" + ", ".join(f"{key} = {show(item)}" for key, item in value.items()) + "}"
    elif isinstance(value, list | tuple):
        text = "[" + ", ".join(map(show, value)) + "]"
    else:
        text = json.dumps(value, ensure_ascii=False) if isinstance(value, str | bool) else str(value)
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}..."
