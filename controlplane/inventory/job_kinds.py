"""Jobs of the inventory."""

from __future__ import annotations

import datetime as dt
from typing import Any

from controlplane.inventory import gpus
from controlplane.inventory.models import Node
from controlplane.jobs.kinds import NodeJobKind, register
from controlplane.jobs.models import Job
from runners.contracts import DISCOVER_TASK, DiscoverCommand, Observation


@register
class Discover(NodeJobKind):
    """Ask a node's worker what is in the host."""

    kind = "node.discover"
    label = "Discover a node"
    task = DISCOVER_TASK
    deadline = dt.timedelta(minutes=20)

    def command(self, job: Job, attempt: int) -> DiscoverCommand:
        """The question."""
        return DiscoverCommand(job_id=str(job.pk), attempt=attempt, node_slug=job.payload["node"])

    def observed(self, job: Job, observation: Observation) -> dict[str, Any] | None:
        """The answer ends the job."""
        if observation.state != "discovered":
            return None
        node = Node.objects.filter(slug=job.payload["node"]).first()
        return (
            {"differences": ["The node is no longer recorded."]}
            if node is None
            else gpus.apply_discovery(node, observation)
        )
