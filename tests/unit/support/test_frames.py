from __future__ import annotations

import pytest

from support.fault_proxy import Frames

VALUES = [
    b"+OK\r\n",
    b"-ERR no\r\n",
    b":42\r\n",
    b"$3\r\na\r\n\r\n",
    b"$0\r\n\r\n",
    b"$-1\r\n",
    b"_\r\n",
    b"#t\r\n",
    b",3.14\r\n",
    b"(12345678901234567890\r\n",
    b"*0\r\n",
    b"*-1\r\n",
    b"*2\r\n*0\r\n*1\r\n$2\r\n*1\r\n",
    b"*3\r\n:1\r\n*2\r\n+a\r\n*1\r\n-x\r\n$1\r\nz\r\n",
    b"%1\r\n+key\r\n*2\r\n:1\r\n:2\r\n",
    b"~2\r\n:1\r\n:2\r\n",
    b">3\r\n+message\r\n+channel\r\n$5\r\nhello\r\n",
    b"=15\r\ntxt:Some string\r\n",
]


def test_a_stream_is_cut_into_its_values() -> None:
    assert list(Frames().feed(b"".join(VALUES))) == VALUES


@pytest.mark.parametrize("piece", [1, 2, 3, 7])
def test_it_does_not_matter_where_the_pieces_end(piece: int) -> None:
    frames = Frames()
    stream = b"".join(VALUES)
    cut = [frame for start in range(0, len(stream), piece) for frame in frames.feed(stream[start : start + piece])]
    assert cut == VALUES
    assert frames.rest() == b""


def test_what_is_incomplete_can_be_taken_back() -> None:
    frames = Frames()
    assert list(frames.feed(b"+OK\r\n*2\r\n:1\r\n$4\r\nab")) == [b"+OK\r\n"]
    assert frames.rest() == b"*2\r\n:1\r\n$4\r\nab"
    assert list(frames.feed(b":1\r\n")) == [b":1\r\n"]
