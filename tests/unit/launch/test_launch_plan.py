# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""What the launcher starts: commands, environments, and refusals in words."""

import os
import socket
import sys

import pytest

from tfdear.launch.plan import LaunchError, LaunchPlan, available_cores, free_port, make_command
from tfdear.rendezvous import cluster, secret

COORDINATOR = "127.0.0.1:61500"


def environment(rank, environ=None, cores=16, **plan):
    return LaunchPlan(command=["x"], **plan).environment(environ or {}, rank, COORDINATOR, cores)


@pytest.mark.parametrize("num_nodes", [1, 2, 3, 6])
def test_ranks_find_their_place(num_nodes):
    for rank in range(6):
        variables = environment(rank, num_ranks=6, num_nodes=num_nodes)
        place = cluster.discover(environ=variables)
        size = 6 // num_nodes
        assert (place.rank, place.world_size) == (rank, 6)
        assert (place.local_rank, place.local_size) == (rank % size, size)
        assert place.node_rank == rank // size
        assert place.coordinator == COORDINATOR


def test_cores_are_shared():
    variables = environment(0, cores=16, num_ranks=4, num_nodes=2)
    assert variables["OMP_NUM_THREADS"] == "4"
    assert variables["TF_NUM_INTRAOP_THREADS"] == "4"
    assert variables["TF_NUM_INTEROP_THREADS"] == "4"
    variables = environment(0, cores=2, num_ranks=4)
    assert variables["OMP_NUM_THREADS"] == "1"
    assert variables["TF_NUM_INTRAOP_THREADS"] == "1"
    assert variables["TF_NUM_INTEROP_THREADS"] == "2"


def test_memory_comes_in_large_pages_unless_the_user_says_how():
    assert environment(0, num_ranks=1)["GLIBC_TUNABLES"] == "glibc.malloc.hugetlb=1"
    given = {"GLIBC_TUNABLES": "glibc.malloc.check=1"}
    assert environment(0, environ=given, num_ranks=2)["GLIBC_TUNABLES"] == "glibc.malloc.check=1"


def test_one_rank_has_all_cores():
    assert "OMP_NUM_THREADS" not in environment(0, num_ranks=1)


def test_what_the_user_set_is_kept_and_what_would_contradict_is_not():
    given = {
        "OMP_NUM_THREADS": "7",
        "TF_CPP_MIN_LOG_LEVEL": "0",
        "TF_CONFIG": "{}",
        "TFDEAR_RANK": "9",
        "HOME": "/home/x",
    }
    variables = environment(1, environ=given, num_ranks=2)
    assert variables["OMP_NUM_THREADS"] == "7"
    assert variables["TF_CPP_MIN_LOG_LEVEL"] == "0"
    assert variables["HOME"] == "/home/x"
    assert variables["TFDEAR_RANK"] == "1"
    assert "TF_CONFIG" not in variables
    assert given["TF_CONFIG"] == "{}"


def test_each_job_has_a_secret_of_its_own_unless_one_is_given():
    plan, other = (LaunchPlan(command=["x"], num_ranks=2) for _ in range(2))
    ranks = [plan.environment({}, rank, COORDINATOR, 2)["TFDEAR_SECRET"] for rank in range(2)]
    assert ranks[0] == ranks[1] != other.environment({}, 0, COORDINATOR, 2)["TFDEAR_SECRET"]
    assert ranks[0] not in repr(plan)
    for name in ("TFDEAR_SECRET", "TFDEAR_SECRET_FILE", "TFDEAR_INSECURE"):
        variables = environment(0, environ={name: "given"}, num_ranks=2)
        assert {n: v for n, v in variables.items() if n in secret.VARIABLES} == {name: "given"}


@pytest.mark.parametrize(
    "values, words",
    [
        ({"num_ranks": 0}, "at least 1"),
        ({"num_ranks": 3, "num_nodes": 2}, "3 ranks .* 2 nodes"),
        ({"num_ranks": 2, "num_nodes": 0}, "0 nodes"),
        ({"num_ranks": 2, "show": frozenset([2])}, "no rank 2"),
        ({"num_ranks": 2, "grace": -1.0}, "grace .*=-1"),
        ({"num_ranks": 2, "grace": float("nan")}, "grace .*=nan"),
    ],
)
def test_impossible_plans_are_refused(values, words):
    with pytest.raises(LaunchError, match=words):
        LaunchPlan(command=["x"], **values)


def test_what_is_shown():
    plan = LaunchPlan(command=["x"], num_ranks=3)
    assert [plan.is_shown(rank) for rank in range(3)] == [True, True, True]
    plan = LaunchPlan(command=["x"], num_ranks=3, log_dir="logs")
    assert [plan.is_shown(rank) for rank in range(3)] == [True, False, False]
    plan = LaunchPlan(command=["x"], num_ranks=3, log_dir="logs", show=frozenset([2]))
    assert [plan.is_shown(rank) for rank in range(3)] == [False, False, True]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_commands(folder):
    (folder / "train.py").touch()
    (folder / "package").mkdir()
    (folder / "package" / "__main__.py").touch()
    (folder / "program").touch(mode=0o755)
    python = [sys.executable, "-u"]
    assert make_command("train.py", ["-n", "3"]) == [*python, "train.py", "-n", "3"]
    assert make_command("package") == [*python, "package"]
    assert make_command("package.sub", ["a"], module=True) == [*python, "-m", "package.sub", "a"]
    assert make_command("./program", ["a"]) == ["./program", "a"]
    assert make_command("sh") == [make_command("sh")[0]] and os.path.isabs(make_command("sh")[0])


@pytest.mark.parametrize(
    "target, module, words",
    [
        ("missing.py", False, "no script missing.py in /"),
        ("missing-program", False, "no missing-program .* PATH"),
        ("missing_module.sub", True, "no module 'missing_module.sub'"),
        ("text", False, "chmod"),
        ("empty", False, "without __main__.py"),
    ],
)
def test_what_cannot_be_started_is_refused(folder, target, module, words):
    (folder / "text").touch()
    (folder / "empty").mkdir()
    with pytest.raises(LaunchError, match=words):
        make_command(target, module=module)


def test_ports_are_free_and_differ():
    ports = {free_port() for _ in range(20)}
    assert len(ports) > 10
    for port in ports:
        with socket.socket() as probe:
            probe.bind(("", port))


def test_cores_of_a_container(tmp_path):
    all_cores = len(os.sched_getaffinity(0))
    assert available_cores(str(tmp_path)) == all_cores
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert available_cores(str(tmp_path)) == all_cores
    (tmp_path / "cpu.max").write_text("50000 100000\n")
    assert available_cores(str(tmp_path)) == 1
    (tmp_path / "cpu.max").write_text("nonsense")
    assert available_cores(str(tmp_path)) == all_cores
