# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
import json

import pytest

from tfdear.planning.trace import Layer, Trace

TRACE = Trace("small", (Layer("a/kernel", 8, 0.5, 1.0), Layer("b/bias", 4, 0.25, 0.125)))


def test_sums():
    assert (TRACE.bytes, TRACE.forward, TRACE.backward) == (12, 0.75, 1.125)


def test_scaled_changes_times_only():
    scaled = TRACE.scaled(2)
    assert (scaled.bytes, scaled.forward, scaled.backward) == (12, 1.5, 2.25)
    assert [layer.name for layer in scaled.layers] == ["a/kernel", "b/bias"]


@pytest.mark.parametrize("factor", [-1, float("nan"), float("inf")])
def test_scaled_refuses(factor):
    with pytest.raises(ValueError, match="compute_factor"):
        TRACE.scaled(factor)


def test_file_gives_the_same_trace(tmp_path):
    TRACE.save(tmp_path / "trace.json")
    assert Trace.load(tmp_path / "trace.json") == TRACE


@pytest.mark.parametrize(
    "text, message",
    [
        ("not JSON", "is not JSON"),
        ("[]", "is not a trace"),
        ("[" * 100_000, "is not JSON"),
        ("1" * 5000, "trace.json is not JSON"),
        ('{"format": "another"}', "Received: 'another'"),
        ('{"format": "tfdear-trace-1", "name": "x"}', "no complete trace: no 'layers'"),
        ('{"format": "tfdear-trace-1", "name": "x", "layers": [{"name": "a"}]}', "missing"),
        ('{"format": "tfdear-trace-1", "name": "x", "layers": []}', "no layers"),
    ],
)
def test_load_says_what_is_wrong(tmp_path, text, message):
    path = tmp_path / "trace.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        Trace.load(path)


def test_load_refuses_a_bad_layer(tmp_path):
    document = {"format": "tfdear-trace-1", "name": "x"}
    document["layers"] = [{"name": "a", "bytes": 1, "forward": -1.0, "backward": 0.0}]
    (tmp_path / "trace.json").write_text(json.dumps(document))
    with pytest.raises(ValueError, match="`forward` of layer 'a'"):
        Trace.load(tmp_path / "trace.json")


@pytest.mark.parametrize("size", [-1, 1.5, True, 10**400])
def test_layer_refuses_sizes(size):
    with pytest.raises(ValueError, match="`bytes`"):
        Layer("a", size, 0.0, 0.0)
