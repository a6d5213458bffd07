# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""What each way to exchange a table costs at every density of its gradient. No TensorFlow.

Reference: Li et al., "EmbRace", ICPP 2022, Figure 4.
"""

from collections.abc import Sequence

from tfdear.planning import partition
from tfdear.planning.embedding_costs import ExchangeCosts, TableTraffic, block_sparse
from tfdear.planning.partition import Partition
from tfdear.planning.table import Table

# Parts of a table's rows that a batch has; the densities of the paper's models are among them.
DENSITIES = (0.003, 0.01, 0.03, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0)


def sweep(
    rows: int,
    columns: int,
    workers: int,
    costs: ExchangeCosts,
    densities: Sequence[float] = DENSITIES,
    kind: str = "auto",
    value_bytes: int = 4,
) -> dict[str, list[float]]:
    """Returns the seconds of all communication for one table in a step, by method.

    Ids are known, and nothing overlaps. Each rank uses other rows, all equally likely.

    Args:
        rows: Rows of the table.
        columns: Values of a row.
        workers: Number of ranks.
        costs: What their exchanges cost.
        densities: Parts of the rows that a rank uses.
        kind: How the ranks divide it among themselves, of `partition.KINDS` or "auto".
        value_bytes: Bytes of a value of a vector.
    """
    times: dict[str, list[float]] = {}
    holders = {"all_to_all": partition.choose(kind, rows, columns, workers)}
    for servers in dict.fromkeys((1, min(2, workers), workers)):
        holders[f"parameter_servers_{servers}"] = Partition("row", rows, columns, servers)
    for density in densities:
        used = round(rows * density)
        table = Table("", rows, columns, used, used, 0, workers)
        traffic = TableTraffic(table, workers, holders["all_to_all"], value_bytes)
        seconds = {
            "dense": costs.dense(4 * rows * columns),
            "all_gather": costs.gathered(traffic.gathered(used), workers),
            "block_sparse": block_sparse(table, workers, costs),
        }
        for name, held in holders.items():
            traffic = TableTraffic(table, workers, held, value_bytes)
            exchanged = (traffic.vectors(used), traffic.gradients(used))
            seconds[name] = sum(costs.all_to_all.seconds(size) for size in exchanged)
        for name, value in seconds.items():
            times.setdefault(name, []).append(value)
    return times
