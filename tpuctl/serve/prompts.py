"""Texts and conversations to token ids. Long ones are tokenized on another thread, so that others' streams go on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tpuctl.errors import DataError
from tpuctl.serve.protocol import ApiError, ChatBody, TokenizeBody
from tpuctl.serve.protocol.completions import Prompt
from tpuctl.serve.protocol.errors import too_long
from tpuctl.serve.served import Served
from tpuctl.text.chat import Chat
from tpuctl.text.template import Conversation

# Variables of a template that fields of the request, or their meaning, give.
_OWN_VARIABLES = ("messages", "tools", "documents", "add_generation_prompt", "reasoning_effort")
_SHORT_CHARACTERS = 8192

Ids = tuple[int, ...]


async def prompt_ids(served: Served, prompt: Prompt, *, add_special_tokens: bool = True) -> Ids:
    """The ids of one prompt of ``/v1/completions``, with the tokenizer's own special tokens around a text.

    Raises:
        ApiError: A text of which the model has no row for a token, an id that doesn't exist, or no tokens at all.
    """
    if not isinstance(prompt, str):
        return _existing(served, prompt, param="prompt")
    encode = _with_special(served) if add_special_tokens else _without_special(served)
    ids = await _tokenized(lambda: encode(prompt), characters=len(prompt), param="prompt")
    if ids:
        return ids
    # An empty text is answered from the beginning of a document, where the model has a token for that.
    beginning = served.tokenizer.special.bos_id
    return (served.tokenizer.separator_id if beginning is None else beginning,)


async def input_ids(served: Served, text: Prompt) -> Ids:
    """The ids of a text to be embedded.

    Raises:
        ApiError: As ``prompt_ids`` does, or it is longer than the model takes.
    """
    if isinstance(text, str):
        encode = _with_special(served)
        ids = await _tokenized(lambda: encode(text), characters=len(text), param="input")
    else:
        ids = _existing(served, text, param="input")
    if len(ids) > served.max_length:
        raise too_long(len(ids), 0, max_length=served.max_length, param="input")
    return ids


async def chat_ids(served: Served, body: ChatBody) -> Ids:
    """The ids of a conversation, ready to be answered.

    Raises:
        ApiError: There is no chat template, or it refuses the conversation; the message is the template's own.
    """
    tools = None if body.tools is None or body.tool_choice == "none" else [tool.for_template() for tool in body.tools]
    variables = dict(body.chat_template_kwargs or {})
    own = next((name for name in variables if name in _OWN_VARIABLES), None)
    if own is not None:
        param = f"chat_template_kwargs.{own}"
        raise ApiError(f"{param}: the request has a field of its own for it", param=param, code="invalid_value")
    if body.reasoning_effort is not None:
        variables["reasoning_effort"] = body.reasoning_effort
    conversation = Conversation(
        messages=[message.for_template() for message in body.messages],
        tools=tools,
        documents=body.documents,
        variables=variables,
    )
    _check_read(served, body, conversation)
    continues = bool(body.continue_final_message)
    if body.add_generation_prompt is False and not continues:
        return await _rendered(served, conversation, lambda chat: _unanswered(chat, conversation))
    return await _rendered(
        served, conversation, lambda chat: tuple(chat.prompt(conversation, continue_final_message=continues).tolist())
    )


async def tokenized(served: Served, body: TokenizeBody) -> Ids:
    """The ids of a request to ``/tokenize``."""
    if body.messages is None:
        assert body.prompt is not None, "the body has one of both"
        encode = _with_special(served) if body.add_special_tokens else _without_special(served)
        text = body.prompt
        return await _tokenized(lambda: encode(text), characters=len(text), param="prompt")
    conversation = Conversation(messages=[message.for_template() for message in body.messages])
    if body.add_generation_prompt:
        return await _rendered(served, conversation, lambda chat: tuple(chat.prompt(conversation).tolist()))
    return await _rendered(served, conversation, lambda chat: _unanswered(chat, conversation))


def _given(body: ChatBody) -> dict[str, str]:
    """The fields that only a chat template can honour, and the variables it must read for that."""
    tools = {"tools": "tools"} if body.tools and body.tool_choice != "none" else {}
    documents = {"documents": "documents"} if body.documents else {}
    effort = {"reasoning_effort": "reasoning_effort"} if body.reasoning_effort else {}
    others = {f"chat_template_kwargs.{name}": name for name in body.chat_template_kwargs or {}}
    return {**others, **tools, **documents, **effort}


def _check_read(served: Served, body: ChatBody, conversation: Conversation) -> None:
    for param, variable in _given(body).items():
        if served.chat is not None and not served.chat.template_for(conversation).reads(variable):
            message = f"the chat template of {served.name} does not read {variable}: it would be ignored"
            raise ApiError(message, param=param, code="unsupported_parameter")


def _with_special(served: Served) -> Callable[[str], Ids]:
    return lambda text: tuple(served.tokenizer.encode_prompt(text).tolist())


def _without_special(served: Served) -> Callable[[str], Ids]:
    return lambda text: tuple(served.tokenizer.parse(text).ids.tolist())


def _unanswered(chat: Chat, conversation: Conversation) -> Ids:
    return tuple(chat.whole(conversation).ids.tolist())


async def _rendered(served: Served, conversation: Conversation, render: Callable[[Chat], Ids]) -> Ids:
    chat = served.chat
    if chat is None:
        message = f"{served.name} has no chat template: use /v1/completions"
        raise ApiError(message, param="messages", code="no_chat_template")
    characters = sum(len(str(message.get("content", ""))) for message in conversation.messages)
    return await _tokenized(lambda: render(chat), characters=characters, param="messages")


async def _tokenized(encode: Callable[[], Ids], *, characters: int, param: str) -> Ids:
    try:
        return encode() if characters <= _SHORT_CHARACTERS else await asyncio.to_thread(encode)
    except DataError as error:
        raise ApiError(error.message, param=param, code="invalid_value") from error


def _existing(served: Served, ids: Ids, *, param: str) -> Ids:
    for token in ids:
        if token >= served.vocab_size:
            message = f"token id {token} does not exist: the model has {served.vocab_size}"
            raise ApiError(message, param=param, code="invalid_value")
    return ids
