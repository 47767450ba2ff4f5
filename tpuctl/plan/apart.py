"""What a job writes kept apart from what it reads, and from folders that are not for a job to write into."""

from __future__ import annotations

import os.path
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from tpuctl.plan.schema import InferencePlan, Plan, TrainingPlan
from tpuctl.recipe.origin import Findings, Origin

_RUN, _OUTPUT = "run.directory", "output.uri"
_NAMES = {"data.uri": "the input", "data.eval_uri": "the held-out text", "model.source": "the model"}
_HINT = "use a folder of its own"


def check_apart(plan: Plan, *, home: str | None, origin: Origin) -> None:
    """Refuse a plan that would write over what it reads, or delete it with its output. Touches no file.

    Raises:
        RecipeError: all places that are too near to each other.
    """
    findings = Findings(origin=origin)
    _Places.of(plan).check(home, findings)
    findings.settle()


def check_on_disk(plan: Plan, *, home: str | None, origin: Origin) -> None:
    """The same where links of this machine lead, and that no file is in the way of a folder.

    Raises:
        RecipeError: as ``check_apart``, or a place that is no directory here.
    """
    findings, places = Findings(origin=origin), _Places.of(plan)
    for key, place in places.written.items():
        if (found := _in_the_way(place)) is not None:
            findings.refuse(key, f"{found} is no directory", _HINT)
    places.real().check(home and os.path.realpath(home), findings)
    findings.settle()


@dataclass(frozen=True, kw_only=True, slots=True)
class _Places:
    """The places of a job by the keys that name them. Built-in ones are none."""

    written: Mapping[str, str]
    read: Mapping[str, str]

    @classmethod
    def of(cls, plan: Plan) -> Self:
        written, read = {_RUN: plan.run.directory}, dict[str, str | None]()
        if isinstance(plan, InferencePlan):
            written[_OUTPUT] = plan.output.uri
            read = {"data.uri": plan.data.uri, "model.source": plan.model and plan.model.uri}
        elif isinstance(plan, TrainingPlan):
            read = {"data.uri": plan.data.uri, "data.eval_uri": plan.data.eval_uri}
            read["model.source"] = plan.weights and plan.weights.uri
        kept = {key: place for key, place in read.items() if place and not place.startswith("builtin:")}
        return cls(written=written, read=kept)

    def real(self) -> Self:
        """Where the places are once links are followed."""
        return type(self)(
            written={key: _real(place) for key, place in self.written.items()},
            read={key: _real(place) for key, place in self.read.items()},
        )

    def check(self, home: str | None, findings: Findings) -> None:
        """Refuse each written place for the first thing it is too near to."""
        run, output = self.written[_RUN], self.written.get(_OUTPUT)
        for key, place in self.written.items():
            if place == "/" or (home and _holds(place, home)):
                findings.refuse(key, f"{place} holds more than this job's files: it is not to be written into", _HINT)
        for key, place in self.read.items():
            if _holds(run, place) and not findings.has(_RUN):
                findings.refuse(_RUN, f"{run} overlaps with {_NAMES[key]} {place}", _HINT)
            if output and (_holds(output, place) or _holds(place, output)) and not findings.has(_OUTPUT):
                findings.refuse(_OUTPUT, f"{output} overlaps with {_NAMES[key]} {place}", _HINT)
        if output and _holds(output, run) and not findings.has(_OUTPUT, _RUN):
            findings.refuse(_OUTPUT, f"{output} holds the run directory {run}", _HINT)


def _holds(folder: str, place: str) -> bool:
    """Whether the place is the folder, or lies in it."""
    return f"{place.rstrip('/')}/".startswith(f"{folder.rstrip('/')}/")


def _real(place: str) -> str:
    return place if "://" in place else os.path.realpath(place)


def _in_the_way(place: str) -> str | None:
    """The file where the directory, or one above it, should be."""
    if "://" in place:
        return None
    while not os.path.lexists(place):
        place = os.path.dirname(place)
    return None if os.path.isdir(place) else place
