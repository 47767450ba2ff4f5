"""What text is to a served model: its tokenizer, its chat template, and the forms an answer can be bound to."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tpuctl.errors import DataError
from tpuctl.model_folder import CONFIG_FILE, GENERATION_FILE, tokenizer_files
from tpuctl.plan.schema import ServingPlan
from tpuctl.plan.serve_schema import TextPlan
from tpuctl.serve.generation import MakeGrammar
from tpuctl.serve.grammars import grammar_maker
from tpuctl.storage import NotFoundError, join, open_storage
from tpuctl.text import TOKENIZER_FILE, Tokenizer, load_tokenizer
from tpuctl.text.chat import Chat, load_chat
from tpuctl.text.template_files import find_templates


def load_text(plan: ServingPlan) -> tuple[Tokenizer, Chat | None, MakeGrammar | None]:
    """The plan's tokenizer, its chats and its forms of answers.

    Raises:
        DataError: The tokenizer or the template can't be read.
    """
    with _local_folder(plan.text) as name:
        tokenizer = load_tokenizer(name, directory=Path(plan.run.directory), vocab_size=plan.model.vocab_size)
        source = _template_source(plan.text)
        if name == "bytes":
            chat = None if source is None else load_chat(tokenizer, folder=None, source=source)
            return tokenizer, chat, None
        folder = Path(name) if Path(name).is_dir() else Path(name).parent
        chat = None
        if source is not None or find_templates(folder):
            chat = load_chat(tokenizer, folder=folder, source=source)
        file = folder / TOKENIZER_FILE
        make_grammar = grammar_maker(file.read_text("utf-8"), tokenizer=tokenizer) if file.is_file() else None
    return tokenizer, chat, make_grammar


def _template_source(text: TextPlan) -> str | None:
    if text.chat_template is None:
        return None
    try:
        return Path(text.chat_template).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{text.chat_template} can't be read: {error}", hint="is it on this host?") from error


@contextmanager
def _local_folder(text: TextPlan) -> Iterator[str]:
    """The tokenizer's place on this host's disk: what is in a bucket is copied for the length of the block."""
    if "://" not in text.tokenizer:
        yield text.tokenizer
        return
    folder = text.tokenizer.rpartition("/")[0] if text.tokenizer.endswith(".json") else text.tokenizer
    with tempfile.TemporaryDirectory(prefix="tpuctl-tokenizer-") as local:
        for name in (*tokenizer_files(folder), CONFIG_FILE, GENERATION_FILE):
            place = join(folder, name)
            try:
                Path(local, name).write_bytes(open_storage(place).read(place).data)
            except NotFoundError:
                continue
        yield local
