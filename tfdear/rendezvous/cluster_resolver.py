# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The cluster resolver that scripts for TensorFlow's own strategies expect."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from tfdear.rendezvous.cluster import Cluster


def make(
    cluster: Cluster, hosts: Sequence[str] = ()
) -> tf.distribute.cluster_resolver.SimpleClusterResolver:
    """Describes this process's cluster as a cluster resolver, whichever source it came from.

    Use it for `strategy.cluster_resolver`. Task types are those of the source, else "worker". For a
    single process that no launcher started, task type and id are None and the cluster is empty, as
    with TensorFlow's strategies.

    The addresses in `hosts` are used where the source gives none; rank 0's is the coordinator's.
    Port 0 says that nothing needs to be listening there.
    """
    addresses = list(cluster.addresses or ())
    if not addresses and cluster.world_size > 1:
        addresses = [f"[{host}]:0" if ":" in host else f"{host}:0" for host in hosts]
        addresses[0] = cluster.coordinator
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver
    if not addresses:
        return resolver(tf.train.ClusterSpec({}))
    jobs = {"chief": addresses[: cluster.chiefs], "worker": addresses[cluster.chiefs :]}
    is_chief = cluster.rank < cluster.chiefs
    return resolver(
        tf.train.ClusterSpec({job: tasks for job, tasks in jobs.items() if tasks}),
        master=addresses[cluster.rank],
        task_type="chief" if is_chief else "worker",
        task_id=cluster.rank if is_chief else cluster.rank - cluster.chiefs,
        rpc_layer="grpc",
    )
