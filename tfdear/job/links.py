# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""What collectives cost on the job's links, as measured by this rank at the start."""

from tfdear.base.names import Lane
from tfdear.compression.compressor import Compressor
from tfdear.engine.engine import Engine
from tfdear.job import connection_choice, link_costs
from tfdear.job.groups import LEVELS, ProcessGroups
from tfdear.planning import network_costs
from tfdear.planning.cost_model import CommunicationCosts


class Links:
    """The measured costs, by class of link; the groups are open before `measure` is called."""

    def __init__(self, groups: ProcessGroups):
        self._groups = groups
        # By the name of the class: "world", "intra_node" and "inter_node", or "rows" and "columns".
        self.costs_of_class: dict[str, CommunicationCosts] = {}

    def measure(self, engine: Engine, num_nodes: int) -> None:
        """Measures all classes; all ranks call it together."""
        groups = self._groups
        if groups.may_choose_connections:
            connection_choice.choose(engine, groups)
        self.costs_of_class["world"] = link_costs.measure(engine, Lane.GRADIENTS)
        lanes = (Lane.INTRA_NODE, Lane.INTER_NODE) if groups.grid is None else LEVELS
        # A group of one has no links, and a group of all ranks is measured already. All ranks must
        # make the same choice.
        if groups.grid is None and num_nodes in (1, len(groups.members[Lane.GRADIENTS])):
            return
        for name, lane in zip(self._names_of_levels, lanes, strict=True):
            if len(groups.members.get(lane, ())) > 1:
                # All columns of a grid use the nodes' links at the same time, so they are measured
                # at the same time.
                together = Lane.CONTROL if groups.grid or groups.sparse_grid else None
                self.costs_of_class[name] = link_costs.measure(engine, lane, together)

    def of_sparse_levels(self) -> tuple[CommunicationCosts | None, CommunicationCosts]:
        """Costs within and between the levels of compression; the first is None for one rank."""
        if self._groups.sparse_levels.intra == 1:
            return None, self.costs_of_class["world"]
        inner, outer = (self.costs_of_class[name] for name in self._names_of_levels)
        return inner, outer

    def of_gradients(self, compressor: Compressor | None) -> CommunicationCosts | None:
        """What a reduction of gradients costs, compressed or not; None: nothing was measured."""
        groups = self._groups
        if compressor is not None:
            levels = groups.sparse_levels
            return compressor.costs(*self.of_sparse_levels(), levels.intra, levels.inter)
        if groups.grid is None:
            return self.costs_of_class.get("world")
        inner, outer = (self.costs_of_class.get(name) for name in self._names_of_levels)
        return network_costs.levels(inner, outer, groups.grid.levels.intra)

    @property
    def _names_of_levels(self) -> tuple[str, str]:
        nodes = self._groups.grid is None or self._groups.grid.nodes
        return ("intra_node", "inter_node") if nodes else ("rows", "columns")
