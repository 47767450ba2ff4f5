"""Which slices fit what a plan wants, and for every other one why not.

Pure: it judges the views that ``inspect`` has read. Ray's own count of ready slices calls a fully reserved slice
idle, and its reservation goes by pod type and head alone, so the judging is done here, host by host.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from tpuctl.errors import CapacityError
from tpuctl.plan.schema import SlicePlan
from tpuctl.topology import generations


@dataclass(frozen=True, kw_only=True, slots=True)
class HostView:
    """One host as the cluster reports it. ``holders`` are the jobs that hold chips, or the slice's head, on it.

    ``ended`` is when the node died, in seconds since the epoch; ``state_message`` is Ray's word on it.
    """

    node_id: str
    ip: str
    worker_id: int | None
    alive: bool
    chips: int
    chips_used: float = 0.0
    holders: tuple[str, ...] = ()
    simulated: bool = False
    ended: float | None = None
    state_message: str = ""

    @property
    def busy(self) -> bool:
        """Whether something holds it."""
        return bool(self.holders) or self.chips_used > 0


@dataclass(frozen=True, kw_only=True, slots=True)
class SliceView:
    """One slice by its name. ``hosts`` are the live ones, ``dead`` those of the same name that died.

    A host that is part of no slice is a view of its own with an empty name.
    """

    name: str
    accelerator_type: str
    pod_type: str
    topology: str
    hosts: tuple[HostView, ...]
    dead: tuple[HostView, ...] = ()

    @property
    def chips_per_host(self) -> int:
        """Chips of its hosts; 0 when none is alive."""
        return max((host.chips for host in self.hosts), default=0)

    @property
    def hosts_expected(self) -> int | None:
        """Hosts the topology needs, or ``None`` when that can't be told."""
        chips = _chips_of(self.topology)
        per_host = self.chips_per_host or max((host.chips for host in self.dead), default=0)
        return max(1, chips // per_host) if chips and per_host else None

    @property
    def simulated(self) -> bool:
        """Whether it is one of tpuctl's simulated slices."""
        return any(host.simulated for host in (*self.hosts, *self.dead))


def find(views: Sequence[SliceView], wants: Mapping[str, SlicePlan]) -> dict[str, tuple[SliceView, ...]]:
    """Idle, intact slices for all that ``wants`` asks for at once, by what wants them (under no name: all of a job).

    Raises:
        CapacityError: there are not enough; the message says for whom, with every candidate and why it is none.
    """
    free, found, short = list(views), dict[str, tuple[SliceView, ...]](), list[str]()
    for name, want in wants.items():
        fitting = [view for view in free if not why_not(view, want)][: want.slices]
        free = [view for view in free if view not in fitting]
        found[name] = tuple(fitting)
        if len(fitting) < want.slices:
            short.append(_shortage(views, want, name=name, found=found))
    if short:
        raise CapacityError("\n".join(short), hint="`tpuctl cluster status` shows every slice")
    return found


def _shortage(
    views: Sequence[SliceView], want: SlicePlan, *, name: str, found: Mapping[str, Sequence[SliceView]]
) -> str:
    """Why there are not enough for ``name``: what others of the same job have taken is not there for it."""
    count = f" (found {len(found[name])} of {want.slices})" if want.slices > 1 else ""
    taken = [
        f"{view.name}: for {other}"
        for other, theirs in found.items()
        if other != name
        for view in theirs
        if not why_not(view, want)
    ]
    lines = [*taken, *why_none(views, want)] or ["the cluster has no TPU slice"]
    whose = f" for {name}" if name else ""
    return "\n  ".join([f"no intact, idle slice of {want.generation} {want.topology}{whose}{count}:", *lines])


def why_none(views: Sequence[SliceView], want: SlicePlan) -> list[str]:
    """One line for every slice that does not fit, for whoever waits: ``name: reason; reason``."""
    judged = [(view, why_not(view, want)) for view in views if view.hosts]
    lines = [f"{view.name or 'host without a slice'}: {'; '.join(reasons)}" for view, reasons in judged if reasons]
    gone = [view.name for view in views if not view.hosts]
    return [*lines, f"all hosts dead: {', '.join(gone)}"] if gone else lines


def why_not(view: SliceView, want: SlicePlan) -> list[str]:
    """Why the slice can't be had, the most telling reason first; empty when it can."""
    # Of a slice that is another anyway, the health is nobody's concern.
    return (_of_another_kind(view, want) if view.name else []) or condition(view)


def condition(view: SliceView) -> list[str]:
    """What keeps the slice from being used by anybody; empty when it is intact and idle."""
    if not view.name:
        return [_nameless(host) for host in view.hosts]
    if view.hosts_expected is None:
        return [f"its topology {view.topology!r} is no shape in chips: TPU_TOPOLOGY is not set on its hosts"]
    return [*_not_intact(view, view.hosts_expected), *_not_idle(view)]


def generation_name(accelerator_type: str) -> str:
    """What people call the generation of a Ray accelerator type: ``v6e`` for ``TPU-V6E``."""
    names = {generation.accelerator_type: generation.name for generation in generations()}
    return names.get(accelerator_type, accelerator_type)


def _nameless(host: HostView) -> str:
    return (
        f"node {_short(host)} ({host.ip}) has {host.chips} TPU chips but no slice name: TPU_NAME is not set there "
        "(on GKE the Ray webhook sets it)"
    )


def _of_another_kind(view: SliceView, want: SlicePlan) -> list[str]:
    pairs = (
        ("accelerator", generation_name(view.accelerator_type), generation_name(want.accelerator_type)),
        ("topology", view.topology, want.topology),
        ("pod type", view.pod_type, want.pod_type),
    )
    differing = [f"{what} {has or 'unknown'} ≠ {wanted}" for what, has, wanted in pairs if has != wanted]
    if not differing and view.hosts and view.chips_per_host != want.chips_per_host:
        return [f"its hosts have {view.chips_per_host} chips each, not {want.chips_per_host}"]
    return differing[:2]


def _not_intact(view: SliceView, hosts: int) -> list[str]:
    ids = [host.worker_id for host in view.hosts]
    strange = [
        f"worker id {number} ≥ {hosts} hosts" for number in sorted({i for i in ids if i is not None and i >= hosts})
    ]
    twice = [_twice(view, number) for number in sorted({i for i in ids if i is not None and ids.count(i) > 1})]
    unnumbered = [f"node {_short(host)} has no worker id" for host in view.hosts if host.worker_id is None]
    short = [f"chips missing on worker {h.worker_id}: {h.chips}" for h in view.hosts if h.chips < view.chips_per_host]
    return [*_missing(view, hosts), *twice, *strange, *unnumbered, *short]


def _missing(view: SliceView, hosts: int) -> list[str]:
    alive = {host.worker_id for host in view.hosts if host.worker_id is not None and host.worker_id < hosts}
    missing = [number for number in range(hosts) if number not in alive]
    if not missing:
        return []
    causes = "; ".join(f"worker {number} missing{_last_seen(view, number)}" for number in missing)
    return [f"{len(alive)} of {hosts} hosts alive ({causes})"]


def _last_seen(view: SliceView, worker_id: int) -> str:
    """What became of the host that had this number last."""
    dead = [host for host in view.dead if host.worker_id == worker_id]
    if not dead:
        return ""
    last = max(dead, key=lambda host: host.ended or 0.0)
    since = f" since {datetime.fromtimestamp(last.ended, UTC):%Y-%m-%d %H:%M:%S} UTC" if last.ended else ""
    return f": node {_short(last)} DEAD{since}{f', {last.state_message}' if last.state_message else ''}"


def _twice(view: SliceView, worker_id: int) -> str:
    nodes = ", ".join(_short(host) for host in view.hosts if host.worker_id == worker_id)
    return f"duplicate worker id {worker_id} (nodes {nodes})"


def _not_idle(view: SliceView) -> list[str]:
    holders = sorted({holder for host in view.hosts for holder in host.holders})
    if holders:
        return [f"busy with {' and '.join(holders)}"]
    used = [host for host in view.hosts if host.busy]
    return [f"busy: {len(used)} hosts have chips in use"] if used else []


def _chips_of(topology: str) -> int:
    dims = topology.split("x")
    return math.prod(int(dim) for dim in dims) if all(dim.isdecimal() for dim in dims) else 0


def _short(host: HostView) -> str:
    return host.node_id[:12]
