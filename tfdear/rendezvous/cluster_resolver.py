# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The place in the job as scripts for TensorFlow's own strategies ask for it."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from tfdear.rendezvous.cluster import Cluster


def make(
    cluster: Cluster, hosts: Sequence[str] = ()
) -> tf.distribute.cluster_resolver.SimpleClusterResolver:
    """Describes a place in the job as a cluster resolver, whichever source it came from.

    Use it for `strategy.cluster_resolver`. Task types are those of the source, else "worker". One
    process that nobody gave a place has, as with TensorFlow's strategies, task type and id None and
    an empty cluster.

    Args:
        cluster: The place.
        hosts: Address of every rank, which stands for it where the source gives no addresses; rank
            0's is the coordinator's. Port 0 says that nothing needs to be listening there. Defaults
            to none, for one process.

    Returns:
        The resolver.

    Example:

    >>> from tfdear.rendezvous import cluster
    >>> from tfdear.rendezvous import cluster_resolver
    >>> place = cluster.Cluster(rank=1, world_size=2, coordinator="10.0.0.1:61500")
    >>> resolver = cluster_resolver.make(place, ["10.0.0.1", "10.0.0.2"])
    >>> resolver.task_type, resolver.task_id
    ('worker', 1)
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
