"""Conversations to render with each template of ``templates/``, and what transformers makes of them.

Run with an interpreter that has transformers, this writes the reference anew, or that of any folder of templates:

    python tests/text/template_cases.py
    python tests/text/template_cases.py FOLDER REFERENCE

``python -m tests.text.compare_templates FOLDER REFERENCE`` then shows where we render otherwise. The reference names
the version it was written with. No other module is imported, so that it needs nothing else.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
REFERENCE = HERE / "template_reference.json"
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}

ASK = {"role": "user", "content": 'Hello <b> & "you", é 漢 🙂'}
ANSWER = {"role": "assistant", "content": " An answer, é.\n"}
MORE = {"role": "user", "content": "more?"}
LAST = {"role": "assistant", "content": "No </think> more."}
SYSTEM = {"role": "system", "content": " Be brief. \n"}
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Weather <now>, é",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
HIDDEN = {"type": "function", "function": {"name": "hidden", "parameters": {}}}
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"type": "function", "function": {"name": "weather", "arguments": {"city": "Łódź <1>"}}}],
}
RESULT = {"role": "tool", "name": "weather", "content": "sunny"}
PARTS = {
    "role": "user",
    "content": [{"type": "text", "text": "one"}, {"type": "image", "url": "x"}, {"type": "text", "text": "two"}],
}

CASES: dict[str, dict[str, Any]] = {
    "one turn": {"messages": [ASK]},
    "to be answered": {"messages": [ASK], "add_generation_prompt": True},
    "system and turns": {"messages": [SYSTEM, ASK, ANSWER, MORE], "add_generation_prompt": True},
    "whole": {"messages": [ASK, ANSWER, MORE, LAST]},
    "reasoning": {"messages": [ASK, {**ANSWER, "reasoning": "because"}]},
    "thought": {"messages": [ASK, {**ANSWER, "thinking": "because", "refusal": None}]},
    "to be continued": {"messages": [ASK, {"role": "assistant", "content": "It is "}], "continue_final_message": True},
    "to be continued trimmed": {
        "messages": [ASK, {"role": "assistant", "content": "It"}],
        "continue_final_message": True,
    },
    "tools": {"messages": [ASK], "tools": [HIDDEN, TOOL], "add_generation_prompt": True},
    "call": {"messages": [ASK, CALL, RESULT], "tools": [TOOL], "add_generation_prompt": True},
    "documents": {"messages": [ASK], "documents": [{"title": "a", "text": "<b>"}, {"title": "é", "text": "c"}]},
    "variables": {"messages": [ASK], "add_generation_prompt": True, "enable_thinking": False, "verbose": 0.5},
    "out of turn": {"messages": [ASK, MORE, SYSTEM]},
    "parts": {"messages": [PARTS]},
    "no content": {"messages": [{"role": "user", "content": None}]},
}


def templates(folder: Path = HERE / "templates") -> dict[str, str]:
    return {path.stem: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.jinja"))}


def backend() -> Any:
    """Bytes, with the tokens of ``marked.jinja`` as special ones."""
    import tokenizers

    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    made = tokenizers.Tokenizer(
        tokenizers.models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[])
    )
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    made.add_special_tokens(["<s>", "</s>", "<|user|>", "<|assistant|>"])
    return made


def encoded() -> dict[str, Any]:
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend(), **{k: v for k, v in SPECIAL.items() if k != "pad_token"}
    )
    found = tokenizer.apply_chat_template(
        CASES["whole"]["messages"],
        chat_template=templates()["marked"],
        return_assistant_tokens_mask=True,
        return_dict=True,
    )
    return {"ids": found["input_ids"], "is_answer": found["assistant_masks"]}


def main(folder: Path = HERE / "templates", reference: Path = REFERENCE) -> None:
    import transformers
    from transformers.tokenization_utils_base import _normalize_chat_messages
    from transformers.utils.chat_template_utils import render_jinja_template

    written: dict[str, Any] = {}
    for name, source in templates(folder).items():
        for case, given in CASES.items():
            options = {key: value for key, value in given.items() if key != "messages"}
            continued = bool(options.get("continue_final_message"))
            try:
                texts, spans = render_jinja_template(
                    conversations=[_normalize_chat_messages(given["messages"])],
                    chat_template=source,
                    return_assistant_tokens_mask=not continued,
                    **{**SPECIAL, **options},
                )
                written[f"{name}: {case}"] = {"text": texts[0], "spans": spans[0] if spans else []}
            except Exception as error:  # noqa: BLE001 — whatever it raises is what it does with the case
                written[f"{name}: {case}"] = {"error": type(error).__name__, "message": str(error)}
    document = {"transformers": transformers.__version__, "rendered": written, "encoded": encoded()}
    reference.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
