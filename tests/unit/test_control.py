"""The line between driver and workers over real sockets: what arrives, who is turned away, who falls silent."""

from __future__ import annotations

import json
import logging
import os
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import Any

import numpy as np
import pytest

from sparkdl import control
from sparkdl.comm import PeerAborted, TransportOptions
from sparkdl.comm.transport.auth import Edge, Identity, dial
from sparkdl.comm.transport.stream import stream_over
from sparkdl.control import GONE, Coordinator, Link, coordinator, messages
from sparkdl.control.messages import converse
from sparkdl.errors import TrainingError
from tests.ranks import SECRET, _tls_context, on_ranks

SIZE = 3
MAX_BYTES = 1 << 20
HEAD = struct.Struct("<4sIQ")  # magic, bytes of text, bytes of arrays


def identity(rank: int, **changes: Any) -> Identity:
    given = {"size": SIZE + 1, "job_id": "job", "attempt": 2, "secret": SECRET} | changes
    return Identity.of(rank, **given)


def options(timeout_s: float = 5.0, **settings: Any) -> TransportOptions:
    return TransportOptions(timeout_s=timeout_s, interface="lo", **settings)


def links(driver: Coordinator, count: int = SIZE, timeout_s: float = 5.0, tls: Any = None) -> list[Link]:
    return on_ranks(count, lambda rank: Link.to(("127.0.0.1", driver.port), identity(rank), timeout_s, 5.0, tls))


def heard(driver: Coordinator, timeout_s: float = 5.0) -> coordinator.Report:
    report = driver.next(timeout_s)
    assert report is not None, f"nothing arrived within {timeout_s} s"
    return report


def in_thread(fn: Callable[[], Any]) -> Callable[[], Any]:
    """Start fn; the result joins it and returns what it returned or raised."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(fn())
        except Exception as e:
            found.append(e)

    thread = threading.Thread(target=run)
    thread.start()

    def result() -> Any:
        thread.join(10)
        assert found, "the thread does not end"
        return found[0]

    return result


def resources() -> tuple[int, int]:
    return threading.active_count(), len(os.listdir("/proc/self/fd"))


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    before = resources()
    yield
    deadline = time.monotonic() + 2
    while resources() != before and time.monotonic() < deadline:
        time.sleep(0.01)  # threads of turned away strangers end on their own
    assert resources() == before


@pytest.fixture
def driver() -> Iterator[Coordinator]:
    with Coordinator(identity(SIZE), options(), MAX_BYTES) as found:
        yield found


class TestMessages:
    @pytest.mark.parametrize("tls", [None, _tls_context], ids=["plain", "tls"])
    def test_arrays_of_all_kinds_arrive_as_they_were(self, tls: Any) -> None:
        arrays = {name: np.arange(6).astype(name).reshape(2, 3) for name in sorted(messages._DTYPES)}
        arrays |= {
            "not finite": np.array([np.nan, np.inf, -np.inf, -0.0]),
            "empty": np.zeros((0, 4), np.float32),
            "scalar": np.array(2.5),
            "every other": np.arange(10.0)[::2],
            "transposed": np.arange(6.0).reshape(2, 3).T,
            "large": np.arange(1 << 16, dtype=np.float64),
        }
        data = {"text": "ä\n", "nan": float("nan"), "inf": float("-inf"), "none": None, "nested": {"list": [1, 2.5]}}
        with Coordinator(identity(SIZE), options(tls=tls), MAX_BYTES) as driver, links(driver, 1, tls=tls)[0] as link:
            link.send("state", data, arrays)
            rank, message = heard(driver)
        assert (rank, message.kind) == (0, "state")
        assert np.isnan(message.data["nan"])
        assert {**message.data, "nan": 0} == {**data, "nan": 0}
        assert list(message.arrays) == list(arrays)
        for name, sent in arrays.items():
            got = message.arrays[name]
            assert (got.dtype, got.shape, got.tobytes()) == (sent.dtype, sent.shape, sent.tobytes()), name
            assert got.flags.writeable

    def test_reports_of_a_rank_keep_their_order_and_answers_reach_it_alone(self, driver: Coordinator) -> None:
        with ExitStack() as stack:
            first, second = (stack.enter_context(link) for link in links(driver, 2))
            for i in range(50):
                second.send("steps", {"i": i})
            assert [heard(driver).message.data["i"] for _ in range(50)] == list(range(50))
            assert driver.send(1, "go", {"stop": "enough"})
            assert second.receive() == ("go", {"stop": "enough"}, {})
            assert first.poll() is None
            assert not driver.send(2, "go")

    def test_what_is_there_is_polled_without_waiting(self, driver: Coordinator) -> None:
        (link,) = links(driver, 1)
        with link:
            started = time.monotonic()
            assert link.poll() is None
            assert time.monotonic() - started < 0.1
            driver.send(0, "stop", {"stop": "so"})
            deadline = time.monotonic() + 5
            while (message := link.poll()) is None and time.monotonic() < deadline:
                time.sleep(0.01)
            assert message is not None
            assert message.data == {"stop": "so"}

    def test_who_has_connected_can_be_answered(self, driver: Coordinator, monkeypatch: pytest.MonkeyPatch) -> None:
        """Also where the driver is late to act on the handshake's last word."""

        def slowly(*args: Any) -> Any:
            edge = converse(*args)
            time.sleep(0.3)
            return edge

        monkeypatch.setattr(coordinator, "converse", slowly)
        with links(driver, 1)[0] as link:
            assert driver.send(0, "stop", {"stop": "so"})
            assert link.receive().data == {"stop": "so"}

    @pytest.mark.parametrize("tls", [None, _tls_context], ids=["plain", "tls"])
    def test_texts_of_all_reach_all_again_and_again(self, tls: Any) -> None:
        with Coordinator(identity(SIZE), options(tls=tls), MAX_BYTES) as driver, ExitStack() as stack:
            ends = [stack.enter_context(link) for link in links(driver, tls=tls)]
            for turn in range(3):
                texts = on_ranks(SIZE, lambda rank, turn=turn: ends[rank].allgather(f"{turn} of {rank}"))
                assert texts == [[f"{turn} of {rank}" for rank in range(SIZE)]] * SIZE

    def test_a_beat_does_not_run_into_a_message(self, driver: Coordinator, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(control.link, "BEATS", 5000)  # one a millisecond
        (link,) = links(driver, 1)
        with link:
            for i in range(100):
                link.send("state", {"i": i}, {"a": np.full(3000, float(i))})
            for i in range(100):
                _, message = heard(driver)
                assert message.data["i"] == i
                assert (message.arrays["a"] == i).all()


class TestStrangers:
    """Whoever is not a rank of this attempt is refused with a line in the log, and no rank notices."""

    @pytest.fixture(autouse=True)
    def _the_others_are_unharmed(self, driver: Coordinator, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
        with ExitStack() as stack:
            ends = [stack.enter_context(link) for link in links(driver, 2)]
            with caplog.at_level(logging.WARNING):
                yield
            for rank, link in enumerate(ends):
                link.send("still here")
                assert heard(driver) == (rank, ("still here", {}, {}))
            (third,) = [Link.to(("127.0.0.1", driver.port), identity(2), 5.0, 5.0)]
            with third:
                assert on_ranks(3, lambda rank: [*ends, third][rank].allgather(str(rank))) == [["0", "1", "2"]] * 3

    def refused(self, caplog: pytest.LogCaptureFixture, why: str) -> None:
        deadline = time.monotonic() + 5
        while why not in caplog.text and time.monotonic() < deadline:
            time.sleep(0.01)
        assert why in caplog.text
        assert "the coordinator refused a connection from 127.0.0.1 port" in caplog.text

    def knock(self, driver: Coordinator) -> socket.socket:
        return socket.create_connection(("127.0.0.1", driver.port), 5)

    def test_garbage(self, driver: Coordinator, caplog: pytest.LogCaptureFixture) -> None:
        with self.knock(driver) as sock:
            sock.sendall(b"GET / HTTP/1.1\r\n".ljust(1 << 12, b"x"))
            self.refused(caplog, "no greeting of version 1, but 474554202f204854")

    def test_one_that_leaves_at_once(self, driver: Coordinator, caplog: pytest.LogCaptureFixture) -> None:
        self.knock(driver).close()
        self.refused(caplog, "connection closed by the peer")

    @pytest.mark.parametrize(
        ("changes", "why"),
        [
            ({"secret": SECRET[::-1]}, "wrong secret from one that calls itself rank 2"),
            ({"attempt": 1}, "attempt 1 of this job; this is attempt 2"),
            ({"job_id": "another"}, "another job"),
            ({"rank": 0}, "rank 0 is connected already"),
            ({"rank": 3}, "rank 3 looking for rank 3"),
        ],
        ids=["secret", "stale attempt", "job", "taken rank", "the driver's own rank"],
    )
    def test_one_of_another_group(
        self, driver: Coordinator, caplog: pytest.LogCaptureFixture, changes: dict[str, Any], why: str
    ) -> None:
        rank = changes.pop("rank", 2)
        with pytest.raises(TrainingError, match=f"rank {rank} cannot reach the driver at 127.0.0.1 port {driver.port}"):
            Link.to(("127.0.0.1", driver.port), identity(rank, **changes), 5.0, 0.1)
        self.refused(caplog, why)

    def test_a_replayed_greeting(self, driver: Coordinator, caplog: pytest.LogCaptureFixture) -> None:
        dialer = dial(identity(2), Edge(SIZE, 0))
        hello, nonce_bytes = next(dialer)
        with Coordinator(identity(SIZE), options(), MAX_BYTES) as other, self.knock(other) as sock:
            sock.sendall(hello)
            proof, _ = dialer.send(sock.recv(nonce_bytes, socket.MSG_WAITALL))
            sock.sendall(proof)
            assert sock.recv(32, socket.MSG_WAITALL)  # it was let in there
        with self.knock(driver) as sock:
            sock.sendall(hello + proof)
            self.refused(caplog, "wrong secret from one that calls itself rank 2")

    def test_a_slow_drip(
        self, driver: Coordinator, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(coordinator, "CONVERSATION_S", 0.3)
        hello, _ = next(dial(identity(2), Edge(SIZE, 0)))
        started = time.monotonic()
        with self.knock(driver) as sock:
            for byte in hello:
                try:
                    sock.sendall(bytes([byte]))
                except OSError:
                    break
                time.sleep(0.02)
            assert time.monotonic() - started < 2
            self.refused(caplog, "no answer in time")

    def test_too_many_at_once(
        self, driver: Coordinator, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(driver, "_strangers", threading.Semaphore(2))
        with ExitStack() as stack:
            for _ in range(4):
                stack.enter_context(self.knock(driver))
            self.refused(caplog, "too many connections at once")

    def test_the_log_does_not_grow_with_the_attempts(
        self, driver: Coordinator, caplog: pytest.LogCaptureFixture
    ) -> None:
        for _ in range(3 * coordinator.MAX_COMPLAINTS):
            with self.knock(driver) as sock, suppress(ConnectionResetError):
                sock.sendall(b"x" * 200)
                assert sock.recv(1) == b""
        assert caplog.text.count("refused a connection") == coordinator.MAX_COMPLAINTS


def announced(kind: Any, data: Any, arrays: Any, array_bytes: int) -> bytes:
    text = json.dumps([kind, data, arrays]).encode()
    return HEAD.pack(b"SDLc", len(text), array_bytes) + text


class TestRanksThatLie:
    """A rank that proved itself and then sends what is no message is put out; the others stay."""

    @pytest.mark.parametrize(
        ("sent", "why"),
        [
            (b"\xff" * 64, "begins with"),
            (HEAD.pack(b"SDLc", messages.MAX_TEXT_BYTES + 1, 0), "at most 67,108,864"),
            (HEAD.pack(b"SDLc", 2, MAX_BYTES + 1), r"announces 2 \+ 1,048,577 bytes"),
            (HEAD.pack(b"SDLc", 4, 0) + b"{]{]", "cannot be read"),
            (HEAD.pack(b"SDLc", 1 << 16, 0) + b"[" * (1 << 16), "cannot be read"),
            (HEAD.pack(b"SDLc", 2, 0) + b"[]", "cannot be read"),
            (announced("state", {}, [["a", "float64", [2]]], 8), "describes others"),
            (announced("state", {}, [["a", "float64", [1]]] * 2, 16), "cannot be read"),
            (announced("state", {}, [["a", "object", [1]]], 8), "no array is of type 'object'"),
            (announced("state", {}, [["a", "float64", [-1]]], 8), r"shape \[-1\]"),
            (announced("state", {}, [["a", "float64", [1.5]]], 8), r"shape \[1\.5\]"),
            (announced("state", {}, [["a", "float64", 1]], 8), "cannot be read"),
            (announced("state", {}, [["a", "uint8", [1 << 40]]], 8), "describes others"),
            (announced("state", {}, [["a", "uint8", [1 << 62, 0]]], 0), "no array is of type"),
            (announced("state", {}, [["a", "uint8", [1 << 40, 1 << 40, 0]]], 0), "no array is of type"),
            (announced("state", {}, [[str(i), "uint8", [MAX_BYTES]] for i in range(1000)], 8), "describes others"),
            (announced("state", [], [], 0), "cannot be read"),
            (announced(7, {}, [], 0), "cannot be read"),
            (announced("gather", {}, [], 0), "has no text"),
        ],
        ids=[
            "garbage",
            "long text",
            "long arrays",
            "no JSON",
            "deep JSON",
            "no message",
            "bytes that do not match",
            "one name twice",
            "objects",
            "negative shape",
            "broken shape",
            "no shape",
            "an endless array",
            "an empty array with an endless axis",
            "an empty array with endless axes",
            "many long arrays",
            "data of another kind",
            "no kind",
            "a gathering without text",
        ],
    )
    def test_what_is_no_message_ends_the_connection(self, driver: Coordinator, sent: bytes, why: str) -> None:
        (link,) = links(driver, 1)
        with link, socket.create_connection(("127.0.0.1", driver.port), 5) as sock:
            converse(stream_over(sock, None, "127.0.0.1"), dial(identity(1), Edge(SIZE, 0)), 5.0)
            sock.setblocking(True)
            sock.sendall(sent)
            rank, message = heard(driver)
            assert (rank, message.kind) == (1, GONE)
            assert re.search(why, message.data["reason"])
            link.send("still here")
            assert heard(driver).rank == 0


class TestSilence:
    def test_a_worker_that_does_not_beat_is_gone_after_the_time_out(self) -> None:
        with Coordinator(identity(SIZE), options(0.5), MAX_BYTES) as driver, ExitStack() as stack:
            stack.enter_context(links(driver, 1, timeout_s=0.5)[0])
            started = time.monotonic()
            stack.enter_context(Link.to(("127.0.0.1", driver.port), identity(1), 60.0, 5.0))  # beats every 20 s
            rank, message = heard(driver)
            assert 0.4 < time.monotonic() - started < 1.5
            assert (rank, message.kind, message.data["reason"]) == (1, GONE, "no sign of life for 0.5 s")
            assert driver.next(0.7) is None  # the other has nothing to say, but beats

    def test_a_worker_that_ends_is_gone_at_once(self, driver: Coordinator) -> None:
        (link,) = links(driver, 1)
        started = time.monotonic()
        link.close()
        link.close()
        assert heard(driver) == (0, (GONE, {"reason": "connection closed by the peer"}, {}))
        assert time.monotonic() - started < 1

    def test_a_driver_that_does_not_beat_is_lost_after_the_time_out(self) -> None:
        with Coordinator(identity(SIZE), options(60.0), MAX_BYTES) as driver, ExitStack() as stack:
            link = stack.enter_context(links(driver, 1, timeout_s=0.5)[0])
            started = time.monotonic()
            with pytest.raises(TrainingError, match=r"rank 0 has lost the driver: it has been silent for 0\.5 s"):
                link.receive()
            assert 0.4 < time.monotonic() - started < 1.5

    def test_a_busy_driver_is_waited_for(self) -> None:
        """Its main thread does not answer for several time-outs; its beat does."""
        with Coordinator(identity(SIZE), options(0.3), MAX_BYTES) as driver, links(driver, 1, timeout_s=0.3)[0] as link:
            answer = in_thread(link.receive)
            time.sleep(1.2)
            driver.send(0, "go")
            assert answer().kind == "go"

    def test_a_driver_that_ends_is_lost_at_once(self) -> None:
        driver = Coordinator(identity(SIZE), options(), MAX_BYTES)
        (link,) = links(driver, 1)
        with link:
            answer = in_thread(link.receive)
            driver.close()
            driver.close()
            error = answer()
            assert isinstance(error, TrainingError)
            assert "rank 0 has lost the driver: connection closed by the peer" in str(error)
            with pytest.raises(TrainingError, match="lost the driver"):
                for _ in range(100):
                    link.send("steps")  # the first may still find room
                    time.sleep(0.01)

    def test_nobody_listens(self) -> None:
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            port = sock.getsockname()[1]
            started = time.monotonic()
            with pytest.raises(TrainingError, match=f"cannot reach the driver at 127.0.0.1 port {port}.*driver.host"):
                Link.to(("127.0.0.1", port), identity(0), 5.0, 0.7)
            assert time.monotonic() - started < 1.5

    def test_a_driver_that_comes_late_is_found(self) -> None:
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            port = sock.getsockname()[1]
        found = in_thread(lambda: Link.to(("127.0.0.1", port), identity(0), 5.0, 5.0))
        time.sleep(0.5)
        with Coordinator(identity(SIZE), options(port_range=(port, port)), MAX_BYTES):
            found().close()


class TestAbort:
    @pytest.mark.parametrize("waits", ["an answer", "the others"])
    def test_whoever_waits_hears_who_failed(self, driver: Coordinator, waits: str) -> None:
        with ExitStack() as stack:
            ends = [stack.enter_context(link) for link in links(driver)]
            answers = [
                in_thread(link.receive if waits == "an answer" else lambda link=link: link.allgather("x"))
                for link in ends[:2]
            ]
            time.sleep(0.1)
            driver.abort(2, "rank 2 failed: it fell")
            for rank, answer in enumerate(answers):
                error = answer()
                assert isinstance(error, PeerAborted)
                assert (error.rank, error.culprit) == (rank, 2)
                assert "rank 2 failed: it fell" in str(error)
            assert ends[2].poll() is None

    def test_whoever_comes_to_wait_later_hears_it_too(self, driver: Coordinator) -> None:
        (link,) = links(driver, 1)
        with link:
            driver.abort(1, "rank 1 failed")
            with pytest.raises(PeerAborted, match="rank 1 failed"):
                link.allgather("x")

    def test_whoever_connects_later_hears_it_too(self, driver: Coordinator) -> None:
        driver.abort(1, "rank 1 failed")
        ends = links(driver, 2)
        with ends[0], ends[1]:
            error = in_thread(ends[0].receive)()
            assert isinstance(error, PeerAborted)
            assert "rank 1 failed" in str(error)
            assert ends[1].poll() is None
