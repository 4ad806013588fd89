"""How ranks come to share memory, over a connection that both ends already trust.

One rank makes an anonymous memory file with a random token in it and names it by process and descriptor; the other
opens it through /proc and looks for the token. Only where both see the same kernel, processes and user does that
succeed, whatever the hosts call themselves; where it does not, the pair uses TCP. The file has no name: nothing is
left behind by a killed process, and the size of /dev/shm does not bound it.
"""

from __future__ import annotations

import mmap
import os
import platform
import secrets
import stat
import struct
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np

from sparkdl.comm.transport.base import Transport
from sparkdl.comm.transport.doorbell import Doorbell
from sparkdl.comm.transport.shm import CONTROL_BYTES, ShmChannel

__all__ = ["accept_memory", "can_share", "common_memory", "host_id", "offer_memory"]

Sharing = Generator[tuple[bytes, int], bytes, ShmChannel | None]

_TOKEN_BYTES = 32
_TOKEN_AT = CONTROL_BYTES - _TOKEN_BYTES  # the end of the control page, far from its counters
_OFFER = struct.Struct(f"<qqqq{_TOKEN_BYTES}s")  # process, memory and doorbell descriptors, bytes, token
_ANSWER = struct.Struct("<?qq")  # accepted, process, doorbell descriptor
_INVITATION = struct.Struct(f"<qq{_TOKEN_BYTES}s")  # process, memory descriptor, token


def can_share() -> bool:
    """Whether this machine has what it takes: Linux, and stores that become visible in order (see shm.py)."""
    return hasattr(os, "memfd_create") and platform.machine() == "x86_64"


def host_id() -> str:
    """This boot of this kernel and, within it, this container: its networks and processes. Empty if unknown."""
    try:
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return "/".join([boot_id, *(str(os.stat(f"/proc/self/ns/{kind}").st_ino) for kind in ("net", "pid"))])
    except OSError:
        return ""


def offer_memory(ring_bytes: int, doorbell: Doorbell) -> Sharing:
    """The side that makes the memory."""
    size, token = CONTROL_BYTES + 2 * ring_bytes, secrets.token_bytes(_TOKEN_BYTES)
    descriptor, memory = _new_memory(size, token)
    try:
        offer = _OFFER.pack(os.getpid(), descriptor, doorbell.write_end, size, token)
        accepted, process, peer_doorbell = _ANSWER.unpack((yield offer, _ANSWER.size))
    finally:
        if descriptor >= 0:
            os.close(descriptor)
    channel = None
    if accepted and memory is not None:
        with suppress(OSError):
            channel = ShmChannel(memory, 0, _open(process, peer_doorbell, os.O_WRONLY))
    with _closed_on_error(channel):
        yield struct.pack("<?", channel is not None), 0
    return channel


def accept_memory(doorbell: Doorbell) -> Sharing:
    """The side that opens the memory."""
    process, descriptor, peer_doorbell, size, token = _OFFER.unpack((yield b"", _OFFER.size))
    channel = None
    with suppress(OSError, ValueError):
        channel = _open_memory(process, descriptor, size, token, peer_doorbell)
    with _closed_on_error(channel):
        confirmed = yield _ANSWER.pack(channel is not None, os.getpid(), doorbell.write_end), 1
    if channel is not None and not confirmed[0]:
        channel.close()
        channel = None
    return channel


def common_memory(t: Transport, members: Sequence[int], size: int, tag: int) -> mmap.mmap | None:
    """One mapping of `size` bytes on all members, who call this together; None on all if one of them cannot open it."""
    first, *others = members
    verdict = np.ones(1, np.uint8)
    if t.rank == first:
        token = secrets.token_bytes(_TOKEN_BYTES)
        descriptor, memory = _new_memory(size, token)
        try:
            invitation = np.frombuffer(_INVITATION.pack(os.getpid(), descriptor, token), np.uint8)
            for send in [t.isend(peer, tag, invitation) for peer in others]:
                send.wait()
            answers = np.empty(len(others), np.uint8)
            for i, peer in enumerate(others):
                t.recv(peer, tag, answers[i : i + 1])
            verdict[0] = memory is not None and answers.all()
        finally:
            if descriptor >= 0:
                os.close(descriptor)
        for send in [t.isend(peer, tag, verdict) for peer in others]:
            send.wait()
    else:
        invitation = np.empty(_INVITATION.size, np.uint8)
        t.recv(first, tag, invitation)
        process, descriptor, token = _INVITATION.unpack(invitation.tobytes())
        memory = _map(process, descriptor, token, size)
        verdict[0] = memory is not None
        t.isend(first, tag, verdict).wait()
        t.recv(first, tag, verdict)
    return memory if verdict[0] else None


def _new_memory(size: int, token: bytes) -> tuple[int, mmap.mmap | None]:
    """A memory file and its mapping, or (-1, None), an offer that cannot be taken, where the kernel gives none."""
    try:
        descriptor = os.memfd_create("sparkdl")
    except OSError:
        return -1, None
    try:
        os.ftruncate(descriptor, size)
        memory = mmap.mmap(descriptor, size)
    except OSError:
        os.close(descriptor)
        return -1, None
    memory[_TOKEN_AT:CONTROL_BYTES] = token
    return descriptor, memory


def _open_memory(process: int, descriptor: int, size: int, token: bytes, peer_doorbell: int) -> ShmChannel | None:
    memory = _map(process, descriptor, token, size)
    return None if memory is None else ShmChannel(memory, 1, _open(process, peer_doorbell, os.O_WRONLY))


def _map(process: int, descriptor: int, token: bytes, size: int) -> mmap.mmap | None:
    """Another process's memory file, if it can be opened and has the token in it."""
    with suppress(OSError, ValueError):  # ValueError where the file is shorter
        opened = _open(process, descriptor, os.O_RDWR)
        try:
            memory = mmap.mmap(opened, size)
        finally:
            os.close(opened)
        if memory[_TOKEN_AT:CONTROL_BYTES] == token:
            return memory
    return None


def _open(process: int, descriptor: int, flags: int) -> int:
    """Another process's memory file (to read and write) or pipe (to write); OSError where there is no such thing."""
    path = f"/proc/{process}/fd/{descriptor}"
    is_kind = stat.S_ISFIFO if flags == os.O_WRONLY else stat.S_ISREG
    if not is_kind(os.stat(path).st_mode):
        raise FileNotFoundError(f"{path} is something else")
    return os.open(path, flags | os.O_NONBLOCK)


@contextmanager
def _closed_on_error(channel: ShmChannel | None) -> Iterator[None]:
    try:
        yield
    except BaseException:
        if channel is not None:
            channel.close()
        raise
