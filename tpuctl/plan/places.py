"""Paths and URIs of a recipe made absolute, so that they mean the same on the cluster. Touches no file."""

from __future__ import annotations

import difflib
import os.path
import re

from tpuctl.errors import RecipeError
from tpuctl.plan.chat import BUILTIN_CHATS, plan_chat
from tpuctl.plan.here import Here
from tpuctl.plan.schema import InferencePlan, Plan, RunPlan
from tpuctl.plan.tokenizer import check_tokenizer, is_tokenizer_file
from tpuctl.plan.train_schema import DataPlan
from tpuctl.recipe.origin import Findings, Origin
from tpuctl.recipe.schema import Recipe, TrainingRecipe

BUILTIN_DATASETS = ("builtin:python-stdlib", *BUILTIN_CHATS)
_HELD_OUT = "/held-out"
_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]+(/|$)")


def plan_run(recipe: Recipe, *, here: Here, findings: Findings) -> RunPlan:
    """The run's name and directory."""
    name = recipe.run.name or _name_of_file(recipe.origin.file, findings)
    directory = recipe.run.directory or f"runs/{name}"
    place = _placed("run.directory", directory, here=here, findings=findings)
    return RunPlan(name=name, directory=place, shared=recipe.run.shared)


def plan_data(recipe: TrainingRecipe, *, tokenizer: str, here: Here, findings: Findings) -> DataPlan:
    """The text and its tokenizer."""
    data = recipe.data
    check_tokenizer(tokenizer, findings=findings)
    uri = _text_place("data.uri", data.uri, here=here, findings=findings)
    return DataPlan(
        uri=uri,
        eval_uri=_held_out(data.eval_uri, uri, here=here, findings=findings),
        text_column=data.text_column,
        chat=plan_chat(recipe, tokenizer=tokenizer, here=here, findings=findings),
        tokenizer=_tokenizer_place(tokenizer, here=here, findings=findings),
        packing=data.packing,
        ragged=data.ragged,
        epochs=data.epochs,
        shuffle=data.shuffle,
        seed=data.seed,
        readers_per_host=data.readers_per_host,
    )


def dataset_place(key: str, uri: str, *, here: Here, findings: Findings) -> str:
    """A dataset's URI: a built-in one, or an absolute place."""
    return _text_place(key, uri, here=here, findings=findings)


def storage_place(key: str, uri: str, *, here: Here, findings: Findings) -> str:
    """An absolute place that can be written to."""
    return _placed(key, uri, here=here, findings=findings)


def check_shared_storage(plan: Plan, *, simulated: bool, origin: Origin | None = None) -> None:
    """Refuse a local run directory or output on several real hosts: each would write its own, and none be whole.

    The hosts of a simulated slice are processes of one machine and share its disk. ``origin`` is the recipe's, to
    point at the line.

    Raises:
        RecipeError: such a place is local, the slice has several hosts and nobody vouched for it.
    """
    places = {"run.directory": ("run directory", plan.run.directory)}
    if isinstance(plan, InferencePlan):
        places["output.uri"] = ("output folder", plan.output.uri)
    local = [key for key, (_, place) in places.items() if "://" not in place]
    hosts = sum(slices.total_hosts for slices in plan.reserves.values())
    if simulated or plan.run.shared or hosts == 1 or not local:
        return
    what, place = places[local[0]]
    raise RecipeError(
        f"{what} {place} is local, but the {hosts} hosts of the job each have a disk of their own",
        hint="name a bucket (gs://bucket/path); or a file system that every host mounts at that path, with "
        "run.shared = true",
        where=origin.where(local[0]) if origin else None,
    )


def _name_of_file(file: str, findings: Findings) -> str:
    stem = os.path.splitext(os.path.basename(file))[0]
    name = "".join(letter if letter.isascii() and (letter.isalnum() or letter in "._-") else "-" for letter in stem)
    if not name[:1].isalnum():
        findings.refuse("run.name", f"missing, and the file name {stem!r} gives none", 'add name = "…" under [run]')
    return name[:63]


def _held_out(asked: str | None, training: str, *, here: Here, findings: Findings) -> str | None:
    if asked is None:
        return training + _HELD_OUT if training in BUILTIN_DATASETS else None
    if asked.startswith("builtin:"):
        findings.refuse("data.eval_uri", "built-in text brings its own held-out part", "leave it out, or name files")
        return None
    place = _text_place("data.eval_uri", asked, here=here, findings=findings)
    if place == training:
        findings.refuse("data.eval_uri", "the held-out text is the training text", "name files that are not trained on")
    return place


def _tokenizer_place(name: str, *, here: Here, findings: Findings) -> str:
    return _placed("data.tokenizer", name, here=here, findings=findings) if is_tokenizer_file(name) else name


def _text_place(key: str, uri: str, *, here: Here, findings: Findings) -> str:
    if uri.startswith("builtin:"):
        if uri not in BUILTIN_DATASETS:
            near = difflib.get_close_matches(uri, BUILTIN_DATASETS, n=1, cutoff=0.0)
            findings.refuse(key, f"unknown built-in text {uri!r}", f"there is {near[0]}")
        return uri
    return _placed(key, uri, here=here, findings=findings)


def _placed(key: str, uri: str, *, here: Here, findings: Findings) -> str:
    """An absolute local path, or a URI in a bucket."""
    scheme, separator, rest = uri.partition("://")
    if separator and scheme == "file":
        return here.absolute("/" + rest.lstrip("/"))
    if separator and scheme == "gs":
        if not _BUCKET.match(rest):
            findings.refuse(key, f"{uri!r} names no bucket", "write gs://bucket/path")
        return uri.rstrip("/")
    if separator or uri.startswith(("gs:", "s3:", "http:", "https:")):
        findings.refuse(key, f"{uri!r} can't be used here", "write a local path or gs://bucket/path")
        return uri
    return here.absolute(uri)
