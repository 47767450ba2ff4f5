"""``tpuctl models``: what a model is before anything is run with it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tpuctl.cli import console
from tpuctl.cli.options import Output, OutputOption
from tpuctl.cli.place import given, place

if TYPE_CHECKING:
    from tpuctl.model_folder import WeightFiles
    from tpuctl.modelspec import ModelSpec

models = typer.Typer(no_args_is_help=True, help="Look into models.")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Found:
    """A model: its spec, where it stands, and the weights and tokenizer that are there."""

    kind: str
    place: str
    spec: ModelSpec
    weights: WeightFiles | None = None
    tokenizer: tuple[str, ...] = ()


@models.command()
def show(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="A model folder, local or gs://; a preset; a built-in model; or a run directory.",
            parser=given,
            show_default=False,
        ),
    ],
    output: OutputOption = Output.text,
) -> None:
    """Show a model's architecture, its size, and what would be read of it. Reads headers, never weights."""
    found = _find(source)
    if output is Output.json:
        console.print_json(_document(found))
        return
    for name, text in _lines(found):
        console.out(f"{name:<10}  {text}")


def _find(source: str) -> _Found:
    """The model of that name or at that place.

    Raises:
        UsageError: neither a preset nor a place that holds a model, or a folder whose files do not add up.
    """
    from tpuctl.builtin_models import BUILTIN_DECODERS
    from tpuctl.errors import UsageError, WeightsError
    from tpuctl.modelspec import PRESETS

    if source in BUILTIN_DECODERS:
        return _Found(kind="built-in", place=source, spec=PRESETS[BUILTIN_DECODERS[source]], tokenizer=("its own",))
    if source in PRESETS:
        return _Found(kind="preset", place=source, spec=PRESETS[source])
    found = place(source)
    try:
        return _run(found) or _folder(found, asked=source)
    except WeightsError as error:
        # What is wrong is what was named, not a job.
        raise UsageError(error.message, hint=error.hint) from error


def _run(where: str) -> _Found | None:
    from tpuctl.plan.schema import TrainingPlan, plan_from_json
    from tpuctl.runs.record import read_record

    record = read_record(where)
    plan = plan_from_json(record.plan) if record is not None else None
    if not isinstance(plan, TrainingPlan):
        return None
    return _Found(kind="run", place=where, spec=plan.model, tokenizer=(plan.data.tokenizer,))


def _folder(where: str, *, asked: str) -> _Found:
    from tpuctl.builtin_models import BUILTIN_DECODERS
    from tpuctl.errors import UsageError
    from tpuctl.model_folder import open_weights, tokenizer_files
    from tpuctl.modelspec import PRESETS
    from tpuctl.plan.source import open_source
    from tpuctl.plan.weights_header import check_header

    if asked.startswith("builtin:"):
        raise UsageError(f"no built-in decoder {asked!r}", hint=f"there is {', '.join(BUILTIN_DECODERS)}")
    if "/" not in asked and not Path(where).exists():
        raise UsageError(f"no preset {asked!r}, and no such folder", hint=f"presets: {', '.join(PRESETS)}")
    source = open_source(where)
    return _Found(
        kind="folder",
        place=where,
        spec=source.spec,
        weights=open_weights(where) if "://" in where else check_header(where, source.spec),
        tokenizer=tokenizer_files(where),
    )


def _lines(found: _Found) -> list[tuple[str, str]]:
    from tpuctl.modelspec import num_parameters

    spec = found.spec
    heads = f"{spec.num_heads}/{spec.num_kv_heads} heads × {spec.head_dim}"
    head = "tied embedding" if spec.tied_embedding else "a head of its own"
    lines = [
        ("model", f"{spec.name} ({found.kind} {found.place})"),
        ("parameters", f"{num_parameters(spec):,}" + " without the embedding" * (not spec.vocab_size)),
        ("shape", f"hidden {spec.hidden_size}, {spec.num_layers} layers, {heads}, mlp {spec.mlp_size}, {head}"),
        ("vocabulary", str(spec.vocab_size or "the tokenizer's")),
        ("special", _special(spec)),
        ("tokenizer", ", ".join(found.tokenizer) or "none"),
        ("weights", _weights(found)),
    ]
    return [(name, text) for name, text in lines if text]


def _special(spec: ModelSpec) -> str:
    """What sets the model apart from a plain one: fields that are not at their default."""
    from dataclasses import MISSING, fields

    special = [f for f in fields(spec) if f.default is not MISSING and getattr(spec, f.name) != f.default]
    return ", ".join(f"{f.name} {getattr(spec, f.name)}" for f in special if f.name != "tied_embedding")


def _weights(found: _Found) -> str:
    from tpuctl.builtin_models import BUILTIN_MODELS

    if found.kind == "built-in":
        model = BUILTIN_MODELS[found.place]
        return (
            f"out of the package {model.requirement}, {model.megabytes} MB, fetched once by each host that needs them"
        )
    if found.weights is None:
        return "those of its checkpoints" if found.kind == "run" else "none: drawn from train.seed"
    weights = found.weights
    files = console.counted(len(weights.files), "file")
    tensors = console.counted(len(weights.tensors), "tensor")
    return f"{tensors}, {weights.num_bytes / 1e9:.2f} GB of {', '.join(weights.dtypes)} in {files}"


def _document(found: _Found) -> dict[str, Any]:
    from tpuctl.modelspec import num_parameters

    return {
        "schema": "tpuctl.model/1",
        "kind": found.kind,
        "source": found.place,
        "parameters": num_parameters(found.spec),
        "spec": asdict(found.spec),
        "tokenizer": list(found.tokenizer),
        "weights": None if found.weights is None else _weights_document(found.weights),
    }


def _weights_document(weights: WeightFiles) -> dict[str, Any]:
    return {
        "tensors": len(weights.tensors),
        "num_bytes": weights.num_bytes,
        "dtypes": list(weights.dtypes),
        "files": [{"uri": file.uri, "num_bytes": file.size, "tensors": len(file.tensors)} for file in weights.files],
    }
