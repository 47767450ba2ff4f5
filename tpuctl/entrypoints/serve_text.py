"""What text is to a served model: its tokenizer, its chat template, and the forms an answer can be bound to."""

from __future__ import annotations

from pathlib import Path

from tpuctl.errors import DataError
from tpuctl.plan.schema import ServingPlan
from tpuctl.plan.serve_schema import TextPlan
from tpuctl.serve.generation import MakeGrammar
from tpuctl.serve.grammars import grammar_maker
from tpuctl.text import TOKENIZER_FILE, Tokenizer
from tpuctl.text.chat import Chat, load_chat
from tpuctl.text.place import TokenizerRef
from tpuctl.text.template_files import find_templates


def load_text(plan: ServingPlan) -> tuple[Tokenizer, Chat | None, MakeGrammar]:
    """The plan's tokenizer, its chats and its forms of answers.

    Raises:
        DataError: The tokenizer or the template can't be read.
    """
    place = TokenizerRef(name=plan.text.tokenizer, directory=plan.run.directory, vocab_size=plan.model.vocab_size)
    tokenizer, folder = place.load(), place.folder()
    source = _template_source(plan.text)
    chat = None
    if source is not None or (folder is not None and find_templates(folder)):
        chat = load_chat(tokenizer, folder=folder, source=source)
    file = folder and folder / TOKENIZER_FILE
    text = file.read_text("utf-8") if file and file.is_file() else None
    return tokenizer, chat, grammar_maker(text, tokenizer=tokenizer)


def _template_source(text: TextPlan) -> str | None:
    if text.chat_template is None:
        return None
    try:
        return Path(text.chat_template).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{text.chat_template} can't be read: {error}", hint="is it on this host?") from error
