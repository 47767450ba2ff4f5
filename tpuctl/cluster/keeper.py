"""The keeper: the one process that starts a simulated cluster's Ray nodes and lives as long as they do.

It is run as a script, apart from tpuctl, and is the only file of this room that imports ray. ``ray start`` would do
the same with one process per host, each importing Ray's command line, and would wait for the dashboard before it
starts the first node; half of a small cluster's start is that. So this drives the class beneath ``ray start``, all
hosts from one process. The price is a private interface, which the pinned Ray version and a test against real
nodes hold in place.

What it does is told as JSON lines on the file descriptor it is given; once all is up that is closed.
"""

# Ray's own code is annotated in part, and in part wrongly.
# mypy: disable-error-code="no-untyped-call, arg-type"

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TextIO

from ray._private import ray_constants, services
from ray._private.node import Node
from ray._private.parameter import RayParams
from ray._private.utils import write_ray_address
from ray.experimental import internal_kv

_ADDRESS = "127.0.0.1"
# Jobs, and the state that `inspect` reads. Without the nodes module a submission never returns.
_MODULES = "JobHead,NodeHead,StateHead"
_DASHBOARD_TIMEOUT_SECONDS = 60
_POLL_SECONDS = 0.05
_WATCH_SECONDS = 1.0
# Ray reads a host's TPU variables from the environment, which all threads share.
_environment_lock = threading.Lock()


class HostNode(Node):
    """One host. All hosts share a session directory, as one log monitor then serves them all."""

    def __init__(self, host: dict[str, Any], index: int, params: RayParams) -> None:
        self._host = host
        self.index = index
        super().__init__(params, head=index == 0, shutdown_at_exit=False)

    def get_resource_and_label_spec(self) -> Any:
        """Ray's own detection of a TPU host, in this host's environment."""
        with _environment_lock:
            os.environ.update(self._host["environment"])
            return super().get_resource_and_label_spec()

    def start_api_server(self, *, include_dashboard: bool | None, raise_on_failure: bool) -> None:
        """Start the dashboard without waiting for it, and with the modules that are used here only."""
        stdout, stderr = self.get_log_file_names("dashboard", unique=True)
        script = os.path.join(services.RAY_PATH, "dashboard", "dashboard.py")
        options = {
            "host": _ADDRESS,
            # Below the ports the system gives out, and not Ray's usual one, which is somebody else's.
            "port": random.randrange(20000, 30000),
            "port-retries": 100,
            "temp-dir": self.temp_dir,
            "log-dir": self._logs_dir,
            "session-dir": self._session_dir,
            "gcs-address": self.gcs_address,
            "cluster-id-hex": self.cluster_id.hex(),
            "node-ip-address": _ADDRESS,
            "stdout-filepath": stdout,
            "stderr-filepath": stderr,
            "modules-to-load": _MODULES,
        }
        process = services.start_ray_process(
            [sys.executable, script, *(f"--{key}={value}" for key, value in options.items())],
            ray_constants.PROCESS_TYPE_DASHBOARD,
            fate_share=self.kernel_fate_share,
            stdout_file=subprocess.DEVNULL,
            stderr_file=subprocess.DEVNULL,
        )
        self.all_processes[ray_constants.PROCESS_TYPE_DASHBOARD] = [process]
        self._webui_url = ""

    def _get_log_file_name(self, name: str, suffix: str, unique: bool = False) -> str:
        # Ray would take the first number that is free, and hosts that start together would take the same.
        named = name if self.index == 0 else f"{name}.host{self.index}"
        return str(super()._get_log_file_name(named, suffix, unique=False))


def main() -> None:
    """Start what the file named by the first argument describes, and stay until it breaks or is ended."""
    with open(sys.argv[1]) as file:
        cluster = json.load(file)
    _keep_libtpu_logs_apart(cluster["temp_dir"])
    # Linux ends a node's processes with the thread that started them, so these threads stay as long as we do.
    with ThreadPoolExecutor(max_workers=len(cluster["hosts"])) as pool:
        with os.fdopen(int(sys.argv[2]), "w") as report:
            nodes = start(cluster, report, pool)
        watch(nodes)


def start(cluster: dict[str, Any], report: TextIO, pool: ThreadPoolExecutor) -> list[HostNode]:
    """Start every host, the head's first and the others side by side; return when the dashboard answers too."""
    hosts = cluster["hosts"]
    indices = range(1, len(hosts))
    tell(report, event="imported")
    head = HostNode(hosts[0], 0, _params(cluster, hosts[0], 0, head=None))
    # A job's driver finds its cluster by this file; without it Ray takes the newest cluster of the whole machine.
    write_ray_address(head.gcs_address, cluster["temp_dir"])
    _tell_host(report, head)
    head.start_log_monitor()
    further = list(pool.map(lambda at: HostNode(hosts[at], at, _params(cluster, hosts[at], at, head=head)), indices))
    for node in further:
        _tell_host(report, node)
    tell(report, event="dashboard", address=f"http://{_dashboard_address(head)}", gcs_address=head.gcs_address)
    return [head, *further]


def watch(nodes: list[HostNode]) -> None:
    """Reap processes that end; leave when the cluster has lost its head, and the rest then dies with us.

    A further host that is gone is left gone: that is what a lost TPU VM looks like.
    """
    while True:
        time.sleep(_WATCH_SECONDS)
        gone = [kind for node in nodes for kind, _ in node.dead_processes() if node.head]
        if gone:
            raise SystemExit(f"the head node has lost its {', '.join(gone)}")


def tell(report: TextIO, **event: Any) -> None:
    """Report one event."""
    report.write(json.dumps(event) + "\n")
    report.flush()


def _params(cluster: dict[str, Any], host: dict[str, Any], index: int, *, head: HostNode | None) -> RayParams:
    size = cluster["size"]
    params = RayParams(
        node_ip_address=_ADDRESS,
        node_name=f"{host['slice_name']}-{host['worker_id']}",
        num_cpus=size["cpus"],
        memory=size["memory_bytes"],
        object_store_memory=size["object_store_bytes"],
        resources={"TPU": host["chips"]},
        labels=host["labels"],
        env_vars=host["environment"],
        temp_dir=cluster["temp_dir"],
        runtime_env_dir_name=f"runtime_resources_{index}",
        # Port 0: each component binds a free one and tells it, so that no two clusters can collide.
        dashboard_agent_listen_port=0,
        min_worker_port=0,
        max_worker_port=0,
        include_log_monitor=False,
        include_dashboard=True,
        no_monitor=True,
    )
    if head is not None:
        sockets = os.path.join(head.get_session_dir_path(), "sockets")
        params.update(
            gcs_address=head.gcs_address,
            plasma_store_socket_name=os.path.join(sockets, f"plasma_store.{index}"),
            raylet_socket_name=os.path.join(sockets, f"raylet.{index}"),
        )
    return params


def _keep_libtpu_logs_apart(temp_dir: str) -> None:
    """Ray shows whatever libtpu writes in /tmp/tpu_logs, even that of another program; there is no libtpu here."""
    directory = os.path.join(temp_dir, "tpu_logs")
    os.makedirs(directory, exist_ok=True)
    os.environ["TPU_LOG_DIR"] = directory


def _tell_host(report: TextIO, node: HostNode) -> None:
    raylet = node.all_processes[ray_constants.PROCESS_TYPE_RAYLET][0].process.pid
    tell(report, event="host", index=node.index, node_id=node.node_id, pid=raylet)


def _dashboard_address(head: HostNode) -> str:
    """Where the dashboard listens, which it says when it answers."""
    internal_kv._initialize_internal_kv(head.get_gcs_client())
    process = head.all_processes[ray_constants.PROCESS_TYPE_DASHBOARD][0].process
    deadline = time.monotonic() + _DASHBOARD_TIMEOUT_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        address = internal_kv._internal_kv_get(
            ray_constants.DASHBOARD_ADDRESS, namespace=ray_constants.KV_NAMESPACE_DASHBOARD
        )
        if address is not None:
            return str(address.decode())
        time.sleep(_POLL_SECONDS)
    raise SystemExit(f"the dashboard did not start; see {head.get_logs_dir_path()}")


if __name__ == "__main__":
    main()
