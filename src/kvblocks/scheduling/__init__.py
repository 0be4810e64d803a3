"""Continuous batching over the manager: waiting and running queues, chunked prefill, preemption by recompute."""

from kvblocks.scheduling.config import SchedulerConfig
from kvblocks.scheduling.request import SchedulableRequest
from kvblocks.scheduling.scheduler import Admitted, Preempted, Refused, Scheduled, Scheduler, Step

__all__ = [
    "Admitted",
    "Preempted",
    "Refused",
    "SchedulableRequest",
    "Scheduled",
    "Scheduler",
    "SchedulerConfig",
    "Step",
]
