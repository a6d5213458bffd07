# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The resolver of every source says what TensorFlow's own would say."""

import json

import pytest
import tensorflow as tf

import tfdear
from tfdear.rendezvous import cluster, cluster_resolver


def resolver_of(environ, hosts=()):
    return cluster_resolver.make(cluster.discover(environ=environ), hosts)


def attributes(resolver):
    jobs = resolver.cluster_spec().as_dict()
    environment = resolver.environment or ""  # None and "" both mean none.
    return resolver.task_type, resolver.task_id, jobs, resolver.master(), environment


@pytest.mark.parametrize(
    "jobs, task",
    [
        ({"worker": ["a:1", "b:2", "c:3"]}, {"type": "worker", "index": 0}),
        ({"worker": ["a:1", "b:2", "c:3"]}, {"type": "worker", "index": 2}),
        ({"chief": ["a:1"], "worker": ["b:2", "c:3"]}, {"type": "chief", "index": 0}),
        ({"chief": ["a:1"], "worker": ["b:2", "c:3"]}, {"type": "worker", "index": 0}),
        ({"chief": ["a:1"], "worker": ["b:2", "c:3"]}, {"type": "worker", "index": 1}),
    ],
)
def test_tf_config_as_tensorflow_reads_it(monkeypatch, jobs, task):
    environ = {"TF_CONFIG": json.dumps({"cluster": jobs, "task": task, "rpc_layer": "grpc"})}
    monkeypatch.setenv("TF_CONFIG", environ["TF_CONFIG"])
    expected = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    assert attributes(resolver_of(environ)) == attributes(expected)


@pytest.mark.parametrize("environ", [{}, {"TFDEAR_RANK": "0", "TFDEAR_WORLD_SIZE": "1"}])
def test_one_process_is_what_tensorflow_takes_for_a_chief(monkeypatch, environ):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    expected = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    assert attributes(resolver_of(environ)) == attributes(expected) == (None, None, {}, "", "")


@pytest.mark.parametrize(
    "environ",
    [
        {
            "TFDEAR_RANK": "1",
            "TFDEAR_WORLD_SIZE": "3",
            "TFDEAR_COORDINATOR": "10.0.0.1:6000",
        },
        {"RANK": "1", "WORLD_SIZE": "3", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "5999"},
        {
            "OMPI_COMM_WORLD_RANK": "1",
            "OMPI_COMM_WORLD_SIZE": "3",
            "TFDEAR_COORDINATOR": "10.0.0.1:6000",
        },
        {
            "SLURM_PROCID": "1",
            "SLURM_NTASKS": "3",
            "SLURM_STEP_ID": "0",
            "TFDEAR_COORDINATOR": "10.0.0.1:6000",
        },
    ],
    ids=lambda environ: next(iter(environ)),
)
def test_launchers_start_workers(environ):
    resolver = resolver_of(environ, ["10.0.0.1", "10.0.0.2", "fe80::1"])
    jobs = {"worker": ["10.0.0.1:6000", "10.0.0.2:0", "[fe80::1]:0"]}
    assert attributes(resolver) == ("worker", 1, jobs, "grpc://10.0.0.2:0", "")


def test_a_strategy_alone_has_one(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    resolver = tfdear.DearStrategy().cluster_resolver
    assert attributes(resolver) == (None, None, {}, "", "")
    worker = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({"worker": ["a:1"]}), task_type="worker", task_id=0
    )
    assert tfdear.DearStrategy(worker).cluster_resolver is worker
