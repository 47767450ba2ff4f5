"""A peer of ``infer_peers``: what one writes without tpuctl. Needs ray[data], torch, transformers, no tpuctl."""

from __future__ import annotations

import argparse
import json
import os
import time
from typing import Any

import numpy as np
import ray
import torch
import transformers


class Generate:
    """Holds the model; answers batches of prompts, padded on the left."""

    def __init__(self, model: str, *, max_tokens: int, dtype: str) -> None:
        torch.set_num_threads(len(os.sched_getaffinity(0)))
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(model, padding_side="left")
        self.tokenizer.pad_token = self.tokenizer.pad_token or self.tokenizer.eos_token
        self.model = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype))
        self.max_tokens = max_tokens

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        began = time.time()
        inputs = self.tokenizer(list(batch["prompt"]), return_tensors="pt", padding=True)
        with torch.inference_mode():
            out = self.model.generate(
                **inputs, max_new_tokens=self.max_tokens, do_sample=False, pad_token_id=self.tokenizer.pad_token_id
            )
        answers = out[:, inputs["input_ids"].shape[1] :]
        ended = answers == self.tokenizer.eos_token_id
        count = torch.where(ended.any(1), ended.int().argmax(1) + 1, answers.shape[1]).numpy()
        size = len(count)
        return {
            "id": batch["id"],
            "output": np.array(self.tokenizer.batch_decode(answers, skip_special_tokens=True)),
            "tokens": count,
            "began": np.full(size, began),
            "ended": np.full(size, time.time()),
        }


def main() -> None:
    """Run and print one line of JSON: tokens made, seconds from the first batch to the last."""
    parser = argparse.ArgumentParser()
    parser.add_argument("input")
    parser.add_argument("model")
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--max-tokens", type=int, required=True)
    parser.add_argument("--dtype", required=True)
    options = parser.parse_args()
    ray.init(num_cpus=4, logging_level="error", log_to_driver=False)
    answered = ray.data.read_parquet(options.input).map_batches(
        Generate,
        batch_size=options.batch,
        concurrency=1,
        num_cpus=2,
        fn_constructor_args=(options.model,),
        fn_constructor_kwargs={"max_tokens": options.max_tokens, "dtype": options.dtype},
    )
    table = answered.to_pandas()
    seconds = float(table["ended"].max() - table["began"].min())
    print(json.dumps({"tokens": int(table["tokens"].sum()), "rows": len(table), "seconds": seconds}))


if __name__ == "__main__":
    main()
