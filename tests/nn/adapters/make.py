"""Makes the reference adapters: LoRA beside models of ``tests/nn/references``, and the logits that PEFT computes.

    pip install torch==2.13.0 transformers==5.24.0 peft==0.21.2     # an environment of its own; tpuctl needs none
    python tests/nn/adapters/make.py

A directory for each holds what PEFT's ``save_pretrained`` writes, and ``logits.npz``: f32 logits of 64 tokens.
"""

from __future__ import annotations

import os
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import peft
import torch
import transformers

HERE = Path(__file__).parent
MODELS = HERE.parent / "references"
CASES = {
    "llama": {"r": 4, "lora_alpha": 6, "target_modules": "all-linear"},
    "qwen3_one_kv_head": {"r": 3, "lora_alpha": 12, "target_modules": ["v_proj", "o_proj", "down_proj"]},
}


@torch.no_grad()
def make(name: str) -> None:
    torch.manual_seed(len(name))
    base = transformers.AutoModelForCausalLM.from_pretrained(
        MODELS / name, dtype=torch.float32, attn_implementation="eager"
    )
    model = peft.get_peft_model(base, peft.LoraConfig(task_type="CAUSAL_LM", **CASES[name]))
    for parameter_name, parameter in model.named_parameters():
        if "lora_B" in parameter_name:
            parameter.copy_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(HERE / name)
    (HERE / name / "README.md").unlink()
    config = HERE / name / "adapter_config.json"
    config.write_text(config.read_text().replace(str(MODELS / name), name))
    tokens = torch.randint(3, 64, (1, 64), generator=torch.Generator().manual_seed(7))
    logits = model.eval()(tokens, use_cache=False).logits
    with model.disable_adapter():
        apart = (model(tokens, use_cache=False).logits - logits).abs().max().item()
    np.savez(HERE / name / "logits.npz", tokens=tokens.numpy().astype(np.int32), logits=logits.numpy())
    print(f"{name}: the adapter changes logits by at most {apart:.2f}")


if __name__ == "__main__":
    print(f"torch {torch.__version__}, transformers {transformers.__version__}, peft {peft.__version__}")
    for case in CASES:
        make(case)
