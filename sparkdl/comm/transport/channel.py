"""What carries the messages of one pair of ranks; the mesh drives one such channel for each peer."""

from __future__ import annotations

import select
from abc import ABC, abstractmethod
from typing import Protocol

from sparkdl.comm.transport.base import Array, Op
from sparkdl.comm.transport.frames import FrameError, Header

__all__ = ["Channel", "ChannelClosed", "Task", "Unexpected"]


class ChannelClosed(Exception):
    """The peer's end is gone; the text says how that showed."""


class Unexpected(Exception):
    """The peer sent another message than the expected one; the text says which."""

    @classmethod
    def of(cls, header: bytes) -> Unexpected:
        """From the header that came."""
        try:
            return cls(str(Header.unpack(header)))
        except FrameError as error:
            return cls(str(error))


class Task(Protocol):
    """A send or receive under way."""

    @property
    def done(self) -> bool: ...

    def step(self) -> bool:
        """Do what can be done without waiting; whether anything moved."""


class Channel(ABC):
    """A full-duplex, ordered, non-blocking path to one peer. Raises ChannelClosed and Unexpected."""

    @abstractmethod
    def send(self, header: Header, buf: Array) -> Task:
        """Queue a message and start it."""

    @abstractmethod
    def push(self) -> bool:
        """Move the queued sends on; whether anything moved."""

    @property
    @abstractmethod
    def sending(self) -> bool:
        """Whether sends are queued."""

    @abstractmethod
    def expect(self, header: Header, out: Array, op: Op | None) -> Task:
        """Receive the next message, which must have this header, into out, or combine it with out."""

    @property
    @abstractmethod
    def news(self) -> bool:
        """Whether a message that nobody has asked for has begun to arrive, or the peer has gone."""

    @abstractmethod
    def watch(self, poller: select.poll, reading: bool) -> bool:
        """Have the poller end its wait once push can move or, if reading, a receive or `news`; False if one can now."""

    @abstractmethod
    def close(self) -> None:
        """Release what the channel holds."""
