"""The job of ``train_step_cpu`` in Levanter; run by it, with the interpreter of an environment that has Levanter.

Prints one line of JSON. Knows nothing of tpuctl: the packages of the two need not agree.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

import equinox
import haliax
import jax
import jmp
import numpy as np
from levanter import trainer as levanter_trainer
from levanter.checkpoint import CheckpointerConfig
from levanter.models.llama import LlamaConfig
from levanter.models.lm_model import LmExample
from levanter.optim.config import AdamConfig
from levanter.tracker import NoopConfig
from levanter.trainer import Trainer, TrainerConfig

sys.path.insert(0, str(Path(__file__).parent))
from train_step_cpu import LENGTH, ROWS, VOCAB, WARM_UP, timed_steps


def main() -> None:
    """Trains a few steps and prints what they took."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    steps = parser.parse_args().steps
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(_measure(steps, Path(folder))))


def _measure(steps: int, folder: Path) -> dict[str, float]:
    config = TrainerConfig(
        mp=jmp.get_policy("f32"),
        tracker=NoopConfig(),
        train_batch_size=ROWS,
        num_train_steps=steps + WARM_UP,
        require_accelerator=False,
        log_dir=folder,
        log_jaxprs=False,
        log_xla_hlo=False,
        id="s",
        checkpointer=CheckpointerConfig(base_path=str(folder)),
    )
    levanter_trainer.initialize(config)
    model = LlamaConfig(
        max_seq_len=LENGTH,
        hidden_dim=256,
        intermediate_dim=1024,
        num_layers=4,
        num_heads=4,
        num_kv_heads=4,
        gradient_checkpointing=True,
    )
    optimizer = AdamConfig(learning_rate=1e-2, weight_decay=0.1).build(steps + WARM_UP)
    with Trainer(config, optimizer, _loss, add_default_hooks=False) as trainer:
        vocabulary = haliax.Axis("vocab", VOCAB)
        keys = jax.random.split(jax.random.PRNGKey(0))
        state = trainer.initial_state(keys[0], model_init=lambda: model.build(vocabulary, key=keys[1]))
        example = _example(trainer, model)

        def step() -> None:
            nonlocal state
            info = trainer.train_step(state, example)
            state = info.state
            jax.block_until_ready(jax.tree.leaves(equinox.filter(state, equinox.is_array)))
            float(info.loss)

        return timed_steps(step, steps=steps)


def _loss(model: object, example: object, *, key: object = None) -> object:
    return model.compute_next_token_loss(example, key=key)  # type: ignore[attr-defined]


def _example(trainer: Trainer, model: LlamaConfig) -> object:
    tokens = np.random.default_rng(0).integers(0, VOCAB, (ROWS, LENGTH), dtype=np.int32)
    axes = (trainer.TrainBatch, model.max_Pos)

    @haliax.named_jit(axis_resources=trainer.compute_axis_mapping)
    def make(array: jax.Array) -> object:
        return haliax.shard(haliax.vmap(LmExample.causal, axes[0])(haliax.named(array, axes)))

    return make(jax.numpy.asarray(tokens))


if __name__ == "__main__":
    main()
