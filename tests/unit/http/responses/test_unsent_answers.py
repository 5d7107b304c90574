"""A connection whose caller does not read: what is unsent counts, the one who writes waits, and without progress it ends."""

from __future__ import annotations

import asyncio

import pytest

from extender.http.responses import unsent_answers
from extender.http.responses.unsent_answers import (
    GIVE_BACK_AFTER_S,
    HIGH_BYTES,
    PIECE_BYTES,
    PROGRESS_BYTES,
    STALL_S,
    BytesInFlight,
    PacedTransport,
)


class Peer(asyncio.Transport):
    """A transport of the event loop whose caller takes what a test lets it take."""

    def __init__(self):
        super().__init__()
        self.takes = True
        self.sent = b""
        self.ended = ""
        self.paced = None

    def set_write_buffer_limits(self, high=None, low=None):
        pass

    def get_write_buffer_size(self):
        return 0

    def is_closing(self):
        return bool(self.ended)

    def pause_reading(self):
        pass

    def write(self, data):
        assert not self.ended
        self.sent += data
        if not self.takes:
            self.paced.pause()

    def close(self):
        self.ended = "closed"

    def abort(self):
        self.ended = "aborted"


def paced():
    peer, in_flight, held = Peer(), BytesInFlight(), []
    peer.paced = PacedTransport(peer, in_flight, held.append)
    return peer, peer.paced, in_flight, held


async def test_what_is_taken_at_once_is_not_kept():
    peer, transport, in_flight, held = paced()
    transport.write(b"x" * 1000)
    transport.writelines([b"y"] * 10)
    transport.write(b"z" * (3 * PIECE_BYTES))
    assert len(peer.sent) == 1010 + 3 * PIECE_BYTES
    assert (in_flight.calls, in_flight.reads, held) == (0, 0, [])
    transport.close()
    assert peer.ended == "closed"


async def test_what_is_not_taken_counts_until_it_is():
    """It goes to the event loop in pieces, each when the one before is gone, and in order."""
    peer, transport, in_flight, held = paced()
    data = bytes(range(256)) * 1024  # four pieces
    peer.takes = False
    transport.write(data)
    assert (len(peer.sent), in_flight.calls, held) == (PIECE_BYTES, 3 * PIECE_BYTES, [True])
    transport.close()  # after what was written
    assert transport.is_closing()
    transport.resume()
    assert in_flight.calls == 2 * PIECE_BYTES
    assert not peer.ended
    peer.takes = True
    transport.resume()
    assert (peer.sent, in_flight.calls, held, peer.ended) == (data, 0, [True, False], "closed")


async def test_an_answer_to_a_reader_counts_apart():
    """So that readers who do not read do not keep kube-scheduler from calling."""
    peer, transport, in_flight, _ = paced()
    peer.takes, transport.unsent.reads = False, True
    transport.write(b"x" * (2 * PIECE_BYTES))
    assert (in_flight.calls, in_flight.reads) == (0, PIECE_BYTES)
    transport.abort()
    assert (in_flight.calls, in_flight.reads) == (0, 0)


@pytest.mark.parametrize("size", [10, 100, 4 * PIECE_BYTES])
async def test_no_progress_ends_it(size):
    """Also where all of it is in the buffer of the event loop."""
    peer, transport, in_flight, _ = paced()
    peer.takes = False
    transport.write(b"x" * size)
    await asyncio.sleep(STALL_S * 0.9)
    assert not peer.ended
    await asyncio.sleep(STALL_S * 0.2)
    assert (peer.ended, in_flight.calls) == ("aborted", 0)


async def test_slow_progress_goes_on_and_a_trickle_does_not():
    peer, transport, _, _ = paced()
    peer.takes = False
    transport.write(b"x" * (6 * PIECE_BYTES))
    for _ in range(4):
        await asyncio.sleep(STALL_S * 0.9)
        transport.resume()  # a piece is gone
        assert not peer.ended
    assert PIECE_BYTES >= PROGRESS_BYTES
    await asyncio.sleep(STALL_S * 2)
    assert peer.ended == "aborted"


async def test_what_ends_leaves_no_timer_and_no_bytes():
    peer, transport, in_flight, _ = paced()
    peer.takes = False
    transport.write(b"x" * (2 * HIGH_BYTES))
    transport.lose()
    assert in_flight.calls == 0
    await asyncio.sleep(STALL_S * 2)
    assert not peer.ended


async def test_memory_is_given_back_once_after_much_was_in_flight(monkeypatch):
    given = []
    monkeypatch.setattr(unsent_answers, "give_back_memory", lambda: given.append(1))
    in_flight = BytesInFlight()
    for _ in range(3):
        in_flight.hold(20 << 20)
        in_flight.hold(-(20 << 20))
    assert not given
    await asyncio.sleep(GIVE_BACK_AFTER_S * 2)
    assert given == [1]
    in_flight.hold(1 << 20)
    in_flight.hold(-(1 << 20))
    await asyncio.sleep(GIVE_BACK_AFTER_S * 2)
    assert given == [1]
