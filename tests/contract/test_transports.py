"""What every transport does, over all of them: threads of one process stand for the ranks."""

from __future__ import annotations

import pickle
import socket
import threading
import time

import numpy as np
import pytest

from sparkdl.comm import (
    CommError,
    MessageMismatch,
    OperationTimeout,
    PeerAborted,
    PeerLost,
    RendezvousError,
    Transport,
    TransportOptions,
    connect,
)
from sparkdl.comm import rendezvous as rendezvous_module
from sparkdl.comm.transport import sharing as sharing_module
from sparkdl.comm.transport.frames import DTYPES
from sparkdl.errors import ConfigError
from tests.ranks import KINDS, SECRET, group, held, meeting_place, nothing_kept, on_ranks, options_of, run

MIB = 1 << 20


@pytest.fixture(params=KINDS, scope="class")
def kind(request):
    return request.param


@pytest.fixture(scope="class")
def pair(kind):
    """Two connected ranks, for the tests that leave them whole."""
    with group(kind, 2) as ranks:
        yield ranks


def numbers(rank: int, count: int, dtype) -> np.ndarray:
    """Distinct by rank and index, small enough for every dtype and for the sum of a few ranks."""
    return ((np.arange(count) * 7 + rank * 3) % 31).astype(dtype)


def swap(t: Transport, count: int, dtype, tag: int = 0) -> np.ndarray:
    """Exchange numbers with the other rank of two; what it sent."""
    out = np.full(count, 99).astype(dtype)
    peer = 1 - t.rank
    pending = t.isend(peer, tag, numbers(t.rank, count, dtype))
    t.recv(peer, tag, out)
    pending.wait()
    return out


class TestMessages:
    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_every_dtype_and_count_arrives(self, pair, dtype):
        counts = (0, 1, 1000, (4 if dtype == np.float32 else 1) * MIB // dtype.itemsize)
        for rank, received in enumerate(run(pair, lambda t: [swap(t, n, dtype) for n in counts])):
            for count, out in zip(counts, received, strict=True):
                np.testing.assert_array_equal(out, numbers(1 - rank, count, dtype), strict=True)

    @pytest.mark.parametrize("op", ["sum", "max"])
    @pytest.mark.parametrize("dtype", [d for d in DTYPES if d != np.bool_], ids=str)
    def test_reduces_into_out(self, pair, op, dtype):
        counts = (0, 1, 1000, 300_000 // dtype.itemsize + 5)

        def reduce(t: Transport, count: int) -> np.ndarray:
            out = numbers(t.rank, count, dtype)
            pending = t.isend(1 - t.rank, 3, numbers(t.rank, count, dtype))
            t.recv_reduce(1 - t.rank, 3, out, op)
            pending.wait()
            return out

        for received in run(pair, lambda t: [reduce(t, n) for n in counts]):
            for count, out in zip(counts, received, strict=True):
                wide = [numbers(rank, count, np.float64) for rank in (0, 1)]
                expected = np.sum(wide, axis=0) if op == "sum" else np.max(wide, axis=0)
                np.testing.assert_array_equal(out, expected.astype(dtype), strict=True)

    def test_float16_is_added_in_float32_and_rounded_once(self, pair):
        rng = np.random.default_rng(0)
        mine, other = rng.normal(size=(2, 5000)).astype(np.float16)
        expected = (mine.astype(np.float32) + other.astype(np.float32)).astype(np.float16)
        out = mine.copy()
        run(pair, lambda t: t.isend(1, 0, other).wait() if t.rank == 0 else t.recv_reduce(0, 0, out, "sum"))
        np.testing.assert_array_equal(out, expected)

    def test_maximum_keeps_nan(self, pair):
        out = np.array([np.nan, 1, 5], np.float32)
        sent = np.array([2, np.nan, 3], np.float32)
        run(pair, lambda t: t.isend(1, 0, sent).wait() if t.rank == 0 else t.recv_reduce(0, 0, out, "max"))
        np.testing.assert_array_equal(out, [np.nan, np.nan, 5])

    def test_infinities_meet_without_a_warning(self, pair):
        out = np.array([np.inf, 6e4], np.float16)
        sent = np.array([-np.inf, 6e4], np.float16)
        run(pair, lambda t: t.isend(1, 0, sent).wait() if t.rank == 0 else t.recv_reduce(0, 0, out, "sum"))
        np.testing.assert_array_equal(out, [np.nan, np.inf])

    def test_two_ranks_that_both_send_first_do_not_deadlock(self, pair):
        count = 16 * MIB // 4
        for rank, out in enumerate(run(pair, lambda t: swap(t, count, np.float32))):
            np.testing.assert_array_equal(out, numbers(1 - rank, count, np.float32))

    def test_whoever_sends_first_is_found_first(self, kind):
        """A rank that serves others waits for all of them at once."""
        order = [2, 1, 2, 2, 1]

        def ask(t: Transport) -> list[int]:
            answers = []
            for turn, rank in enumerate(order):
                if rank == t.rank:
                    t.isend(0, 0, np.array([turn])).wait()
                t.recv(0, 0, out := np.empty(1, np.int64))
                answers.append(int(out[0]))
            return answers

        def serve(t: Transport) -> list[int]:
            found, pending = [], []
            assert t.wait_any([2, 1], 0.0) in (None, 2)
            for turn in range(len(order)):
                peer = t.wait_any([1, 2])
                assert peer == t.wait_any([2, 1], 0.0)  # it stays until it is read
                t.recv(peer, 0, out := np.empty(1, np.int64))
                assert out[0] == turn
                found.append(peer)
                pending += [t.isend(other, 0, np.array([turn * 10])) for other in (1, 2)]
            for each in pending:
                each.wait()
            return found

        with group(kind, 3) as ranks:
            served, *answered = run(ranks, lambda t: ask(t) if t.rank else serve(t))
        assert served == order
        assert answered == [[0, 10, 20, 30, 40]] * 2

    def test_a_long_message_goes_out_while_others_are_awaited(self, kind):
        long = np.arange(16 * MIB // 4, dtype=np.float32)

        def serve(t: Transport) -> None:
            pending = t.isend(1, 0, long)
            assert t.wait_any([2]) == 2  # which sends only once rank 1 has everything
            pending.wait()
            t.recv(2, 0, np.empty(1))

        def first(t: Transport) -> np.ndarray:
            t.recv(0, 0, out := np.empty_like(long))
            t.isend(2, 0, np.zeros(1)).wait()
            return out

        def second(t: Transport) -> None:
            t.recv(1, 0, np.empty(1))
            t.isend(0, 0, np.zeros(1)).wait()

        with group(kind, 3) as ranks:
            out = run(ranks, lambda t: (serve, first, second)[t.rank](t))[1]
        np.testing.assert_array_equal(out, long)

    def test_waiting_for_anybody_ends_when_one_fails(self, kind):
        """There and then, or in the receive that follows: a closed channel may show before the reason does."""

        def serve(t: Transport) -> None:
            t.recv(t.wait_any([1, 2]), 0, np.empty(1))

        def fail(t: Transport) -> None:
            t.abort("it must not be")

        with group(kind, 3) as ranks, pytest.raises(PeerAborted, match="it must not be"):
            run(ranks, lambda t: (serve, fail, lambda t: None)[t.rank](t))

    def test_a_short_message_leaves_at_once(self, pair):
        """Also when its sender goes on with other work."""
        arrived = threading.Event()

        def send(t: Transport) -> bool:
            pending = t.isend(1, 0, np.arange(100))
            came = arrived.wait(10)
            pending.wait()
            return came

        def receive(t: Transport) -> None:
            t.recv(0, 0, np.empty(100, np.int64))
            arrived.set()

        assert run(pair, lambda t: receive(t) if t.rank else send(t))[0]

    def test_messages_arrive_in_order_whatever_their_length(self, pair):
        lengths = [(i * 7919) % 3000 if i % 10 else 100_000 + i for i in range(150)]

        def send(t: Transport) -> None:
            pending = [t.isend(1, i % 3, np.full(n, i, np.int32)) for i, n in enumerate(lengths)]
            for each in reversed(pending):
                each.wait()

        def receive(t: Transport) -> list[np.ndarray]:
            outs = [np.empty(n, np.int32) for n in lengths]
            for i, out in enumerate(outs):
                t.recv(0, i % 3, out)
            return outs

        _, outs = run(pair, lambda t: send(t) if t.rank == 0 else receive(t))
        for i, out in enumerate(outs):
            assert (out == i).all()

    @pytest.mark.parametrize("count", [4032, 4033, 100_001])
    def test_a_ring_smaller_than_a_message_turns_round(self, count):
        with group("shm", 2, ring_bytes=4096) as ranks:
            for rank, outs in enumerate(run(ranks, lambda t: [swap(t, count, np.int8) for _ in range(5)])):
                for out in outs:
                    np.testing.assert_array_equal(out, numbers(1 - rank, count, np.int8))

    def test_a_send_to_a_third_rank_goes_on_while_another_is_awaited(self, kind):
        """0 sends much to 1 and then waits for 2, which answers only after 1 has everything."""
        much = np.arange(8 * MIB // 8, dtype=np.int64)
        word = np.zeros(1, np.int8)

        def act(t: Transport) -> None:
            if t.rank == 0:
                pending = t.isend(1, 0, much)
                t.recv(2, 1, word)
                pending.wait()
            elif t.rank == 1:
                out = np.empty_like(much)
                t.recv(0, 0, out)
                assert (out == much).all()
                t.isend(2, 2, word).wait()
            else:
                t.recv(1, 2, word.copy())
                t.isend(0, 1, word).wait()

        with group(kind, 3) as ranks:
            run(ranks, act)

    def test_all_ranks_to_all_ranks(self, kind):
        def act(t: Transport) -> None:
            others = [peer for peer in range(t.size) if peer != t.rank]
            pending = [t.isend(peer, peer, numbers(10 * t.rank + peer, 20_000, np.int16)) for peer in others]
            for peer in others:
                out = np.empty(20_000, np.int16)
                t.recv(peer, t.rank, out)
                np.testing.assert_array_equal(out, numbers(10 * peer + t.rank, 20_000, np.int16))
            for each in pending:
                each.wait()

        with group(kind, 4) as ranks:
            run(ranks, act)

    @pytest.mark.parametrize(
        "buf", [np.zeros((2, 2)), np.zeros(4)[::2], np.zeros(2, np.complex64), np.zeros(2, ">f4")], ids=str
    )
    def test_a_buffer_that_cannot_travel_is_refused_and_harms_nothing(self, pair, buf):
        with pytest.raises(ValueError, match="contiguous one-dimensional array"):
            pair[0].isend(1, 0, buf)
        with pytest.raises(ValueError, match="rank 0 named 0"):
            pair[0].recv(0, 0, np.zeros(1))
        with pytest.raises(ValueError, match=r"0\.\.1"):
            pair[0].recv(2, 0, np.zeros(1))
        with pytest.raises(ValueError, match="read-only"):
            pair[0].recv(1, 0, np.broadcast_to(np.zeros(1), 1))
        run(pair, lambda t: swap(t, 10, np.float32))


class TestErrors:
    @pytest.mark.parametrize(
        ("sent", "tag", "shown"),
        [
            (np.zeros(3, np.float32), 8, "message 0 (tag 8, float32 x 3)"),
            (np.zeros(3, np.float64), 7, "message 0 (tag 7, float64 x 3)"),
            (np.zeros(4, np.float32), 7, "message 0 (tag 7, float32 x 4)"),
        ],
        ids=["tag", "dtype", "count"],
    )
    def test_another_message_than_the_expected_names_both(self, kind, sent, tag, shown):
        with group(kind, 2) as ranks:
            ranks[1].isend(0, tag, sent)
            expected = f"rank 0 expects message 0 (tag 7, float32 x 3), rank 1 sent {shown}"
            with pytest.raises(MessageMismatch) as caught:
                ranks[0].recv(1, 7, np.zeros(3, np.float32))
            assert expected in str(caught.value)
            with pytest.raises(MessageMismatch):
                ranks[0].isend(1, 0, sent)
            with pytest.raises(PeerAborted, match="rank 0 expects message 0"):
                ranks[1].recv(0, 0, sent)

    def test_a_live_peer_that_sends_nothing_is_waited_for_until_the_deadline(self, kind):
        with group(kind, 2, operation_timeout_s=0.5) as ranks:
            start = time.monotonic()
            with pytest.raises(OperationTimeout) as caught:
                ranks[0].recv(1, 7, np.zeros(3, np.float32))
            assert 0.5 <= time.monotonic() - start < 2
        error = caught.value
        assert (error.rank, error.peer, error.operation) == (0, 1, "recv from rank 1 (tag 7, float32 x 3)")
        assert str(error).startswith("rank 0, recv from rank 1 (tag 7, float32 x 3): ")
        assert str(error).endswith(f", after {error.elapsed_s:.1f} s")
        assert 0.5 <= error.elapsed_s < 2

    def test_a_send_that_nobody_takes_has_a_deadline(self, kind):
        with group(kind, 2, operation_timeout_s=0.3) as ranks:
            pending = ranks[0].isend(1, 0, np.zeros(64 * MIB, np.uint8))
            with pytest.raises(OperationTimeout, match=r"isend to rank 1 \(tag 0, uint8 x 67108864\): "):
                pending.wait()

    def test_the_reason_of_the_first_failure_reaches_all(self, kind):
        def act(t: Transport) -> None:
            if t.rank == 2:
                with pytest.raises(ZeroDivisionError), t:
                    raise ZeroDivisionError("my data is bad")
            else:
                with pytest.raises(PeerAborted, match="rank 2 failed: ZeroDivisionError: my data is bad") as caught:
                    t.recv(t.rank + 1, 0, np.zeros(10))
                assert caught.value.culprit == 2

        with group(kind, 3) as ranks:
            run(ranks, act)

    def test_a_waiting_rank_fails_at_once(self, kind):
        with group(kind, 2) as ranks:
            threading.Timer(0.1, ranks[1].abort, ["enough"]).start()
            start = time.monotonic()
            with pytest.raises(PeerAborted, match="rank 1 failed: enough"):
                ranks[0].recv(1, 0, np.zeros(1))
            assert time.monotonic() - start < 1

    def test_a_closed_peer_delivers_what_it_sent_and_then_is_lost(self, kind):
        if kind == "inproc":
            pytest.skip("nothing is buffered between threads")
        with group(kind, 2) as ranks:
            ranks[1].isend(0, 0, np.full(10, 5.0)).wait()
            ranks[1].close()
            out = np.zeros(10)
            ranks[0].recv(1, 0, out)
            assert (out == 5).all()
            with pytest.raises(PeerLost, match="lost rank 1") as caught:
                ranks[0].recv(1, 0, out)
            assert caught.value.culprit == 1

    def test_a_rank_that_leaves_in_peace_disturbs_nobody_else(self, kind):
        with group(kind, 3) as ranks:
            ranks[2].close()
            time.sleep(0.05)
            run(ranks[:2], lambda t: swap(t, 1000, np.float32))

    def test_closing_twice_is_fine_and_nothing_works_afterwards(self, kind):
        with group(kind, 2) as ranks:
            pending = ranks[0].isend(1, 0, np.zeros(8 * MIB))
            ranks[0].close()
            ranks[0].close()
            for call in (
                lambda: ranks[0].isend(1, 0, np.zeros(1)),
                lambda: ranks[0].recv(1, 0, np.zeros(1)),
                pending.wait,
            ):
                with pytest.raises(CommError, match="rank 0: the transport is closed"):
                    call()

    @pytest.mark.parametrize("kind_of_error", [CommError, PeerLost, MessageMismatch])
    def test_errors_pickle(self, kind_of_error):
        error = kind_of_error("why", rank=1, peer=2, operation="recv", elapsed_s=3.25, culprit=0)
        copy = pickle.loads(pickle.dumps(error))
        assert (type(copy), str(copy), vars(copy)) == (kind_of_error, "rank 1, recv: why, after 3.2 s", vars(error))


class TestResources:
    @pytest.mark.parametrize("how", ["close", "abort", "error"])
    def test_nothing_leaks(self, kind, how):
        with group(kind, 3):  # whatever is made once per process is made now
            pass
        with nothing_kept():
            with group(kind, 3, operation_timeout_s=0.3) as ranks:
                pending = ranks[0].isend(1, 0, np.zeros(MIB))
                if how == "error":
                    with pytest.raises(OperationTimeout):
                        ranks[1].recv(2, 0, np.zeros(1))
                elif how == "abort":
                    ranks[1].abort("test")
            del pending

    @pytest.mark.parametrize("failing", ["interface", "peer"])
    def test_nothing_leaks_when_the_ranks_do_not_meet(self, failing):
        settings = {"interface": "nosuch0"} if failing == "interface" else {}

        def meet(rank: int) -> None:
            options = options_of("shm", connect_timeout_s=0.3, **(settings if rank == 1 else {}))
            secret = SECRET[::-1] if failing == "peer" and rank == 1 else SECRET
            connect(rank, 2, allgather, secret, job_id="test", options=options)

        allgather = meeting_place(2)
        for match in {"interface": "nosuch0.*has no address", "peer": "within 0 s"}[failing], "could not connect":
            with nothing_kept(), pytest.raises(RendezvousError, match=match):
                on_ranks(2, meet)

    def test_memory_is_shared_only_where_asked_for(self):
        assert held()[2] == 0
        with group("tcp", 2):
            assert held()[2] == 0
        with group("shm", 2):
            assert held()[2] == 2  # one pair, mapped by both of its ends


class TestOptions:
    @pytest.mark.parametrize(
        ("settings", "match"),
        [
            ({"timeout_s": 0.0}, "timeout_s must be a positive number"),
            ({"connect_timeout_s": float("nan")}, "connect_timeout_s must be a positive number"),
            ({"operation_timeout_s": -1.0}, "operation_timeout_s must be a positive number"),
            ({"port_range": (0, 10)}, r"port_range must be \(first, last\)"),
            ({"port_range": (10, 9)}, r"port_range must be \(first, last\)"),
            ({"cidr": "10.0.0/33"}, "cidr must be a network"),
            ({"cidr": "10.0.0.0/8", "interface": "eth0"}, "not both"),
            ({"streams": 0}, r"streams must lie in 1\.\.16"),
            ({"ring_bytes": 5000}, "ring_bytes must be a multiple of 4096"),
        ],
        ids=str,
    )
    def test_what_cannot_be_is_refused(self, settings, match):
        with pytest.raises(ConfigError, match=match):
            TransportOptions(**settings)

    def test_they_pickle(self):
        options = options_of("tls", streams=2)
        assert pickle.loads(pickle.dumps(options)) == options


class TestConnecting:
    def meet(self, size: int, *settings: TransportOptions, **more) -> list[Transport]:
        allgather = meeting_place(size)
        return on_ranks(
            size,
            lambda rank: connect(
                rank, size, allgather, SECRET, job_id="test", options=settings[rank % len(settings)], **more
            ),
        )

    @pytest.mark.parametrize("kind", KINDS)
    def test_ranks_of_one_host_know_it(self, kind):
        with group(kind, 3) as ranks:
            assert {t.hosts for t in ranks} == {(ranks[0].hosts[0],) * 3}

    def test_one_rank_needs_nobody(self):
        with connect(0, 1, lambda text: pytest.fail("nobody to gather from"), SECRET, job_id="test") as transport:
            assert (transport.rank, transport.size) == (0, 1)

    def test_ranks_that_share_memory_and_ranks_that_do_not_mix(self):
        ranks = self.meet(3, options_of("shm"), options_of("shm"), options_of("tcp"))
        assert held()[2] == 2
        run(ranks, lambda t: [t.isend(peer, 0, np.full(5, t.rank)).wait() for peer in range(3) if peer != t.rank])
        for t in ranks:
            for peer in {0, 1, 2} - {t.rank}:
                out = np.empty(5, np.int64)
                t.recv(peer, 0, out)
                assert (out == peer).all()
        run(ranks, lambda t: t.close())

    def test_streams_are_as_many_as_all_ranks_allow(self):
        ranks = self.meet(2, options_of("tcp", streams=4), options_of("tcp", streams=2))
        run(ranks, lambda t: swap(t, MIB, np.float64))
        run(ranks, lambda t: t.close())

    def test_only_the_pairs_asked_for_are_connected(self):
        allgather = meeting_place(3)
        wanted = {0: [1], 1: [2], 2: []}
        ranks = on_ranks(
            3,
            lambda rank: connect(
                rank, 3, allgather, SECRET, job_id="test", options=options_of("tcp"), peers=wanted[rank]
            ),
        )
        run(ranks[:2], lambda t: swap(t, 10, np.int32))
        with pytest.raises(ValueError, match="rank 0 is not connected with rank 2"):
            ranks[0].isend(2, 0, np.zeros(1))
        run(ranks, lambda t: t.close())

    def test_a_failure_travels_to_ranks_that_are_not_connected_with_the_culprit(self):
        allgather = meeting_place(3)
        ranks = on_ranks(
            3,
            lambda rank: connect(
                rank, 3, allgather, SECRET, job_id="test", options=options_of("tcp"), peers=[1] if rank != 1 else []
            ),
        )
        ranks[2].abort("broken")
        with pytest.raises(PeerAborted, match=r"rank 2 failed: broken \(told by rank 1\)") as caught:
            ranks[0].recv(1, 0, np.zeros(1))
        assert caught.value.culprit == 2
        run(ranks, lambda t: t.close())

    @pytest.mark.parametrize(
        "where", [{"cidr": "::1/128"}, {"cidr": "127.0.0.0/8"}, {"route_to": "127.0.0.1"}], ids=str
    )
    def test_ranks_listen_where_they_are_told_to(self, where, monkeypatch):
        seen = []
        monkeypatch.setattr(
            rendezvous_module,
            "listen",
            lambda options, listen=rendezvous_module.listen: seen.append(listen(options)) or seen[-1],
        )
        names = []
        monkeypatch.setattr(rendezvous_module, "_check_loopback", lambda rank, cards: names.extend(cards))
        ranks = self.meet(2, TransportOptions(shared_memory=False, port_range=(42000, 42999), **where))
        assert {card.address for card in names} == {"::1" if "::" in str(where) else "127.0.0.1"}
        assert all(42000 <= card.port <= 42999 for card in names)
        run(ranks, lambda t: swap(t, 1000, np.float32))
        run(ranks, lambda t: t.close())

    def test_no_free_port_in_the_range_is_an_error_on_all_ranks(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            with pytest.raises(
                RendezvousError, match=rf"rank 1: .*cannot listen on 127\.0\.0\.1, ports {port} to {port}"
            ):
                self.meet(2, options_of("tcp"), options_of("tcp", port_range=(port, port)))

    def test_ranks_that_cannot_open_each_others_memory_use_tcp(self, monkeypatch):
        def refuse(*_):
            raise PermissionError

        monkeypatch.setattr(sharing_module, "_open", refuse)
        with group("shm", 3) as ranks:
            assert held()[2] == 0
            run(ranks[:2], lambda t: swap(t, 1000, np.float32))

    def test_a_loopback_address_is_refused_between_hosts(self, monkeypatch):
        hosts = iter(["first", "second"])
        monkeypatch.setattr(rendezvous_module, "host_id", lambda: next(hosts))
        with pytest.raises(RendezvousError, match=r"listens on 127\.0\.0\.1, but the ranks run on 2 hosts"):
            self.meet(2, options_of("tcp"))
