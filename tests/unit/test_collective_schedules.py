"""Schedules proved by the checker, the checker by schedules that are wrong, and the compiler by its waits."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise

import pytest

from sparkdl.comm.checker import (
    ScheduleError,
    check_allgather,
    check_allreduce,
    check_broadcast,
    check_reduce,
    check_reduce_scatter,
    play,
)
from sparkdl.comm.executor import MAX_UNDERWAY, Act, compiled
from sparkdl.comm.schedules import (
    ALLREDUCE,
    Hierarchical,
    Recv,
    RingAllgather,
    RingReduceScatter,
    Rooted,
    Send,
    Step,
    among,
    chain_broadcast,
    chain_reduce,
    cuts,
    dissemination,
    pieces,
    planned,
    rabenseifner,
    ring,
    tree_broadcast,
    tree_reduce,
)
from sparkdl.comm.topology import Hosts

by_name = pytest.mark.parametrize("name", ALLREDUCE)


def bytes_sent(schedule, rank, size, count, segment=1):
    return sum(s.stop - s.start for step in planned(schedule, rank, size, count, segment) for s in step.sends)


# ---- what the schedules do


@by_name
def test_allreduce_for_all_sizes_up_to_64(name):
    for size in range(1, 65):
        check_allreduce(ALLREDUCE[name], size, size + 1, 1 + size // 8)


@by_name
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 16])
def test_allreduce_for_all_kinds_of_lengths(name, size):
    for count in {0, 1, size - 1, size, size + 1, 64, 1000, 10**8}:
        for segment in (7, 300) if count <= 1000 else (1 << 22,):
            check_allreduce(ALLREDUCE[name], size, count, segment)


@pytest.mark.parametrize("size", range(1, 65))
def test_rooted_and_scattered_collectives_for_all_sizes(size):
    count, root = 2 * size + 1, size * 5 // 7
    for schedule in (tree_reduce, chain_reduce):
        check_reduce(Rooted(schedule, root), size, count, size, root)
    for schedule in (tree_broadcast, chain_broadcast):
        check_broadcast(Rooted(schedule, root), size, count, size, root)
    rng = random.Random(size)
    for bounds in (None, (0, *sorted(rng.choices(range(count + 1), k=size - 1)), count)):
        check_reduce_scatter(RingReduceScatter(bounds), size, count, 1, bounds)
        check_allgather(RingAllgather(bounds), size, count, 1, bounds)


@pytest.mark.parametrize("size", range(1, 33))
def test_hierarchical_on_any_spread_of_ranks_over_hosts(size):
    rng = random.Random(size)
    for count_hosts in {1, 2, 3, size}:
        hosts = Hosts.of([rng.randrange(count_hosts) for _ in range(size)])
        for leaders in {1, hosts.leaders}:
            for between in (rabenseifner, ring):
                check_allreduce(Hierarchical(hosts, leaders, between), size, size + 3, 1)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 13, 64])
def test_nobody_leaves_the_barrier_before_all_have_come(size):
    play(dissemination, size, 2, 1)
    # What has reached a rank, through however many hands, when its last step is over.
    known = [{rank} for rank in range(size)]
    plans = [planned(dissemination, rank, size, 2, 1) for rank in range(size)]
    for steps in zip(*plans, strict=True):
        known = [known[rank] | known[step.recvs[0].peer] for rank, step in enumerate(steps)]
    assert known == [set(range(size))] * size


@pytest.mark.parametrize("size", [2, 3, 5, 8])
def test_bytes_on_the_wire(size):
    count = 840 * size
    for rank in range(size):
        assert bytes_sent(ring, rank, size, count) == 2 * (size - 1) * count // size
        assert bytes_sent(ALLREDUCE["segmented_ring"], rank, size, count, 100) == 2 * (size - 1) * count // size
    for name, messages in (("star", 2 * (size - 1)), ("tree", 2 * (size - 1)), ("chain", 2 * (size - 1))):
        total = sum(bytes_sent(ALLREDUCE[name], rank, size, count, 100) for rank in range(size))
        assert total == messages * count
    if size == 8:
        assert {bytes_sent(rabenseifner, rank, 8, count) for rank in range(8)} == {2 * 7 * count // 8}
        assert {bytes_sent(ALLREDUCE["recursive_doubling"], rank, 8, count) for rank in range(8)} == {3 * count}


@pytest.mark.parametrize("leaders", [1, 3])
def test_hierarchical_crosses_between_hosts_once_per_host(leaders):
    hosts = Hosts.of("abcdabcdabcd")
    schedule, count = Hierarchical(hosts, leaders), 1200
    assert schedule.hosts.members == ((0, 4, 8), (1, 5, 9), (2, 6, 10), (3, 7, 11))
    for host in hosts.members:
        crossing = [
            s.stop - s.start
            for rank in host
            for step in planned(schedule, rank, 12, count, 1)
            for s in step.sends
            if s.peer not in host
        ]
        assert sum(crossing) == 2 * 3 * count // 4


def test_hosts():
    hosts = Hosts.of(["x", "y", "x", "x", "y"])
    assert hosts.members == ((0, 2, 3), (1, 4))
    assert (hosts.leaders, hosts.nested, hosts.host_of(4)) == (2, True, (1, 4))
    assert hosts == Hosts.of([7, 3, 7, 7, 3])
    assert not Hosts.of("xxx").nested
    assert not Hosts.of("xyz").nested
    with pytest.raises(ValueError, match=r"between 1 and 2, .* got 3"):
        Hierarchical(hosts, 3)
    with pytest.raises(ValueError, match="hosts of 5 ranks were given; the group has 4"):
        list(Hierarchical(hosts)(0, 4, 10, 1))


@pytest.mark.parametrize("count", [0, 1, 5, 12, 1025])
@pytest.mark.parametrize("size", [1, 3, 4, 7])
def test_cuts_and_pieces_cover_everything_evenly(count, size):
    chunks = [b - a for a, b in pairwise(cuts(count, size))]
    assert sum(chunks) == count
    assert max(chunks) - min(chunks) <= 1
    parts = pieces(10, 10 + count, size)
    assert [a for a, _ in parts] + [10 + count] == [10] + [b for _, b in parts]
    assert len(parts) == -(-count // size)
    assert all(0 < b - a <= size for a, b in parts)


# ---- what the checker refuses


def both(first: tuple[Step, ...], second: tuple[Step, ...]):
    """A schedule for two ranks, given step by step."""
    return lambda rank, size, count, segment: iter((first, second)[rank])


WRONG = {
    "stuck: rank 0, step 0, has 1 sends .*rank 1, step 0, has 1 sends": both(
        (Step((Send(1, 0, 4),)), Step(recvs=(Recv(1, 0, 4, "merge"),))),
        (Step((Send(0, 0, 4),)), Step(recvs=(Recv(0, 0, 4, "merge"),))),
    ),
    "1 ranks are stuck: rank 1, step 0, waits for rank 0": both((), (Step(recvs=(Recv(0, 0, 4),)),)),
    "1 ranks are stuck: rank 0, step 0, has 1 sends that nobody takes": both((Step((Send(1, 0, 4),)),), ()),
    "stop=3.* meets rank 1's": both((Step((Send(1, 0, 3),)),), (Step(recvs=(Recv(0, 0, 4),)),)),
    "overlaps another slice": both(
        (Step((Send(1, 0, 3),), (Recv(1, 2, 4, "reduce"),)),), (Step((Send(0, 2, 4),), (Recv(0, 0, 3, "merge"),)),)
    ),
    "rank 0, step 0: .*0, 4. of 4 elements, with rank 0 of 2": both((Step((Send(0, 0, 4),)),), ()),
    "rank 0, step 0: .*1, 5. of 4 elements": both((Step((Send(1, 1, 5),)),), ()),
    "rank 1, step 1: added twice, of 11 and 1": both(
        (Step((Send(1, 0, 4),)), Step((Send(1, 0, 4),))), (Step(recvs=(Recv(0, 0, 4, "reduce"),)),) * 2
    ),
    # Nothing is sent at all; only one side gets the sum.
    "elements .0, 4. end as": both((), ()),
    "elements .0, 4. end as .*ranks=1,": both((Step((Send(1, 0, 4),)),), (Step(recvs=(Recv(0, 0, 4, "reduce"),)),)),
}


@pytest.mark.parametrize("message", WRONG)
def test_the_checker_refuses(message):
    with pytest.raises(ScheduleError, match=message):
        check_allreduce(WRONG[message], 2, 4, 1)


def test_the_checker_refuses_two_orders_of_adding():
    def three(rank: int, size: int, count: int, segment: int) -> Iterator[Step]:
        # Rank 1 sums 1 + (2) then 0; rank 0 sums 0 + 1 then 2: the same ranks, another form.
        def hop(source: int, target: int, how: str) -> Iterator[Step]:
            if rank == source:
                yield Step((Send(target, 0, count),))
            if rank == target:
                yield Step(recvs=(Recv(source, 0, count, how),))

        yield from hop(1, 0, "reduce")
        yield from hop(2, 1, "reduce")
        yield from hop(2, 0, "reduce")
        yield from hop(0, 2, "copy")

    values, _ = play(three, 3, 1, 1)
    assert [terms[0].ranks for terms in values] == [7, 6, 7]
    with pytest.raises(ScheduleError, match="end as"):
        check_allreduce(three, 3, 1, 1)


def test_partners_who_merge_an_exchange_agree_on_the_form_and_those_who_reduce_a_copy_do_not():
    exchange = both(
        (Step((Send(1, 0, 1),), (Recv(1, 0, 1, "merge"),)),), (Step((Send(0, 0, 1),), (Recv(0, 0, 1, "merge"),)),)
    )
    check_allreduce(exchange, 2, 1, 1)
    spare = both(  # each adds the partner's element to its own
        (Step((Send(1, 0, 1),), (Recv(1, 1, 2, "reduce"),)),), (Step((Send(0, 0, 1),), (Recv(0, 1, 2, "reduce"),)),)
    )
    (mine, theirs), _ = play(spare, 2, 2, 1)
    assert mine[1].ranks == theirs[1].ranks == 3
    assert mine[1].form != theirs[1].form


def test_the_checker_refuses_other_results():
    nothing = both((), ())
    with pytest.raises(ScheduleError, match="with the contributions 10 of 2 ranks"):
        check_reduce(nothing, 2, 4, 1, root=1)
    with pytest.raises(ScheduleError, match="with the contributions 1 of 2 ranks"):
        check_reduce_scatter(nothing, 2, 4, 1)
    with pytest.raises(ScheduleError, match="should be rank 0's"):
        check_broadcast(nothing, 2, 4, 1)
    with pytest.raises(ScheduleError, match=r"rank 1: \[0, 3\) should be rank 0's"):
        check_allgather(nothing, 2, 4, 1, (0, 3, 4))


def test_receives_in_an_order_that_cannot_come_true_are_refused():
    # Rank 0 insists on rank 1 first, which insists on rank 2, which cannot go on before rank 0 has taken its message.
    def knot(rank: int, size: int, count: int, segment: int) -> Iterator[Step]:
        if rank == 0:
            yield Step(recvs=(Recv(1, 0, 1), Recv(2, 1, 2)))
        elif rank == 1:
            yield Step(recvs=(Recv(2, 0, 1),))
            yield Step((Send(0, 0, 1),))
        else:
            yield Step((Send(0, 0, 1),))
            yield Step((Send(1, 0, 1),))

    with pytest.raises(ScheduleError, match="3 ranks are stuck: rank 0, step 0, waits for rank 1"):
        play(knot, 3, 2, 1)


# ---- what the compiler does


@by_name
@pytest.mark.parametrize("size", [2, 3, 6, 8])
def test_no_slice_is_written_while_its_send_is_under_way_and_every_send_is_waited_for_once(name, size):
    for rank in range(size):
        program = compiled(ALLREDUCE[name], rank, size, 500, 20)
        underway, sends = {}, 0
        for act, _, start, stop, extra in program.instructions:
            if act is Act.SEND:
                underway[sends] = start, stop
                sends += 1
            elif act is Act.WAIT:
                del underway[extra]
            elif act is Act.STAGE:
                assert extra + stop - start <= program.scratch
            else:
                assert not any(a < stop and start < b for a, b in underway.values())
            assert len(underway) <= MAX_UNDERWAY + size
        assert not underway


def test_the_ring_waits_only_where_it_must():
    program = compiled(ring, 0, 4, 400, 1)
    acts = [i.act.value for i in program.instructions]
    # Six turns; the reduce-scatter's sends are finished when the allgather overwrites their chunks, or at the end.
    assert acts[:6] == ["send", "reduce"] * 3
    assert acts.count("wait") == 6
    assert compiled(ring, 0, 4, 400, 1) is program


def test_among_numbers_peers_as_in_the_whole():
    steps = list(among([5, 2, 9], ring, 2, 30, 1))
    assert {s.peer for step in steps for s in step.sends} == {9}
    assert {r.peer for step in steps for r in step.recvs} == {5}
    assert not list(among([5, 2, 9], ring, 3, 30, 1))
