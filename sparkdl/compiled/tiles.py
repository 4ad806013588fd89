"""What kernels do with vector registers: sums of products a tile at a time, and transposed squares.

A sum stays in a register from its first product to its last. A kernel cannot say that: of an array, numba's compiler
keeps in registers what one innermost loop touches, and writes the rest back each time round. So a tile is written in
the compiler's own terms (LLVM's). Each of its sums is a value of 64 bytes: one register of a processor with AVX-512,
several of any other.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

__all__ = ["BYTES", "square", "tile", "wide"]

BYTES = 64  # of a vector


@functools.cache
def wide() -> bool:
    """Whether a vector is one register in the code that numba makes, and there are 32 of them (AVX-512)."""
    from llvmlite import binding
    from numba import config

    chosen = str(getattr(config, "CPU_FEATURES", None) or "")
    return "+avx512f" in chosen if chosen else bool(binding.get_host_cpu_features().get("avx512f"))


def tile(rows: int, vectors: int, whole: bool = False, lanewise: bool = False) -> Callable[..., None]:
    """A function tile(a, b, c, d, (I, K), width) for kernels, which computes `rows` times `vectors` vectors of sums:

        C[c0 + t ct + f] = sum_ik A[a0 + t at + i ai + k ak] B[b0 + i bi + k bk + f] + D[d0 + t dt + f]

    for t < rows and f < min(width, lanes of the vectors), i < I and k < K. Terms are added in that order, each rounded
    together with its product where the processor can, so a sum has the same bits in a tile of any size. The operands
    are tuples: a = (A, a0, at, ai, ak), b = (B, b0, bi, bk), c = (C, c0, ct), d = (D, d0, dt), which may be c; arrays
    have one axis and one dtype. A `whole` tile takes the width for that of all its vectors: then no register says which
    lanes there are. A `lanewise` one multiplies lane by lane: it reads A[a0 + t at + i ai + k ak + f].
    """
    from numba import types
    from numba.extending import intrinsic

    def typed(context: Any, a: Any, b: Any, c: Any, d: Any, size: Any, width: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            _Tile(context, builder, signature, rows, vectors, whole, lanewise).emit(*args)
            return context.get_dummy_value()

        return types.void(a, b, c, d, size, width), generate

    made: Callable[..., None] = intrinsic(typed)
    return made


def square(turned: bool) -> Callable[..., None]:
    """A function square(a, b) for kernels, which copies as many rows as a vector has lanes, of a vector each:

        B[b0 + k bk + i] = A[a0 + k ak + i], or if `turned` A[a0 + i ak + k]

    a = (A, a0, ak), b = (B, b0, bk); arrays as of `tile`.
    """
    from numba import types
    from numba.extending import intrinsic

    def typed(context: Any, a: Any, b: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            _Code(context, builder, signature).square(args[0], args[1], turned)
            return context.get_dummy_value()

        return types.void(a, b), generate

    made: Callable[..., None] = intrinsic(typed)
    return made


class _Code:
    """What is written of vectors, for operands of one dtype."""

    def __init__(self, context: Any, builder: Any, signature: Any) -> None:
        from llvmlite import ir

        self.ir, self.context, self.builder, self.signature = ir, context, builder, signature
        dtype = signature.args[0][0].dtype
        self.bytes = dtype.bitwidth // 8
        self.lanes = BYTES // self.bytes
        self.number, self.index = context.get_value_type(dtype), ir.IntType(64)
        self.vector, self.mask = (ir.VectorType(kind, self.lanes) for kind in (self.number, ir.IntType(1)))
        self.zero = ir.Constant(self.vector, [0.0] * self.lanes)

    def square(self, a: Any, b: Any, turned: bool) -> None:
        """Vectors as rows from one place to another."""
        (pa, a0, ak), (pb, b0, bk) = map(self._operand, range(2), (a, b))
        rows = [self._load(pa, self._sum(a0, (self.index(k), ak)), None) for k in range(self.lanes)]
        for k, row in enumerate(self._turned(rows) if turned else rows):
            self._store(row, pb, self._sum(b0, (self.index(k), bk)), None)

    def _turned(self, rows: list[Any]) -> list[Any]:
        """Each round exchanges, of two rows d apart, those entries that lie d columns off; d = 1, 2, 4, ..."""
        n, rows = self.lanes, list(rows)
        for d in (1 << i for i in range(n.bit_length() - 1)):
            upper = self._order([n + lane - d if lane & d else lane for lane in range(n)])
            lower = self._order([n + lane if lane & d else lane + d for lane in range(n)])
            for i in range(n):
                if not i & d:
                    pair = rows[i], rows[i + d]
                    rows[i], rows[i + d] = (self.builder.shuffle_vector(*pair, order) for order in (upper, lower))
        return rows

    def _order(self, lanes: list[int]) -> Any:
        return self.ir.Constant(self.ir.VectorType(self.ir.IntType(32), len(lanes)), lanes)

    def _operand(self, place: int, value: Any) -> list[Any]:
        """An operand's members, of the array where its memory lies."""
        from numba.core import cgutils

        array, *steps = cgutils.unpack_tuple(self.builder, value)
        kind = self.signature.args[place][0]
        return [self.context.make_array(kind)(self.context, self.builder, array).data, *steps]

    def _sum(self, start: Any, step: tuple[Any, Any]) -> Any:
        return self.builder.add(start, self.builder.mul(*step))

    def _load(self, memory: Any, place: Any, mask: Any) -> Any:
        if mask is None:
            return self.builder.load(self._at(memory, place), align=self.bytes)
        kinds = [self.vector.as_pointer(), self.ir.IntType(32), self.mask, self.vector]
        call = self._masked("load", self.vector, kinds)
        return self.builder.call(call, [self._at(memory, place), self.ir.IntType(32)(self.bytes), mask, self.zero])

    def _store(self, value: Any, memory: Any, place: Any, mask: Any) -> None:
        if mask is None:
            self.builder.store(value, self._at(memory, place), align=self.bytes)
            return
        kinds = [self.vector, self.vector.as_pointer(), self.ir.IntType(32), self.mask]
        call = self._masked("store", self.ir.VoidType(), kinds)
        self.builder.call(call, [value, self._at(memory, place), self.ir.IntType(32)(self.bytes), mask])

    def _announce(self, memory: Any, place: Any) -> None:
        """Have a place brought to the cache that will be written once the sums are made."""
        from numba.core import cgutils

        byte, number = self.ir.IntType(8).as_pointer(), self.ir.IntType(32)
        kind = self.ir.FunctionType(self.ir.VoidType(), [byte, number, number, number])
        function = cgutils.get_or_insert_function(self.builder.module, kind, "llvm.prefetch.p0")
        where = self.builder.bitcast(self.builder.gep(memory, [place]), byte)
        self.builder.call(function, [where, number(1), number(3), number(1)])  # to write, in all caches, data

    def _masked(self, what: str, result: Any, kinds: list[Any]) -> Any:
        from numba.core import cgutils

        name = f"llvm.masked.{what}.v{self.lanes}f{8 * self.bytes}.p0"
        return cgutils.get_or_insert_function(self.builder.module, self.ir.FunctionType(result, kinds), name)

    def _at(self, memory: Any, place: Any) -> Any:
        return self.builder.bitcast(self.builder.gep(memory, [place]), self.vector.as_pointer())


class _Tile(_Code):
    """The code of one tile: t counts its rows, q its vectors."""

    def __init__(
        self, context: Any, builder: Any, signature: Any, rows: int, vectors: int, whole: bool, lanewise: bool
    ) -> None:
        super().__init__(context, builder, signature)
        self.places = list(itertools.product(range(rows), range(vectors)))
        self.rows, self.vectors, self.whole, self.lanewise = rows, vectors, whole, lanewise

    def emit(self, a: Any, b: Any, c: Any, d: Any, size: Any, width: Any) -> None:
        """The sums' beginnings, the loops, and what becomes of them."""
        from numba.core import cgutils

        (pa, a0, at, ai, ak), (pb, b0, bi, bk), (pc, c0, ct), (pd, d0, dt) = map(self._operand, range(4), (a, b, c, d))
        (count_i, count_k), builder = cgutils.unpack_tuple(self.builder, size), self.builder
        masks = [None if self.whole else self._mask(width, q) for q in range(self.vectors)]
        sums = {place: cgutils.alloca_once(builder, self.vector) for place in self.places}
        for (t, q), place in sums.items():
            builder.store(self.zero, place)
            self._announce(pc, self._lane(self._sum(c0, (self.index(t), ct)), q))
        with cgutils.for_range(builder, count_i) as i:
            first, second = self._sum(a0, (i.index, ai)), self._sum(b0, (i.index, bi))
            lines = [builder.gep(pa, [self._sum(first, (self.index(t), at))]) for t in range(self.rows)]
            with cgutils.for_range(builder, count_k) as k:
                here = self._sum(second, (k.index, bk))
                factors = [self._load(pb, self._lane(here, q), masks[q]) for q in range(self.vectors)]
                for t, line in enumerate(lines):
                    others = self._others(line, builder.mul(k.index, ak), masks)
                    for q, (other, factor) in enumerate(zip(others, factors, strict=True)):
                        self._add_product(sums[t, q], other, factor)
        for (t, q), place in sums.items():
            row, addend = self._sum(c0, (self.index(t), ct)), self._sum(d0, (self.index(t), dt))
            total = builder.fadd(builder.load(place), self._load(pd, self._lane(addend, q), masks[q]))
            self._store(total, pc, self._lane(row, q), masks[q])

    def _others(self, line: Any, step: Any, masks: list[Any]) -> list[Any]:
        """What a row's vectors are multiplied with: a vector for each, or one number for all."""
        if self.lanewise:
            return [self._load(line, self._lane(step, q), mask) for q, mask in enumerate(masks)]
        return [self._everywhere(self.builder.load(self.builder.gep(line, [step])), self.vector)] * self.vectors

    def _lane(self, start: Any, q: int) -> Any:
        return self.builder.add(start, self.index(q * self.lanes))

    def _mask(self, width: Any, q: int) -> Any:
        """Which lanes of vector q there are."""
        indices = self.ir.VectorType(self.index, self.lanes)
        lanes = self.ir.Constant(indices, [q * self.lanes + lane for lane in range(self.lanes)])
        return self.builder.icmp_signed("<", lanes, self._everywhere(width, indices))

    def _everywhere(self, value: Any, kind: Any) -> Any:
        """A number in all lanes."""
        unset, first = self.ir.Constant(kind, self.ir.Undefined), self.ir.IntType(32)(0)
        return self.builder.shuffle_vector(
            self.builder.insert_element(unset, value, first), unset, self._order([0] * self.lanes)
        )

    def _add_product(self, place: Any, other: Any, factor: Any) -> None:
        product = self.builder.fmul(other, factor, flags=("contract",))
        self.builder.store(self.builder.fadd(self.builder.load(place), product, flags=("contract",)), place)
