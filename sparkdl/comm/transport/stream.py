"""Non-blocking byte streams over a socket, plain or TLS."""

from __future__ import annotations

import os
import select
import selectors
import socket
import ssl
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress

__all__ = ["PlainStream", "Stream", "TlsStream", "stream_over"]

KEEPALIVE_S = 60  # data may rest for hours; firewalls forget a connection that shows nothing for some minutes

Tls = Callable[[bool], ssl.SSLContext]  # makes the context of a connection, given server_side


class Stream(ABC):
    """Reads and writes return the number of bytes moved, 0 where they would block, and raise OSError at the end."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def fileno(self) -> int:
        return self._sock.fileno()

    def close(self) -> None:
        self._sock.close()

    def shut(self) -> None:
        """End both directions; whoever waits for the socket wakes up. It stays open until `close`."""
        with suppress(OSError):  # it may have ended already
            self._sock.shutdown(socket.SHUT_RDWR)

    def limit_within_host(self, nbytes: int) -> None:
        """Let at most about nbytes be under way to a peer at this rank's own address."""
        with suppress(OSError):  # a peer that is gone already shows at the first message
            if self._sock.getsockname()[0] == self._sock.getpeername()[0]:
                self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, nbytes)

    @property
    def readable(self) -> bool:
        """Whether the next read has something to give, be it the end."""
        poller = select.poll()
        poller.register(self._sock, select.POLLIN)
        return bool(poller.poll(0))

    @abstractmethod
    def secure(self) -> int:
        """Get ready for bytes; the selector events to wait for before the next call, 0 when ready."""

    @abstractmethod
    def read(self, *views: memoryview) -> int:
        """Fill the views in turn, as far as bytes are there."""

    @abstractmethod
    def write(self, *views: memoryview) -> int:
        """Send the views in turn, as far as there is room."""

    def _check_connected(self) -> None:
        """Raise the error of a connection attempt that has failed."""
        if code := self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            raise OSError(code, os.strerror(code))


class PlainStream(Stream):
    """Header and payload cross in one system call each way."""

    def secure(self) -> int:
        self._check_connected()
        return 0

    def read(self, *views: memoryview) -> int:
        try:
            count = self._sock.recvmsg_into(views)[0] if len(views) > 1 else self._sock.recv_into(views[0])
        except BlockingIOError:
            return 0
        if not count:
            raise ConnectionResetError("connection closed by the peer")
        return count

    def write(self, *views: memoryview) -> int:
        try:
            return self._sock.sendmsg(views)
        except BlockingIOError:
            return 0


class TlsStream(Stream):
    """The same under TLS, which has no scatter and gather; a read returns 0 only when the TLS layer is drained too.

    context(server_side) makes the context; server_name is None on the side that listens.
    """

    def __init__(self, sock: socket.socket, context: Callable[[bool], ssl.SSLContext], server_name: str | None) -> None:
        super().__init__(sock)
        self._context, self._server_name = context, server_name
        self._tls: ssl.SSLSocket | None = None

    @property
    def readable(self) -> bool:
        return (self._tls is not None and self._tls.pending() > 0) or super().readable

    def secure(self) -> int:
        if self._tls is None:
            self._check_connected()
            server_side = self._server_name is None
            self._sock = self._tls = self._context(server_side).wrap_socket(
                self._sock, server_side=server_side, do_handshake_on_connect=False, server_hostname=self._server_name
            )
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return selectors.EVENT_READ
        except ssl.SSLWantWriteError:
            return selectors.EVENT_WRITE
        return 0

    def read(self, *views: memoryview) -> int:
        try:
            count = self._sock.recv_into(next(view for view in views if view))
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return 0
        if not count:
            raise ConnectionResetError("connection closed by the peer")
        return count

    def write(self, *views: memoryview) -> int:
        total = 0
        for view in filter(len, views):  # all of them: a short message leaves whole, whatever the sender does next
            try:
                count = self._sock.send(view)
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                break
            total += count
            if count < len(view):
                break
        return total


def stream_over(sock: socket.socket, tls: Tls | None, server_name: str | None) -> Stream:
    """A stream over a new socket, made non-blocking; server_name is None on the side that listens."""
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_S)
    return PlainStream(sock) if tls is None else TlsStream(sock, tls, server_name)
