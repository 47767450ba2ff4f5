"""What transformers makes of the test model, in float32: written once, compared with by ``test_smollm2``.

python -m tests.models.reference FOLDER TEXT > tests/models/smollm2.json     # needs torch and transformers
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import transformers

PROMPTS = ("The capital of France is", "Once upon a time, there was a little")
QUESTION = "Name three colors."
NEW_TOKENS = 64
TEXT_TOKENS = 512


def reference(folder: str, text: str) -> dict[str, Any]:
    """Top-5 logits of the next token and a greedy continuation of each prompt; the loss of the text's beginning."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    chat = [{"role": "user", "content": QUESTION}]
    asked = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    prompts = [tokenizer(prompt).input_ids for prompt in PROMPTS]
    prompts.append(tokenizer(asked, add_special_tokens=False).input_ids)
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    ids = tokenizer(text, add_special_tokens=False).input_ids[:TEXT_TOKENS]
    return {"versions": versions, "cases": [_case(model, ids) for ids in prompts], "text": _loss(model, ids)}


@torch.no_grad()
def _case(model: Any, ids: list[int]) -> dict[str, Any]:
    rows = torch.tensor([ids])
    top = model(rows).logits[0, -1].topk(5)
    new = model.generate(rows, max_new_tokens=NEW_TOKENS, do_sample=False)[0, len(ids) :]
    return {
        "input_ids": ids,
        "top5_ids": top.indices.tolist(),
        "top5_logits": [round(value, 4) for value in top.values.tolist()],
        "greedy_ids": new.tolist(),
    }


@torch.no_grad()
def _loss(model: Any, ids: list[int]) -> dict[str, Any]:
    """Mean over all tokens but the first, in nats."""
    rows = torch.tensor([ids])
    return {"input_ids": ids, "loss": model(rows, labels=rows).loss.item()}


if __name__ == "__main__":
    json.dump(reference(sys.argv[1], Path(sys.argv[2]).read_text()), sys.stdout, indent=1)
    print()
