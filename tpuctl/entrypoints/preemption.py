"""The notice that a host is about to be taken away: SIGTERM at its worker, or Ray's word that its node is drained.

A host that is shut down sends SIGTERM to what runs on it; where Ray is told first (on Kubernetes, or by
``ray drain-node``), its preemption watcher tells the workers. Either is a reason to save and leave.
"""

from __future__ import annotations

import signal
import threading

from ray.train.v2._internal.execution.context import get_train_context

_sigterm = threading.Event()


def heed_sigterm() -> None:
    """From now on SIGTERM at this worker is a notice, not its end. For the main thread; work runs in another."""
    _sigterm.clear()
    signal.signal(signal.SIGTERM, lambda _signal, _frame: _sigterm.set())


def heed_sigterm_no_more() -> None:
    """From now on SIGTERM ends this worker again."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def noticed() -> bool:
    """Whether this host is about to be taken away. Does not block."""
    return _sigterm.is_set() or get_train_context().preemption_context.preemption_info is not None
