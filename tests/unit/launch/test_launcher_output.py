# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Lines of several ranks on one terminal: nothing lost, nothing cut, nothing mixed."""

import contextlib
import os
import random

import pytest

from tfdear.launch.output import LinePrefixer, Relay, Sink, exception_line, last_lines, tail_of_file


def prefixed(*pieces):
    prefixer = LinePrefixer(b"[rank 1] ")
    return b"".join([prefixer.feed(piece) for piece in pieces] + [prefixer.close()])


@pytest.mark.parametrize(
    "pieces, expected",
    [
        ([], b""),
        ([b"one\n"], b"[rank 1] one\n"),
        ([b"one\ntwo\n"], b"[rank 1] one\n[rank 1] two\n"),
        ([b"on", b"e", b"\n"], b"[rank 1] one\n"),
        ([b"\n\n"], b"[rank 1] \n[rank 1] \n"),
        ([b"no line feed"], b"[rank 1] no line feed\n"),
        ([b"dos\r\nlines\r\n"], b"[rank 1] dos\n[rank 1] lines\n"),
        ([b"dos\r", b"\n"], b"[rank 1] dos\n"),
        ([b"10%\r20%\r30%\n"], b"[rank 1] 30%\n"),
        ([b"\r10%", b"\r20%", b"\r30%", b"\ndone\n"], b"[rank 1] 30%\n[rank 1] done\n"),
        ([b"10%\r", b"20%\r"], b"[rank 1] 20%\n"),
        ([b"\x00\xff\xfe\n"], b"[rank 1] \x00\xff\xfe\n"),
    ],
)
def test_lines_are_prefixed(pieces, expected):
    assert prefixed(*pieces) == expected


def test_characters_that_arrive_in_pieces_stay_whole():
    text = "Größe 你好 🚀 ok"
    data = (text + "\n").encode()
    assert prefixed(*[data[i : i + 1] for i in range(len(data))]).decode() == f"[rank 1] {text}\n"


def test_the_way_a_stream_is_cut_makes_no_difference():
    chance = random.Random(7)
    data = b"".join(chance.choice([b"a", b"bc", b"\n", b"\r", "é".encode()]) for _ in range(2000))
    whole = prefixed(data)
    for _ in range(20):
        cuts = sorted(chance.sample(range(len(data)), 50))
        pieces = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
        assert prefixed(*pieces) == whole


def test_a_line_without_end_goes_out_in_pieces_between_characters():
    text = "ä" * 200_000
    prefixer = LinePrefixer(b"> ")
    early = prefixer.feed(b"x" + text.encode())
    assert len(early) > 200_000  # Most of it is out before the line ends.
    lines = (early + prefixer.close()).decode().splitlines()
    assert "".join(line.removeprefix("> ") for line in lines) == "x" + text


@pytest.fixture
def pipe():
    read, write = os.pipe()
    os.set_blocking(read, False)
    yield read, write
    for descriptor in (read, write):
        with contextlib.suppress(OSError):
            os.close(descriptor)


def written(sink, read):
    while sink.wants_to_write():
        sink.write_some()
    try:
        return os.read(read, 1 << 16)
    except BlockingIOError:
        return b""


def test_live_bytes_pass_unchanged(pipe):
    sink = Sink(pipe[1])
    data = bytes(range(256))
    sink.write_live(data)
    assert written(sink, pipe[0]) == data


def test_lines_wait_for_the_end_of_a_live_line(pipe):
    sink = Sink(pipe[1])
    sink.write_live(b"epoch ")
    sink.write_lines(b"[rank 1] hello\n")
    assert written(sink, pipe[0]) == b"epoch "
    assert 0 < sink.seconds_to_release() <= 1
    sink.write_live(b"1\n")
    assert written(sink, pipe[0]) == b"1\n[rank 1] hello\n"
    assert sink.seconds_to_release() == float("inf")


def test_lines_do_not_wait_for_ever_for_a_progress_bar(pipe):
    sink = Sink(pipe[1])
    sink.write_live(b"\r3/10")
    sink.write_lines(b"[rank 1] hello\n")
    sink.release(now=True)
    sink.write_live(b"\r4/10")
    assert written(sink, pipe[0]) == b"\r3/10\n[rank 1] hello\n\r4/10"


def test_a_sink_that_nobody_reads_is_full_but_does_not_block(pipe):
    os.set_blocking(pipe[1], False)
    sink = Sink(pipe[1])
    sink.write_live(b"x" * (2 << 20))
    for _ in range(1000):
        sink.write_some()
    assert sink.is_full() and sink.wants_to_write() and not sink.is_broken


def test_a_reader_who_left_breaks_the_sink(pipe):
    sink = Sink(pipe[1])
    os.close(pipe[0])
    sink.write_live(b"x")
    sink.write_some()
    assert sink.is_broken and not sink.wants_to_write()


def test_relay_shows_and_logs(pipe, tmp_path):
    source, output = os.pipe()
    sink = Sink(pipe[1])
    with open(tmp_path / "rank_1.log", "wb", buffering=0) as log:
        relay = Relay(source, sink, b"[rank 1] ", log)
        assert relay.read_some()  # Nothing there yet, but not the end.
        os.write(output, b"10%\r20%\nunfinished")
        assert relay.read_some()
        os.close(output)
        assert not relay.read_some()
        relay.close()
    assert written(sink, pipe[0]) == b"[rank 1] 20%\n[rank 1] unfinished\n"
    assert (tmp_path / "rank_1.log").read_bytes() == b"10%\r20%\nunfinished"
    assert last_lines(relay.tail, 1) == ["unfinished"]


def test_closing_a_relay_reads_what_is_there_and_waits_for_no_more(pipe):
    source, output = os.pipe()
    sink = Sink(pipe[1])
    relay = Relay(source, sink, None)
    os.write(output, b"last words")
    relay.close()  # `output` is still open, as it is while a grandchild holds it.
    os.close(output)
    assert written(sink, pipe[0]) == b"last words"


def test_a_full_log_is_given_up_in_words(pipe):
    source, output = os.pipe()
    sink = Sink(pipe[1])
    with open("/dev/full", "wb", buffering=0) as log:
        relay = Relay(source, sink, None, log)
        os.write(output, b"still shown\n")
        assert relay.read_some()
        os.close(output)
        relay.close()
    shown = written(sink, pipe[0]).decode()
    assert "still shown\n" in shown and "no more is written to /dev/full" in shown


def test_last_lines_are_those_that_say_something(tmp_path):
    data = "cut off\n\n  indented\n10%\r20%\nerror: ä\n\n".encode()
    assert last_lines(data, 3) == ["  indented", "20%", "error: ä"]
    assert last_lines(b"", 3) == []
    path = tmp_path / "log"
    path.write_bytes(b"x" * 100_000 + b"\nend\n")
    assert last_lines(tail_of_file(str(path)), 1) == ["end"]
    assert tail_of_file(str(tmp_path / "none")) == b""


STARTING = b"""\
WARNING: All log messages before absl::InitializeLog() is called are written to STDERR
I0000 00:00:1795386615.068966   30828 port.cc:153] oneDNN custom operations are on.
2026-11-22 22:30:15.181000: I tensorflow/core/util/port.cc:153] oneDNN custom operations are on.
I0000 00:00:1795386615.180930   30828 cpu_feature_guard.cc:227] This TensorFlow binary is optimized
To enable the following instructions: AVX2 FMA, in other operations, rebuild TensorFlow with
E0000 00:00:1795386626.249454   30828 cuda_platform.cc:52] failed call to cuInit: INTERNAL: CUDA
2026-11-22 22:30:15.360497: E external/cuda/cuda_platform.cc:51] failed call to cuInit: INTERNAL
"""


def test_what_tensorflow_says_at_every_start_is_left_out():
    said = b"E0000 00:00:1795386626.249454   30828 rank.cc:52] an error\nI think: so\n"
    assert LinePrefixer(b"> ").feed(STARTING + said) == b"> " + said.replace(b"\nI", b"\n> I")
    assert last_lines(STARTING + b"what happened", 3) == ["what happened"]


@pytest.mark.parametrize(
    "text, expected",
    [
        ("", None),
        ("KeyError: 'x'\n", None),
        ("Traceback (most recent call last):\n  File\n    x[1]\nKeyError: 'x'\n", "KeyError: 'x'"),
        (
            "Traceback (most recent call last):\n  f\nKeyError: 1\n\nDuring handling of the above "
            "exception, another exception occurred:\n\nTraceback (most recent call last):\n  g\n"
            "package.some.OpError: no\nDetected at node\nb: c\n",
            "package.some.OpError: no",
        ),
        ("Traceback (most recent call last):\n  f\nKeyboardInterrupt", "KeyboardInterrupt"),
        ("Traceback (most recent call last):\n  f\nE: " + "x" * 999, "E: " + "x" * 297 + "..."),
        ("Traceback (most recent call last):\n  killed in the middle", None),
    ],
)
def test_the_line_that_names_the_exception(text, expected):
    assert exception_line(text.encode()) == expected
