"""Faults of real processes and strangers on the port: noticed in time, reported by name, harmless where they can be."""

from __future__ import annotations

import logging
import os
import signal
import socket
import struct
import subprocess
import threading
import time

import numpy as np
import pytest

from sparkdl.comm import (
    CommError,
    MessageMismatch,
    PeerAborted,
    PeerLost,
    RendezvousError,
    Transport,
    TransportOptions,
    shared_allreduce,
)
from sparkdl.comm.transport.addresses import listen
from sparkdl.comm.transport.auth import Edge, Identity, answer, dial
from sparkdl.comm.transport.doorbell import Doorbell
from sparkdl.comm.transport.meeting import MAX_COMPLAINTS, Meeting
from tests.ranks import SECRET, Processes, lasting_files, shared_files

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="POSIX signals")


# What the processes do. They are imported there, hence at the top level.


def circulate(t: Transport, say, count: int, rounds: int, pause_s: float) -> int:
    """Pass count numbers around the ring, again and again; says "ready" after the first round."""
    mine, out = np.full(count, t.rank, np.float32), np.empty(count, np.float32)
    for i in range(rounds):
        pending = t.isend((t.rank + 1) % t.size, i, mine)
        t.recv((t.rank - 1) % t.size, i, out)
        pending.wait()
        if i == 0:
            say("ready")
        time.sleep(pause_s)
    assert (out == (t.rank - 1) % t.size).all()
    return rounds


def share(t: Transport, say, count: int, rounds: int, pause_s: float) -> int:
    """Add up count numbers in shared memory, again and again; says "ready" after the first time."""
    for i in range(rounds):
        vec = np.full(count, t.rank, np.float32)
        shared_allreduce(t, vec)
        assert (vec == t.size * (t.size - 1) / 2).all()
        if i == 0:
            say("ready")
        time.sleep(pause_s)
    return rounds


def compute_long(t: Transport, say, seconds: float) -> float:
    """Rank 1 computes without a word; the others wait for it."""
    out = np.zeros(1)
    if t.rank == 1:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            out[0] += 1
        for peer in range(t.size):
            if peer != 1:
                t.isend(peer, 0, np.ones(1)).wait()
        return 1.0
    t.recv(1, 0, out)
    return float(out[0])


def misbehave(t: Transport, say, how: str) -> str:
    """Rank 1 spoils its connection with rank 0, which waits."""
    say("ready")
    if t.rank == 0:
        t.recv(1, 0, np.zeros(4))
    stream = t._channels[0]._writers[0].stream if how != "control" else t._monitor._peers[0].stream
    if how == "reset":
        stream._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        stream.close()
    else:
        stream._sock.send(b"\xff" * 64)
    time.sleep(3)
    return "left alone"


@pytest.mark.parametrize("kind", ["tcp", "shm"])
class TestProcesses:
    @pytest.mark.parametrize("count", [10, 4 << 20], ids=["short", "long"])
    def test_the_death_of_one_is_reported_by_all_at_once(self, kind, count):
        files = shared_files()
        with Processes(3, circulate, count, 1_000_000, 0.0, kind=kind) as ranks:
            for rank in range(3):
                assert ranks.heard(rank) == "ready"
            start = time.monotonic()
            ranks.signal(1, signal.SIGKILL)
            errors = [ranks.heard(rank, 3) for rank in (0, 2)]
            assert time.monotonic() - start < 2
        for rank, error in zip((0, 2), errors, strict=True):
            assert isinstance(error, PeerLost | PeerAborted)
            assert (error.rank, error.culprit) == (rank, 1)
            assert f"rank {rank}, " in str(error)
            assert "rank 1" in error.reason
        assert not lasting_files(files)

    def test_a_frozen_rank_is_lost_after_the_timeout(self, kind):
        with Processes(3, circulate, 1000, 1_000_000, 0.0, kind=kind, timeout_s=1.2) as ranks:
            for rank in range(3):
                assert ranks.heard(rank) == "ready"
            start = time.monotonic()
            ranks.signal(2, signal.SIGSTOP)
            errors = [ranks.heard(rank, 4) for rank in (0, 1)]
            assert 0.9 < time.monotonic() - start < 3
            for error in errors:
                assert error.culprit == 2
                assert "no sign of life" in error.reason
            ranks.signal(2, signal.SIGCONT)  # it finds that the others have left without it
            assert isinstance(ranks.heard(2), CommError)

    def test_a_short_stop_is_no_fault(self, kind):
        with Processes(2, circulate, 1000, 12, 0.05, kind=kind, timeout_s=1.5) as ranks:
            for rank in range(2):
                assert ranks.heard(rank) == "ready"
            for rank in range(2):  # one after the other, and once both together
                ranks.signal(rank, signal.SIGSTOP)
                time.sleep(0.3)
            for rank in range(2):
                ranks.signal(rank, signal.SIGCONT)
            assert [ranks.heard(rank) for rank in range(2)] == [12, 12]

    def test_a_rank_that_stood_still_itself_blames_nobody(self, kind):
        with Processes(2, circulate, 1000, 12, 0.03, kind=kind, timeout_s=0.6) as ranks:
            for rank in range(2):
                assert ranks.heard(rank) == "ready"
            for what in (signal.SIGSTOP, signal.SIGCONT):  # all for longer than the timeout, as a paused machine
                for rank in range(2):
                    ranks.signal(rank, what)
                time.sleep(0.8)
            assert [ranks.heard(rank) for rank in range(2)] == [12, 12]

    def test_a_rank_that_computes_for_longer_than_the_timeout_is_alive(self, kind):
        with Processes(3, compute_long, 1.6, kind=kind, timeout_s=0.8, operation_timeout_s=10.0) as ranks:
            assert [ranks.heard(rank) for rank in range(3)] == [1.0, 1.0, 1.0]


class TestSharing:
    @pytest.mark.parametrize("count", [10, 4 << 20], ids=["short", "long"])
    def test_the_death_of_one_is_reported_by_all_at_once(self, count):
        files = shared_files()
        with Processes(3, share, count, 1_000_000, 0.0, kind="shm") as ranks:
            for rank in range(3):
                assert ranks.heard(rank) == "ready"
            start = time.monotonic()
            ranks.signal(1, signal.SIGKILL)
            errors = [ranks.heard(rank, 3) for rank in (0, 2)]
            assert time.monotonic() - start < 2
        for rank, error in zip((0, 2), errors, strict=True):
            assert isinstance(error, PeerLost | PeerAborted)
            assert (error.rank, error.culprit) == (rank, 1)
        assert not lasting_files(files)

    @pytest.mark.parametrize("count", [10, 4 << 20], ids=["short", "long"])
    def test_a_frozen_rank_is_lost_after_the_timeout(self, count):
        with Processes(3, share, count, 1_000_000, 0.0, kind="shm", timeout_s=1.2) as ranks:
            for rank in range(3):
                assert ranks.heard(rank) == "ready"
            start = time.monotonic()
            ranks.signal(2, signal.SIGSTOP)
            errors = [ranks.heard(rank, 4) for rank in (0, 1)]
            assert 0.9 < time.monotonic() - start < 3
            assert [error.culprit for error in errors] == [2, 2]
            assert all("no sign of life" in error.reason for error in errors)
            ranks.signal(2, signal.SIGCONT)
            assert isinstance(ranks.heard(2), CommError)

    def test_a_short_stop_is_no_fault(self):
        with Processes(2, share, 100_000, 12, 0.05, kind="shm", timeout_s=1.5) as ranks:
            for rank in range(2):
                assert ranks.heard(rank) == "ready"
            for what in (signal.SIGSTOP, signal.SIGCONT):
                ranks.signal(1, what)
                time.sleep(0.3)
            assert [ranks.heard(rank) for rank in range(2)] == [12, 12]


class TestConnections:
    @pytest.mark.parametrize(
        ("how", "kind_of_error", "match"),
        [
            ("reset", PeerLost, "lost rank 1: .*[Rr]eset"),
            ("garbage", MessageMismatch, "rank 1 sent no message header of version 1: ffff"),
            ("control", PeerLost, "lost rank 1: no control frame"),
        ],
    )
    def test_a_spoiled_connection_is_an_error_with_a_name(self, how, kind_of_error, match):
        with Processes(2, misbehave, how) as ranks:
            for rank in range(2):
                assert ranks.heard(rank) == "ready"
            error = ranks.heard(0, 3)
        assert isinstance(error, kind_of_error)
        assert error.culprit == 1
        with pytest.raises(CommError, match=match):
            raise error


def told(t: Transport, say, *args) -> tuple[str, ...]:
    """The hosts of the ranks, after a round between all of them."""
    circulate(t, say, 1000, 2, 0.0)
    return t.hosts


@pytest.fixture
def two_hosts():
    """Two network namespaces with an address each and a link between them; what they are called."""
    names = [f"sparkdl-{os.getpid()}-{i}" for i in (0, 1)]
    script = [f"netns add {name}" for name in names]
    script += [f"-n {names[0]} link add wire type veth peer name wire netns {names[1]}"]
    for i, name in enumerate(names):
        script += [f"-n {name} addr add 10.77.0.{i + 1}/24 dev wire", f"-n {name} link set wire up"]
        script += [f"-n {name} link set lo up"]
    try:
        for line in script:
            ip(line)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no network namespaces here: {error}")
    yield names
    for name in names:
        ip(f"netns del {name}")


def ip(line: str) -> None:
    subprocess.run(["ip", *line.split()], check=True, capture_output=True)


class TestHosts:
    def test_memory_within_a_host_and_tcp_between_hosts(self, two_hosts):
        here, there = two_hosts
        with Processes(3, told, kind="shm", networks=[here, here, there], interface=None) as ranks:
            for rank in range(3):
                assert ranks.heard(rank) == "ready"
            first, second, third = ranks.heard(0)
            assert first == second != third
            assert ranks.heard(1) == ranks.heard(2) == (first, second, third)

    def test_a_cut_link_is_noticed_on_both_sides_within_the_timeout(self, two_hosts):
        here, there = two_hosts
        with Processes(
            3, circulate, 1000, 1_000_000, 0.0, kind="shm", networks=[here, here, there], interface=None, timeout_s=1.2
        ) as ranks:
            for rank in range(3):
                assert ranks.heard(rank) == "ready"
            start = time.monotonic()
            ip(f"-n {here} link set wire down")
            errors = [ranks.heard(rank, 4) for rank in range(3)]
            assert 0.9 < time.monotonic() - start < 3
        assert [error.culprit for error in errors[:2]] == [2, 2]
        assert errors[2].culprit in (0, 1)
        assert "no sign of life for 1.2 s" in errors[2].reason


class Host:
    """Rank 0 of three at its meeting, in a thread, for strangers to find; ranks 1 and 2 come when they are told to."""

    def __init__(self) -> None:
        self.options = TransportOptions(interface="lo", shared_memory=False, connect_timeout_s=10, timeout_s=5)
        self.listener = listen(self.options)
        self.address = self.listener.getsockname()
        nowhere = ("127.0.0.1", 9)  # never dialed: the higher rank dials
        self.doorbell = Doorbell()
        self.meeting = Meeting(identity(0), self.listener, {1: nowhere, 2: nowhere}, (), self.doorbell, self.options)
        self.thread = threading.Thread(target=self.meeting.run)
        self.thread.start()

    def admit(self, rank: int) -> None:
        """Bring a real rank in, and wait until it is."""
        with listen(self.options) as listener:
            meeting = Meeting(identity(rank), listener, {0: self.address}, (), self.doorbell, self.options)
            meeting.run()
            meeting.close()
        while {Edge(rank, 0), Edge(rank, 1)} - self.meeting.streams.keys():
            time.sleep(0.01)

    def finish(self) -> set[Edge]:
        self.thread.join(10)
        met = set(self.meeting.streams)
        self.meeting.close()
        self.listener.close()
        self.doorbell.close()
        return met


def identity(rank: int, **changed) -> Identity:
    values = {"size": 3, "job_id": "job", "attempt": 1, "secret": SECRET, **changed}
    return Identity.of(rank, **values)


def say_hello(sock: socket.socket, who: Identity, stream: int = 0) -> None:
    """Go through the dialer's part, until the end or until it is cut off."""
    conversation = dial(who, Edge(0, stream))
    frame, wanted = next(conversation)
    while True:
        sock.sendall(frame)
        data = sock.recv(wanted, socket.MSG_WAITALL)
        if len(data) < wanted:
            raise ConnectionResetError
        frame, wanted = conversation.send(data)


def replay(sock: socket.socket) -> None:
    """Say again what rank 1 has said to another listener."""
    dialer, listener = dial(identity(1), Edge(0, 0)), answer(identity(0), lambda edge: None)
    hello, _ = next(dialer)
    next(listener)
    nonce, _ = listener.send(hello)
    proof, _ = dialer.send(nonce)
    sock.sendall(hello)
    assert len(sock.recv(32, socket.MSG_WAITALL)) == 32
    sock.sendall(proof)


STRANGERS = {
    "garbage": (lambda sock: sock.sendall(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n".ljust(200)), "no greeting"),
    "oversized frame": (lambda sock: sock.sendall(b"SDLh" + b"\xff" * (1 << 20)), "no greeting"),
    "wrong secret": (lambda sock: say_hello(sock, identity(1, secret=SECRET[::-1])), "wrong secret"),
    "stale attempt": (lambda sock: say_hello(sock, identity(1, attempt=0)), "attempt 0 of this job"),
    "another job": (lambda sock: say_hello(sock, identity(1, job_id="other")), "another job"),
    "replayed hello": (replay, "wrong secret"),
    "unknown stream": (lambda sock: say_hello(sock, identity(1), 7), "stream 7, is not expected"),
    "hangs up": (lambda sock: sock.shutdown(socket.SHUT_WR), "connection closed by the peer"),
}


class TestStrangers:
    @pytest.mark.parametrize("name", STRANGERS)
    def test_a_stranger_is_turned_away_and_the_ranks_still_meet(self, name, caplog):
        approach, reason = STRANGERS[name]
        host = Host()
        with caplog.at_level(logging.WARNING, "sparkdl.comm"), socket.create_connection(host.address) as sock:
            sock.settimeout(3)
            try:
                approach(sock)
                assert sock.recv(1000) == b""
            except (ConnectionResetError, BrokenPipeError):
                pass
            host.admit(1)
            host.admit(2)
            assert host.finish() == {Edge(1, 0), Edge(1, 1), Edge(2, 0), Edge(2, 1)}
        assert f"rank 0 refused a connection from 127.0.0.1 port {sock_port(caplog)}" in caplog.text
        assert reason in caplog.text
        assert SECRET.decode() not in caplog.text

    def test_a_second_rank_1_is_turned_away(self, caplog):
        host = Host()
        host.admit(1)
        with caplog.at_level(logging.WARNING, "sparkdl.comm"), socket.create_connection(host.address) as sock:
            with pytest.raises(ConnectionResetError):
                say_hello(sock, identity(1))
            host.admit(2)
            assert len(host.finish()) == 4
        assert "rank 1, stream 0, again: it is connected already" in caplog.text

    def test_those_that_say_nothing_or_little_hold_nobody_up(self):
        host = Host()
        silent = [socket.create_connection(host.address) for _ in range(300)]
        for sock in silent[:50]:
            sock.send(b"S")
        start = time.monotonic()
        host.admit(1)
        host.admit(2)
        assert time.monotonic() - start < 2
        assert len(host.finish()) == 4
        for sock in silent:
            sock.close()

    def test_many_refusals_do_not_flood_the_log(self, caplog):
        host = Host()
        with caplog.at_level(logging.WARNING, "sparkdl.comm"):
            for _ in range(3 * MAX_COMPLAINTS):
                with socket.create_connection(host.address) as sock:
                    sock.sendall(bytes(200))
            host.admit(1)
            host.admit(2)
            host.finish()
        lines = [record.getMessage() for record in caplog.records]
        assert len(lines) == MAX_COMPLAINTS + 1
        assert lines[-1] == f"rank 0 refused {3 * MAX_COMPLAINTS} connections in all"


def sock_port(caplog) -> str:
    return caplog.text.split(" port ")[1].split(":")[0]


class TestMeeting:
    def test_a_rank_that_never_calls_is_named_within_the_deadline(self):
        options = TransportOptions(interface="lo", shared_memory=False, connect_timeout_s=0.5)
        doorbell = Doorbell()
        with listen(options) as listener:
            start = time.monotonic()
            with pytest.raises(RendezvousError, match=r"ranks \[2\] within 0 s \(rank 2 has not called\)") as caught:
                Meeting(identity(0), listener, {2: ("127.0.0.1", 9)}, (), doorbell, options).run()
            assert 0.5 <= time.monotonic() - start < 1.5
        assert caught.value.culprit == 2
        doorbell.close()

    def test_a_rank_that_does_not_answer_is_named_with_its_address_and_the_cause(self):
        options = TransportOptions(interface="lo", shared_memory=False, connect_timeout_s=0.5)
        doorbell = Doorbell()
        with listen(options) as listener, listen(options) as closed:
            address = closed.getsockname()
            closed.close()
            with pytest.raises(RendezvousError, match=f"rank 0 at 127.0.0.1 port {address[1]}: .*Connection refused"):
                Meeting(identity(1), listener, {0: address}, (), doorbell, options).run()
        doorbell.close()

    def test_a_rank_may_come_late(self):
        host = Host()
        time.sleep(0.5)
        host.admit(1)
        host.admit(2)
        assert len(host.finish()) == 4
