"""Class labels and their indices."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkdl.data.findings import Array
from sparkdl.errors import DataError

__all__ = ["Label", "LabelMap"]

Label = bool | int | float | str
NAMES = {bool: "boolean", int: "integer", float: "float", str: "string"}
MAX_NAMED = 5  # labels that a message lists


@dataclass(frozen=True)
class LabelMap:
    """The distinct labels of a classification, all of one type; a label's place is its class index.

    The order is made once, sorted, and stays with the model: it does not follow the frequencies of later data.
    """

    classes: tuple[Label, ...]

    def __post_init__(self) -> None:
        types = {type(c) for c in self.classes}
        if len(types) > 1 or not types <= NAMES.keys():
            raise DataError(f"class labels are of one type: boolean, integer, float or string; got {self._few()}.")
        if len(set(self.classes)) < len(self.classes):
            raise DataError(f"class labels are distinct; got {self._few()}.")
        if len(self.classes) < 2:
            raise DataError(
                f"a classification needs at least two classes; the label column holds {self._few() or 'none'} only. "
                "Check the filter and the label column."
            )

    @classmethod
    def fit(cls, labels: Iterable[Label]) -> LabelMap:
        """The sorted distinct labels."""
        return cls(tuple(sorted(set(labels))))

    @property
    def type(self) -> type[Label]:
        """bool, int, float or str."""
        return type(self.classes[0])

    def encode(self, raw: Array, unknown: int | None = None) -> Array:
        """Labels (N,) -> indices (N,) int64.

        Whole floats stand for integers and integers for floats (3.0 is 3); strings never stand for numbers. A label
        that is not a class becomes `unknown`; where that is None, DataError names it.
        """
        raw = np.asarray(raw)
        index = self._text_index(raw) if raw.dtype.kind in "OU" else self._number_index(raw)
        missing = index < 0
        if missing.any():
            if unknown is None:
                values = sorted(set(raw[missing].tolist()))
                raise DataError(
                    f"label {values[0]!r} is not one of the {len(self.classes)} classes {self._few()} "
                    f"({int(missing.sum()):,} of {len(raw):,} labels are unknown). Train on data that contain it, or "
                    "leave such rows out."
                )
            index[missing] = unknown
        return index

    def check(self, labels: Iterable[Label]) -> None:
        """Refuse labels (all of one type) among which there is one that is no class."""
        self.encode(np.array(sorted(labels)))

    def decode(self, index: Array) -> Array:
        """Indices (N,) -> labels (N,): int64, float64, bool, or object for strings."""
        table = np.array(self.classes, object if self.type is str else self.type)
        labels: Array = table[np.asarray(index)]
        return labels

    def to_json(self) -> dict[str, Any]:
        """Type and labels; integers exactly, however large."""
        return {"type": self.type.__name__, "classes": list(self.classes)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> LabelMap:
        make = {kind.__name__: kind for kind in NAMES}[data["type"]]
        return cls(tuple(make(c) for c in data["classes"]))

    def _text_index(self, raw: Array) -> Array:
        if self.type is not str:
            raise self._wrong_type("strings")
        place = pc.index_in(pa.array(raw, pa.string()), pa.array(self.classes, pa.string()))
        return np.array(place.fill_null(-1).to_numpy(zero_copy_only=False), np.int64)

    def _number_index(self, raw: Array) -> Array:
        if self.type is str:
            raise self._wrong_type(f"numbers of type {raw.dtype}")
        known = np.array(self.classes)
        known = known.astype(np.int64) if known.dtype.kind == "b" else known
        raw = raw.astype(np.int64) if raw.dtype.kind in "biu" else raw.astype(np.float64)
        if raw.dtype.kind == "f" and known.dtype.kind == "i":
            return self._float_index(raw)
        order = np.argsort(known)
        place = np.searchsorted(known, raw, sorter=order).clip(max=len(known) - 1)
        index = order[place]
        return np.where(known[index] == raw, index, -1)

    def _float_index(self, raw: Array) -> Array:
        """Floats among integer classes, compared exactly: 2^53 + 1 equals no float."""
        whole = (np.rint(raw) == raw) & (np.abs(raw) < 2.0**63)
        index = self._number_index(np.where(whole, raw, 0.0).astype(np.int64))
        return np.where(whole, index, -1)

    def _wrong_type(self, what: str) -> DataError:
        return DataError(
            f"the label column holds {what}, but the classes are {NAMES[self.type]}s: {self._few()}. "
            "Convert the column to the type the model was trained with."
        )

    def _few(self) -> str:
        shown = ", ".join(map(repr, self.classes[:MAX_NAMED]))
        return shown + (f", ... ({len(self.classes)} in all)" if len(self.classes) > MAX_NAMED else "")
