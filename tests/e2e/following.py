"""An endpoint as the command tells of it that started it."""

from __future__ import annotations

import json
import subprocess
from typing import Any


class FollowedEndpoint:
    """What ``tpuctl serve -o json`` has said up to the event that the endpoint is ready, and where that is."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        self.events: list[dict[str, Any]] = []
        for line in process.stdout:
            self.events.append(json.loads(line))
            if self.events[-1].get("event") in ("ready", "failed"):
                break
        # The last ones alone: of hundreds a report shows the first.
        assert self.events[-1].get("event") == "ready", self.events[-3:]
        self.url = self.events[-1]["url"]
