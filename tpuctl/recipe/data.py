"""The table that says what is learned from: which rows, what they are, and how they become tokens."""

# ruff: noqa: RUF009 — `setting()` makes a dataclass field, it is no mutable default
from __future__ import annotations

from dataclasses import dataclass

from tpuctl.plan.chat_schema import LengthRule, LossRule, RowRule
from tpuctl.plan.train_schema import DataFormat, RaggedRule
from tpuctl.recipe.settings import LARGEST_INT, setting


@dataclass(frozen=True, kw_only=True, slots=True)
class DataTable:
    """The text and how it becomes rows of tokens."""

    uri: str = setting(
        doc="Parquet file, folder or glob; or what every machine has: builtin:python-stdlib, text, or "
        "builtin:python-help, conversations.",
        example="builtin:python-stdlib",
        also=("path", "dataset", "train_uri", "train_path", "data_path", "files"),
    )
    eval_uri: str | None = setting(
        None,
        doc="Held-out text, never trained on.",
        absent="no evaluation, except for builtin: text, which has its own",
        also=("eval_path", "validation", "val_uri", "valid_uri"),
        example="data/held-out/*.parquet",
    )
    format: DataFormat = setting("text", doc="What a row is: a text, or a conversation in chat messages.")
    text_column: str = setting("text", doc="Column that holds the text.", also=("column", "text_field"))
    messages_column: str | None = setting(
        None,
        doc="Column that holds a conversation: a list of {role, content}, or its JSON.",
        absent="messages, with format = 'chat' and no prompt_column",
        example="messages",
        also=("conversations", "messages_field"),
    )
    prompt_column: str | None = setting(
        None,
        doc="Column that holds a question, where each row is one question and its answer.",
        absent="messages_column is read",
        example="prompt",
        also=("instruction_column", "question_column"),
    )
    answer_column: str | None = setting(
        None,
        doc="Column that holds the answer to prompt_column.",
        absent="messages_column is read",
        example="answer",
        also=("response_column", "completion_column", "output_column"),
    )
    chat_template: str | None = setting(
        None,
        doc="Chat template (Jinja), a path or in gs://, for tokenizers that come without one.",
        absent="that in the tokenizer's folder",
        example="chat_template.jinja",
    )
    loss_on: LossRule | None = setting(
        None,
        doc="What of a conversation is learned: all of it, or the answers alone.",
        absent="answers with format = 'chat', else all",
        example="answers",
        also=("train_on", "mask_prompt", "completion_only_loss"),
    )
    too_long: LengthRule = setting(
        "truncate", doc="What becomes of a conversation longer than a row: cut at its end, dropped, or the run ends."
    )
    bad_rows: RowRule = setting(
        "skip", doc="What becomes of a row that is no conversation: skipped and counted, or the run ends."
    )
    tokenizer: str | None = setting(
        None,
        doc="'bytes', 'bpe:N' (a BPE of N ids trained on the data), or a tokenizer.json, a tokenizer.model or a folder "
        "with one, by its path or in gs://; or that of builtin:smollm2-135m.",
        absent="that of model.source, else bytes",
        example="bpe:8192",
    )
    packing: bool = setting(True, doc="Pack several documents into a row, kept apart by segment ids.")
    ragged: RaggedRule = setting(
        "pad", doc="What becomes of the last, unfilled rows: drop them, pad them with masked tokens, or raise."
    )
    epochs: int = setting(
        0, doc="Passes over the text; 0 repeats for ever.", minimum=0, maximum=1_000_000, also=("num_epochs",)
    )
    shuffle: bool = setting(True, doc="Read in an order drawn from the seed.")
    seed: int = setting(0, doc="Seed of the reading order.", minimum=0, maximum=LARGEST_INT)
    readers_per_host: int = setting(
        1, doc="CPU workers per host that tokenise and pack.", minimum=1, maximum=256, also=("num_workers", "workers")
    )
