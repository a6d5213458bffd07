# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Options of a strategy: what is accepted, what is refused, what ranks must have alike."""

import dataclasses

import pytest

import tfdear
from tfdear.job import options


def resolve(environ=None, **arguments):
    return options.resolve(arguments, environ or {})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("timeout", float("inf")),
        ("timeout", float("nan")),
        ("timeout", 0),
        ("timeout", True),
        ("timeout", "300"),
        ("init_timeout", float("inf")),
        ("init_timeout", -1.0),
        ("heartbeat", 1e-5),
        ("heartbeat", 1e9),
        ("cleanup_timeout", -1.0),
        ("cleanup_timeout", "60"),
        ("barrier", "no"),
        ("shared_memory", "off"),
        ("shared_memory", 0),
        ("shared_seeds", "yes"),
        ("max_delay_ms", -5),
        ("max_delay_ms", 1.5),
        ("connections", True),
        ("connections", 17),
        ("connections", "2"),
        ("schedule", "allreduce"),
        ("collective", "star"),
        ("weighting", "rows"),
        ("embeddings", "gather"),
        ("embeddings", True),
        ("embedding_schedule", "3d"),
        ("backend", "nccl"),
        ("backend", "mpi"),
        ("backend", "ucc"),
        ("fusion", 25),
        ("fusion", "Planed"),
        ("fusion", tfdear.fusion.Planned),
        ("compression", 0.01),
        ("compression", "MSTopK(2)"),
    ],
)
def test_a_wrong_value_is_refused_by_its_name(name, value):
    with pytest.raises(ValueError, match=name):
        resolve(**{name: value})


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("TFDEAR_TIMEOUT", "inf"),
        ("TFDEAR_HEARTBEAT", "0.00001"),
        ("TFDEAR_SHARED_MEMORY", "off"),
        ("TFDEAR_SHARED_SEEDS", "yes"),
        ("TFDEAR_CONNECTIONS", "many"),
        ("TFDEAR_MAX_DELAY_MS", "-5"),
        ("TFDEAR_CLEANUP_TIMEOUT", "soon"),
        ("TFDEAR_EMBEDDINGS", "gather"),
        ("TFDEAR_EMBEDDING_SCHEDULE", "3d"),
    ],
)
def test_so_it_is_in_the_environment(variable, value):
    with pytest.raises(ValueError, match=variable[7:].lower() + "|" + variable):
        resolve({variable: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("backend", "nccl"),
        ("backend", "mpi"),
    ],
)
def test_what_is_not_built_is_refused_as_such(name, value):
    with pytest.raises(ValueError, match=f"{name}='{value}'` is not in this version of tfdear"):
        resolve(**{name: value})


def test_arguments_win_over_variables_and_these_over_defaults():
    found = resolve({"TFDEAR_TIMEOUT": "20", "TFDEAR_CLEANUP_TIMEOUT": "5"}, timeout=30.0)
    assert (found.timeout, found.cleanup_timeout, found.heartbeat) == (30.0, 5.0, 10.0)


def test_planner_and_compression_may_be_texts():
    found = resolve(fusion="FixedSize(4 << 20)", compression="MSTopK(0.02)")
    assert found.fusion == tfdear.fusion.FixedSize(4 << 20)
    assert found.compression == tfdear.compression.MSTopK(0.02)
    assert found == resolve(
        {"TFDEAR_FUSION": "FixedSize(4 << 20)", "TFDEAR_COMPRESSION": "MSTopK(0.02)"}
    )


@pytest.mark.parametrize(
    ("name", "hint"), [("time_out", "timeout"), ("planner", "Options: "), ("bucket_mb", "fusion")]
)
def test_an_unknown_option_is_refused_with_a_hint(name, hint):
    with pytest.raises(TypeError, match=f"no option '{name}'.*{hint}"):
        tfdear.DearStrategy(**{name: 1})


def test_bucket_bytes_that_have_no_effect_are_warned_about(caplog):
    resolve({"TFDEAR_BUCKET_BYTES": "1000"}, fusion=tfdear.fusion.NoFusion())
    assert "TFDEAR_BUCKET_BYTES has no effect" in caplog.text


def test_every_option_is_shared_or_of_ones_own_choice():
    # An option that is added must be decided about.
    shared = {
        "schedule", "barrier", "fusion", "collective", "compression", "weighting", "connections",
        "shared_seeds", "check_every", "log_per_rank", "embeddings", "embedding_schedule",
    }  # fmt: skip
    own = {
        "backend", "timeout", "init_timeout", "heartbeat", "cleanup_timeout", "shared_memory",
        "max_delay_ms",
    }  # fmt: skip
    assert {field.name for field in dataclasses.fields(options.DearOptions)} == shared | own
    assert set(options.DearOptions().shared()) == shared


@pytest.mark.parametrize("name", [n for n in tfdear.fusion.__all__ if n != "FixedCount"])
def test_planners_are_told_apart_by_their_arguments(name):
    planner = getattr(tfdear.fusion, name)
    assert resolve(fusion=planner()).shared() == resolve(fusion=planner()).shared()
    others = [tfdear.fusion.FixedSize(3), tfdear.fusion.Bayesian(trials=7)]
    for other in others:
        assert resolve(fusion=planner()).shared() != resolve(fusion=other).shared()


def test_all_batches_are_compared_where_the_environment_says_so():
    assert [options.checks_data({"TFDEAR_CHECK_DATA": text}) for text in "01"] == [False, True]
    assert not options.checks_data({})
    with pytest.raises(ValueError, match="TFDEAR_CHECK_DATA='yes'"):
        options.checks_data({"TFDEAR_CHECK_DATA": "yes"})
