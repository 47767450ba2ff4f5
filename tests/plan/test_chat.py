"""Conversations in a recipe: which columns, which template, and what can't go together."""

from __future__ import annotations

import pytest

from tpuctl.errors import RecipeError
from tpuctl.plan.chat_schema import ChatPlan
from tpuctl.plan.schema import plan_dumps, plan_loads

CHAT = ["data.format=chat", "data.tokenizer=model/", "model.vocab_size=512"]


def test_plan_chat_of_plain_text_is_none(make_plan) -> None:
    assert make_plan().data.chat is None
    assert make_plan("data.loss_on=all").data.chat is None


def test_plan_chat_reads_messages_and_learns_answers_unless_told_otherwise(make_plan) -> None:
    chat = ChatPlan(
        messages_column="messages",
        prompt_column=None,
        answer_column=None,
        template=None,
        loss_on="answers",
        too_long="truncate",
        bad_rows="skip",
    )
    plan = make_plan(*CHAT)
    assert plan.data.chat == chat
    assert plan_loads(plan_dumps(plan)) == plan
    assert make_plan(*CHAT, "data.messages_column=chat").data.chat.messages_column == "chat"
    told = make_plan(*CHAT, "data.loss_on=all", "data.too_long=drop", "data.bad_rows=raise").data.chat
    assert (told.loss_on, told.too_long, told.bad_rows) == ("all", "drop", "raise")


def test_plan_chat_of_a_pair_of_columns_reads_no_messages(make_plan) -> None:
    chat = make_plan(*CHAT, "data.prompt_column=q", "data.answer_column=a").data.chat
    assert (chat.messages_column, chat.prompt_column, chat.answer_column) == (None, "q", "a")


def test_plan_chat_of_built_in_conversations_has_their_held_out_part(make_plan) -> None:
    data = make_plan(*CHAT, "data.uri=builtin:python-help", "data.eval_uri=unset").data
    assert (data.uri, data.eval_uri) == ("builtin:python-help", "builtin:python-help/held-out")


def test_plan_chat_with_a_template_of_its_own_makes_its_path_absolute(make_plan) -> None:
    chat = make_plan("data.format=chat", "data.chat_template=t.jinja").data.chat
    assert chat.template == "/work/t.jinja"
    in_bucket = make_plan("data.format=chat", "data.chat_template=gs://b/t.jinja").data.chat
    assert in_bucket.template == "gs://b/t.jinja"


@pytest.mark.parametrize(
    ("overrides", "key", "message"),
    [
        (["data.format=chat"], "data.tokenizer", "'bytes' has no chat template"),
        (["data.format=chat", "data.tokenizer=bpe:300"], "data.tokenizer", "'bpe:300' has no chat template"),
        (["data.loss_on=answers"], "data.loss_on", "plain text has no answers"),
        (["data.messages_column=m"], "data.messages_column", "only conversations have it"),
        (["data.prompt_column=q"], "data.prompt_column", "only conversations have it"),
        (["data.chat_template=t"], "data.chat_template", "only conversations have it"),
        (["data.format=chat", "data.chat_template=s3://b/t"], "data.chat_template", "can't be used here"),
        ([*CHAT, "data.prompt_column=q"], "data.prompt_column", "it goes with data.answer_column"),
        ([*CHAT, "data.answer_column=a"], "data.answer_column", "it goes with data.prompt_column"),
        (
            [*CHAT, "data.prompt_column=q", "data.answer_column=a", "data.messages_column=m"],
            "data.messages_column",
            "in one column or in a pair",
        ),
        ([*CHAT, "data.uri=builtin:python-stdlib", "data.eval_uri=unset"], "data.format", "holds no conversations"),
        (["data.uri=builtin:python-help", "data.eval_uri=unset"], "data.format", "holds conversations"),
    ],
)
def test_plan_chat_that_can_not_be_says_which_key(make_plan, overrides, key, message) -> None:
    with pytest.raises(RecipeError) as caught:
        make_plan(*overrides)
    assert caught.value.where is not None
    assert caught.value.where.key == key
    assert message in caught.value.message
