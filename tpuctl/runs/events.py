"""Events: what a running job tells the terminal, as marked lines in its ordinary log.

A worker prints ``@tpuctl {json}``; Ray may put a ``(name pid=…)`` prefix before it. The same objects are
appended to the run record. Every event has ``event`` (its name) and ``at`` (Unix seconds). Imports nothing of
tpuctl, so both sides may use it.

Names and fields:
    phase       phase ("driver" | "reserved" | "joined" | "data" | "restored" | "compiled" | "training"), seconds,
                detail
    host        host, hosts, pid, ip, devices, platform, simulated
    step        step, steps, epoch, loss, tokens, tokens_per_second, step_seconds, data_stall, learning_rate,
                grad_norm, eta_seconds
    rows        done, total, rows_per_second, tokens_per_second, eta_seconds, quarantined, host_rows (host: rows)
    eval        step, loss, bits_per_byte, tokens, bytes
    checkpoint  step, path, blocked_seconds, kind ("periodic" | "final" | "stop")
    resume      step, path
    baselines   rows: name, bits_per_byte of other models on the same held-out text
    ready       url, model, curl, seconds (an endpoint can be used)
    serving     running, waiting, output_tokens, tokens_per_second, page_use, first_token_seconds
    note        text
    stopped     step, path, reason; of batch inference rows, total, reason
    failed      reason, step
    done        step, loss, eval_loss, bits_per_byte, checkpoints, seconds; of batch inference rows, quarantined,
                dropped, parts, fresh_rows (done by this attempt), busy (share of time the devices had work), seconds,
                output, first (columns and rows of the first rows)
"""

from __future__ import annotations

import json
import time
from typing import Any

MARK = "@tpuctl "

Event = dict[str, Any]


def event(name: str, **fields: Any) -> Event:
    """An event of that name, stamped with the present time."""
    return {"event": name, "at": time.time(), **fields}


def format_line(item: Event) -> str:
    """The log line (without its newline) that carries an event."""
    return MARK + json.dumps(item, separators=(",", ":"), allow_nan=True)


def parse_line(line: str) -> Event | None:
    """The event a log line carries, or None for an ordinary line."""
    _, mark, body = line.partition(MARK)
    if not mark:
        return None
    try:
        item = json.loads(body)
    except ValueError:
        return None
    return item if isinstance(item, dict) and isinstance(item.get("event"), str) else None
