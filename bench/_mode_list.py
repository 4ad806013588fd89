"""The modes that bench/modes.py compares, with the settings of each."""

from __future__ import annotations

from dataclasses import dataclass

from sparkdl.comm.compress import DGC, QSGD, Compressor, Float16, Int8, OneBit, PowerSGD, TopK
from sparkdl.comm.gossip import RandomOut, Ring
from sparkdl.optim import BMUF, DiLoCo, Elastic, SlowMo
from sparkdl.strategies import (
    AllReduce,
    Gossip,
    Hogwild,
    ModelAveraging,
    ParameterServer,
    Strategy,
    TreeAggregate,
)

__all__ = ["LR", "MODES", "TOLERANCE", "Mode"]

LR, MOMENTUM = 0.2, 0.9
TOLERANCE = {  # points of test accuracy below serial that each family is allowed
    "consistent": 0.2,
    "compressed": 0.5,
    "averaging": 0.5,
    "gossip": 0.5,
    "asynchronous": 1.0,
}


@dataclass(frozen=True)
class Mode:
    """One row of the table. `lr` and `momentum` are those of SGD; `settings` those in which it is measured."""

    name: str
    family: str
    strategy: Strategy
    lr: float = LR
    momentum: float = MOMENTUM
    settings: str = "ab"
    alone: bool = False  # one worker


def _sent(compressor: Compressor, lr: float = LR, momentum: float = MOMENTUM, settings: str = "ab") -> Mode:
    name = type(compressor).__name__
    strategy = AllReduce(compressor=compressor)
    return Mode(f"allreduce, {name}", "compressed", strategy, lr, momentum, settings=settings)


MODES = [
    Mode("serial", "consistent", TreeAggregate(), settings="a", alone=True),
    Mode("tree_aggregate", "consistent", TreeAggregate(), settings="a"),
    Mode("allreduce", "consistent", AllReduce()),
    Mode("allreduce, buckets", "consistent", AllReduce(bucket_mb=0.1)),
    Mode("parameter_server, bsp", "consistent", ParameterServer(consistency="bsp")),
    _sent(Float16()),
    _sent(Int8()),
    _sent(QSGD(), settings="a"),
    _sent(OneBit(block=64), 0.8, 0.5, "a"),
    _sent(PowerSGD(4)),
    _sent(TopK(0.02)),
    _sent(DGC(0.02, warm_up=40), 0.6, 0.0, "a"),
    Mode("bsp, Int8", "compressed", ParameterServer(consistency="bsp", compressor=Int8()), settings="a"),
    Mode("averaging, period 8", "averaging", ModelAveraging(8)),
    Mode("averaging, period 16", "averaging", ModelAveraging(16)),
    Mode("averaging, SlowMo", "averaging", ModelAveraging(8, SlowMo()), settings="a"),
    Mode("averaging, BMUF", "averaging", ModelAveraging(8, BMUF(momentum=0.5)), settings="a"),
    Mode("averaging, DiLoCo", "averaging", ModelAveraging(16, DiLoCo(momentum=0.5))),
    Mode("averaging, post-local", "averaging", ModelAveraging(16, start_step=110), settings="a"),
    Mode("averaging, elastic", "averaging", ModelAveraging(4, elastic=Elastic())),
    Mode(
        "averaging, driver",
        "averaging",
        ModelAveraging(8, optimizer_state="average", through="driver"),
        settings="a",
    ),
    Mode("gossip, one peer", "gossip", Gossip()),
    Mode("gossip, ring", "gossip", Gossip(Ring()), settings="a"),
    Mode("gossip, combine first", "gossip", Gossip(order="combine_then_adapt"), settings="a"),
    Mode("gossip, push-sum", "gossip", Gossip(RandomOut(2), push_sum=True), settings="a"),
    Mode("gossip, Int8", "gossip", Gossip(Ring(), compressor=Int8(feedback=False), rate=0.9)),
    Mode("bsp, 1 backup", "asynchronous", ParameterServer(consistency="bsp", backup=1)),
    Mode("ssp, on servers", "asynchronous", ParameterServer(staleness=2), 0.35, 0.5, settings="a"),
    Mode("ssp", "asynchronous", ParameterServer(staleness=2, update_on="workers")),
    Mode("ssp, staleness 4", "asynchronous", ParameterServer(staleness=4, update_on="workers"), settings="a"),
    Mode("async, on servers", "asynchronous", ParameterServer("async"), 0.35, 0.5, settings="a"),
    Mode("async", "asynchronous", ParameterServer("async", update_on="workers")),
    Mode("async, Int8", "asynchronous", ParameterServer("async", update_on="workers", compressor=Int8())),
    Mode("async, window 4", "asynchronous", ParameterServer("async", update_on="workers", window=4)),
    Mode("async, window 8", "asynchronous", ParameterServer("async", update_on="workers", window=8)),
    Mode("gossip, asynchronous", "asynchronous", Gossip(asynchronous=True)),
    Mode("gossip, asynchronous, 4", "asynchronous", Gossip(asynchronous=True, period=4)),
    Mode("hogwild", "asynchronous", Hogwild(), LR / 4, settings="a"),
]
