# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Strategies that are closed, and created again in the same processes."""

import json
import pathlib

import pytest
from ranks import Ranks

pytestmark = [pytest.mark.multi_process, pytest.mark.newest_only]

_JOB = pathlib.Path(__file__).parent / "jobs" / "close_job.py"
# Cycles after which everything is there that a process keeps: threads of TensorFlow and gRPC, and
# what they allocate once.
_SETTLED = 20
# What a cycle may keep on average, by itself and with the training of a model. TensorFlow keeps
# something of functions that were traced.
_KIBIBYTES, _KIBIBYTES_WITH_MODELS = 64, 512


def run(task, directory, *arguments, codes=(0, 0), timeout=120, **variables):
    """Runs a task on two ranks; returns what each has reported."""
    with Ranks(2, _JOB, variables, (task, str(directory), *map(str, arguments))) as ranks:
        ended = ranks.wait(timeout=timeout)
        outputs = [ranks.output(rank)[-6000:] for rank in range(2)]
    assert ended == list(codes), "\n".join(outputs)
    reports = [pathlib.Path(directory) / f"{task}_{rank}.json" for rank in range(2)]
    return [json.loads(r.read_text()) if r.exists() else outputs[n] for n, r in enumerate(reports)]


def check_cycles(reports, settled):
    """Losses are the same whenever a variant comes, and a process holds no more than before."""
    first = {}
    for of_rank in reports:
        for cycle in of_rank:
            expected = first.setdefault(cycle["variant"], cycle["losses"])
            assert cycle["losses"] == expected, cycle["variant"]
    dense = [first[name] for name in ("plain", "sockets", "nodes") if name in first]
    assert all(losses == dense[0] for losses in dense)
    for of_rank in reports:
        after = of_rank[settled:]
        for what in ("descriptors", "threads"):
            counts = [cycle[what] for cycle in after]
            assert max(counts) == counts[0], (what, counts)


def test_a_few_cycles(tmp_path):
    variants = "plain,sockets,tables,compressed,nodes"
    reports = run("cycles", tmp_path, 7, timeout=240, VARIANTS=variants)
    check_cycles(reports, settled=5)


@pytest.mark.long
@pytest.mark.parametrize(
    "variants, kibibytes",
    [("bare", _KIBIBYTES), ("plain,sockets,tables,compressed,nodes", _KIBIBYTES_WITH_MODELS)],
)
def test_a_hundred_cycles(variants, kibibytes, tmp_path):
    reports = run("cycles", tmp_path, 100, timeout=1800, VARIANTS=variants)
    check_cycles(reports, _SETTLED)
    for of_rank in reports:
        memory = [cycle["kibibytes"] for cycle in of_rank[_SETTLED:]]
        assert memory[-1] - memory[0] <= kibibytes * (len(memory) - 1), memory


def test_tensors_first_strategy_later_and_use_after_close(tmp_path):
    reports = run("notebook", tmp_path, TFDEAR_TIMELINE=str(tmp_path / "timeline.json"))
    for errors in reports:
        assert "close() it on all ranks before another one is created" in errors.pop("second")
        assert "a DearStrategy of several ranks is open" in errors.pop("beside_a_single_rank")
        assert "cannot be closed in a step" in errors.pop("in_step")
        errors.pop("losses")
        for name, message in errors.items():
            assert "closed" in message, (name, message)
        for name in ("run", "fit", "predict", "all_reduce", "distribute", "variable", "new_cache"):
            assert "this DearStrategy was closed. Create another one" in errors[name], name
        words = (
            "belongs to a strategy that was closed; create the model and compile it in the scope"
        )
        for name in ("traced", "traced_later"):
            assert words in errors[name], name


def test_an_error_in_a_with_statement_reaches_the_other_ranks(tmp_path):
    other, failed = run("error", tmp_path, codes=(1, 1), timeout=90)
    assert failed["seen"] == "the disk is full"
    assert "rank 1 (host " in other["seen"] and "ValueError: the disk is full" in other["seen"]
    for report in (other, failed):
        assert report["current"]
        assert "Start the process again" in report["again"]


def test_a_rank_that_does_not_come_is_named(tmp_path):
    came, missing = run("missing", tmp_path, codes=(1, 1), timeout=90)
    assert "RendezvousTimeoutError" in came["seen"]
    assert "Ranks that came: 0; missing: 1." in came["seen"]
    assert "rank 0 (host " in missing["seen"] and "missing: 1." in missing["seen"]


@pytest.mark.parametrize("when", ["ended", pytest.param("ended_long_ago", marks=pytest.mark.long)])
def test_the_end_of_a_script_counts_as_closed(tmp_path, when):
    _, output = run(when, tmp_path, timeout=90)
    assert "closed" in output
