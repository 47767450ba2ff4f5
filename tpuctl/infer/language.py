"""A decoder in a model folder made ready for a host's rows: its tokenizer, and an engine over this host's devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import jax
import jax.numpy as jnp
import numpy as np
import pyarrow as pa

from tpuctl.engine.engine import create_engine
from tpuctl.engine.options import EngineOptions
from tpuctl.engine.runner import RunnerOptions
from tpuctl.errors import WeightsError
from tpuctl.infer.arrays import to_arrays
from tpuctl.infer.engine_loop import EngineLoop
from tpuctl.infer.prompts import Prompts, read_prompts
from tpuctl.mesh import create_mesh
from tpuctl.model_folder import read_config
from tpuctl.modelspec import ModelSpec
from tpuctl.modelspec.huggingface import spec_from_config
from tpuctl.nn.params import param_shardings
from tpuctl.nn.weights import load_params
from tpuctl.plan.infer_schema import TaskPlan
from tpuctl.plan.schema import MeshPlan
from tpuctl.text import Tokenizer
from tpuctl.text.place import TokenizerRef

_LONGEST = 2048
_PAGE_TOKENS = {"tpu": 128, "cpu": 16}
_STEP_TOKENS = 512


@dataclass(frozen=True, kw_only=True, slots=True)
class Language:
    """A language model at work. ``max_length`` is in tokens, prompt and output together."""

    loop: EngineLoop
    tokenizer: Tokenizer
    max_length: int

    @classmethod
    def of(cls, plan: TaskPlan, uri: str) -> Self:
        """The model in a folder, on all devices of this host that it divides over.

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
        tokenizer = TokenizerRef(name=uri, directory=uri, vocab_size=spec.vocab_size).load()
        dtype = jnp.dtype(plan.dtype)
        mesh = create_mesh(_mesh(spec), devices=jax.local_devices()[: _tensor(spec)])
        shardings = param_shardings(spec, mesh)
        family = str(config.get("model_type"))
        params = load_params(spec, uri, family=family, shardings=shardings, dtype=dtype).params
        page = _PAGE_TOKENS.get(jax.default_backend(), 128)
        options = EngineOptions(
            max_length=length,
            page_size=page,
            num_pages=plan.batch_rows * -(-length // page),
            max_running=plan.batch_rows,
            max_step_tokens=max(_STEP_TOKENS, plan.batch_rows),
            eos_ids=tokenizer.special.eos_ids,
            real_vocab=tokenizer.vocab_size,
            seed=plan.seed,
        )
        engine = create_engine(spec, params, mesh=mesh, options=options, run=RunnerOptions(dtype=dtype))
        return cls(loop=EngineLoop(engine), tokenizer=tokenizer, max_length=length)

    def prompts(self, rows: pa.Table, column: str, *, room: int, truncate: bool) -> Prompts:
        """The texts of a column as token ids that leave ``room`` for more; of a longer one, if wanted, its end."""
        texts = to_arrays(rows, [column])
        bad, limit = dict(texts.bad), self.max_length - room
        usable = {row: texts.arrays[column][row] for row in range(rows.num_rows) if row not in bad}
        read = read_prompts(self.tokenizer, usable)
        bad |= read.bad
        ids: dict[int, list[int]] = {}
        for row, found in read.ids.items():
            if not found:
                bad[row] = f"column {column!r} has no tokens"
            elif len(found) > limit and not truncate:
                bad[row] = f"{len(found)} tokens are more than {limit}"
            else:
                ids[row] = found[-limit:]
        return Prompts(ids=ids, bad=bad)


@dataclass(frozen=True, kw_only=True, slots=True)
class LanguageTask:
    """What tasks on a language model hold: the model at work and what was decided of the task."""

    language: Language
    plan: TaskPlan

    @classmethod
    def of(cls, plan: TaskPlan, uri: str) -> Self:
        """The task of a plan with the model in a folder; raises as ``Language.of`` does."""
        return cls(language=Language.of(plan, uri), plan=plan)


def good_rows(numbers: Sequence[int]) -> np.ndarray:
    """Numbers of rows as ``Worked`` has them."""
    return np.array(sorted(numbers), np.int64)


def _tensor(spec: ModelSpec) -> int:
    """The most devices over which heads, MLP and vocabulary divide."""
    sizes = (spec.num_heads, spec.mlp_size, spec.vocab_size, spec.num_kv_heads)
    devices = jax.local_device_count()
    return max(count for count in range(1, devices + 1) if all(size % count == 0 for size in sizes))


def _mesh(spec: ModelSpec) -> MeshPlan:
    return MeshPlan(slice=1, data=1, fsdp=1, expert=1, tensor=_tensor(spec))
