"""Transports: one contract; in-process, TCP and shared-memory channels behind it."""

from __future__ import annotations

from sparkdl.comm.transport.base import (
    CommError,
    MessageMismatch,
    Op,
    OperationTimeout,
    PeerAborted,
    PeerLost,
    Pending,
    RendezvousError,
    Transport,
)
from sparkdl.comm.transport.inproc import inproc_group
from sparkdl.comm.transport.metered import Metered
from sparkdl.comm.transport.options import TransportOptions

__all__ = [
    "CommError",
    "MessageMismatch",
    "Metered",
    "Op",
    "OperationTimeout",
    "PeerAborted",
    "PeerLost",
    "Pending",
    "RendezvousError",
    "Transport",
    "TransportOptions",
    "inproc_group",
]
