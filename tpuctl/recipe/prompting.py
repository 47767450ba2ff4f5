"""The tables of batch inference that say what a language model is asked, and how it answers: prompt, sampling."""

# ruff: noqa: RUF009 — `setting()` makes a dataclass field, it is no mutable default
from __future__ import annotations

from dataclasses import dataclass

from tpuctl.recipe.settings import LARGEST_INT, setting


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptTable:
    """The prompt of generate, score and classify, where it isn't just ``task.text_column``.

    Templates name columns in braces, ``{title}``; a brace that stands for itself is doubled.
    """

    text: str | None = setting(
        None,
        doc="Template of a plain text, for models that don't chat.",
        absent="task.text_column",
        example="Review: {review}\nIt is",
        multiline=True,
        also=("template", "prompt_template"),
    )
    messages_column: str | None = setting(
        None,
        doc="Column of conversations: lists of messages with role and content, or such a list as JSON text. The chat "
        "template makes a prompt of each, to be answered.",
        absent="no conversations",
        example="messages",
        also=("messages", "conversations", "conversations_column", "chat_column"),
    )
    user: str | None = setting(
        None,
        doc="Template of what the user says, in a conversation of one turn.",
        absent="no conversation",
        example="Give this a title: {text}",
        multiline=True,
        also=("user_template", "user_prompt"),
    )
    system: str | None = setting(
        None,
        doc="Template of what the system says before the user, or before the conversation of messages_column.",
        absent="nothing",
        example="You are a librarian.",
        multiline=True,
        also=("system_prompt", "system_template"),
    )
    chat_template: str | None = setting(
        None,
        doc="File with a chat template in Jinja, local or gs://.",
        absent="the model folder's own",
        example="chat.jinja",
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplingTable:
    """How a generate task draws an answer's tokens, and where an answer ends."""

    max_tokens: int = setting(
        128,
        doc="Longest answer.",
        unit="tokens",
        minimum=1,
        maximum=LARGEST_INT,
        also=("max_new_tokens", "max_length"),
    )
    temperature: float = setting(0.0, doc="Of the draw of each token; 0 takes the likeliest.", minimum=0, maximum=100)
    top_p: float = setting(
        1.0, doc="Draw among the fewest tokens that have this probability together.", above=0, maximum=1
    )
    top_k: int = setting(0, doc="Draw among so many likeliest; 0 is all.", minimum=0, maximum=LARGEST_INT)
    min_p: float = setting(
        0.0, doc="Leave out tokens less likely than this share of the likeliest one's.", minimum=0, maximum=1
    )
    repetition_penalty: float = setting(
        1.0, doc="Makes tokens of prompt and answer less likely, above 1.", above=0, maximum=100
    )
    frequency_penalty: float = setting(
        0.0, doc="Taken off a token's logit for each time it is in the answer.", minimum=-2, maximum=2
    )
    presence_penalty: float = setting(
        0.0, doc="Taken off a token's logit if it is in the answer.", minimum=-2, maximum=2
    )
    seed: int = setting(
        0, doc="Seed of all draws; a row's own follows from it and the row.", minimum=0, maximum=LARGEST_INT
    )
    n: int = setting(
        1, doc="Answers to each prompt; with more than one, the new columns are lists.", minimum=1, maximum=128
    )
    stop: tuple[str, ...] = setting(
        (),
        doc="Texts that end an answer and are no part of it.",
        example='["\\n\\n"]',
        multiline=True,
        also=("stop_strings", "stop_sequences"),
    )
    json_schema: str | None = setting(
        None,
        doc="JSON schema, itself as JSON text, that every answer fits.",
        absent="answers are free",
        example='{"type": "object"}',
        also=("schema", "response_format", "guided_json", "grammar"),
        multiline=True,
    )
    columns: dict[str, str] = setting(
        {},
        doc="Parameters that each row has itself: the parameter and the column, or a field of a struct column as "
        "column.field, that holds it. Where that is null the recipe's counts.",
        example='temperature = "heat"',
    )
