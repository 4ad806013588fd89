"""Tables into dataclasses and back: types, limits, marks, choices and the sentences of errors."""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkdl.config.places import Where, resolve, show
from sparkdl.config.schema import PATH, Codec, Inline, Named, Schema
from sparkdl.errors import ConfigError
from sparkdl.fields import FRACTION, POSITIVE, Interval

COUNT = Interval(1, float("inf"), "[)", integer=True)


class Shape(ABC):  # noqa: B024
    """An abstract type."""


@dataclass(frozen=True)
class Circle(Shape):
    radius: float = 1.0

    def __post_init__(self) -> None:
        if self.radius < 0:
            raise ValueError(f"radius must not be negative; got {self.radius}.")


@dataclass(frozen=True)
class Group(Shape):
    members: Sequence[Shape]
    cut: Shape | None = None


@dataclass(frozen=True)
class Clip:
    norm: float | None = field(default=None, metadata=POSITIVE)
    value: float | None = None


@dataclass(frozen=True)
class Inner:
    seed: int = 0
    hidden: int = 7
    clip: Clip = field(default_factory=Clip)

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise ValueError(f"seed must be an integer >= 0; got {self.seed}.")


@dataclass(frozen=True)
class Everything:
    count: Annotated[int, COUNT]
    inner: Annotated[Inner, Inline(without=("hidden",))] = field(default_factory=Inner)
    rate: float = field(default=0.5, metadata=FRACTION)
    flag: bool = False
    text: str = "x"
    choice: Literal["a", "b", 3] = "a"
    names: tuple[str, ...] = ()
    pair: tuple[int, int] = (1, 2)
    shape: tuple[Annotated[int, COUNT], ...] | None = None
    kernel: int | tuple[int, int] = 3
    options: Mapping[str, int] = field(default_factory=dict)
    anything: Any = None
    file: Annotated[str, PATH] = "/x"
    resume: Literal["auto"] | Annotated[str, PATH] = "auto"
    clip: Clip | None = None
    figure: Shape = field(default_factory=Circle)
    figures: tuple[Shape, ...] = ()


SCHEMA = Schema({Shape: Named({"circle": Circle, "group": Group}, tag="kind")})
WHERE = Where("f.toml", "t", "/base")


def build(**table: Any) -> Everything:
    return SCHEMA.build(Everything, {"count": 1, **table}, WHERE)


def refusal(**table: Any) -> str:
    with pytest.raises(ConfigError) as e:
        build(**table)
    return str(e.value)


def test_defaults_and_plain_values() -> None:
    assert build() == Everything(1)
    made = build(
        count=7, rate=0, flag=True, text="", choice=3, names=["a", "b"], pair=[3, 4], shape=[8, 8], kernel=[5, 1],
        options={"n": 2}, anything=[1, {"x": None}], clip={"norm": 2}, seed=4, clip_norm=1, clip_value=0.5,
    )  # fmt: skip
    assert made == Everything(
        7, Inner(4, clip=Clip(1.0, 0.5)), 0.0, True, "", 3, ("a", "b"), (3, 4), (8, 8), (5, 1), {"n": 2},
        [1, {"x": None}], clip=Clip(2.0),
    )  # fmt: skip
    assert isinstance(made.rate, float)


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ({"count": "ten"}, 't.count must be an integer >= 1; got "ten".'),
        ({"count": 0}, "t.count must be an integer >= 1; got 0."),
        ({"count": True}, "t.count must be an integer >= 1; got true."),
        ({"count": 1.0}, "t.count must be an integer >= 1; got 1.0."),
        ({"rate": "x"}, 't.rate must be a number >= 0 and < 1; got "x".'),
        ({"rate": 1}, "t.rate must be a number >= 0 and < 1; got 1."),
        ({"rate": False}, "t.rate must be a number >= 0 and < 1; got false."),
        ({"rate": float("nan")}, "t.rate must be a finite number; got nan."),
        ({"rate": float("-inf")}, "t.rate must be a finite number; got -inf."),
        ({"flag": 1}, "t.flag must be true or false; got 1."),
        ({"flag": "true"}, 't.flag must be true or false; got "true".'),
        ({"text": 3}, "t.text must be a string; got 3."),
        ({"choice": "c"}, 't.choice must be one of "a", "b", 3; got "c".'),
        ({"choice": 3.0}, 't.choice must be one of "a", "b", 3; got 3.0.'),
        ({"names": "a"}, 't.names must be a list of strings; got "a".'),
        ({"names": ["a", 1]}, "t.names[1] must be a string; got 1."),
        ({"pair": [1]}, "t.pair must be a list of 2 integers; got [1]."),
        ({"pair": [1, "b"]}, 't.pair[1] must be an integer; got "b".'),
        ({"shape": 8}, "t.shape must be a list of integers >= 1; got 8."),
        ({"shape": [8, 0]}, "t.shape[1] must be an integer >= 1; got 0."),
        ({"kernel": "3"}, 't.kernel must be an integer or a list of 2 integers; got "3".'),
        ({"kernel": [1, 2, 3]}, "t.kernel must be an integer or a list of 2 integers; got [1, 2, 3]."),
        ({"options": 3}, "t.options must be a table; got 3."),
        ({"options": {"n": "x"}}, 't.options.n must be an integer; got "x".'),
        ({"file": ""}, 't.file must be a path; got "".'),
        ({"file": 1}, "t.file must be a path; got 1."),
        ({"resume": 1}, 't.resume must be "auto" or a path; got 1.'),
        ({"clip": {"norm": 0}}, "t.clip.norm must be a number > 0; got 0."),
        ({"clip": {"nrm": 1}}, "unknown key t.clip.nrm; did you mean t.clip.norm?"),
        ({"clip": 1}, "t.clip must be a table; got 1."),
        ({"clip_norm": -1}, "t.clip_norm must be a number > 0; got -1."),
        ({"seed": -1}, "t.seed must be an integer >= 0; got -1."),
        ({"hidden": 1}, "unknown key t.hidden;"),
        ({"inner": {}}, "unknown key t.inner; known are count, seed, clip_norm, clip_value, rate, flag, text,"),
        ({"counts": 2}, "unknown key t.counts; did you mean t.count?"),
        ({"figure": 1}, "t.figure must be a name or a table; got 1."),
        ({"figure": {"radius": 1}}, 't.figure.kind is required: one of "circle", "group".'),
        ({"figure": "circel"}, 't.figure.kind must be one of "circle", "group"; got "circel". Did you mean "circle"?'),
        ({"figure": {"kind": 1}}, 't.figure.kind must be one of "circle", "group"; got 1.'),
        ({"figure": {"kind": "circle", "radius": "x"}}, 't.figure.radius must be a number; got "x".'),
        ({"figure": {"kind": "circle", "radius": -1.0}}, "t.figure.radius must not be negative; got -1.0."),
        ({"figure": "group"}, "t.figure.members is required: a list of values."),
        ({"figures": ["circle", {"kind": "circle", "r": 1}]}, "unknown key t.figures[1].r; known are radius."),
        ({"figure": {"kind": "group", "members": [], "cut": 2}}, "t.figure.cut must be a name or a table; got 2."),
    ],
    ids=str,
)
def test_refused(table: dict[str, Any], sentence: str) -> None:
    assert refusal(**table).startswith(f"f.toml: {sentence}")


def test_missing() -> None:
    with pytest.raises(ConfigError, match=r"^f\.toml: t\.count is required: an integer >= 1\.$"):
        SCHEMA.build(Everything, {}, WHERE)


def test_an_integer_beyond_every_float_is_refused_where_a_number_is_needed() -> None:
    assert refusal(rate=10**400).startswith("f.toml: t.rate must be a finite number; got 1000")


def test_choices_nest() -> None:
    made = build(figure={"kind": "group", "members": ["circle", {"kind": "circle", "radius": 2}], "cut": "circle"})
    assert made.figure == Group((Circle(), Circle(2.0)), Circle())


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("a.csv", "/base/a.csv"),
        ("../a/b", "/a/b"),
        ("/abs/a", "/abs/a"),
        ("hdfs://host/a", "hdfs://host/a"),
        ("s3a://bucket/../a", "s3a://bucket/../a"),
        ("file:/a", "file:/a"),
    ],
)
def test_relative_paths_start_from_the_folder(path: str, expected: str) -> None:
    assert resolve(path, "/base") == expected
    made = build(file=path, resume=path, text=path)
    assert (made.file, made.resume, made.text) == (expected, expected, path)


def test_a_word_with_a_meaning_of_its_own_is_no_path() -> None:
    assert build(resume="auto").resume == "auto"


def test_what_is_written_is_read_back() -> None:
    made = build(
        count=2, shape=[1, 2], clip={"value": 3.0}, clip_norm=1.0, figure={"kind": "group", "members": ["circle"]},
        figures=[{"kind": "circle", "radius": 2.0}], resume="hdfs://x/y",
    )  # fmt: skip
    table = SCHEMA.dump(made)
    assert SCHEMA.build(Everything, table, WHERE) == made
    assert table["figures"] == [{"kind": "circle", "radius": 2.0}]
    assert (table["clip_norm"], table["clip"]) == (1.0, {"value": 3.0})
    assert "clip_value" not in table


def test_codec() -> None:
    @dataclass(frozen=True)
    class Point:
        x: int
        y: int

    def read(value: Any, where: Where) -> Point:
        if not isinstance(value, str) or value.count("/") != 1:
            raise where.must_be('"X/Y"', value)
        return Point(*map(int, value.split("/")))

    schema = Schema({Point: Codec(read, lambda p: f"{p.x}/{p.y}")})
    assert schema.convert(tuple[Point, ...], ["1/2", "3/4"], WHERE) == (Point(1, 2), Point(3, 4))
    assert schema.dump((Point(1, 2),), tuple[Point, ...]) == ["1/2"]
    with pytest.raises(ConfigError, match=r't\[0\] must be "X/Y"; got 3\.'):
        schema.convert(tuple[Point, ...], [3], WHERE)


def test_long_values_are_cut() -> None:
    assert len(show("x" * 1000)) == 80
    assert show({"a": [1, "b", True]}) == '{a = [1, "b", true]}'


plain = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.dates()
values = st.recursive(plain, lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(max_size=5), v, max_size=3))
keys = st.sampled_from([*Everything.__dataclass_fields__, "seed", "clip_norm", "clip_value"]) | st.text(max_size=6)


@given(st.dictionaries(keys, values, max_size=4))
def test_any_table_is_taken_or_refused_in_a_sentence(table: dict[str, Any]) -> None:
    try:
        made = SCHEMA.build(Everything, table, WHERE)
    except ConfigError as e:
        sentence = str(e)
    else:
        sentence = "f.toml: taken"
        again = SCHEMA.build(Everything, SCHEMA.dump(made), WHERE)
        assert repr(again) == repr(made)  # repr: a NaN inside `anything` is not equal to itself
        assert type(made.count) is int
        assert type(made.rate) is float
        assert type(made.flag) is bool
    assert sentence.startswith("f.toml: ")
