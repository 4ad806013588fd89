"""Headers and control frames, as bytes."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkdl.comm.transport.frames import (
    DTYPES,
    HEADER_BYTES,
    MAX_CONTROL_BYTES,
    Control,
    ControlFrame,
    ControlReader,
    FrameError,
    Header,
    describe,
)

INT64 = st.integers(-(2**63), 2**63 - 1)


class TestHeader:
    @given(st.integers(0, 2**63 - 1), INT64, st.integers(0, len(DTYPES) - 1), st.integers(0, 2**63 - 1))
    def test_returns_as_it_was(self, sequence, tag, code, size):
        header = Header(sequence, tag, code, size, flags=3)
        data = header.pack()
        assert len(data) == HEADER_BYTES
        assert Header.unpack(data) == header

    def test_the_bytes_on_the_wire_are_pinned(self):
        data = Header.of(5, -2, np.zeros(7, np.float32)).pack()
        assert data == b"SDLm" + bytes([1, 1, 0, 0]) + struct.pack("<qqq", 5, -2, 7)

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_every_dtype_has_a_code_of_its_own(self, dtype):
        assert DTYPES[Header.of(0, 0, np.zeros(1, dtype)).code] == dtype

    @pytest.mark.parametrize(
        ("at", "byte"), [(0, 0), (4, 2), (5, len(DTYPES)), (31, 0x80)], ids=["magic", "version", "dtype", "size"]
    )
    def test_other_bytes_are_no_header(self, at, byte):
        data = bytearray(Header(1, 2, 3, 4).pack())
        data[at] = byte
        with pytest.raises(FrameError, match="no message header of version 1"):
            Header.unpack(data)

    def test_names_the_message(self):
        buf = np.zeros(3, np.int16)
        assert str(Header.of(9, 4, buf)) == "message 9 (tag 4, int16 x 3)"
        assert describe("recv", 2, 4, buf) == "recv from rank 2 (tag 4, int16 x 3)"
        assert describe("isend", 2, 4, buf) == "isend to rank 2 (tag 4, int16 x 3)"


class TestControl:
    @given(st.lists(st.tuples(st.sampled_from(Control), st.integers(-1, 99), st.text(max_size=50))), st.data())
    def test_frames_survive_any_cutting_of_the_stream(self, parts, data):
        frames = [ControlFrame(k, c, text) if k is Control.ABORT else ControlFrame(k) for k, c, text in parts]
        stream = b"".join(frame.pack() for frame in frames)
        cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=5)))
        reader = ControlReader()
        read = [f for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True) for f in reader.feed(stream[a:b])]
        assert read == frames

    def test_a_long_reason_is_cut_to_the_limit(self):
        data = ControlFrame(Control.ABORT, 3, "ü" * 10_000).pack()
        assert len(data) == 3 + MAX_CONTROL_BYTES
        (frame,) = ControlReader().feed(data)
        assert frame.culprit == 3
        assert frame.text.startswith("üüü")

    @pytest.mark.parametrize(
        "data",
        [b"GET / HTTP/1.1\r\n", struct.pack("<BH", 3, MAX_CONTROL_BYTES + 1), struct.pack("<BH", 3, 2), b"\0\0\0"],
        ids=["garbage", "oversized", "too short", "zeros"],
    )
    def test_what_is_no_frame_is_refused_before_it_is_stored(self, data):
        with pytest.raises(FrameError, match="no control frame"):
            ControlReader().feed(data)
