"""A decoder in a model folder made ready for rows: its tokenizer, and an engine, here or wherever its steps run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import jax
import jax.numpy as jnp
import numpy as np
import pyarrow as pa

from tpuctl.engine.compiling import compiler_of
from tpuctl.engine.engine import Engine, create_engine
from tpuctl.engine.grammar import GrammarCompiler
from tpuctl.engine.options import EngineOptions
from tpuctl.engine.runner import RunnerOptions
from tpuctl.errors import WeightsError
from tpuctl.infer.engine_loop import EngineLoop
from tpuctl.infer.prompts import Prompts, fitted, prompts_of
from tpuctl.mesh import create_mesh
from tpuctl.model_folder import read_config
from tpuctl.modelspec import ModelSpec
from tpuctl.modelspec.huggingface import spec_from_config
from tpuctl.nn.params import param_shardings
from tpuctl.nn.weights import load_params
from tpuctl.plan.infer_schema import ReplicaPlan, TaskPlan
from tpuctl.plan.schema import MeshPlan
from tpuctl.text import TOKENIZER_FILE, Tokenizer
from tpuctl.text.chat import Chat, chat_of
from tpuctl.text.place import TokenizerRef

_LONGEST = 2048

MakeEngine = Callable[[ModelSpec, EngineOptions], Engine]
"""Makes the engine of a model, wherever its steps run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Language:
    """A language model at work. ``max_length`` is in tokens, prompt and output together.

    ``chat`` is there where the plan has conversations; ``tokenizer_file`` where the tokenizer has one in JSON.
    """

    loop: EngineLoop
    tokenizer: Tokenizer
    max_length: int
    chat: Chat | None = None
    tokenizer_file: Path | None = None

    @classmethod
    def of(cls, plan: TaskPlan, uri: str, replica: ReplicaPlan, *, engine: MakeEngine | None = None) -> Self:
        """The model in a folder, on as many devices of this host as the plan says unless ``engine`` has it elsewhere.

        Raises:
            WeightsError: no decoder there, or none that takes texts that long.
            DataError: no tokenizer there, or one with ids that the model has no row for.
        """
        config = read_config(uri)
        spec = spec_from_config(config)
        positions = spec.max_positions or _LONGEST
        length = plan.max_length or min(positions, _LONGEST)
        if spec.max_positions and length > positions:
            raise WeightsError(f"task.max_length = {length} is more than the {positions} positions of {uri}")
        place = TokenizerRef(name=uri, directory=uri, vocab_size=spec.vocab_size)
        tokenizer, folder = place.load(), place.folder()
        options = EngineOptions(
            max_length=length,
            page_size=replica.page_size,
            num_pages=replica.num_pages,
            max_running=plan.batch_rows,
            min_step_tokens=replica.min_step_tokens,
            max_step_tokens=replica.max_step_tokens,
            speculate=plan.speculate,
            eos_ids=tokenizer.special.eos_ids,
            real_vocab=tokenizer.vocab_size,
        )
        make = engine or _engine_here(plan, uri, replica, family=str(config.get("model_type")))
        file = folder / TOKENIZER_FILE if folder else None
        return cls(
            loop=EngineLoop(make(spec, options)),
            tokenizer=tokenizer,
            max_length=length,
            chat=_chat(plan, tokenizer, folder),
            tokenizer_file=file if file and file.is_file() else None,
        )

    def prompts(self, rows: pa.Table, plan: TaskPlan, *, room: Mapping[int, int], whole: bool = False) -> Prompts:
        """Each row's prompt, of those in ``room``, which leaves room for so many tokens more; see ``prompts_of``."""
        found = prompts_of(rows, plan, tokenizer=self.tokenizer, chat=self.chat, whole=whole)
        wanted = Prompts(ids={row: ids for row, ids in found.ids.items() if row in room}, bad=found.bad)
        return fitted(wanted, room=room, max_length=self.max_length, truncate=plan.too_long == "truncate")

    def compiler(self) -> GrammarCompiler:
        """Of grammars over the model's tokens."""
        text = None if self.tokenizer_file is None else self.tokenizer_file.read_text("utf-8")
        return compiler_of(self.tokenizer, tokenizer_json=text)


@dataclass(frozen=True, kw_only=True, slots=True)
class LanguageTask:
    """What tasks on a language model hold: the model at work and what was decided of the task."""

    language: Language
    plan: TaskPlan

    @classmethod
    def of(cls, plan: TaskPlan, uri: str, replica: ReplicaPlan, *, engine: MakeEngine | None = None) -> Self:
        """The task of a plan with the model in a folder; raises as ``Language.of`` does."""
        return cls(language=Language.of(plan, uri, replica, engine=engine), plan=plan)


def good_rows(numbers: Sequence[int]) -> np.ndarray:
    """Numbers of rows as ``Worked`` has them."""
    return np.array(sorted(numbers), np.int64)


def _engine_here(plan: TaskPlan, uri: str, replica: ReplicaPlan, *, family: str) -> MakeEngine:
    """What makes an engine whose steps run in this process, on its own devices."""

    def make(spec: ModelSpec, options: EngineOptions) -> Engine:
        dtype = jnp.dtype(plan.dtype)
        shape = MeshPlan(slice=1, data=1, fsdp=1, expert=1, tensor=replica.tensor)
        mesh = create_mesh(shape, devices=jax.local_devices()[: replica.tensor])
        shardings = param_shardings(spec, mesh, quantised=plan.weights)
        params = load_params(spec, uri, family=family, shardings=shardings, dtype=dtype).params
        run = RunnerOptions(dtype=dtype, quantised=plan.weights, kv_dtype=plan.kv_dtype)
        return create_engine(spec, params, mesh=mesh, options=options, run=run)

    return make


def _chat(plan: TaskPlan, tokenizer: Tokenizer, folder: Path | None) -> Chat | None:
    if plan.prompt is None or plan.prompt.text is not None:
        return None
    return chat_of(tokenizer, folder=folder, template=plan.prompt.chat_template)
