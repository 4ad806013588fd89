"""How ranks in processes of their own meet, whoever started them."""

from __future__ import annotations

from dataclasses import replace

from sparkdl.backends.base import Group, Place, Seat
from sparkdl.comm import AllGather, Transport, TransportOptions, connect

__all__ = ["meet"]


def meet(
    seat: Seat,
    group: Group,
    options: TransportOptions,
    allgather: AllGather,
    place: Place | None,
    driver_host: str,
) -> Transport:
    """As `Seat.connect`: ranks listen where the way to the driver leads, unless the options say where."""
    rank, size, peers = place or Place(seat.rank, seat.size)
    if not (options.interface or options.cidr or options.route_to):
        options = replace(options, route_to=driver_host)
    return connect(
        rank,
        size,
        allgather,
        group.secret,
        job_id=group.job_id,
        attempt=group.attempt,
        options=options,
        peers=peers,
    )
