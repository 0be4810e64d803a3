"""The waiting queue: first come first served, or by priority; preempted requests come back to the front."""

from __future__ import annotations

import heapq
from collections import deque
from typing import Protocol

from kvblocks.scheduling.request import SchedulableRequest


class WaitingQueue(Protocol):
    """Requests that wait to run, best first."""

    def add(self, request: SchedulableRequest) -> None: ...

    def put_back(self, request: SchedulableRequest) -> None:
        """Return a preempted request, ahead of what came after it."""
        ...

    def peek(self) -> SchedulableRequest: ...

    def pop(self) -> SchedulableRequest: ...

    def remove(self, request: SchedulableRequest) -> bool:
        """Take a request out; False when it is not here. O(n): aborts are rare."""
        ...

    def __len__(self) -> int: ...


class FCFSQueue:
    """Arrival order."""

    def __init__(self) -> None:
        self._queue: deque[SchedulableRequest] = deque()

    def add(self, request: SchedulableRequest) -> None:
        self._queue.append(request)

    def put_back(self, request: SchedulableRequest) -> None:
        self._queue.appendleft(request)

    def peek(self) -> SchedulableRequest:
        return self._queue[0]

    def pop(self) -> SchedulableRequest:
        return self._queue.popleft()

    def remove(self, request: SchedulableRequest) -> bool:
        for at, waiting in enumerate(self._queue):
            if waiting is request:
                del self._queue[at]
                return True
        return False

    def __len__(self) -> int:
        return len(self._queue)


class PriorityQueue:
    """Lowest `priority` value first, then earliest arrival, then order of entry."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, float, int, SchedulableRequest]] = []
        self._entries = 0
        self._returns = 0

    def add(self, request: SchedulableRequest) -> None:
        self._entries += 1
        heapq.heappush(self._heap, (request.priority, request.arrival_time_s, self._entries, request))

    def put_back(self, request: SchedulableRequest) -> None:
        self._returns -= 1
        heapq.heappush(self._heap, (request.priority, request.arrival_time_s, self._returns, request))

    def peek(self) -> SchedulableRequest:
        return self._heap[0][3]

    def pop(self) -> SchedulableRequest:
        return heapq.heappop(self._heap)[3]

    def remove(self, request: SchedulableRequest) -> bool:
        for at, entry in enumerate(self._heap):
            if entry[3] is request:
                del self._heap[at]
                heapq.heapify(self._heap)
                return True
        return False

    def __len__(self) -> int:
        return len(self._heap)
