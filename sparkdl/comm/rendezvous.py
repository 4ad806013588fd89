"""How the ranks of a job find one another: addresses through an allgather of small texts, then connections."""

from __future__ import annotations

import ipaddress
import json
import os
import socket
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace

from sparkdl.comm.transport.addresses import listen
from sparkdl.comm.transport.auth import Identity
from sparkdl.comm.transport.base import CommError, RendezvousError, Transport
from sparkdl.comm.transport.channel import Channel
from sparkdl.comm.transport.doorbell import Doorbell
from sparkdl.comm.transport.meeting import Meeting
from sparkdl.comm.transport.mesh import Mesh
from sparkdl.comm.transport.options import TransportOptions
from sparkdl.comm.transport.sharing import can_share, host_id
from sparkdl.comm.transport.stream import Stream
from sparkdl.comm.transport.tcp import TcpChannel

__all__ = ["AllGather", "connect"]

AllGather = Callable[[str], list[str]]

SPIN_S = 100e-6  # a few times what it costs to fall asleep and be woken


@dataclass(frozen=True)
class _Card:
    """What a rank tells the others: where it listens, in which process of which host; or how it failed, and by whom."""

    rank: int
    error: str = ""
    culprit: int = -1
    address: str = ""
    port: int = 0
    host: str = ""
    process: int = 0
    memory: bool = False
    streams: int = 1
    peers: list[int] | None = None


def connect(
    rank: int,
    size: int,
    allgather: AllGather,
    secret: bytes,
    *,
    job_id: str,
    attempt: int = 0,
    options: TransportOptions | None = None,
    peers: Collection[int] | None = None,
) -> Transport:
    """Connect this rank with the others: shared memory where two see the same memory, TCP elsewhere.

    allgather(text) returns the texts of all ranks. Every rank calls it once before and once after connecting, also
    when it has failed: then its text says so, and all ranks raise the same RendezvousError. (With size 1 nobody
    calls it.) All connections are made here and no port stays open: with all ranks, or, given `peers`, with those;
    a pair is connected if either end names the other.

    secret is the same random bytes on all ranks, made for this job; together with job_id and attempt it keeps out
    strangers and late-comers.
    """
    options = options or TransportOptions()
    identity = Identity.of(rank, size, job_id, attempt, secret)
    if size == 1:
        return Mesh(rank, (host_id(),), {}, {}, Doorbell(), options, 0.0)
    listener, cards = _introduce(rank, size, allgather, options, peers)
    with listener, ExitStack() as made:
        doorbell = Doorbell()
        made.callback(doorbell.close)
        meeting = _meeting(identity, listener, cards, doorbell, options)
        made.callback(meeting.close)
        failure = None
        try:
            meeting.run()
        except Exception as error:  # whatever it is, the others must hear of it, or they would wait for ever
            failure = error
        _exchange(allgather, _verdict(rank, failure), size)
        hosts = tuple(card.host for card in cards)
        mesh = Mesh(rank, hosts, _channels(meeting), _control(meeting), doorbell, options, _spin_s(rank, cards))
        made.pop_all()
        return mesh


def _introduce(
    rank: int, size: int, allgather: AllGather, options: TransportOptions, peers: Collection[int] | None
) -> tuple[socket.socket, list[_Card]]:
    """This rank's listening socket, and the cards of all ranks."""
    listener = None
    try:
        listener = listen(options)
        address, port = listener.getsockname()[:2]
        card = _Card(
            rank,
            address=address,
            port=port,
            host=host_id() or address,
            process=os.getpid(),
            memory=options.shared_memory and can_share(),
            streams=options.streams,
            peers=None if peers is None else sorted(peers),
        )
    except Exception as error:
        card = _verdict(rank, error)
    try:
        cards = _exchange(allgather, card, size)
        _check_loopback(rank, cards)
    except BaseException:
        if listener is not None:
            listener.close()
        raise
    assert listener is not None, "a rank that cannot listen has said so, and the exchange has raised"
    return listener, cards


def _exchange(allgather: AllGather, card: _Card, size: int) -> list[_Card]:
    """The cards of all ranks, in rank order; raises, on all ranks alike, if one tells of a failure."""
    cards = sorted((_Card(**json.loads(text)) for text in allgather(json.dumps(asdict(card)))), key=lambda c: c.rank)
    if [other.rank for other in cards] != list(range(size)):
        raise RendezvousError(f"allgather brought {[c.rank for c in cards]}, not ranks 0..{size - 1}", rank=card.rank)
    if failed := [other for other in cards if other.error]:
        # Ranks that miss the same one blame it; it misses them all. Most votes win.
        culprit = Counter(other.culprit for other in failed).most_common(1)[0][0]
        first = next(other for other in failed if other.culprit == culprit)
        raise RendezvousError(f"the ranks could not connect: {first.error}", rank=card.rank, culprit=culprit)
    return cards


def _verdict(rank: int, failure: Exception | None) -> _Card:
    if failure is None:
        return _Card(rank)
    if isinstance(failure, CommError) and failure.culprit is not None:
        return _Card(rank, error=str(failure), culprit=failure.culprit)
    return _Card(rank, error=f"rank {rank}: {type(failure).__name__}: {failure}", culprit=rank)


def _check_loopback(rank: int, cards: list[_Card]) -> None:
    """Refuse a rank that listens where another host's ranks cannot reach it."""
    hosts = {card.host for card in cards}
    for card in cards:
        if ipaddress.ip_address(card.address).is_loopback and len(hosts) > 1:
            raise RendezvousError(
                f"rank {card.rank} listens on {card.address}, but the ranks run on {len(hosts)} hosts. "
                f"Set interface, cidr or route_to",
                rank=rank,
                culprit=card.rank,
            )


def _meeting(
    identity: Identity, listener: socket.socket, cards: list[_Card], doorbell: Doorbell, options: TransportOptions
) -> Meeting:
    me = cards[identity.rank]
    others = [card for card in cards if card is not me and (_wants(me, card) or _wants(card, me))]
    addresses = {card.rank: (card.address, card.port) for card in others}
    sharing = [card.rank for card in others if card.memory and me.memory and card.host == me.host]
    options = replace(options, streams=min(card.streams for card in cards))
    return Meeting(identity, listener, addresses, sharing, doorbell, options)


def _wants(one: _Card, other: _Card) -> bool:
    return one.peers is None or other.rank in one.peers


def _channels(meeting: Meeting) -> dict[int, Channel]:
    channels: dict[int, Channel] = dict(meeting.memory)
    for peer in {edge.peer for edge in meeting.streams if edge.stream}:
        edges = sorted(edge for edge in meeting.streams if edge.peer == peer and edge.stream)
        channels[peer] = TcpChannel([meeting.streams[edge] for edge in edges])
    return channels


def _control(meeting: Meeting) -> dict[int, Stream]:
    return {edge.peer: stream for edge, stream in meeting.streams.items() if edge.stream == 0}


def _spin_s(rank: int, cards: list[_Card]) -> float:
    """How long to look again before sleeping: not at all where ranks are threads, which hold each other up."""
    here = [card.process for card in cards if card.host == cards[rank].host]
    return SPIN_S if len(set(here)) == len(here) else 0.0
