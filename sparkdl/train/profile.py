"""Where the time of a fit goes: seconds per phase and per layer, added up over workers."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

__all__ = ["Profile"]

Path = tuple[str, ...]


class Profile:
    """Counts calls and seconds of named spans; the clock of a pass (`nn.Clock`).

    Spans nest: what runs inside another is part of its time. Names such as `forward/conv2d_0` are those of layers.
    `where` says whose time it is, "driver" or "workers". Profiles of many workers merge by adding, so their seconds may
    exceed those that passed. One profile serves one thread at a time; it pickles.
    """

    def __init__(self, where: str = "workers") -> None:
        self.where = where
        self.seconds: dict[Path, float] = {}
        self.calls: dict[Path, int] = {}
        self._open: list[str] = []

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        """Time what runs inside."""
        self._open.append(name)
        path = (self.where, *self._open)
        started = time.perf_counter()
        try:
            yield
        finally:
            self._add(path, time.perf_counter() - started, 1)
            self._open.pop()

    def merge(self, other: Profile) -> None:
        """Add another profile's calls and seconds, in place."""
        for path, seconds in other.seconds.items():
            self._add(path, seconds, other.calls[path])

    def to_dict(self) -> dict[str, dict[str, float]]:
        """For JSON: `{"workers > compute > forward/dense_0": {"seconds": ..., "calls": ...}, ...}`."""
        return {" > ".join(p): {"seconds": s, "calls": self.calls[p]} for p, s in self.seconds.items()}

    @classmethod
    def from_dict(cls, spans: Mapping[str, Mapping[str, float]]) -> Profile:
        """From `to_dict`."""
        profile = cls()
        for text, span in spans.items():
            profile._add(tuple(text.split(" > ")), span["seconds"], int(span["calls"]))
        return profile

    def table(self) -> str:
        """Two tables as text: the phases of each place with their share of its time; the layers with theirs of all."""
        phases, layers = self._phases(), self._layers()
        parts = []
        if phases:
            parts.append(_columns(("phase", "seconds", "share", "calls"), phases))
        if layers:
            parts.append(_columns(("layer", "forward s", "share", "backward s", "share"), layers))
        return "\n\n".join(parts) or "profile: nothing was timed"

    def _add(self, path: Path, seconds: float, calls: int) -> None:
        self.seconds[path] = self.seconds.get(path, 0.0) + seconds
        self.calls[path] = self.calls.get(path, 0) + calls

    def _phases(self) -> list[Sequence[str]]:
        rows: list[Sequence[str]] = []
        spans = [p for p in self.seconds if "/" not in p[-1]]
        for where in dict.fromkeys(p[0] for p in spans):
            total = sum(s for p, s in self.seconds.items() if p[0] == where and len(p) == 2)
            rows.append((where, f"{total:.3f}", "", ""))
            rows += self._children((where,), spans, total)
        return rows

    def _children(self, parent: Path, spans: Iterable[Path], total: float) -> Iterator[Sequence[str]]:
        """Rows of what ran inside parent, the longest first, each followed by what ran inside it."""
        inside = [p for p in spans if p[:-1] == parent]
        for path in sorted(inside, key=lambda p: -self.seconds[p]):
            seconds, calls = self.seconds[path], self.calls[path]
            yield "  " * len(parent) + path[-1], f"{seconds:.3f}", _share(seconds, total), f"{calls:,}"
            yield from self._children(path, spans, total)

    def _layers(self) -> list[Sequence[str]]:
        times: dict[str, dict[str, float]] = {}
        for path, seconds in self.seconds.items():
            way, slash, layer = path[-1].partition("/")
            if slash:
                row = times.setdefault(layer, {})
                row[way] = row.get(way, 0.0) + seconds
        total = sum(sum(row.values()) for row in times.values())
        return [
            (layer, *(cell for way in ("forward", "backward") for cell in _pair(row.get(way, 0.0), total)))
            for layer, row in times.items()
        ]


def _pair(seconds: float, total: float) -> tuple[str, str]:
    return f"{seconds:.3f}", _share(seconds, total)


def _share(seconds: float, total: float) -> str:
    return f"{100 * seconds / total:.1f} %" if total else ""


def _columns(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Rows under their heads, the first column to the left, the others to the right."""
    lines = [head, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    text = [
        "  ".join([line[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(line[1:], widths[1:], strict=True))]).rstrip()
        for line in lines
    ]
    return "\n".join([text[0], "-" * (sum(widths) + 2 * (len(widths) - 1)), *text[1:]])
