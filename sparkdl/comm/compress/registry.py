"""The names under which a configuration finds compressors."""

from __future__ import annotations

from sparkdl.comm.compress.base import Compressor
from sparkdl.comm.compress.cast import BFloat16, Float16, Int8, Uncompressed
from sparkdl.comm.compress.powersgd import PowerSGD
from sparkdl.comm.compress.sign import OneBit
from sparkdl.comm.compress.sparse import DGC, RandomK, Threshold, TopK
from sparkdl.comm.compress.stochastic import QSGD, TernGrad

__all__ = ["COMPRESSORS"]

COMPRESSORS: dict[str, type[Compressor]] = {
    "none": Uncompressed,
    "fp16": Float16,
    "bf16": BFloat16,
    "int8": Int8,
    "qsgd": QSGD,
    "terngrad": TernGrad,
    "one_bit": OneBit,
    "power_sgd": PowerSGD,
    "top_k": TopK,
    "random_k": RandomK,
    "dgc": DGC,
    "threshold": Threshold,
}
