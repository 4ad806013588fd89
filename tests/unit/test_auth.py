"""The handshake as a conversation of bytes, without sockets."""

from __future__ import annotations

import hashlib
import hmac

import pytest

from sparkdl.comm.transport.auth import HELLO_BYTES, NONCE_BYTES, PROOF_BYTES, Edge, Identity, Refused, answer, dial

SECRET = b"a secret of this job, 32 bytes.."


def identity(rank: int, *, size: int = 3, job: str = "job", attempt: int = 2, secret: bytes = SECRET) -> Identity:
    return Identity.of(rank, size, job, attempt, secret)


def anyone(edge: Edge) -> None:
    pass


def converse(dialer, listener):
    """Let the two talk to the end; whom the listener has met, and what each of them said."""
    (frame, _), said, heard = next(dialer), [], []
    next(listener)
    try:
        while True:
            said.append(frame)
            heard.append(listener.send(frame)[0])
            frame, _ = dialer.send(heard[-1])
    except StopIteration:
        with pytest.raises(StopIteration) as end:
            listener.send(b"")
    return end.value.value, said, heard


class TestHandshake:
    def test_both_sides_are_satisfied(self):
        edge, said, heard = converse(dial(identity(2), Edge(1, 4)), answer(identity(1), anyone))
        assert edge == Edge(2, 4)
        assert [len(frame) for frame in said] == [HELLO_BYTES, PROOF_BYTES]
        assert [len(frame) for frame in heard] == [NONCE_BYTES, PROOF_BYTES]

    def test_the_proofs_are_hmacs_of_everything_said(self):
        _, (hello, mine), (nonce, theirs) = converse(dial(identity(2), Edge(1, 0)), answer(identity(1), anyone))
        assert mine == hmac.new(SECRET, b"dialer" + hello + nonce, hashlib.sha256).digest()
        assert theirs == hmac.new(SECRET, b"listener" + hello + nonce, hashlib.sha256).digest()

    def test_the_secret_is_never_said(self):
        _, said, heard = converse(dial(identity(2), Edge(1, 0)), answer(identity(1), anyone))
        assert SECRET not in b"".join(said + heard)
        assert "secret" not in repr(identity(1))

    @pytest.mark.parametrize(
        ("dialer", "reason"),
        [
            ({"secret": SECRET[::-1]}, "wrong secret from one that calls itself rank 2"),
            ({"attempt": 1}, "attempt 1 of this job; this is attempt 2"),
            ({"job": "other"}, "another job"),
            ({"size": 9, "rank": 8}, "rank 8 looking for rank 1; this is rank 1 of 3"),
            ({"rank": 1}, "rank 1 looking for rank 1"),
        ],
        ids=["secret", "attempt", "job", "unknown rank", "own rank"],
    )
    def test_the_listener_refuses(self, dialer, reason):
        with pytest.raises(Refused, match=reason):
            converse(dial(identity(**{"rank": 2, **dialer}), Edge(1, 0)), answer(identity(1), anyone))

    def test_the_listener_refuses_one_that_looks_for_another(self):
        with pytest.raises(Refused, match="rank 2 looking for rank 0; this is rank 1 of 3"):
            converse(dial(identity(2), Edge(0, 0)), answer(identity(1), anyone))

    def test_the_dialer_refuses_a_listener_without_the_secret(self):
        dialer = dial(identity(2), Edge(1, 0))
        next(dialer)
        dialer.send(bytes(NONCE_BYTES))
        with pytest.raises(Refused, match="does not know the secret"):
            dialer.send(bytes(PROOF_BYTES))

    def test_an_echo_of_its_own_proof_does_not_satisfy_the_dialer(self):
        dialer = dial(identity(2), Edge(1, 0))
        next(dialer)
        proof, _ = dialer.send(bytes(NONCE_BYTES))
        with pytest.raises(Refused, match="does not know the secret"):
            dialer.send(proof)

    def test_replayed_frames_are_refused(self):
        _, (hello, proof), _ = converse(dial(identity(2), Edge(1, 0)), answer(identity(1), anyone))
        listener = answer(identity(1), anyone)
        next(listener)
        listener.send(hello)
        with pytest.raises(Refused, match="wrong secret"):
            listener.send(proof)

    @pytest.mark.parametrize("field", ["stream", "source rank"])
    def test_a_changed_hello_is_refused(self, field):
        dialer, listener = dial(identity(2), Edge(1, 1)), answer(identity(1), anyone)
        hello = bytearray(next(dialer)[0])
        hello[{"stream": 6, "source rank": 12}[field]] = 0
        next(listener)
        nonce, _ = listener.send(bytes(hello))
        proof, _ = dialer.send(nonce)
        with pytest.raises(Refused, match="wrong secret"):
            listener.send(proof)

    def test_garbage_is_refused_at_the_first_frame(self):
        listener = answer(identity(1), anyone)
        _, wanted = next(listener)
        with pytest.raises(Refused, match="no greeting of version 1, but 474554202f204854"):
            listener.send(b"GET / HTTP/1.1\r\n".ljust(wanted, b" "))

    def test_who_is_admitted_is_asked_before_and_after_the_proof(self):
        asked = []
        converse(dial(identity(2), Edge(1, 3)), answer(identity(1), asked.append))
        assert asked == [Edge(2, 3), Edge(2, 3)]

    def test_a_short_secret_is_refused(self):
        with pytest.raises(ValueError, match="at least 16 bytes; got 5"):
            identity(0, secret=b"short")

    def test_a_rank_outside_the_job_is_refused(self):
        with pytest.raises(ValueError, match=r"rank must lie in 0\.\.2; got 3"):
            identity(3)
