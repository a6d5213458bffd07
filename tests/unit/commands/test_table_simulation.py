# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""`tfdear simulate` with a model that has tables."""

import dataclasses
import json

import pytest

from tfdear import fusion, simulator
from tfdear.commands import main as cli

_COMMAND = ["simulate", "lm-1b", "--workers", "4,8", "--planners", "NoFusion"]


def test_the_command_shows_every_method(tmp_path, capsys):
    assert cli.main([*_COMMAND, "--json", str(tmp_path / "out.json")]) == 0
    output = capsys.readouterr().out
    assert "table softmax/table: 793471 x 512; a batch has 2227 ids, 1766 different" in output
    for title in ("iteration time with tables", "computation stall", "speedup over the best base"):
        assert f"\n{title}" in output
    results = json.loads((tmp_path / "out.json").read_text())["tables"]["results"]
    expected = simulator.simulate_tables(
        simulator.load("lm-1b"), simulator.Network(), [4, 8], {"NoFusion": fusion.NoFusion()}
    )
    assert [(row["method"], row["workers"], row["iteration_time"]) for row in results] == [
        (result.method, result.workers, result.iteration_time) for result in expected
    ]
    assert f"{expected[-1].exposed * 1e3:.1f}" in output


def test_the_command_takes_methods_and_how_tables_are_divided(tmp_path, capsys):
    times = []
    for more in ([], ["--partition", "row"], ["--ids-known"], ["--vectors", "float16"]):
        path = tmp_path / "out.json"
        arguments = [*_COMMAND, "--methods", "all_to_all", *more, "--json", str(path)]
        assert cli.main(arguments) == 0
        document = json.loads(path.read_text())
        times.append(document["tables"]["results"][0]["iteration_time"])
        assert "best baseline" not in capsys.readouterr().out, "there is none to compare with"
    assert times[1] != times[0]
    assert times[2] < times[0] and times[3] < times[0]


def test_the_command_sweeps_densities(tmp_path, capsys):
    path = tmp_path / "out.json"
    assert cli.main([*_COMMAND, "--methods", "dense", "--sweep", "--json", str(path)]) == 0
    assert "embedding/table: all communication of a step" in capsys.readouterr().out
    sweep = json.loads(path.read_text())["tables"]["sweep"]
    assert sorted(sweep) == ["4", "8"]
    assert "block_sparse" in sweep["4"]


def test_a_model_without_tables_has_no_such_output(capsys):
    assert cli.main(["simulate", "resnet-50", *_COMMAND[2:]]) == 0
    assert "stall" not in capsys.readouterr().out


def test_the_command_sends_sums_of_bags(tmp_path, capsys):
    trace = simulator.load("gnmt-8")
    times = []
    for bags in (0, 128):
        tables = [dataclasses.replace(table, bags=bags) for table in trace.tables]
        path = str(tmp_path / f"of_{bags}.json")
        dataclasses.replace(trace, tables=tuple(tables)).save(path)
        arguments = ["--methods", "+vertical", "--json", str(tmp_path / "out.json")]
        assert cli.main(["simulate", path, *_COMMAND[2:], *arguments]) == 0
        assert (", 128 bags" in capsys.readouterr().out) == (bags > 0)
        document = json.loads((tmp_path / "out.json").read_text())
        times.append([row["iteration_time"] for row in document["tables"]["results"]])
    assert all(pooled < single for single, pooled in zip(*times, strict=True))


@pytest.mark.parametrize("argument", [["--methods", "best"], ["--partition", "diagonal"]])
def test_the_command_refuses_what_there_is_not(argument, capsys):
    with pytest.raises(SystemExit):
        cli.main([*_COMMAND, *argument])
    assert "invalid choice" in capsys.readouterr().err
