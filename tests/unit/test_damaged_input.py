# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Files and words of other ranks, damaged at random: refused in words, or whole."""

import base64
import copy
import functools
import json
import os
import pathlib
import random
import time

import numpy as np
import pytest
import tensorflow as tf
from event_rows import dear_steps

from tfdear import errors
from tfdear.data import disk_writer, record_index, shared_listing
from tfdear.integrations.keras import residuals as residual_files
from tfdear.measure import clock, timeline
from tfdear.measure import drawing as timeline_drawing
from tfdear.monitor import diagnosis
from tfdear.planning.trace import Trace
from tfdear.rendezvous import mismatch, nodes, rank_names, store_records

_SECONDS_LONG = 600.0
_ODD_VALUES = (
    None,
    True,
    0,
    -1,
    0.5,
    1e308,
    float("nan"),
    float("inf"),
    2**31,
    2**64,
    10**400,
    "",
    "-1",
    "x" * 300,
    "\ud800",
    [],
    [[]],
    {},
    {"": None},
)
_ODD_BYTES = (
    b"",
    b"\0",
    b"\xff",
    b'"',
    b"[",
    b"{",
    b"}",
    b",",
    b"-",
    b"9",
    b"e999",
    b"\xed\xa0\x80",
)


def damaged_document(document, draw: random.Random):
    """A copy of a JSON document in which one to three places are gone, doubled or odd."""
    document = copy.deepcopy(document)
    for _ in range(draw.randint(1, 3)):
        places = []

        def collect(node, places=places):
            members = node.items() if isinstance(node, dict) else enumerate(node)
            for key, value in members:
                places.append((node, key))
                if isinstance(value, (dict, list)):
                    collect(value)

        if not isinstance(document, (dict, list)) or not document:
            return document
        collect(document)
        node, key = draw.choice(places)
        what = draw.random()
        if what < 0.25:
            del node[key]
        elif what < 0.35 and isinstance(node, list):
            node.insert(key, copy.deepcopy(draw.choice(places)[0]))
        elif what < 0.45:
            node[key] = copy.deepcopy(node)
        else:
            node[key] = copy.deepcopy(draw.choice(_ODD_VALUES))
    return document


def damaged_bytes(content: bytes, draw: random.Random) -> bytes:
    """A copy of which some bytes are other ones, missing, or there twice."""
    for _ in range(draw.randint(1, 4)):
        at, end = sorted(draw.choices(range(len(content) + 1), k=2))
        what = draw.random()
        if what < 0.5:
            content = content[:at] + draw.choice(_ODD_BYTES) + content[at + 1 :]
        elif what < 0.7:
            content = content[:at] + bytes([draw.randrange(256)]) + content[at + 1 :]
        elif what < 0.8:
            content = content[:at]
        elif what < 0.9:
            content = content[:at] + content[end:]
        else:
            content = content[:end] + content[at : at + 1000] + content[end:]
    return content


def damaged(document, draw: random.Random) -> bytes:
    """The document as JSON, damaged in its values or in its bytes."""
    if draw.random() < 0.6:
        return json.dumps(damaged_document(document, draw)).encode()
    return damaged_bytes(json.dumps(document).encode(), draw)


class Traces:
    """A trace of a model, as `tfdear simulate` reads it."""

    document = {
        "format": "tfdear-trace-1",
        "name": "small",
        "layers": [
            {"name": "a/kernel", "bytes": 8, "forward": 0.5, "backward": 1.0},
            {"name": "b/bias", "bytes": 4, "forward": 0.25, "backward": 0.125},
            {"name": "words", "bytes": 160, "forward": 0.25, "backward": 0.125},
        ],
        "tables": [
            {
                "layer": "words",
                "rows": 10,
                "columns": 4,
                "ids": 8,
                "coalesced": 6,
                "prior": 3,
                "workers": 2,
            }
        ],
    }

    def __init__(self, folder: pathlib.Path):
        self._path = folder / "trace.json"

    def take(self, draw: random.Random) -> bool:
        self._path.write_bytes(damaged(self.document, draw))
        try:
            trace = Trace.load(self._path)
        except ValueError as error:
            assert "trace.json" in str(error)
            return False
        assert 0 <= trace.backward < 1e12 and 0 <= trace.bytes < 2**80
        trace.save(self._path)
        assert Trace.load(self._path) == trace
        return True


class Timelines:
    """A timeline of a rank, as `tfdear timeline` merges and draws it."""

    def __init__(self, folder: pathlib.Path):
        self._path = folder / "timeline.json"
        shared = clock.ClockOffset(0.0, 0.0, "shared")
        self._whole = timeline.make(dear_steps(2), rank=0, host="node", offset=shared)
        self._other = timeline.make(dear_steps(2), rank=1, host="node", offset=shared)

    def take(self, draw: random.Random) -> bool:
        self._path.write_bytes(damaged(self._whole, draw))
        try:
            trace = timeline.read(self._path)
        except ValueError as error:
            assert "timeline.json" in str(error)
            return False
        merged = timeline.merge([trace, self._other])
        assert [entry["rank"] for entry in merged["otherData"]["ranks"]] == [0, 1]
        assert all(
            timeline.line_of(event) in timeline.LINES
            for event in merged["traceEvents"]
            if event["ph"] != "M"
        )
        timeline.write(merged, self._path)
        return True


class StoreRecords:
    """What ranks write into the store where they meet."""

    description = {
        "common": {"world size": 2, "tfdear": "1"},
        "host": "node",
        "pid": 7,
        "node": None,
        "address": "10.0.0.1",
    }
    stall = [
        {
            "group": "gradients",
            "sequence": 3,
            "signature": "all_reduce",
            "tensors": ["a"],
            "waiting_for": 1,
            "opened": {"gradients": 4, "control": 7},
        }
    ]

    verdict = {
        "go": True,
        "mismatch": False,
        "message": "",
        "node_steps": [0, 0, 1],
        "job": "00ff",
    }

    def __init__(self, folder: pathlib.Path):
        self._readers = (
            (self.description, self._meet),
            (self.verdict, self._start),
            ({"host": "10.0.0.1", "port": 7}, functools.partial(store_records.data_address, "k")),
            (["first", "second"], lambda text: store_records.values_of_ranks("k", text, 2)),
            (self.stall, functools.partial(self._diagnose, "stall")),
            ({"error": "ValueError: x", "time": 5.0}, functools.partial(self._diagnose, "failed")),
            ({"aborted": False, "failed": True}, functools.partial(self._diagnose, "left")),
            ({"kind": "aborted", "message": "why"}, diagnosis.Cause.from_json),
        )

    def take(self, draw: random.Random) -> bool:
        document, reader = draw.choice(self._readers)
        text = damaged(document, draw).decode(errors="replace")
        try:
            reader(text)
        except errors.RendezvousError as error:
            assert "the store in which the ranks meet" in str(error)
            return False
        return True

    def _meet(self, text: str) -> None:
        entries = {"0": json.dumps(self.description), "1": text}
        came = store_records.descriptions(entries)
        mismatch.mismatch(came)
        nodes.numbers([came[0], came[1]])
        assert "pid" in rank_names.describe(1, came[1])

    def _start(self, text: str) -> None:
        verdict = store_records.verdict(text)
        bytes.fromhex(verdict["job"])
        assert len(nodes.of_steps(verdict["node_steps"])) == len(verdict["node_steps"])

    def _diagnose(self, kind: str, text: str) -> None:
        reports = store_records.reports({f"{kind}/1": text}, kind)
        snapshot = diagnosis.Snapshot(
            rank=0,
            describe=lambda rank: f"rank {rank}",
            members=lambda group: [0, 1],
            in_flight=[dict(self.stall[0], seconds=1e4)],
            failure=None,
            failure_seconds=0.0,
            failed=reports if kind == "failed" else {},
            left=reports if kind == "left" else {},
            lost={},
            stalls=reports if kind == "stall" else {},
            timeout=300.0,
            heartbeat=10.0,
            stall_seconds=1.0,
        )
        diagnosis.find_cause(snapshot)


class ResidualFiles:
    """What compression held back, beside a checkpoint."""

    class Job:
        rank, world_size = 1, 2

    def __init__(self, folder: pathlib.Path):
        self._path = folder / ".model.rank1of2.step3.residual"
        self._header = {"format": 1, "step": 3, "rank": 1, "world_size": 2}

    def take(self, draw: random.Random) -> bool:
        header = json.dumps(self._header).encode()
        state = bytes(range(200))
        damage_header = draw.random() < 0.5
        with tf.io.TFRecordWriter(str(self._path)) as writer:
            writer.write(damaged(self._header, draw) if damage_header else header)
            writer.write(state)
        if not damage_header:
            self._path.write_bytes(damaged_bytes(self._path.read_bytes(), draw))
        try:
            received = residual_files._read(self.Job, self._path)
        except (ValueError, tf.errors.OpError) as error:
            assert str(error)
            return False
        assert received == state
        return True


class CacheIndices:
    """Where the records of a cache are, on disk: what is damaged is looked for again."""

    def __init__(self, folder: pathlib.Path):
        self._folder = folder
        self._places = np.zeros(20, disk_writer.PLACE)
        self._places["number"] = np.arange(20)
        np.save(folder / "index.npy", self._places)
        self._lengths = np.arange(50)
        record_index.keep(folder, self._lengths)
        self._whole = {path: path.read_bytes() for path in folder.iterdir()}

    def take(self, draw: random.Random) -> bool:
        for path, whole in self._whole.items():
            path.write_bytes(damaged_bytes(whole, draw))
        places = disk_writer.load_index(self._folder / "index.npy")
        assert places is None or places.dtype == disk_writer.PLACE
        lengths = record_index.load(self._folder)
        if lengths is not None:  # It has a checksum.
            np.testing.assert_array_equal(lengths, self._lengths)
        return places is not None


class SharedListings:
    """What another rank found out about files, and its errors."""

    rank, world_size = 0, 2

    def __init__(self, folder: pathlib.Path):
        self._error = {"code": 15, "text": "a file is damaged"}

    def exchange(self, text: str) -> list[str]:
        """The words of this rank, and the damaged ones of another that says the same."""
        self._rounds += 1
        if self._rounds > 2:
            raise errors.TfdearError("the other rank has gone")
        answer = json.loads(text)
        if self._draw.random() < 0.2:
            answer["error"] = self._error
        elif self._draw.random() < 0.6:
            content = damaged_bytes(base64.b64decode(answer["bytes"]), self._draw)
            answer["bytes"] = base64.b64encode(content).decode()
            return [text, json.dumps(answer)]
        return [text, damaged(answer, self._draw).decode(errors="replace")]

    def take(self, draw: random.Random) -> bool:
        self._draw, self._rounds = draw, 0

        def find(part: int) -> dict[str, np.ndarray]:
            return {"lengths": np.arange(30), "paths": np.frombuffer(b"a\0b", np.uint8)}

        try:
            found = shared_listing.among(self)(2, find)
        except (errors.TfdearError, ValueError, OSError, tf.errors.OpError) as error:
            assert str(error)
            return False
        return len(found) == 2


SUBJECTS = (Traces, Timelines, StoreRecords, ResidualFiles, CacheIndices, SharedListings)


@pytest.mark.parametrize("subject", SUBJECTS)
def test_damage_is_refused_in_words(subject, tmp_path):
    parser = subject(tmp_path)
    rounds = 40 if subject is ResidualFiles else 600
    taken = [parser.take(random.Random(seed)) for seed in range(rounds)]
    # Else nothing was damaged, or nothing can be read at all.
    assert 0.01 * rounds < sum(taken) < 0.9 * rounds


@pytest.mark.long
@pytest.mark.timeout(2 * _SECONDS_LONG)
@pytest.mark.parametrize("subject", SUBJECTS)
def test_much_damage_is_refused_in_words(subject, tmp_path):
    parser = subject(tmp_path)
    end = time.monotonic() + _SECONDS_LONG / len(SUBJECTS)
    seed = 1_000_000
    while time.monotonic() < end:
        seed += 1
        try:
            parser.take(random.Random(seed))
        except BaseException:
            print(f"{subject.__name__}, seed {seed}")
            raise
    print(f"{subject.__name__}: {seed - 1_000_000} rounds")


def test_a_damaged_index_is_not_kept_open(tmp_path, caplog):
    indices = CacheIndices(tmp_path)
    descriptors = len(os.listdir("/proc/self/fd"))
    for seed in range(200):
        indices.take(random.Random(seed))
    # Who keeps what was logged keeps the errors, and what these hold.
    assert caplog.records
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_a_picture_of_a_damaged_timeline(tmp_path):
    drawn = 0
    whole = Timelines(tmp_path)
    for seed in range(40):
        if not whole.take(random.Random(seed)):
            continue
        trace = timeline.read(tmp_path / "timeline.json")
        try:
            timeline_drawing.draw(trace, tmp_path / "timeline.png", num_steps=1)
            drawn += 1
        except ValueError as error:
            assert "timeline" in str(error)
    assert drawn > 0


@pytest.mark.parametrize("rank", ["", "-1", "1_0", "x", "1" * 5000, "٣"])
def test_keys_that_name_no_rank_are_refused(rank):
    description = json.dumps(StoreRecords.description)
    with pytest.raises(errors.RendezvousError, match="'start/rank/"):
        store_records.descriptions({rank: description})
    with pytest.raises(errors.RendezvousError, match="ends in no rank"):
        store_records.lost({rank: json.dumps({"silent": 0.0})})
