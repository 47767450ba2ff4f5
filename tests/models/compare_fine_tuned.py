"""Holds what ``tpuctl export`` writes of a run against transformers and PEFT: both load it, with equal logits.

    pip install torch==2.13.0 transformers==5.24.0 peft==0.21.2     # an environment of its own; tpuctl needs none
    python tests/models/compare_fine_tuned.py MODEL MERGED ADAPTER

MODEL is the folder the run started from, MERGED its export, ADAPTER its export with ``--format peft``. Prints the
largest difference of f32 logits between the merged model and the model with the adapter beside it, and how far the
training has moved them; ends with code 1 where the two differ by more than 1e-3.
"""

from __future__ import annotations

import os
import sys

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import peft
import torch
import transformers

TOLERANCE = 1e-3
QUESTION = "What does os.path.join(a, *p) of Python's standard library do?"


@torch.no_grad()
def main(base: str, merged: str, adapter: str) -> int:
    tokenizer = transformers.AutoTokenizer.from_pretrained(merged)
    turns = [{"role": "user", "content": QUESTION}]
    prompt = tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    model, whole = (
        transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        for folder in (base, merged)
    )
    before = model(**prompt).logits
    beside = peft.PeftModel.from_pretrained(model, adapter).eval()
    apart = (beside(**prompt).logits - whole(**prompt).logits).abs().max().item()
    moved = (whole(**prompt).logits - before).abs().max().item()
    print(f"merged and beside differ by at most {apart:.1e}; training moved logits by at most {moved:.2f}")
    answer = whole.generate(**prompt, max_new_tokens=48, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    print(tokenizer.decode(answer))
    return int(apart > TOLERANCE)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
