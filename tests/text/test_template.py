"""Templates of our own, one for each thing a template may do, against what transformers made of them."""

from __future__ import annotations

import json
from datetime import datetime

import pytest

from tests.text.compare_templates import conversation, options
from tests.text.template_cases import CASES, REFERENCE, SPECIAL, templates
from tpuctl.text.template import ChatTemplate, ChatTemplateError, Conversation

TEMPLATES = templates()
RENDERED = json.loads(REFERENCE.read_text(encoding="utf-8"))["rendered"]
# Where transformers fails or prints a Python list: content in parts, for templates that know text only.
OURS = {"marked: parts", "strict: parts", "thoughts: parts", "turns: parts"}


def test_template_reference_holds_every_case() -> None:
    assert set(RENDERED) == {f"{name}: {case}" for name in TEMPLATES for case in CASES}


@pytest.mark.parametrize("key", sorted(set(RENDERED) - OURS))
def test_template_renders_as_transformers_does(key: str) -> None:
    name, _, case = key.partition(": ")
    template = ChatTemplate(TEMPLATES[name], special_tokens=SPECIAL)
    expected = RENDERED[key]
    if "error" in expected:
        with pytest.raises(ChatTemplateError) as caught:
            template.render(conversation(CASES[case]), **options(CASES[case]))
        assert expected["message"] in caught.value.message
        return
    found = template.render(conversation(CASES[case]), **options(CASES[case]))
    assert found.text == expected["text"]
    if "continue_final_message" not in CASES[case]:
        assert [list(span) for span in found.generated] == expected["spans"]


def test_template_that_knows_text_only_is_given_parts_as_one_text() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    whole = Conversation(messages=[{"role": "user", "content": "one\ntwo"}])
    split = Conversation(messages=[{"role": "user", "content": parts}])
    for name in ("marked", "strict", "thoughts", "turns"):
        template = ChatTemplate(TEMPLATES[name], special_tokens=SPECIAL)
        assert template.render(split).text == template.render(whole).text


def test_template_that_knows_text_only_refuses_an_image() -> None:
    asked = Conversation(messages=[{"role": "user", "content": [{"type": "image", "url": "x"}]}])
    with pytest.raises(ChatTemplateError, match="text only"):
        ChatTemplate(TEMPLATES["turns"], special_tokens=SPECIAL).render(asked)


def test_template_is_told_the_time_of_its_clock() -> None:
    template = ChatTemplate(
        "{{ strftime_now('%d %b %Y') }}", special_tokens={}, clock=lambda: datetime(2026, 2, 3, tzinfo=None)
    )
    assert template.render(Conversation(messages=[{"role": "user", "content": ""}])).text == "03 Feb 2026"


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{% set x = namespace(__class__=1) %}",
        "{% set x = namespace() %}{% set x._y = 1 %}",
        "{{ dict.__init__.__globals__ }}",
        "{{ messages.append(1) }}",
        "{{ raise_exception.__globals__.os }}",
    ],
)
def test_template_can_not_leave_its_sandbox(source: str) -> None:
    with pytest.raises(ChatTemplateError):
        ChatTemplate(source, special_tokens={}).render(Conversation(messages=[{"role": "user", "content": "x"}]))


@pytest.mark.parametrize("source", ["{% for %}", "{{ a", "{% generation %}x", "{% unheard %}"])
def test_template_that_is_none_says_the_line(source: str) -> None:
    with pytest.raises(ChatTemplateError, match="line 1"):
        ChatTemplate(source, special_tokens={})


def test_template_without_messages_or_asked_for_both_ends_is_refused() -> None:
    template = ChatTemplate(TEMPLATES["turns"], special_tokens=SPECIAL)
    with pytest.raises(ChatTemplateError, match="without messages"):
        template.render(Conversation(messages=[]))
    with pytest.raises(ChatTemplateError, match="both"):
        template.render(conversation(CASES["whole"]), add_generation_prompt=True, continue_final_message=True)


def test_template_leaves_the_callers_messages_as_they_are() -> None:
    case = CASES["to be continued"]
    before = json.dumps(case)
    ChatTemplate(TEMPLATES["turns"], special_tokens=SPECIAL).render(conversation(case), continue_final_message=True)
    assert json.dumps(case) == before
