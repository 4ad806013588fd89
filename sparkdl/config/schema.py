"""Tables into frozen dataclasses and back, strictly: the annotations are the schema.

A field takes the value under its name. Understood are bool, int, float, str, Literal, unions, `X | None` (the key is
absent), tuple[X, ...], tuple[X, Y], list[X], Sequence[X], Mapping[str, X], dataclasses, the abstract types that a
Schema is told how to choose for, and Annotated[X, mark, ...] with an Interval, PATH or Inline. Values under any other
annotation pass as they are. What does not fit is refused in one sentence: `FILE: KEY must be RULE; got VALUE.`
"""

from __future__ import annotations

import math
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from sparkdl.config.places import Where, one_of, resolve
from sparkdl.errors import ConfigError
from sparkdl.fields import Interval

__all__ = ["PATH", "Codec", "Inline", "Named", "Schema", "Slot", "arms", "rule", "slots", "split"]

T = TypeVar("T")

PATH = "path"  # mark of a string that names a file or folder; see `resolve`
LISTS, TABLES = (tuple, list, Sequence), (dict, Mapping)
NOUNS: dict[Any, tuple[str, str]] = {
    Any: ("a value", "values"),
    bool: ("true or false", "booleans"),
    float: ("a number", "numbers"),
    int: ("an integer", "integers"),
    str: ("a string", "strings"),
}


class Inline(NamedTuple):
    """Mark of a dataclass whose keys stand in the table of the class that has it; fields in `without` are no keys.

    The keys of its own dataclasses get a prefix: `settings: Annotated[Training, Inline()]` with `Training.clip: Clip`
    and `Clip.norm` reads `clip_norm`.
    """

    without: tuple[str, ...] = ()


class Named(NamedTuple):
    """An object by name: a table with the key `tag`, one of `classes`, and that class's fields, or the name alone."""

    classes: Mapping[str, Any]
    tag: str = "name"


class Codec(NamedTuple):
    """A value with a form of its own: `read` makes it from what the file holds, `write` does the reverse."""

    read: Callable[[Any, Where], Any]
    write: Callable[[Any], Any]


class Slot(NamedTuple):
    """One key of a table: the field it goes to, on the way from the outermost class, its annotation and limits."""

    path: tuple[str, ...]
    kind: Any
    required: bool


@dataclass(frozen=True)
class Schema:
    """Reads and writes dataclasses; `choices` says how an abstract type is told in a file."""

    choices: Mapping[Any, Named | Codec] = field(default_factory=dict)

    def build(self, cls: type[T], table: Mapping[str, Any], where: Where) -> T:
        """An object of cls from a table. Errors: ConfigError for an unknown, missing or wrong key."""
        known = slots(cls)
        for name in table:
            if name not in known:
                raise where.unknown(name, known)
        values: dict[tuple[str, ...], Any] = {}
        for name, slot in known.items():
            if name in table:
                values[slot.path] = self.convert(slot.kind, table[name], where.at(name))
            elif slot.required:
                raise where.at(name).required(rule(slot.kind))
        return _assemble(cls, values, (), where)

    def convert(self, kind: Any, value: Any, where: Where) -> Any:
        """The value as its annotation says. Errors: ConfigError."""
        plain, marks = split(kind)
        if choice := self._choice(kind):
            return self._choose(choice, value, where)
        origin, args = get_origin(plain), get_args(plain)
        if origin in (Union, types.UnionType):
            return self._convert_union(kind, value, where)
        if not _fits(plain, value):
            raise where.must_be(rule(kind), value)
        if is_dataclass(plain):
            return self.build(plain, value, where)  # type: ignore[arg-type]
        if origin in LISTS:
            kinds = args[:1] * len(value) if _any_length(plain) else args
            items = (self.convert(k, v, where.at(i)) for i, (k, v) in enumerate(zip(kinds, value, strict=True)))
            return list(items) if origin is list else tuple(items)
        if origin in TABLES:
            return {key: self.convert(args[1], item, where.at(key)) for key, item in value.items()}
        return _limited(plain, marks, value, where)

    def dump(self, value: Any, kind: Any = Any) -> Any:
        """The table (or plain value) that `convert` makes this value from; keys that hold None are left out."""
        choice = next((choice for arm in arms(kind) if (choice := self._choice(arm))), None)
        if isinstance(choice, Codec):
            return choice.write(value)
        if choice is not None:
            name = next(name for name, cls in choice.classes.items() if cls is type(value))
            return {choice.tag: name, **self._dump_fields(value)}
        if is_dataclass(value):
            return self._dump_fields(value)
        if isinstance(value, Mapping):
            return {key: self.dump(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.dump(item, next(iter(get_args(split(kind)[0])), Any)) for item in value]
        return value

    def _dump_fields(self, value: Any) -> dict[str, Any]:
        table: dict[str, Any] = {}
        for name, slot in slots(type(value)).items():
            held = value
            for attribute in slot.path:
                held = getattr(held, attribute)
            if held is not None:
                table[name] = self.dump(held, slot.kind)
        return table

    def _choice(self, kind: Any) -> Named | Codec | None:
        return self.choices.get(split(kind)[0])

    def _choose(self, choice: Named | Codec, value: Any, where: Where) -> Any:
        if isinstance(choice, Codec):
            return choice.read(value, where)
        if not isinstance(value, str | Mapping):
            raise where.must_be("a name or a table", value)
        rest = {choice.tag: value} if isinstance(value, str) else dict(value)
        here, name = where.at(choice.tag), rest.pop(choice.tag, None)
        if name is None:
            raise here.required(one_of(choice.classes))
        if not isinstance(name, str) or name not in choice.classes:
            raise here.not_one_of(choice.classes, name)
        return self.build(choice.classes[name], rest, where)

    def _convert_union(self, kind: Any, value: Any, where: Where) -> Any:
        # The first arm that takes the value. Where only one could be meant, its error says most.
        fitting = [arm for arm in arms(kind) if self._choice(arm) or _fits(split(arm)[0], value)]
        if len(fitting) == 1 and (self._choice(fitting[0]) or isinstance(value, Mapping | list | tuple)):
            return self.convert(fitting[0], value, where)
        for arm in fitting:
            try:
                return self.convert(arm, value, where)
            except ConfigError:
                continue
        raise where.must_be(rule(kind), value)


def slots(cls: type) -> dict[str, Slot]:
    """The keys of a table of cls, in order."""
    return dict(_walk(cls, (), "", None))


def arms(kind: Any) -> tuple[Any, ...]:
    """The alternatives of a union, each with the union's marks; a kind that is none is its only one."""
    plain, marks = split(kind)
    if get_origin(plain) not in (Union, types.UnionType):
        return (kind,)
    plain_arms = (arm for arm in get_args(plain) if arm is not type(None))
    return tuple(Annotated[(arm, *marks)] if marks else arm for arm in plain_arms)


def rule(kind: Any) -> str:
    """What a value must be, in words: "an integer >= 1", "a list of strings"."""
    plain, marks = split(kind)
    origin, args = get_origin(plain), get_args(plain)
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(map(rule, arms(kind))))
    if origin is Literal:
        return one_of(args)
    if origin in LISTS:
        return f"a list of {'' if _any_length(plain) else f'{len(args)} '}{_plural(args[0])}"
    noun = "a path" if PATH in marks else NOUNS.get(plain, ("a table", ""))[0]
    return noun + _limits(marks)


def split(kind: Any) -> tuple[Any, tuple[Any, ...]]:
    """Annotated[X, mark, ...] -> (X, marks)."""
    return (kind.__origin__, kind.__metadata__) if get_origin(kind) is Annotated else (kind, ())


def _walk(cls: type, path: tuple[str, ...], prefix: str, inline: Inline | None) -> Iterator[tuple[str, Slot]]:
    hints = get_type_hints(cls, include_extras=True)
    for f in fields(cls):
        if not f.init or (inline and f.name in inline.without):
            continue
        kind, here = hints[f.name], (*path, f.name)
        plain, marks = split(kind)
        if mark := next((m for m in marks if isinstance(m, Inline)), None):
            yield from _walk(plain, here, prefix, mark)
        elif inline and is_dataclass(plain):
            yield from _walk(plain, here, f"{prefix}{f.name}_", inline)  # type: ignore[arg-type]
        else:
            within = f.metadata.get("within")
            required = f.default is MISSING and f.default_factory is MISSING
            yield prefix + f.name, Slot(here, Annotated[kind, within] if within else kind, required)


def _assemble(cls: type[T], values: Mapping[tuple[str, ...], Any], path: tuple[str, ...], where: Where) -> T:
    """cls from the values whose paths begin with path; a part that has none keeps its default."""
    hints, given = get_type_hints(cls), {p[len(path)] for p in values if p[: len(path)] == path}
    arguments = {
        name: values[here] if (here := (*path, name)) in values else _assemble(hints[name], values, here, where)
        for name in given
    }
    try:
        return cls(**arguments)
    except (TypeError, ValueError) as e:
        raise where.placed(e, slots(cls)) from e


def _fits(plain: Any, value: Any) -> bool:
    """Whether the value is of the annotation's outer type."""
    origin = get_origin(plain)
    if plain in (int, float):
        return isinstance(value, int if plain is int else (int, float)) and not isinstance(value, bool)
    if plain in (bool, str):
        return isinstance(value, plain)
    if origin is Literal:
        return any(type(value) is type(arg) and value == arg for arg in get_args(plain))
    if origin in LISTS:
        return isinstance(value, list | tuple) and (_any_length(plain) or len(value) == len(get_args(plain)))
    return isinstance(value, Mapping) or not (origin in TABLES or is_dataclass(plain))


def _any_length(plain: Any) -> bool:
    return get_origin(plain) is not tuple or get_args(plain)[-1] is Ellipsis


def _limited(plain: Any, marks: Iterable[Any], value: Any, where: Where) -> Any:
    """A plain value within its limits."""
    if plain is float and not abs(value) <= sys.float_info.max:  # NaN, infinities, integers beyond any float
        raise where.must_be("a finite number", value)
    if (PATH in marks and not value) or not all(value in mark for mark in marks if isinstance(mark, Interval)):
        raise where.must_be(rule(Annotated[(plain, *marks)]), value)
    if PATH in marks:
        return resolve(value, where.folder)
    return float(value) if plain is float else value


def _limits(marks: Iterable[Any]) -> str:
    """What follows the noun: " >= 1", " > 0 and < 1", or nothing."""
    words = []
    for mark in marks:
        if isinstance(mark, Interval):
            low, high = (">=", ">")[mark.ends[0] == "("], ("<=", "<")[mark.ends[1] == ")"]
            words += [f"{sign} {end:g}" for sign, end in ((low, mark.low), (high, mark.high)) if math.isfinite(end)]
    return f" {' and '.join(words)}" if words else ""


def _plural(kind: Any) -> str:
    plain, marks = split(kind)
    return NOUNS.get(plain, ("", "tables" if is_dataclass(plain) else "values"))[1] + _limits(marks)
