"""A plan for a model of a few thousand weights, and batches of random packed rows, for tests of the trainer."""

from dataclasses import replace

import numpy as np

from tpuctl.modelspec import ModelSpec
from tpuctl.plan.schema import JobPlan, MeshPlan, RunPlan, SlicePlan, TrainingPlan
from tpuctl.plan.train_schema import BudgetPlan, CheckpointPlan, DataPlan, ExpectPlan, OptimPlan, TrainPlan
from tpuctl.train.batch import HostBatch

SPEC = ModelSpec(
    name="tiny",
    vocab_size=96,
    hidden_size=32,
    num_layers=3,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    mlp_size=48,
    tied_embedding=False,
)

OPTIM = OptimPlan(
    learning_rate=1e-2,
    schedule="constant",
    warmup_steps=0,
    decay_steps=0,
    final_ratio=0.1,
    weight_decay=0.1,
    beta1=0.9,
    beta2=0.95,
    epsilon=1e-8,
    clip_norm=1.0,
)

DATA = DataPlan(
    uri="/nowhere",
    eval_uri=None,
    text_column="text",
    chat=None,
    tokenizer="bytes",
    packing=True,
    ragged="drop",
    epochs=0,
    shuffle=False,
    seed=0,
    readers_per_host=1,
)

TRAIN = TrainPlan(
    steps=20,
    global_batch=8,
    microbatches=1,
    sequence_length=32,
    seed=0,
    compute_dtype="float32",
    remat="full",
    z_loss=0.0,
    dropout=0.0,
    log_every=1,
    eval_every=0,
    eval_batches=0,
)


def make_plan(
    *, model: ModelSpec = SPEC, optim: OptimPlan = OPTIM, mesh: dict[str, int] | None = None, **train: object
) -> TrainingPlan:
    """A plan for training only: what other rooms read of it is made up."""
    axes = {"slice": 1, "data": 1, "fsdp": 1, "expert": 1, "tensor": 1} | (mesh or {})
    return TrainingPlan(
        kind="train",
        entrypoint="tpuctl.entrypoints.train",
        tpuctl_version="0",
        run=RunPlan(name="tiny", directory="/nowhere", shared=True),
        slice=make_slice("v6e", "2x2", hosts=1, chips=4),
        mesh=MeshPlan(**axes),
        model=model,
        weights=None,
        lora=None,
        data=DATA,
        optim=optim,
        train=replace(TRAIN, **train),
        checkpoint=CheckpointPlan(every=0, keep=1, resume="auto"),
        job=JobPlan(
            env={},
            secrets={},
            pip=(),
            compile_cache=None,
            max_failures=0,
            timeout_seconds=None,
            start_timeout_seconds=60.0,
            stop_grace_seconds=5.0,
        ),
        expect=ExpectPlan(max_eval_loss=None, max_bits_per_byte=None),
        budget=BudgetPlan(
            parameters=0, trained=0, hbm_bytes=0, state_bytes=0, gradient_bytes=0, activation_bytes=0, logit_bytes=0
        ),
    )


def make_slice(generation: str, topology: str, *, hosts: int, chips: int, devices_per_chip: int = 1) -> SlicePlan:
    """One slice of that topology."""
    return SlicePlan(
        generation=generation,
        accelerator_type=f"TPU-{generation.upper()}",
        pod_type=f"{generation}-{chips}",
        topology=topology,
        machine="",
        slices=1,
        hosts=hosts,
        chips=chips,
        chips_per_host=chips // hosts,
        devices_per_chip=devices_per_chip,
    )


def make_batch(*, rows: int = 8, length: int = 32, vocab: int = 96, seed: int = 0, pad: int = 3) -> HostBatch:
    """Random rows of two packed documents each, ending in ``pad`` tokens of padding."""
    random = np.random.default_rng(seed)
    tokens = random.integers(0, vocab, (rows, length + 1), dtype=np.int32)
    cuts = random.integers(length // 4, length // 2, rows)
    index = np.arange(length)[None, :]
    second = index >= cuts[:, None]
    padding = np.broadcast_to(index >= length - pad, (rows, length))
    return HostBatch(
        tokens=tokens[:, :-1],
        targets=tokens[:, 1:],
        segment_ids=np.where(padding, 0, 1 + second).astype(np.int32),
        positions=np.where(second, index - cuts[:, None], index).astype(np.int32),
        loss_mask=np.where(padding, 0, 1).astype(np.int32),
        num_bytes=np.full(rows, length - pad, np.int32),
        cursor=random.integers(0, 1000, (rows, 4), dtype=np.int32),
    )
