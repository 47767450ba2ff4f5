"""A recipe of serving made a plan. Pure."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

from tpuctl import __version__
from tpuctl.builtin_models import BUILTIN_DECODERS
from tpuctl.modelspec import PRESETS, ModelSpec
from tpuctl.plan.budget import gib
from tpuctl.plan.endpoint import plan_endpoint
from tpuctl.plan.environment import plan_job
from tpuctl.plan.held import DTYPE_BYTES, HeldPages, HeldWeights
from tpuctl.plan.here import Here
from tpuctl.plan.lora import adapter_values, plan_served_adapters
from tpuctl.plan.mesh import undivided
from tpuctl.plan.places import plan_run, storage_place
from tpuctl.plan.schema import MeshPlan, ServingPlan, SlicePlan
from tpuctl.plan.serve_schema import EnginePlan, TextPlan
from tpuctl.plan.slices import plan_slices
from tpuctl.plan.source import ModelSource
from tpuctl.plan.tokenizer import is_tokenizer_file, tokenizer_ids
from tpuctl.plan.vllm import check_handover, serve_config
from tpuctl.plan.weights_schema import ServedAdapterPlan, WeightsPlan
from tpuctl.recipe.origin import Findings
from tpuctl.recipe.schema import ServingRecipe
from tpuctl.topology import generation

ENTRYPOINT = "tpuctl.entrypoints.serve"
VLLM_ENTRYPOINT = "tpuctl.entrypoints.serve_vllm"
DEFAULT_MAX_LENGTH = 2048
_VOCAB_MULTIPLE = 128


def resolve_serving(
    recipe: ServingRecipe, *, environ: Mapping[str, str], here: Here, source: ModelSource | None
) -> ServingPlan:
    """What a recipe of serving amounts to.

    Raises:
        RecipeError: all rules that are broken.
    """
    findings = Findings(origin=recipe.origin)
    slices = plan_slices(recipe, findings=findings)
    # What one replica has.
    one = slices and replace(slices, slices=1)
    model = _model(recipe, source, findings)
    run = plan_run(recipe, here=here, findings=findings)
    job = plan_job(recipe, environ=environ, here=here, findings=findings)
    text = _text(recipe, source, here=here, findings=findings)
    mesh = _mesh(recipe, one, findings) if one else None
    if mesh is not None and model is not None:
        _check_division(model, mesh, findings)
    endpoint = plan_endpoint(recipe, job, name=model.name if model else "", here=here, findings=findings)
    adapters = plan_served_adapters(recipe, name=endpoint.name, source=source, findings=findings)
    engine = _Memory(recipe, one, model, adapters, findings=findings).plan() if one and model else None
    if one is not None:
        check_handover(recipe, chips=one.chips, findings=findings)
    checkpoint = None if source is None else source.checkpoint
    findings.settle()
    assert slices is not None  # these four are None only together with a problem
    assert model is not None
    assert mesh is not None
    assert engine is not None
    plan = ServingPlan(
        kind="serve",
        entrypoint=ENTRYPOINT,
        tpuctl_version=__version__,
        run=run,
        slice=slices,
        job=job,
        notes=tuple(findings.notes),
        mesh=mesh,
        model=model,
        weights=None if source is None or checkpoint else WeightsPlan(uri=source.uri, family=source.family),
        checkpoint=checkpoint,
        adapters=adapters,
        text=text,
        engine=engine,
        endpoint=endpoint,
        handover=None,
    )
    if recipe.serve.engine == "tpuctl":
        return plan
    return replace(plan, entrypoint=VLLM_ENTRYPOINT, handover=json.dumps(serve_config(recipe, plan)))


def _model(recipe: ServingRecipe, source: ModelSource | None, findings: Findings) -> ModelSpec | None:
    preset = recipe.model.preset
    if recipe.model.checkpoint is not None and recipe.model.source is not None:
        findings.refuse("model.source", "the model is that of model.checkpoint", "leave one of the two out")
    if source is not None:
        if preset is not None:
            findings.refuse("model.preset", f"the model is that of {source.uri}", "leave one of the two out")
        return source.spec
    if preset is None:
        hint = f"set source, a model folder, checkpoint, a run, or preset ({', '.join(PRESETS)}) for random weights"
        findings.refuse("model.source", "missing: there is no model to serve", hint)
        return None
    if preset not in PRESETS:
        near = difflib.get_close_matches(preset.lower(), PRESETS, n=1, cutoff=0.6)
        hint = f"did you mean {near[0]}?" if near else f"presets: {', '.join(PRESETS)}"
        findings.refuse("model.preset", f"unknown preset {preset!r}", hint)
        return None
    findings.notes.append(f"model.preset = {preset}: its weights are drawn at random, and so is what it says")
    spec = PRESETS[preset]
    if spec.vocab_size:
        return spec
    # Its rows are the tokenizer's. A file's are not known here; loading it is checked against the rows.
    ids = tokenizer_ids(recipe.model.tokenizer or "bytes")
    if ids is None:
        findings.refuse("model.tokenizer", f"{preset} has as many rows as its tokenizer, which is a file", "use bytes")
    return replace(spec, vocab_size=-(-(ids or 1) // _VOCAB_MULTIPLE) * _VOCAB_MULTIPLE)


def _text(recipe: ServingRecipe, source: ModelSource | None, *, here: Here, findings: Findings) -> TextPlan:
    name, template = recipe.model.tokenizer, recipe.model.chat_template
    if name is None:
        name = source.uri if source is not None and source.has_tokenizer else "bytes"
    elif is_tokenizer_file(name):
        name = storage_place("model.tokenizer", name, here=here, findings=findings)
    elif name != "bytes" and name not in BUILTIN_DECODERS:
        hint = f"'bytes', {', '.join(BUILTIN_DECODERS)} or the place of a tokenizer.json"
        findings.refuse("model.tokenizer", f"unknown tokenizer {name!r}", hint)
    return TextPlan(tokenizer=name, chat_template=None if template is None else here.absolute(template))


def _mesh(recipe: ServingRecipe, slices: SlicePlan, findings: Findings) -> MeshPlan | None:
    table, devices = recipe.mesh, slices.total_devices
    for axis in ("slice", "data", "fsdp", "expert"):
        if getattr(table, axis) > 1:
            message = f"{getattr(table, axis)}: a served model is split over tensor alone"
            findings.refuse(f"mesh.{axis}", message, "leave it out")
    if table.tensor not in (0, devices):
        message = f"{table.tensor} of the {devices} devices of the slice would be used"
        findings.refuse("mesh.tensor", message, f"leave it out, or choose a slice of {table.tensor}")
        return None
    return MeshPlan(slice=1, data=1, fsdp=1, expert=1, tensor=devices)


def _check_division(model: ModelSpec, mesh: MeshPlan, findings: Findings) -> None:
    for message, hint in undivided(model, tensor=mesh.tensor):
        findings.refuse("slice.topology", message, f"choose a slice of another number of devices: {hint}")


class _Memory:
    """KV pages for what was asked, within what a device has."""

    def __init__(
        self,
        recipe: ServingRecipe,
        slices: SlicePlan,
        model: ModelSpec,
        adapters: Sequence[ServedAdapterPlan],
        *,
        findings: Findings,
    ) -> None:
        self._table = recipe.engine
        self._findings = findings
        self._devices = slices.total_devices
        self._max_positions = model.max_positions
        size = DTYPE_BYTES[self._table.dtype]
        pages = HeldPages(
            model=model,
            dtype=self._table.dtype,
            kv_dtype=self._table.kv_dtype,
            devices=self._devices,
            page_size=self._table.page_size,
        )
        pages.check("engine.kv_dtype", findings=findings)
        self._page_bytes = pages.num_bytes
        beside = adapter_values(model, [adapter.lora for adapter in adapters], devices=self._devices)
        held = HeldWeights(model=model, dtype=self._table.dtype, quantised=self._table.weights)
        self._weight_bytes = held.num_bytes + beside * size
        hbm_bytes = generation(slices.generation).hbm_bytes_per_device * self._devices
        held.check("engine.weights", hbm_bytes=hbm_bytes, findings=findings)
        self._most_pages = int(hbm_bytes * self._table.memory_share - self._weight_bytes) // self._page_bytes

    def plan(self) -> EnginePlan:
        table = self._table
        num_pages = self._num_pages()
        held = num_pages * table.page_size
        max_length = table.max_length or self._length(held)
        self._check(max_length, num_pages=num_pages)
        if table.max_step_tokens < table.max_sequences:
            message = f"{table.max_step_tokens} tokens are fewer than the {table.max_sequences} sequences of a step"
            self._findings.refuse("engine.max_step_tokens", message, f"use at least {table.max_sequences}")
        return EnginePlan(
            dtype=table.dtype,
            weights=table.weights,
            kv_dtype=table.kv_dtype,
            max_length=max_length,
            max_sequences=table.max_sequences,
            max_step_tokens=table.max_step_tokens,
            speculate=table.speculate,
            page_size=table.page_size,
            num_pages=num_pages,
            page_bytes=self._page_bytes,
            prefix_cache=table.prefix_cache,
            seed=table.seed,
        )

    def _num_pages(self) -> int:
        if self._table.num_pages is not None:
            return self._table.num_pages
        per_sequence = -(-self._length(None) // self._table.page_size)
        wanted = per_sequence * self._table.max_sequences
        fitting = max(1, min(wanted, self._most_pages))
        if fitting < wanted:
            self._findings.notes.append(
                f"{fitting} KV pages fit beside the weights: {fitting // per_sequence or 'less than one'} of "
                f"{self._table.max_sequences} sequences of {self._length(None)} tokens"
            )
        return fitting

    def _length(self, held: int | None) -> int:
        """The length asked for, or else a usual one that the model and the pages know."""
        usual = min(DEFAULT_MAX_LENGTH, self._max_positions or DEFAULT_MAX_LENGTH)
        return self._table.max_length or (usual if held is None else min(usual, held))

    def _check(self, max_length: int, *, num_pages: int) -> None:
        page_size = self._table.page_size
        if self._max_positions and max_length > self._max_positions:
            message = f"{max_length} tokens, and the model knows {self._max_positions} positions"
            self._findings.refuse("engine.max_length", message, f"use at most {self._max_positions}")
        if self._most_pages < 1 or num_pages > self._most_pages:
            needed = self._weight_bytes + num_pages * self._page_bytes
            message = f"does not fit: {gib(needed)} of weights and pages, over {self._devices} devices"
            hint = f"at most {max(0, self._most_pages)} pages fit; take a larger slice, or raise engine.memory_share"
            self._findings.refuse("engine.num_pages", message, hint)
        elif num_pages * page_size < max_length:
            needed = -(-max_length // page_size)
            message = f"{max_length} tokens need {needed} pages, there are {num_pages}"
            hint = f"use at most {num_pages * page_size} tokens, or {needed} pages"
            self._findings.refuse("engine.max_length", message, hint)
