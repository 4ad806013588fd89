"""The handshake of a connection: both ends prove that they know the job's secret, without sending it.

    dialer -> listener   hello: version, job, attempt, both ranks, stream, a random number
    listener -> dialer   another random number
    dialer -> listener   HMAC-SHA256(secret, "dialer" + everything above)
    listener -> dialer   HMAC-SHA256(secret, "listener" + everything above)

Both random numbers enter both proofs, so that neither end's can be replayed; the labels, so that none can be echoed.
All frames have a fixed size: there is no length to lie about. The conversations are generators, free of sockets: they
yield (bytes to send, number of bytes to receive next).
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import struct
from collections.abc import Callable, Generator
from typing import NamedTuple

__all__ = ["Conversation", "Edge", "Identity", "Refused", "answer", "dial"]

Conversation = Generator[tuple[bytes, int], bytes, None]

_MAGIC, VERSION = b"SDLh", 1
_HELLO = struct.Struct("<4sBxHIII32s32s")  # magic, version, stream, attempt, source, target, job digest, random number
HELLO_BYTES, NONCE_BYTES, PROOF_BYTES = _HELLO.size, 32, hashlib.sha256().digest_size
MIN_SECRET_BYTES = 16


class Refused(Exception):
    """A connection that is not let in, and why. The text holds nothing secret."""


class Edge(NamedTuple):
    """A connection with a peer: stream 0 carries control frames, the others data."""

    peer: int
    stream: int


class Identity(NamedTuple):
    """Who this rank is, in which attempt of which job, and what it proves it with."""

    rank: int
    size: int
    job: bytes
    attempt: int
    secret: bytes

    @classmethod
    def of(cls, rank: int, size: int, job_id: str, attempt: int, secret: bytes) -> Identity:
        if not 0 <= rank < size:
            raise ValueError(f"rank must lie in 0..{size - 1}; got {rank}")
        if len(secret) < MIN_SECRET_BYTES:
            raise ValueError(f"the secret must have at least {MIN_SECRET_BYTES} bytes; got {len(secret)}")
        return cls(rank, size, hashlib.sha256(job_id.encode()).digest(), attempt, secret)

    def proof(self, role: bytes, transcript: bytes) -> bytes:
        return hmac.digest(self.secret, role + transcript, "sha256")

    def __repr__(self) -> str:
        return f"Identity(rank={self.rank}, size={self.size}, attempt={self.attempt})"


def dial(identity: Identity, edge: Edge) -> Conversation:
    """The dialer's side."""
    hello = _HELLO.pack(
        _MAGIC, VERSION, edge.stream, identity.attempt, identity.rank, edge.peer, identity.job,
        secrets.token_bytes(NONCE_BYTES),
    )  # fmt: skip
    nonce = yield hello, NONCE_BYTES
    transcript = hello + nonce
    proof = yield identity.proof(b"dialer", transcript), PROOF_BYTES
    if not hmac.compare_digest(proof, identity.proof(b"listener", transcript)):
        raise Refused(f"the listener that should be rank {edge.peer} does not know the secret of this job")


def answer(identity: Identity, admit: Callable[[Edge], None]) -> Generator[tuple[bytes, int], bytes, Edge]:
    """The listener's side; returns which peer has dialed which stream. admit raises Refused for unwanted edges."""
    hello = yield b"", HELLO_BYTES
    edge = _read_hello(identity, hello)
    admit(edge)
    nonce = secrets.token_bytes(NONCE_BYTES)
    transcript = hello + nonce
    proof = yield nonce, PROOF_BYTES
    if not hmac.compare_digest(proof, identity.proof(b"dialer", transcript)):
        raise Refused(f"wrong secret from one that calls itself rank {edge.peer}")
    admit(edge)  # again: another connection may have proved itself meanwhile
    yield identity.proof(b"listener", transcript), 0
    return edge


def _read_hello(identity: Identity, hello: bytes) -> Edge:
    magic, version, stream, attempt, source, target, job, _ = _HELLO.unpack(hello)
    if magic != _MAGIC or version != VERSION:
        raise Refused(f"no greeting of version {VERSION}, but {hello[:8].hex()}...")
    if job != identity.job:
        raise Refused("another job")
    if attempt != identity.attempt:
        raise Refused(f"attempt {attempt} of this job; this is attempt {identity.attempt}")
    if target != identity.rank or source >= identity.size or source == identity.rank:
        raise Refused(f"rank {source} looking for rank {target}; this is rank {identity.rank} of {identity.size}")
    return Edge(source, stream)
