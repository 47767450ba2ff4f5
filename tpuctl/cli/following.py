"""Following a job in the terminal: its view, its end, and what Ctrl-C means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpuctl.cli import console
from tpuctl.cli.progress import View, summary
from tpuctl.errors import ExitCode
from tpuctl.runs.events import Event

if TYPE_CHECKING:
    from tpuctl.submit.follow import FollowOptions
    from tpuctl.submit.jobs import Jobs
    from tpuctl.submit.lines import Line
    from tpuctl.submit.outcome import Outcome


@dataclass(frozen=True, kw_only=True, slots=True)
class Ending:
    """What a followed job left behind: its outcome, and the last event of each name."""

    outcome: Outcome
    last: dict[str, Event]


class Watcher:
    """Shows a job's lines in a view and remembers the last event of each name."""

    def __init__(self, view: View) -> None:
        self.last: dict[str, Event] = {}
        self._view = view

    def take(self, line: Line) -> None:
        """Show one line."""
        if line.event is None:
            self._view.line(line.text)
            return
        self.last[line.event["event"]] = line.event
        self._view.event(line.event)


def follow_to_end(jobs: Jobs, submission_id: str, *, view: View, options: FollowOptions) -> Ending | None:
    """Show a job to its end; None if the user left it with Ctrl-C, and then the way back is on the terminal."""
    from tpuctl.submit.follow import follow

    watcher = Watcher(view)
    try:
        outcome = follow(jobs, submission_id, sink=watcher.take, options=options)
    except KeyboardInterrupt:
        view.close()
        say_way_back(submission_id)
        return None
    finally:
        view.close()
    return Ending(outcome=outcome, last=watcher.last)


def say_way_back(submission_id: str) -> None:
    """What to type after Ctrl-C."""
    console.say(
        f"job {submission_id} is still running; re-attach: tpuctl logs {submission_id} -f; stop: tpuctl stop {submission_id}"
    )


def say_ending(ending: Ending, *, again: str, further: str) -> ExitCode:
    """The closing words of a job and its exit code. ``again`` resumes it, ``further`` trains on from its end."""
    outcome, last = ending.outcome, ending.last
    if outcome.exit_code is ExitCode.DONE and "done" in last:
        for line in summary(last["done"], last.get("baselines")):
            console.say(line)
        console.say(f"go on          {further}")
        return outcome.exit_code
    if outcome.reason is not None:
        console.say(f"tpuctl: job {outcome.info.submission_id} {outcome.info.status.lower()}: {outcome.reason}")
    if hint := last.get("failed", {}).get("hint"):
        console.say(f"  hint: {hint}")
    if outcome.exit_code is not ExitCode.DONE and ("checkpoint" in last or "stopped" in last):
        console.say(f"resume         {again}")
    return outcome.exit_code
