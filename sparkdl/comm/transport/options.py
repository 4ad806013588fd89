"""What a user may set about transports."""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import Callable
from dataclasses import dataclass

from sparkdl.errors import ConfigError

__all__ = ["TransportOptions"]

MAX_STREAMS = 16
MIN_RING_BYTES = 4096


@dataclass(frozen=True, kw_only=True)
class TransportOptions:
    """Deadlines, addresses and channels. Pickles, so that a driver may hand it to executors.

    timeout_s: how long a peer may show no sign of life (heartbeat or data) before it counts as lost.
    connect_timeout_s: how long the ranks may take to find and authenticate one another.
    operation_timeout_s: how long a live peer may keep one operation waiting.
    port_range: (first, last) port to listen on, for firewalls; any free port by default.
    interface, cidr: listen on this interface ("eth1"), or on the address inside this network ("10.1.0.0/16").
    route_to: an address that every rank reaches, as the driver's; ranks listen on the interface that leads there.
    streams: TCP connections per pair of ranks; long messages are split over them.
    shared_memory: use memory between ranks on one host; ring_bytes is the size of its buffer for each direction. (For
        allreduce in common memory there are up to 24 MiB more for each host, whatever the number of its ranks, and what
        `AllReducer.zeros` makes.)
    tls: makes the context of a connection, given server_side; called in the executor, since contexts do not pickle.
    """

    timeout_s: float = 30.0
    connect_timeout_s: float = 60.0
    operation_timeout_s: float = 600.0
    port_range: tuple[int, int] | None = None
    interface: str | None = None
    cidr: str | None = None
    route_to: str | None = None
    streams: int = 1
    shared_memory: bool = True
    ring_bytes: int = 1 << 21
    tls: Callable[[bool], ssl.SSLContext] | None = None

    def __post_init__(self) -> None:
        for name in ("timeout_s", "connect_timeout_s", "operation_timeout_s"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} must be a positive number of seconds; got {getattr(self, name)!r}")
        if self.port_range is not None:
            first, last = self.port_range
            if not 0 < first <= last < 65536:
                raise ConfigError(f"port_range must be (first, last) within 1..65535; got {self.port_range}")
        if self.cidr is not None:
            try:
                ipaddress.ip_network(self.cidr, strict=False)
            except ValueError as error:
                raise ConfigError(f"cidr must be a network as 10.1.0.0/16; got {self.cidr!r}") from error
        if self.interface is not None and self.cidr is not None:
            raise ConfigError(f"give interface={self.interface!r} or cidr={self.cidr!r}, not both")
        if not 1 <= self.streams <= MAX_STREAMS:
            raise ConfigError(f"streams must lie in 1..{MAX_STREAMS}; got {self.streams}")
        if self.ring_bytes < MIN_RING_BYTES or self.ring_bytes % 4096:
            raise ConfigError(f"ring_bytes must be a multiple of 4096 and at least that; got {self.ring_bytes}")
