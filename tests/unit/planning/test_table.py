# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
import dataclasses

import pytest

from tfdear.planning.table import Table
from tfdear.planning.trace import Layer, Trace

TABLE = Table("words", 10, 4, ids=8, coalesced=6, prior=3, workers=2)


@pytest.mark.parametrize(
    ("field", "value", "limits"),
    [
        ("rows", 0, "from 1"),
        ("rows", 2.0, "from 1"),
        ("columns", True, "from 1"),
        ("ids", -1, "from 0"),
        ("coalesced", 9, "from 0 to 8"),
        ("prior", 7, "from 0 to 6"),
        ("workers", "2", "from 1"),
        ("layer", 3, "text"),
        ("bags", None, "from 0"),
        ("tokens", 9, "from 0 to 8"),
    ],
)
def test_refuses(field, value, limits):
    with pytest.raises(ValueError, match=f"`{field}`.*{limits}.*Received: {field}={value!r}"):
        dataclasses.replace(TABLE, **{field: value})


def test_a_batch_has_no_more_different_ids_than_the_table_has_rows():
    with pytest.raises(ValueError, match="`coalesced`.*from 0 to 5"):
        Table("words", 5, 4, ids=8, coalesced=6, prior=3, workers=2)


def test_a_trace_keeps_its_tables(tmp_path):
    trace = Trace("small", (Layer("words", 160, 0.5, 1.0), Layer("dense", 8, 0.5, 1.0)), [TABLE])
    trace.save(tmp_path / "trace.json")
    assert Trace.load(tmp_path / "trace.json") == trace
    assert trace.scaled(2).tables == (TABLE,)
    of_bags = dataclasses.replace(TABLE, bags=2, tokens=7)
    dataclasses.replace(trace, tables=(of_bags,)).save(tmp_path / "bags.json")
    assert Trace.load(tmp_path / "bags.json").tables == (of_bags,)


def test_a_file_that_says_nothing_of_bags_is_read(tmp_path):
    path = tmp_path / "trace.json"
    path.write_text(
        '{"format": "tfdear-trace-1", "name": "x", "tables": [{"layer": "words", "rows": 10, '
        '"columns": 4, "ids": 8, "coalesced": 6, "prior": 3, "workers": 2}], '
        '"layers": [{"name": "words", "bytes": 160, "forward": 0, "backward": 0}]}'
    )
    assert Trace.load(path).tables == (TABLE,)


@pytest.mark.parametrize(
    ("layers", "tables", "message"),
    [
        ([("other", 160)], [TABLE], "'words', of 0 layers"),
        ([("words", 160), ("words", 160)], [TABLE], "'words', of 2 layers"),
        ([("words", 160)], [TABLE, TABLE], "'words', of 1 layers"),
        ([("words", 156)], [TABLE], "10 x 4 values or 160 bytes. Received: 156"),
    ],
)
def test_a_table_is_one_layer_of_its_size(layers, tables, message):
    with pytest.raises(ValueError, match=message):
        Trace("small", tuple(Layer(name, size, 0.0, 0.0) for name, size in layers), tables)


def test_a_file_with_an_incomplete_table_is_refused(tmp_path):
    path = tmp_path / "trace.json"
    path.write_text(
        '{"format": "tfdear-trace-1", "name": "x", "tables": [{"layer": "a"}], '
        '"layers": [{"name": "a", "bytes": 4, "forward": 0, "backward": 0}]}'
    )
    with pytest.raises(ValueError, match="no complete trace.*rows"):
        Trace.load(path)
