# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Strangers that attack every port of a job change nothing of what it computes, and learn nothing.

The job's ranks send their data over sockets. Strangers come while ranks meet, while they connect at
the start and again in the middle of the training, and while they train.
"""

import base64
import concurrent.futures
import contextlib
import dataclasses
import json
import os
import pathlib
import re
import ssl
import struct
import subprocess
import sys
import time

import grpc
import pytest
import strangers
from ranks import Ranks, run_ranks
from strangers import Strangers

from tfdear import errors
from tfdear.rendezvous import certificates, connections, secret, store_protocol
from tfdear.rendezvous.store import Store

pytestmark = [pytest.mark.multi_process, pytest.mark.newest_only, pytest.mark.timeout(400)]

_JOB = pathlib.Path(__file__).parent / "jobs" / "strangers_job.py"
_WORLD_SIZE = 3
_SECRET, _OTHER = secret.new(), secret.new()
# The package's own limits.
_CONTROL_SECONDS, _DATA_SECONDS = 10, 5
_MOST_CONNECTIONS, _MOST_HANDSHAKES = 2 * _WORLD_SIZE + 64, 64
_MOST_GROWTH = 16 << 20
_SLACK_SECONDS = 15  # Of a busy machine.
_WELCOME = b"welcome!"
_EXCHANGE_BATCH, _LAST_BATCH = 10, 399


@dataclasses.dataclass(frozen=True)
class Scale:
    """How many strangers come."""

    few: int  # Of each kind that sends something.
    many: int  # That only stay.


_SHORT, _LONG = Scale(3, 300), Scale(100, 2000)


class Job:
    """The job of strangers_job.py, and the places where it waits."""

    def __init__(self, folder, variables=None, fault=None):
        self.folder = folder
        folder.mkdir()
        self.begun = time.monotonic()

        def own(rank):
            every = {
                "TFDEAR_SECRET": _SECRET,
                "TFDEAR_SHARED_MEMORY": "0",
                # Some wait here for longer than ranks do elsewhere.
                "TFDEAR_STALL_SECONDS": "600",
            }
            return every | (variables(rank) if variables else {})

        arguments = (str(folder), *([fault] if fault else []))
        self.ranks = Ranks(_WORLD_SIZE, _JOB, own, arguments)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.ranks.__exit__()

    @property
    def pids(self):
        return [process.pid for process in self.ranks.processes]

    @property
    def control(self):
        """Where the ranks meet."""
        return "127.0.0.1", self.ranks.port

    def until(self, done, what, seconds=120):
        end = time.monotonic() + seconds
        while not done():
            codes = [process.poll() for process in self.ranks.processes]
            outputs = [self.ranks.output(rank)[-3000:] for rank in range(_WORLD_SIZE)]
            assert set(codes) == {None} and time.monotonic() < end, (what, codes, outputs)
            time.sleep(0.02)

    def settled_bytes(self, rank):
        """The memory of a rank once its own start takes no more of it."""
        seen = [0]

        def is_settled():
            time.sleep(1)
            seen.append(strangers.resident_bytes(self.pids[rank]))
            return seen[-1] - seen[-2] < 1 << 18

        self.until(is_settled, f"the start of rank {rank}")
        return seen[-1]

    def wait_for(self, place, ranks):
        names = [f"{place}_{rank}" for rank in ranks]
        self.until(lambda: all((self.folder / name).exists() for name in names), place)

    def go(self, *places):
        for place in places:
            (self.folder / f"go_{place}").touch()

    def batch(self):
        """How many batches rank 0 has trained."""
        with contextlib.suppress(FileNotFoundError):
            return int((self.folder / "batch").read_text())
        return 0

    def end(self):
        """The reports of all ranks, which must end well."""
        codes = self.ranks.wait(timeout=150)
        outputs = [self.ranks.output(rank) for rank in range(_WORLD_SIZE)]
        assert codes == [0] * _WORLD_SIZE, outputs
        reports = [json.loads((self.folder / f"rank_{r}.json").read_text()) for r in range(3)]
        return reports, outputs


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """What every rank reports and prints when nobody comes."""
    with Job(tmp_path_factory.mktemp("strangers") / "undisturbed") as job:
        job.go("meeting", "connecting", "exchanging", "training")
        reports, outputs = job.end()
    for rank, report in enumerate(reports):
        rows = [[0], [1, 2], [3, 4, 5]][rank]
        assert report["exchanged"] == [[[r, row] for r in range(3) for row in rows], [rank + 1] * 3]
    return reports, outputs


# What strangers do to a port. All say how many come, and assert that they get nowhere.


def _seconds(job, port):
    return (_CONTROL_SECONDS if port.address == job.control else _DATA_SECONDS) + _SLACK_SECONDS


def send_bytes(job, port, scale):
    """Bytes that no rank sends, or too few; some leave again and some stay."""
    kinds = strangers.first_bytes()
    groups = [Strangers(data, scale.few) for data in kinds.values()]
    groups += [Strangers(data, scale.few, stays=False) for data in kinds.values()]
    found = strangers.visit(port.address, groups, _seconds(job, port))
    for kind, visits in zip(kinds, found, strict=False):
        for one in visits:
            assert one.is_turned_away, (port, kind, one)
            # Who begins as TLS hears what TLS says to anybody.
            assert kind == "tls" or one.answer[:1] in (b"", b"\x15"), (port, kind, one)


def send_slowly(job, port, scale):
    """Each byte comes in time, and all of them never."""
    slow = Strangers(strangers.client_hello(), scale.few, pace=1.0)
    (visits,) = strangers.visit(port.address, [slow], _seconds(job, port))
    assert all(one.is_turned_away and not one.answer for one in visits), (port, visits)


def stay(job, port, scale):
    """They take the places of ranks, for as long as they may."""
    before, most, batch = strangers.num_files(port.pid), 0, job.batch()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        visiting = pool.submit(
            strangers.visit, port.address, [Strangers(b"", scale.many)], _seconds(job, port)
        )
        while not visiting.done():
            most = max(most, strangers.num_files(port.pid))
            time.sleep(0.01)
        (visits,) = visiting.result()
    assert all(one.is_turned_away and not one.answer for one in visits), (port, visits)
    # Rank 0 may have strangers at both of its ports; those that were just ended are not closed yet.
    assert most - before <= _MOST_CONNECTIONS + _MOST_HANDSHAKES + 32, (port, before, most)
    # Meanwhile the ranks train, if they have begun to.
    assert batch in (0, _EXCHANGE_BATCH, _LAST_BATCH) or job.batch() > batch


def send_much(job, port, scale):
    """What says that much will come, and what is much; it takes no memory."""
    before = strangers.resident_bytes(port.pid)
    for kind, data in strangers.large_bytes().items():
        (visits,) = strangers.visit(port.address, [Strangers(data, scale.few)], _seconds(job, port))
        assert all(one.is_turned_away for one in visits), (port, kind, visits)
    large = strangers.with_certificate(strangers.self_signed(1, padding=4 << 20))
    for _ in range(scale.few):
        assert strangers.told_over_tls(port.address, large, bytes(1 << 14)) == b""
    assert strangers.resident_bytes(port.pid) - before < _MOST_GROWTH, port


_HELLO = struct.Struct("<8s16sIIHH")


def _job_number(job):
    """What the ranks were told when they started, as one of them sees it."""
    spy = Store(job.ranks.coordinator, 10.0, 3, certificates.of_rank(_SECRET.encode(), 1))
    try:
        verdict = json.loads(spy.directory("start", timeout=20)["verdict"])
        return bytes.fromhex(verdict["job"])
    finally:
        spy.close()


def show_other_certificates(job, port, scale):
    """They speak TLS, and do not know the secret."""
    contexts = {
        "no certificate": strangers.anybody(),
        "self-signed": strangers.with_certificate(strangers.self_signed(1)),
    }
    for rank in range(2):
        stranger = certificates.of_rank(_OTHER.encode(), rank)
        contexts[f"rank {rank} of another secret"] = strangers.with_certificate(stranger)
    data = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9), bytes(32)]
    if port.address != job.control:
        # All that a rank would say, had it the certificate.
        data.append(_HELLO.pack(b"tfdear 1", _job_number(job), 2, 0, 0, 0))
        # gRPC takes it; there the certificates decide.
        old = strangers.with_certificate(certificates.of_rank(_SECRET.encode(), 2))
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        contexts["TLS 1.2"] = old
    begun = time.monotonic()
    for name, context in contexts.items():
        for one in data:
            assert strangers.told_over_tls(port.address, context, one) == b"", (port, name)
    # At once, not when their time is over.
    assert time.monotonic() - begun < 3 * _SLACK_SECONDS


def pose_as_ranks(job, port, scale):
    """They ask rank 0's service as ranks do, with another secret or none."""
    if port.address != job.control:
        return
    address = "{}:{}".format(*port.address)
    others = [certificates.of_rank(_OTHER.encode(), rank) for rank in range(2)]
    for certificate in (*others, strangers.self_signed(1), None):
        stranger = Store(address, 10.0, 3, certificate)
        try:
            for ask in (
                lambda s=stranger: s.join(1, json.dumps({"host": "h", "pid": 1}), timeout=20),
                lambda s=stranger: s.insert("monitor/failed/1", "{}", timeout=20),
                lambda s=stranger: s.directory("start", timeout=20),
            ):
                with pytest.raises(errors.StoreUnavailableError):
                    ask()
        finally:
            stranger.close()


# What comes to which place, one after another; what stands in one tuple comes together.
_SHORT_PLAN = {
    "meeting": [(show_other_certificates, pose_as_ranks)],
    "connecting": [(send_bytes, send_slowly), (send_much,), (show_other_certificates,)],
    "exchanging": [(send_bytes, send_slowly), (send_much,), (show_other_certificates, stay)],
    "training": [(show_other_certificates, pose_as_ranks), (send_much,), (stay,)],
}
_FAMILIES = (
    send_bytes,
    send_slowly,
    stay,
    send_much,
    show_other_certificates,
    pose_as_ranks,
)


def attack(job, ports, families, scale):
    """Strangers of each family come to all ports at once."""
    for together in families:
        with concurrent.futures.ThreadPoolExecutor(len(ports) * len(together)) as pool:
            attacks = [pool.submit(f, job, port, scale) for f in together for port in ports]
            for done in attacks:
                done.result()


def another_rank(secret_text, job, rank, world_size):
    """A process that takes itself for a rank of this job."""
    script = """
import os
from tfdear.rendezvous import cluster, rendezvous
common = {"tfdear": "1", "backend": "tcp", "device": "CPU"}
rendezvous.connect(cluster.discover(), timeout=60, common=common)
"""
    variables = {
        "TFDEAR_SECRET": secret_text,
        "TFDEAR_RANK": str(rank),
        "TFDEAR_WORLD_SIZE": str(world_size),
        "TFDEAR_COORDINATOR": job.ranks.coordinator,
    }
    return Ranks(1, script, variables, launcher=False)


def check_that_nothing_changed(job, undisturbed, by_strangers=True):
    reports, outputs = job.end()
    expected, expected_outputs = undisturbed
    for rank in range(_WORLD_SIZE):
        assert reports[rank] == expected[rank]
        if not by_strangers:
            continue  # What a rank does wrong is said each time.
        # Strangers all have one address here, about which a line a minute may be said.
        lines, usual = outputs[rank].splitlines(), expected_outputs[rank].splitlines()
        minutes = 1 + (time.monotonic() - job.begun) // 60
        assert len(lines) - len(usual) <= minutes, outputs[rank]


@pytest.mark.parametrize(
    "plan, scale",
    [
        pytest.param(_SHORT_PLAN, _SHORT, id="some of all"),
        *(
            pytest.param(
                dict.fromkeys(_SHORT_PLAN, [(family,)]),
                _LONG,
                marks=pytest.mark.long,
                id=family.__name__,
            )
            for family in _FAMILIES
        ),
    ],
)
def test_strangers_change_nothing(tmp_path, undisturbed, plan, scale):
    strangers.allow_many_files()
    with Job(tmp_path / "job") as job, contextlib.ExitStack() as others:
        # Rank 2 has not come yet.
        job.wait_for("meeting", [2])
        job.until(lambda: strangers.listening(job.pids), "rank 0's service")
        ports = strangers.listening(job.pids)
        assert [port.address for port in ports] == [job.control]
        attack(job, ports, plan["meeting"], scale)
        with strangers.Flood([job.control], scale.many, pause=2.0):
            job.go("meeting")
            # All have met, and wait for ranks 1 and 2 to connect.
            job.wait_for("connecting", [1, 2])
        ports = strangers.listening(job.pids)
        # Nobody comes to the last rank: it connects to the others.
        assert sorted(port.pid for port in ports) == sorted([job.pids[0], *job.pids[:2]])
        assert {port.address[0] for port in ports} == {"127.0.0.1"}
        attack(job, ports, plan["connecting"], scale)
        with strangers.Flood([port.address for port in ports], scale.many // len(ports)):
            job.go("connecting")
            job.wait_for("training", range(_WORLD_SIZE))
        # In the middle of the training ranks 0 and 1 wait for the last one once more.
        job.wait_for("exchanging", [2])
        job.until(lambda: len(strangers.listening(job.pids)) == 3, "ports for the exchange")
        ports = strangers.listening(job.pids)
        assert sorted(port.pid for port in ports) == sorted([job.pids[0], *job.pids[:2]])
        assert job.batch() == _EXCHANGE_BATCH
        attack(job, ports, plan["exchanging"], scale)
        with strangers.Flood([port.address for port in ports], scale.many // len(ports)):
            job.go("exchanging")
            job.until(lambda: job.batch() > _EXCHANGE_BATCH, "the exchange")
        # Only rank 0's service is left.
        ports = strangers.listening(job.pids)
        assert [(port.pid, port.address) for port in ports] == [(job.pids[0], job.control)]
        mistaken = {
            "that one has another secret": (_OTHER, 1, 3),
            "two processes claim rank 1": (_SECRET, 1, 3),
            "has started with a world size of 3": (_SECRET, 3, 4),
        }
        processes = {
            words: others.enter_context(another_rank(text, job, rank, size))
            for words, (text, rank, size) in mistaken.items()
        }
        for words, process in processes.items():
            assert process.wait(timeout=90) == [1]
            assert words in process.output(0), process.output(0)
            assert _SECRET not in process.output(0) and _OTHER not in process.output(0)
        attack(job, ports, plan["training"], scale)
        job.go("training")
        check_that_nothing_changed(job, undisturbed)


def test_what_was_recorded_opens_nothing(tmp_path, undisturbed):
    with strangers.Relay(reflected=2) as control, strangers.Relay(reflected=2) as data:

        def variables(rank):
            if rank != 1:
                return {}
            host, port = control.address
            relay = "{}:{}".format(*data.address)
            return {"TFDEAR_COORDINATOR": f"{host}:{port}", "STRANGERS_RELAY": relay}

        with Job(tmp_path / "job", variables) as job:
            control.target = job.control
            job.go("meeting")
            job.wait_for("connecting", [1, 2])
            of_rank_0 = [p.address for p in strangers.listening(job.pids[:1])]
            (data.target,) = set(of_rank_0) - {job.control}
            # Rank 1 connects to rank 0, whose port stays open for rank 2.
            job.go("connecting_1")
            job.until(lambda: data.sent and len(data.sent[0]) > 1000, "rank 1's connection")
            for relay in (control, data):
                # It was not taken for the rank that it was to reach.
                assert relay.reflected == 0 and relay.num_mirrored > 0
                (recorded, *_) = (bytes(sent) for sent in relay.sent if len(sent) > 1000)
                groups = [
                    Strangers(recorded, 3),
                    Strangers(recorded[: len(recorded) // 2], 1),
                    Strangers(strangers.client_hello() + recorded, 1),
                ]
                for visits in strangers.visit(relay.target, groups):
                    assert all(one.is_turned_away for one in visits), visits
            job.go("connecting", "exchanging", "training")
            check_that_nothing_changed(job, undisturbed)


def test_who_knows_the_secret_and_makes_mistakes_changes_nothing(tmp_path, undisturbed):
    with Job(tmp_path / "job") as job:
        job.go("meeting")
        job.wait_for("connecting", [1, 2])
        number = _job_number(job)
        hello = _HELLO.pack(b"tfdear 1", number, 2, 0, 0, 0)
        wrong = {
            "another version": b"tfdear 2" + hello[8:],
            "another job": _HELLO.pack(b"tfdear 1", bytes(16), 2, 0, 0, 0),
            "rank 0": _HELLO.pack(b"tfdear 1", number, 0, 0, 0, 0),
            "rank 1, with the certificate of rank 2": _HELLO.pack(b"tfdear 1", number, 1, 0, 0, 0),
            "no rank of the job": _HELLO.pack(b"tfdear 1", number, 3, 0, 0, 0),
            "no group": _HELLO.pack(b"tfdear 1", number, 2, 0, 99, 0),
            "one that looks for rank 1": _HELLO.pack(b"tfdear 1", number, 2, 1, 0, 0),
            "too short": hello[:-1],
            "nothing": b"",
        }
        of_rank_0 = [p.address for p in strangers.listening(job.pids[:1])]
        (address,) = set(of_rank_0) - {job.control}
        context = strangers.with_certificate(certificates.of_rank(_SECRET.encode(), 2))
        before = job.settled_bytes(0)
        for what, data in wrong.items():
            assert strangers.told_over_tls(address, context, data) == b"", what
        # One that goes on where TLS ends has no connection either, and takes no place.
        too_long = strangers.told_over_tls(address, context, hello + bytes(1 << 20))
        assert too_long in (b"", _WELCOME)
        assert strangers.resident_bytes(job.pids[0]) - before < _MOST_GROWTH
        send_too_much(job)
        # What gRPC has taken in when it refuses a message; they are three of 65 MiB.
        assert strangers.resident_bytes(job.pids[0]) - before < _MOST_GROWTH + (24 << 20)
        job.go("connecting", "exchanging", "training")
        check_that_nothing_changed(job, undisturbed, by_strangers=False)


def send_too_much(job):
    """Messages to rank 0's service that are too long, and such that are none."""
    certificate = certificates.of_rank(_SECRET.encode(), 1)
    unlimited = [("grpc.max_send_message_length", -1)]
    with connections.channel(job.ranks.coordinator, 0, certificate, unlimited) as channel:
        for data, code in (
            (bytes(65 << 20), grpc.StatusCode.RESOURCE_EXHAUSTED),
            *((text, None) for text in (b"", b"\xff", b"[]", b"{}", b"7", b'{"key": 1}')),
        ):
            for method in ("Insert", "Get", "Directory"):
                call = channel.unary_unary(f"/{store_protocol.SERVICE}/{method}")
                with (
                    contextlib.suppress(grpc.RpcError)
                    if code is None
                    else pytest.raises(grpc.RpcError) as caught
                ):
                    call(data, timeout=30)
                assert code is None or caught.value.code() == code


@pytest.mark.parametrize(
    "fault",
    [
        "noise",
        "half a header",
        *(
            pytest.param(fault, marks=pytest.mark.long)
            for fault in ("zeros", "empty frame", "endless frame")
        ),
    ],
)
def test_foreign_bytes_from_a_rank_end_the_job_in_words(tmp_path, fault):
    with Job(tmp_path / "job", lambda rank: {}, fault) as job:
        job.go("meeting", "connecting", "exchanging", "training")
        codes = job.ranks.wait(timeout=120)
        for rank, code in enumerate(codes):
            output = job.ranks.output(rank)
            # It ends by itself, not by a signal; at once, not at a deadline of five minutes.
            assert code > 0, (code, output)
            assert "terminate called" not in output and "Fatal Python error" not in output, output
            assert re.search(r"Error.*\brank [0-2] \(host \S+, pid \d+\)", output, re.DOTALL), (
                output
            )
        # Who has received them names their sender.
        reason = "closed" if fault == "half a header" else "it sent bytes that are no message"
        assert re.search(rf"rank 2 .*{reason}", job.ranks.output(0), re.DOTALL), job.ranks.output(0)


@pytest.mark.long
def test_few_descriptors_are_enough_in_a_flood(tmp_path, undisturbed):
    strangers.allow_many_files()
    few = {"STRANGERS_FILES": "512"}
    with Job(tmp_path / "job", lambda rank: few if rank == 0 else {}) as job:
        job.until(lambda: strangers.listening(job.pids), "rank 0's service")
        with strangers.Flood([job.control], 2000, pause=2.0):
            job.go("meeting")
            job.wait_for("connecting", [1, 2])
        ports = strangers.listening(job.pids)
        with strangers.Flood([port.address for port in ports], 2000 // len(ports)):
            job.go("connecting", "exchanging")
            job.wait_for("training", range(_WORLD_SIZE))
        with strangers.Flood([job.control], 2000):
            job.go("training")
            check_that_nothing_changed(job, undisturbed)
        assert (job.folder / "checkpoint_0.index").exists()


_TABLES = """
import os, time
import tfdear

strategy = tfdear.DearStrategy()
with strategy.scope():
    layer = tfdear.layers.ShardedEmbedding(20, 6)
    layer.build()
strategy.barrier()
print("serves", flush=True)
while not os.path.exists(os.environ["DONE"]):
    time.sleep(0.05)
print("read", layer.get_weights()[0].shape, flush=True)
"""


def test_strangers_hold_few_places_where_tables_are_served(tmp_path):
    strangers.allow_many_files()
    done = tmp_path / "done"
    with Ranks(2, _TABLES, {"DONE": str(done)}) as job:
        for rank in range(2):
            job.wait_for_output(rank, "serves", 100)
        ports = strangers.listening([process.pid for process in job.processes])
        ports = [port for port in ports if port.address[1] != job.port]
        assert len(ports) == 2
        before = [strangers.num_files(port.pid) for port in ports]
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            idle = [Strangers(b"", 300)]
            seconds = _CONTROL_SECONDS + _SLACK_SECONDS
            visiting = [pool.submit(strangers.visit, p.address, idle, seconds) for p in ports]
            most = list(before)
            while not all(one.done() for one in visiting):
                files = [strangers.num_files(port.pid) for port in ports]
                most = list(map(max, most, files))
                time.sleep(0.01)
            for (visits,) in (one.result() for one in visiting):
                assert all(one.is_turned_away for one in visits), visits
        for held, files in zip(before, most, strict=True):
            assert files - held <= 2 * 2 + 64 + 32, (held, files)
        done.touch()
        assert job.wait(timeout=60) == [0, 0]
        assert all("read (20, 6)" in job.output(rank) for rank in range(2))


def test_a_rank_0_without_a_secret_is_not_taken_for_the_jobs():
    script = """
from tfdear.rendezvous import cluster, rendezvous
common = {"tfdear": "1", "backend": "tcp", "device": "CPU"}
rendezvous.connect(cluster.discover(), timeout=60, common=common)
"""
    with Ranks(2, script, lambda rank: {"TFDEAR_INSECURE": "1"} if rank == 0 else {}) as ranks:
        assert ranks.wait([1], timeout=60) == [1]
        assert "that one has no secret (TFDEAR_INSECURE=1)" in ranks.output(1)


def test_without_a_good_secret_no_socket_is_opened(tmp_path):
    script = """
import os, pathlib
import psutil
from tfdear.rendezvous import cluster, rendezvous

folder = pathlib.Path(os.environ["FOLDER"])
(folder / "open").write_text("s" * 32)
(folder / "open").chmod(0o644)
(folder / "empty").touch(0o600)
del os.environ["TFDEAR_SECRET"]
for name, value in (
    ("TFDEAR_SECRET", "s" * 31),
    ("TFDEAR_SECRET_FILE", str(folder / "open")),
    ("TFDEAR_SECRET_FILE", str(folder / "empty")),
    ("TFDEAR_SECRET_FILE", str(folder / "missing")),
):
    os.environ[name] = value
    try:
        rendezvous.connect(cluster.discover(), timeout=5, common={})
    except ValueError as error:
        print("REFUSED", len(psutil.Process().net_connections("tcp")), error)
    del os.environ[name]
"""
    variables = {"FOLDER": str(tmp_path), "TFDEAR_WORLD_SIZE": "2"}
    ((code, output),) = run_ranks(1, script, variables)
    assert code == 0, output
    lines = [line for line in output.splitlines() if line.startswith("REFUSED")]
    assert len(lines) == 4 and all(line.startswith("REFUSED 0 ") for line in lines), output


_LEAKY = """
import logging, os, subprocess, sys
import keras
import numpy as np
import tfdear

logging.basicConfig(level=logging.DEBUG)
strategy = tfdear.DearStrategy()
print(strategy, vars(strategy), subprocess.run(["env"], capture_output=True, text=True).stdout)
with strategy.scope():
    model = keras.Sequential([keras.Input([3]), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
x = np.ones([80, 3], "float32")
model.fit(x, x[:, :1], batch_size=4, verbose=0, epochs=3)
if strategy.rank == 1:
    raise RuntimeError(f"the end of {dict(os.environ)}")
model.fit(x, x[:, :1], batch_size=4, verbose=0, epochs=1000)
"""


def test_the_secret_is_nowhere_to_be_read(tmp_path):
    script = tmp_path / "leaky.py"
    script.write_text(_LEAKY)
    variables = {name: v for name, v in os.environ.items() if not name.startswith("TFDEAR_")}
    variables |= {
        "TFDEAR_SECRET": _SECRET,
        "TFDEAR_SHARED_MEMORY": "0",
        "TFDEAR_TIMELINE": str(tmp_path / "timeline.json"),
        "TFDEAR_TRACE": str(tmp_path / "trace.json"),
        "TFDEAR_STALL_SECONDS": "0.001",
        "GRPC_VERBOSITY": "DEBUG",
        "CUDA_VISIBLE_DEVICES": "",
    }
    commands = {
        "run": ["run", "-n", "2", str(script)],
        "doctor": ["doctor", "--no-self-test"],
    }
    seen = set()
    for name, arguments in commands.items():
        with open(tmp_path / f"{name}.txt", "w") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "tfdear", *arguments],
                env=variables,
                cwd=tmp_path,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            try:
                end = time.monotonic() + 120
                while process.poll() is None:
                    assert time.monotonic() < end
                    seen.update(strangers.command_lines(process.pid))
                    time.sleep(0.05)
            finally:
                process.terminate()
                process.wait(30)
    files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    names = sorted(path.name for path in files)
    assert b"RuntimeError: the end of" in files[tmp_path / "run.txt"]
    assert b"fingerprint" in files[tmp_path / "doctor.txt"], names
    assert any(name.startswith("timeline") for name in names), names
    assert any(name.startswith("trace") for name in names), names
    assert any(b"leaky.py" in line for line in seen)
    forms = (_SECRET.encode(), bytes.fromhex(_SECRET), base64.b64encode(_SECRET.encode()))
    for where, data in (*files.items(), *(("a command line", line) for line in seen)):
        for form in forms:
            assert form not in data, where
