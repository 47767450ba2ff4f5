"""Which replica a request goes to: the one that has most likely computed its beginning before, while that has room."""

from __future__ import annotations

import random
from hashlib import blake2b

from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

PREFIX_ARGUMENT = "prefix"
"""The keyword of a call that holds what requests with the same beginning have in common; empty for none."""


class PrefixRouter(RequestRouter):
    """Equal beginnings to the same replica, chosen by rendezvous hashing: a replica more or less moves only its share.

    A replica takes as many requests as its engine runs at once; what is above that goes to whoever has room. So one
    beginning that all share fills a replica, and then the others.
    """

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Ranks of replicas, each of which is asked in turn whether it has room."""
        prefix = ""
        if pending_request is not None:
            # All replicas are in each try: if none has room, the next try may wait a moment.
            pending_request.routing_context.should_backoff = True
            prefix = pending_request.kwargs.get(PREFIX_ARGUMENT, "")
        if not prefix or not candidate_replicas:
            return [random.sample(candidate_replicas, min(2, len(candidate_replicas))), candidate_replicas]
        first, *rest = sorted(
            candidate_replicas, key=lambda one: _weight(prefix, one.replica_id.unique_id), reverse=True
        )
        return [[first], rest] if rest else [[first]]


def _weight(prefix: str, replica: str) -> bytes:
    return blake2b(f"{prefix}/{replica}".encode(), digest_size=8).digest()
