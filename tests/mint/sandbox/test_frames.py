"""Messages survive any cut of the stream, and nothing else passes for one."""

from __future__ import annotations

import json
import socket
import struct
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import examples
from histobench.mint.sandbox.guest.frames import MAX_FRAME, BrokenFrameError, Channel

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


@pytest.mark.slow
@given(
    messages=st.lists(st.dictionaries(st.text(max_size=5), VALUES, max_size=4), max_size=5),
    cut=st.integers(1, 50),
)
@settings(max_examples=examples(200), deadline=None)
def test_messages_arrive_whole_and_in_order(messages: list[dict[str, object]], cut: int) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        stream = b""
        for message in messages:
            body = json.dumps(message).encode()
            stream += struct.pack("!I", len(body)) + body
        channel = Channel(ours)
        arrived = []
        for start in range(0, len(stream), cut):
            theirs.sendall(stream[start : start + cut])
            try:
                while True:
                    arrived.append(channel.receive(time.monotonic()))
            except TimeoutError:
                continue
        assert arrived == messages


@pytest.mark.slow
@given(noise=st.binary(max_size=300))
@settings(max_examples=examples(1000), deadline=None)
def test_noise_is_refused_or_waited_for_but_never_believed(noise: bytes) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(noise)
        theirs.close()
        channel = Channel(ours)
        try:
            while True:
                assert isinstance(channel.receive(), dict)
        except (BrokenFrameError, EOFError):
            pass


def test_a_message_that_is_announced_as_too_long_is_refused_before_it_comes() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(struct.pack("!I", MAX_FRAME + 1))
        with pytest.raises(BrokenFrameError, match="was announced"):
            Channel(ours).receive(time.monotonic() + 60)


def test_a_reader_that_does_not_read_cannot_hold_the_writer() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(0.1)
        with pytest.raises(TimeoutError):
            Channel(ours).send({"text": "x" * (MAX_FRAME - 100)})
