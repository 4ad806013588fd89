"""Compressed updates: compressors, their memory of what they left out, and sums over all ranks."""

from __future__ import annotations

from sparkdl.comm.compress.base import Compressor, Route, Segment, Summable
from sparkdl.comm.compress.cast import BFloat16, Float16, Int8, Uncompressed
from sparkdl.comm.compress.exchange import Traffic, compressed_allreduce, generator_for
from sparkdl.comm.compress.memory import Forgetful, Memory, MomentumResidual, Residual, State
from sparkdl.comm.compress.powersgd import PowerSGD
from sparkdl.comm.compress.registry import COMPRESSORS
from sparkdl.comm.compress.sign import OneBit
from sparkdl.comm.compress.sparse import DGC, RandomK, Threshold, TopK
from sparkdl.comm.compress.stochastic import QSGD, TernGrad
from sparkdl.comm.compress.worth import BreakEven, break_even

__all__ = [
    "COMPRESSORS",
    "DGC",
    "QSGD",
    "BFloat16",
    "BreakEven",
    "Compressor",
    "Float16",
    "Forgetful",
    "Int8",
    "Memory",
    "MomentumResidual",
    "OneBit",
    "PowerSGD",
    "RandomK",
    "Residual",
    "Route",
    "Segment",
    "State",
    "Summable",
    "TernGrad",
    "Threshold",
    "TopK",
    "Traffic",
    "Uncompressed",
    "break_even",
    "compressed_allreduce",
    "generator_for",
]
