"""Who is alive: heartbeats over one control connection for each peer, in a thread of their own.

Every rank beats several times within timeout_s, however busy its main thread is. A peer is lost when its connection
ends without a farewell, or when nothing has come from it for timeout_s: a frozen process answers the kernel's
keepalives but not these. Time during which this process itself stood still does not count against anybody.
"""

from __future__ import annotations

import logging
import selectors
import threading
import time
from collections.abc import Callable, Iterator, Mapping

from sparkdl.comm.transport.base import CommError, PeerAborted, PeerLost
from sparkdl.comm.transport.doorbell import Doorbell
from sparkdl.comm.transport.frames import Control, ControlFrame, ControlReader, FrameError
from sparkdl.comm.transport.stream import Stream

__all__ = ["Monitor"]

log = logging.getLogger(__name__)

BEATS = 6  # within timeout_s


class _Peer:
    """A peer's control connection and the time of its last sign of life."""

    def __init__(self, rank: int, stream: Stream) -> None:
        self.rank, self.stream, self.seen = rank, stream, time.monotonic()
        self._reader = ControlReader()
        self._buffer = memoryview(bytearray(1024))

    def frames(self) -> Iterator[ControlFrame]:
        """What has arrived; then OSError if the connection has ended, or FrameError on garbage."""
        while count := self.stream.read(self._buffer):
            self.seen = time.monotonic()
            yield from self._reader.feed(bytes(self._buffer[:count]))

    def say(self, data: memoryview) -> None:
        """Send a frame whole, or not at all where the peer takes nothing more."""
        if 0 < self.stream.write(data) < len(data):
            raise ConnectionError("the control connection took half a frame")


class Monitor:
    """Beats and listens until `leave` or the first failure, which it passes on to all peers at once.

    `failure` is that first failure, `left` holds the peers that said good-bye. on_change is called, in the monitor's
    thread, after either has changed.
    """

    def __init__(
        self, rank: int, streams: Mapping[int, Stream], timeout_s: float, on_change: Callable[[], None]
    ) -> None:
        self.failure: CommError | None = None
        self.left: set[int] = set()
        self._rank, self._timeout_s, self._on_change = rank, timeout_s, on_change
        self._peers = {peer: _Peer(peer, stream) for peer, stream in streams.items()}
        self._farewell: ControlFrame | None = None
        self._stop = Doorbell()
        self._changed = threading.Event()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._stop, selectors.EVENT_READ)
        for peer in self._peers.values():
            self._selector.register(peer.stream, selectors.EVENT_READ, peer)
        self._thread = threading.Thread(target=self._run, name=f"sparkdl-monitor-{rank}", daemon=True)
        self._thread.start()

    def verdict(self, peer: int, patience_s: float) -> CommError | None:
        """Why the peer's data ended: waits a moment for its reason, which may travel behind the end of the data."""
        deadline = time.monotonic() + patience_s
        while self.failure is None and peer not in self.left and (rest := deadline - time.monotonic()) > 0:
            self._changed.wait(rest)
            self._changed.clear()
        return self.failure

    def fail(self, error: CommError, reason: str) -> None:
        """From any thread: this rank has failed, and the peers hear of it."""
        self._fail(error, ControlFrame(Control.ABORT, self._rank, reason))
        self._stop.ring()

    def leave(self, farewell: ControlFrame) -> None:
        """Say farewell to all peers, unless a failure has said it, close the connections and end the thread."""
        if self._farewell is None:
            self._farewell = farewell
        self._stop.ring()
        self._thread.join()
        self._selector.close()
        self._stop.close()

    def _run(self) -> None:
        try:
            self._watch()
        except Exception as error:  # the thread must not end without a word: all would wait for its beat
            log.exception("the monitor of rank %d failed", self._rank)
            self._fail(
                CommError(f"the monitor failed: {error}", rank=self._rank),
                ControlFrame(Control.ABORT, self._rank, str(error)),
            )
        finally:
            for peer in self._peers.values():
                peer.stream.close()

    def _watch(self) -> None:
        interval = self._timeout_s / BEATS
        beat = before = time.monotonic()
        while self._farewell is None:
            alarm = min([beat, *(peer.seen + self._timeout_s for peer in self._peers.values())])
            ready = self._selector.select(max(0.0, alarm - time.monotonic()))
            now = time.monotonic()
            self._forgive(now - before - 2 * interval)
            before = now
            for key, _ in ready:
                if key.data is not None:
                    self._listen(key.data)
            if now >= beat:
                beat = now + interval
                self._say(ControlFrame(Control.HEARTBEAT))
            self._find_silent(now)
        self._say(self._farewell)

    def _forgive(self, gap: float) -> None:
        if gap > 0:
            log.warning("rank %d stood still for %.1f s", self._rank, gap)
            for peer in self._peers.values():
                peer.seen += gap

    def _listen(self, peer: _Peer) -> None:
        try:
            for frame in peer.frames():
                if frame.kind is Control.BYE:
                    self._selector.unregister(peer.stream)
                    self._peers.pop(peer.rank).stream.close()
                    self.left.add(peer.rank)
                    self._notify()
                    return
                if frame.kind is Control.ABORT:
                    told = "" if frame.culprit == peer.rank else f" (told by rank {peer.rank})"
                    reason = f"rank {frame.culprit} failed: {frame.text}{told}"
                    self._fail(PeerAborted(reason, rank=self._rank, peer=peer.rank, culprit=frame.culprit), frame)
                    return
        except (OSError, FrameError) as error:
            self._lose(peer, str(error))

    def _find_silent(self, now: float) -> None:
        for peer in list(self._peers.values()):
            if now >= peer.seen + self._timeout_s:
                self._lose(peer, f"no sign of life for {now - peer.seen:.1f} s")

    def _say(self, frame: ControlFrame) -> None:
        data = memoryview(frame.pack())
        for peer in list(self._peers.values()):
            try:
                peer.say(data)
            except OSError as error:
                self._listen(peer)  # a farewell may stand before the end
                if peer.rank in self._peers:
                    self._lose(peer, str(error))

    def _lose(self, peer: _Peer, why: str) -> None:
        error = PeerLost(f"lost rank {peer.rank}: {why}", rank=self._rank, peer=peer.rank)
        self._fail(error, ControlFrame(Control.ABORT, peer.rank, why))

    def _fail(self, error: CommError, farewell: ControlFrame) -> None:
        if self.failure is None and self._farewell is None:
            self.failure, self._farewell = error, farewell
            self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._on_change()
