"""The phase line: reserved → hosts joined → compiled → step k of n, drawn from a job's events.

One ``Progress`` holds what is known; a view draws it: a live bar on a terminal, a plain line every few seconds
in a pipe, JSON lines for a program.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from tpuctl.cli import console
from tpuctl.runs.events import Event

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

PLAIN_INTERVAL_SECONDS = 5.0

Clock = Callable[[], float]

# Events that come again and again, and their fields for how far the job is and how far it goes.
_TICKS = {"step": ("step", "steps"), "rows": ("done", "total"), "serving": ("", "")}


class View(Protocol):
    """Where a followed job shows itself."""

    def event(self, item: Event) -> None:
        """An event of the job."""
        ...

    def line(self, text: str) -> None:
        """Any other line of the job's log."""
        ...

    def close(self) -> None:
        """The job is over, or we leave it."""
        ...


class PlainView:
    """Lines on stdout: every phase at once, steps every few seconds."""

    def __init__(self, *, clock: Clock = time.time, interval_seconds: float = PLAIN_INTERVAL_SECONDS) -> None:
        self._clock = clock
        self._started = clock()
        self._interval_seconds = interval_seconds
        self._next_step_line = 0.0
        self._words = Wording()

    def event(self, item: Event) -> None:
        """Print the event, unless it is a step and one was printed a moment ago."""
        text = self._words.of(item)
        if text is None:
            return
        if item["event"] in _TICKS:
            if self._clock() < self._next_step_line and not _is_last(item):
                return
            self._next_step_line = self._clock() + self._interval_seconds
        self.line(f"[{self._clock() - self._started:7.1f} s] {text}")

    def line(self, text: str) -> None:
        """Print a line of the job's own."""
        console.out(text)

    def close(self) -> None:
        """Nothing is pending."""


class JsonView:
    """One JSON object a line on stdout, for programs."""

    def event(self, item: Event) -> None:
        """Print the event as it is."""
        console.print_json({"schema": "tpuctl.event/1", **item}, indent=None)

    def line(self, text: str) -> None:
        """Print a log line as an event of its own."""
        console.print_json({"schema": "tpuctl.event/1", "event": "log", "text": text}, indent=None)

    def close(self) -> None:
        """Nothing is pending."""


class LiveView:
    """A bar that redraws itself on a terminal; phases and the job's lines scroll above it."""

    def __init__(self) -> None:
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Bar

        self._started = time.time()
        self._words = Wording()
        self._bar: Bar = Bar(
            TextColumn("{task.description}"), BarColumn(bar_width=24), console=console.stderr_console(), transient=True
        )
        self._task: TaskID = self._bar.add_task("waiting for the job", total=None)
        self._bar.start()

    def event(self, item: Event) -> None:
        """Redraw the bar; let everything that is not a step scroll by too."""
        text = self._words.of(item)
        if text is None:
            return
        if item["event"] in _TICKS:
            done, total = (item.get(key) for key in _TICKS[item["event"]])
            self._bar.update(self._task, description=text, total=total, completed=done or 0)
            return
        self._bar.update(self._task, description=text.split("  ")[0])
        self.line(f"[{time.time() - self._started:7.1f} s] {text}")

    def line(self, text: str) -> None:
        """Let a line scroll by above the bar."""
        self._bar.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Take the bar away."""
        self._bar.stop()


def view_for(output: str) -> View:
    """The view that fits where the output goes."""
    if output == "json":
        return JsonView()
    return LiveView() if console.is_live() else PlainView()


class Wording:
    """Events in words. Remembers what has joined, hosts or whole slices, and whether these are simulated."""

    def __init__(self) -> None:
        self._joined: set[int] = set()
        self._per = "host"
        self._simulated = False

    def of(self, item: Event) -> str | None:
        """The words for an event, or None where it has nothing for a reader's eye."""
        write = getattr(self, f"_{item['event']}", None)
        words: str | None = write(item) if write is not None else None
        return words

    def _phase(self, item: Event) -> str:
        took = f" in {seconds(item['seconds'])}" if item.get("seconds") is not None else ""
        detail = f"  {item['detail']}" if item.get("detail") else ""
        return f"{item['phase']}{took}{detail}"

    def _host(self, item: Event) -> str | None:
        self._joined.add(item["host"])
        self._simulated, self._per = bool(item.get("simulated")), item.get("per", "host")
        if len(self._joined) < item["hosts"]:
            return None
        kind = "simulated: CPU" if self._simulated else item.get("platform", "")
        hosts, devices = console.counted(item["hosts"], self._per), console.counted(item["devices"], "device")
        return f"joined  {len(self._joined)} of {hosts}, {devices} each ({kind})"

    def _step(self, item: Event) -> str:
        simulated = " (simulated)" if self._simulated else ""
        parts = [
            f"step {item['step']} of {item['steps']}",
            f"loss {item['loss']:.4f}",
            f"{item['tokens_per_second']:,.0f} tokens/s{simulated}",
            f"data stall {100 * item['data_stall']:.1f} %",
        ]
        if item.get("eta_seconds") is not None:
            parts.append(f"ETA {seconds(item['eta_seconds'])}")
        return "  ".join(parts)

    def _rows(self, item: Event) -> str:
        simulated = " (simulated)" if self._simulated else ""
        parts = [f"row {item['done']:,} of {item['total']:,}", f"{item['rows_per_second']:,.1f} rows/s{simulated}"]
        if item.get("tokens_per_second") is not None:
            parts.append(f"{item['tokens_per_second']:,.0f} tokens/s")
        if item.get("quarantined"):
            parts.append(f"{item['quarantined']:,} in quarantine")
        if item.get("eta_seconds") is not None:
            parts.append(f"ETA {seconds(item['eta_seconds'])}")
        if len(item["host_rows"]) > 1:
            parts.append(f"{self._per}s " + " ".join(f"{host}: {rows:,}" for host, rows in item["host_rows"].items()))
        return "  ".join(parts)

    def _ready(self, item: Event) -> str:
        return f"ready in {seconds(item['seconds'])}  {item['url']}  model {item['model']}\n{item['curl']}"

    def _serving(self, item: Event) -> str:
        parts = [f"{item['running']} running, {item['waiting']} waiting"]
        if item.get("tokens_per_second") is not None:
            parts.append(f"{item['tokens_per_second']:,.1f} tokens/s{' (simulated)' * self._simulated}")
        if item.get("first_token_seconds") is not None:
            parts.append(f"first token after {1000 * item['first_token_seconds']:,.0f} ms")
        if item.get("page_use") is not None:
            parts.append(f"pages {100 * item['page_use']:.0f} % in use")
        return "  ".join(parts)

    def _eval(self, item: Event) -> str:
        return f"held-out  step {item['step']}  loss {item['loss']:.4f}{_bits(item)}"

    def _checkpoint(self, item: Event) -> str:
        return f"checkpoint  step {item['step']} ({item['kind']})  {item['path']}"

    def _resume(self, item: Event) -> str:
        return f"resuming from step {item['step']}  {item['path']}"

    def _note(self, item: Event) -> str:
        return f"note  {item['text']}"

    def _stopped(self, item: Event) -> str:
        if "step" in item:
            return f"stopped at step {item['step']} ({item['reason']})"
        where = f" at row {item['rows']:,} of {item['total']:,}" if "rows" in item else ""
        return f"stopped{where} ({item['reason']})"

    def _failed(self, item: Event) -> str:
        return f"failed  {item['reason']}"

    def _baselines(self, item: Event) -> str:
        rows = [f"{row['name']} {row['bits_per_byte']:.3f}" for row in item["rows"]]
        return "bits per byte  the same held-out text: " + " · ".join(rows)


def summary(done: Event, baselines: Event | None) -> list[str]:
    """The lines that close a successful run, but for the way to go on, which only the caller knows."""
    lines = [f"done: {done['step']} steps in {seconds(done['seconds'])}"]
    if done.get("eval_loss") is not None:
        lines.append(f"held-out loss  {done['eval_loss']:.4f} nats per token{_bits(done)}")
    if baselines is not None:
        lines.append(Wording().of(baselines) or "")
    lines.append("checkpoints    " + ", ".join(str(path) for path in done["checkpoints"]))
    return lines


def infer_summary(done: Event) -> list[str]:
    """The lines that close a batch inference job."""
    apart = [
        f"{done[name]:,} {words}"
        for name, words in (("quarantined", "in quarantine"), ("dropped", "dropped"))
        if done[name]
    ]
    what = ", ".join([f"{done['rows']:,} rows in {done['parts']:,} parts", *apart])
    if not done["fresh_rows"]:
        return [f"nothing to do: {done['output']} is complete ({what})"]
    busy = "" if done.get("busy") is None else f"; devices busy {100 * done['busy']:.0f} %"
    return [
        f"done: {what}, {done['fresh_rows']:,} of them now, in {seconds(done['seconds'])}{busy}",
        f"output         {done['output']}",
    ]


def seconds(duration: float) -> str:
    """A duration as a person says it: ``4.2 s``, ``3 min 20 s``, ``2 h 05 min``."""
    if duration < 60:
        return f"{duration:.1f} s"
    minutes, rest = divmod(round(duration), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def _is_last(item: Event) -> bool:
    done, total = (item.get(key) for key in _TICKS[item["event"]])
    return done is not None and bool(done == total)


def _bits(item: dict[str, Any]) -> str:
    bits = item.get("bits_per_byte")
    return "" if bits is None else f"  {bits:.3f} bits per byte"
