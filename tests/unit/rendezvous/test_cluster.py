# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Discovery of the cluster: every source, in order, and what it says about bad values."""

import json

import pytest
import tensorflow as tf

from tfdear.rendezvous import cluster


def tf_config(task, **jobs):
    return {"TF_CONFIG": json.dumps({"cluster": jobs, "task": task})}


LAUNCHER = {
    "TFDEAR_RANK": "2",
    "TFDEAR_WORLD_SIZE": "4",
    "TFDEAR_LOCAL_RANK": "0",
    "TFDEAR_LOCAL_SIZE": "2",
    "TFDEAR_NODE_RANK": "1",
    "TFDEAR_COORDINATOR": "127.0.0.1:5000",
}
SLURM = {
    "SLURM_PROCID": "3",
    "SLURM_NTASKS": "8",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_NODELIST": "gpu[03-05,9],login1",
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "0",
}
# What a batch script has, outside of srun.
SLURM_BATCH = {"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_JOB_ID": "4711"}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_NAMESPACE": "prterun-h-77@1",
}
TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "6",
    "LOCAL_RANK": "1",
    "MASTER_ADDR": "head",
    "MASTER_PORT": "29500",
}


def test_nothing_is_one_process():
    found = cluster.discover(environ={"PATH": "/bin"})
    assert (found.rank, found.world_size, found.coordinator) == (0, 1, "")


def test_launcher():
    found = cluster.discover(environ=LAUNCHER)
    assert found == cluster.Cluster(
        2, 4, None, 0, "127.0.0.1:5000", 0, 2, node_rank=1, source="TFDEAR_RANK"
    )


def test_tf_config_workers():
    environ = tf_config({"type": "worker", "index": 1}, worker=["a:1", "b:2", "c:3"])
    found = cluster.discover(environ=environ)
    assert (found.rank, found.world_size, found.coordinator) == (1, 3, "a:1")
    assert found.addresses == ("a:1", "b:2", "c:3")


def test_tf_config_chief_is_rank_0():
    jobs = {"worker": ["b:2", "c:3"], "chief": ["a:1"]}
    ranks = [
        cluster.discover(environ=tf_config({"type": kind, "index": index}, **jobs)).rank
        for kind, index in (("chief", 0), ("worker", 0), ("worker", "1"))
    ]
    assert ranks == [0, 1, 2]
    assert (
        cluster.discover(environ=tf_config({"type": "worker", "index": 0}, **jobs)).coordinator
        == "a:1"
    )


def test_tf_config_without_a_cluster_is_one_process():
    assert cluster.discover(environ={"TF_CONFIG": "{}"}).world_size == 1


def test_resolver_wins_over_the_environment():
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({"worker": ["a:1", "b:2"]}), task_type="worker", task_id=1
    )
    found = cluster.discover(resolver, environ=LAUNCHER)
    assert (found.rank, found.world_size, found.source) == (1, 2, "SimpleClusterResolver")


def test_resolver_reads_tf_config(monkeypatch):
    environ = tf_config({"type": "worker", "index": 1}, worker=["a:1", "b:2"])
    monkeypatch.setenv("TF_CONFIG", environ["TF_CONFIG"])
    found = cluster.discover(tf.distribute.cluster_resolver.TFConfigClusterResolver(), {})
    assert (found.rank, found.addresses) == (1, ("a:1", "b:2"))


def test_slurm():
    found = cluster.discover(environ=SLURM)
    host, port = cluster.split_address(found.coordinator, "")
    assert (found.rank, found.world_size, found.local_rank, found.node_rank) == (3, 8, 1, 1)
    assert host == "gpu03"
    assert 61440 <= port <= 65535
    other_job = cluster.discover(environ={**SLURM, "SLURM_JOB_ID": "4712"})
    assert other_job.coordinator != found.coordinator


@pytest.mark.parametrize(
    "node_list, host",
    [
        ("node7", "node7"),
        ("node7,node8", "node7"),
        ("n[1-3]", "n1"),
        ("n[08,1-3],m2", "n08"),
        ("rack[2-3]gpu[4,6]-ib", "rack2gpu4-ib"),
        ("a-b.example.org", "a-b.example.org"),
    ],
)
def test_slurm_first_host(node_list, host):
    found = cluster.discover(environ={**SLURM, "SLURM_STEP_NODELIST": node_list})
    assert found.coordinator.startswith(host + ":")


def test_open_mpi_on_one_machine():
    found = cluster.discover(environ=OPEN_MPI)
    assert (found.rank, found.world_size, found.local_rank) == (1, 2, 1)
    assert found.coordinator.startswith("127.0.0.1:")


def test_open_mpi_on_several_machines_needs_an_address():
    environ = {**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}
    with pytest.raises(ValueError, match="TFDEAR_COORDINATOR=host:port"):
        cluster.discover(environ=environ)
    environ.update(MASTER_ADDR="head", MASTER_PORT="700")
    assert cluster.discover(environ=environ).coordinator == "head:700"
    environ.update(TFDEAR_COORDINATOR="other:800")
    assert cluster.discover(environ=environ).coordinator == "other:800"


def test_torchrun_leaves_its_store_its_port():
    found = cluster.discover(environ=TORCHRUN)
    assert (found.rank, found.world_size, found.local_rank) == (5, 6, 1)
    assert found.coordinator == "head:29501"
    of_ipv6 = cluster.discover(environ={**TORCHRUN, "MASTER_ADDR": "fd00::1"})
    assert of_ipv6.coordinator == "[fd00::1]:29501"
    last_port = cluster.discover(environ={**TORCHRUN, "MASTER_PORT": "65535"})
    assert last_port.coordinator == "head:65534"


@pytest.mark.parametrize("launcher", [TORCHRUN, {**OPEN_MPI, "MASTER_PORT": "700"}])
def test_a_job_on_one_machine_meets_on_its_loopback_interface(launcher):
    # torchrun names the machine, which would be reached from elsewhere.
    named = {**launcher, "MASTER_ADDR": "head"}
    sizes = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE")
    world_size = cluster.discover(environ=named).world_size
    for local_size, host in ((world_size, "127.0.0.1"), (1, "head")):
        found = cluster.discover(environ={**named, **dict.fromkeys(sizes, str(local_size))})
        assert cluster.split_address(found.coordinator, "")[0] == host
        assert found.local_size == local_size
    asked = {**named, **dict.fromkeys(sizes, str(world_size)), "TFDEAR_COORDINATOR": "other:800"}
    assert cluster.discover(environ=asked).coordinator == "other:800"


@pytest.mark.parametrize(
    "environ, size", [({}, "1"), (SLURM, "8"), (LAUNCHER, "9"), (OPEN_MPI, "9"), (TORCHRUN, "9")]
)
def test_an_mpi_that_started_this_process_alone_or_is_not_what_counts_is_passed_over(environ, size):
    expected = cluster.discover(environ=environ)
    assert cluster.discover(environ={**environ, "PMI_RANK": "0", "PMI_SIZE": size}) == expected


def test_order_of_sources():
    # Launchers run inside of each other; the one that started this process counts.
    everything = {
        **TORCHRUN,
        **OPEN_MPI,
        **SLURM,
        **tf_config({"type": "worker", "index": 5}, worker=[f"a:{i}" for i in range(1, 7)]),
        **LAUNCHER,
    }
    everything |= {"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"}
    sources = []
    for family in ("TFDEAR_", "TF_CONFIG", "RANK", "OMPI_", "SLURM_"):
        sources.append(cluster.discover(environ=everything).source.split(" ")[0])
        everything = {k: v for k, v in everything.items() if not k.startswith(family)}
    sources.append(cluster.discover(environ=everything).source)
    assert sources == ["TFDEAR_RANK", "TF_CONFIG", "torchrun", "Open", "Slurm", "one process"]


@pytest.mark.parametrize("launcher, place", [(TORCHRUN, (5, 6)), (OPEN_MPI, (1, 2))])
def test_a_launcher_inside_a_slurm_allocation(launcher, place):
    for slurm in (SLURM_BATCH, {**SLURM_BATCH, "SLURM_NTASKS": "8"}, SLURM):
        found = cluster.discover(environ={**slurm, **launcher})
        assert (found.rank, found.world_size) == place
        assert found.coordinator == cluster.discover(environ=launcher).coordinator


def test_a_batch_script_of_one_task_is_one_process():
    found = cluster.discover(environ=SLURM_BATCH)
    assert (found.rank, found.world_size) == (0, 1)


def test_node_rank_overrides_every_source():
    environ = {
        **tf_config({"type": "worker", "index": 0}, worker=["a:1", "b:2"]),
        "TFDEAR_NODE_RANK": "3",
    }
    assert cluster.discover(environ=environ).node_rank == 3
    assert cluster.discover(environ={**SLURM, "TFDEAR_NODE_RANK": "5"}).node_rank == 5


@pytest.mark.parametrize(
    "environ, words",
    [
        ({**LAUNCHER, "TFDEAR_RANK": "two"}, "TFDEAR_RANK must be an integer.*'two'"),
        ({**LAUNCHER, "TFDEAR_RANK": "-1"}, "TFDEAR_RANK must be an integer.*'-1'"),
        ({**LAUNCHER, "TFDEAR_RANK": "4"}, "rank must be between 0 and 3.*rank=4"),
        ({**LAUNCHER, "TFDEAR_WORLD_SIZE": "0"}, "world size must be at least 1.*world_size=0"),
        ({**LAUNCHER, "TFDEAR_COORDINATOR": "h"}, "host:port.*'h'"),
        ({**LAUNCHER, "TFDEAR_COORDINATOR": "h:70000"}, "from 1 to 65535.*'h:70000'"),
        (
            {**LAUNCHER, "TFDEAR_COORDINATOR": "fd00::1:5000"},
            r"\[IPv6 address\]:port.*'fd00::1:5000'",
        ),
        ({**LAUNCHER, "TFDEAR_NODE_RANK": ""}, "TFDEAR_NODE_RANK must be an integer.*''"),
        ({"TFDEAR_RANK": "0"}, "TFDEAR_WORLD_SIZE is not set"),
        ({"TF_CONFIG": "{"}, "TF_CONFIG must be JSON"),
        ({"TF_CONFIG": "[]"}, "TF_CONFIG must be a JSON object"),
        ({"TF_CONFIG": '{"cluster": {"worker": ["a:1"]}}'}, "TF_CONFIG must look like"),
        (tf_config({"type": "worker", "index": 2}, worker=["a:1", "b:2"]), "between 0 and 1.*=2"),
        (tf_config({"type": "ps", "index": 0}, worker=["a:1"]), "no parameter servers.*"),
        (tf_config({"type": "evaluator", "index": 0}, worker=["a:1"]), "type='evaluator'"),
        (tf_config({"type": "worker", "index": 0}, worker="a:1"), "list of host:port.*'a:1'"),
        (tf_config({"type": "worker", "index": 0}, worker=["a", "b:1"]), "address must be.*'a'"),
        (tf_config({"type": "worker", "index": None}, worker=["a:1"]), "integer.*None"),
        ({**SLURM, "SLURM_STEP_NODELIST": "[3-4"}, "SLURM_STEP_NODELIST"),
        ({**SLURM_BATCH, "SLURM_NTASKS": "8"}, "batch script.* 8 tasks.*srun python"),
        (
            {**TORCHRUN, **tf_config({"type": "chief", "index": 0}, chief=["a:1"])},
            "By TF_CONFIG this process is rank 0 of 1, by torchrun .* rank 5 of 6. Unset TF_CONFIG",
        ),
        (
            {**OPEN_MPI, **tf_config({"type": "worker", "index": 0}, worker=["a:1", "b:1"])},
            "rank 0 of 2, by Open MPI .* rank 1 of 2",
        ),
        ({**SLURM, "SLURM_NTASKS": "3"}, "rank must be between 0 and 2"),
        ({"PMI_RANK": "1", "PMI_SIZE": "4"}, "MPI other than .* 4 processes.*TFDEAR_COORDINATOR="),
        ({**SLURM_BATCH, "PMI_RANK": "1", "PMI_SIZE": "4"}, "MPI other than .* 4 processes"),
        ({**TORCHRUN, "MASTER_PORT": "x"}, "MASTER_PORT must be an integer.*'x'"),
    ],
)
def test_bad_values_are_named(environ, words):
    with pytest.raises(ValueError, match=words):
        cluster.discover(environ=environ)


@pytest.mark.parametrize(
    "host, expected",
    [
        ("localhost", True),
        ("127.0.0.1", True),
        ("127.9.8.7", True),
        ("::1", True),
        ("0:0:0:0:0:0:0:1", True),
        ("127.1", True),
        ("LOCALHOST", True),
        ("localhost.", True),
        ("localhost.localdomain", True),
        ("ip6-localhost", True),
        ("::", False),
        ("fd00::2", False),
        ("10.0.0.1", False),
        ("127.example.org", False),
        ("localhost.example.org", False),
    ],
)
def test_is_loopback(host, expected):
    assert cluster.is_loopback(host) is expected
