"""lm-evaluation-harness on the endpoint and on transformers: the same model, the same score, choice by choice.

``TPUCTL_TEST_LM_EVAL`` is the lm_eval of an environment with torch and transformers, ``TPUCTL_TEST_HF_MODEL``
a model folder in float32.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.serve.serve_here import served_here

LM_EVAL, MODEL = os.environ.get("TPUCTL_TEST_LM_EVAL", ""), os.environ.get("TPUCTL_TEST_HF_MODEL", "")
TASK = Path(__file__).parent / "lm_eval"
# Sums of the log probabilities of a handful of tokens, both in float32, added up in another order.
TOLERANCE = 1e-3

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (LM_EVAL and MODEL), reason="TPUCTL_TEST_LM_EVAL and TPUCTL_TEST_HF_MODEL are not set"),
]


def test_scores_through_the_endpoint_are_those_of_transformers(tmp_path: Path) -> None:
    task = (TASK / "facts.yaml").read_text().replace("FACTS", str(TASK / "facts.jsonl"))
    (tmp_path / "facts.yaml").write_text(task)
    small = ["engine.max_length=256", "engine.max_sequences=8", "engine.max_step_tokens=64"]
    ours = [f"model.source={MODEL}", "serve.name=served", *small]
    with served_here("serve-quickstart.toml", *ours, cwd=tmp_path) as url:
        served = _evaluated(
            "local-completions",
            f"model=served,base_url={url}/v1/completions,tokenizer={MODEL},num_concurrent=8,max_length=256",
            tmp_path / "served",
        )
    reference = _evaluated("hf", f"pretrained={MODEL},dtype=float32", tmp_path / "hf")
    assert served["scores"] == reference["scores"]
    worst = max(abs(a - b) for a, b in zip(served["logprobs"], reference["logprobs"], strict=True))
    assert worst < TOLERANCE
    assert served["greedy"] == reference["greedy"]


def _evaluated(model: str, arguments: str, output: Path) -> dict[str, Any]:
    """The scores, and of each choice its log probability and whether it is what greedy decoding would say."""
    words = [LM_EVAL, "--model", model, "--model_args", arguments, "--tasks", "tpuctl_facts", "--batch_size", "1"]
    words += ["--include_path", str(output.parent), "--output_path", str(output), "--log_samples", "--device", "cpu"]
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": str(output.parent / "cache"), "OPENAI_API_KEY": "none"}
    done = subprocess.run(words, env=os.environ | offline, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    (results,) = output.rglob("results_*.json")
    (samples,) = output.rglob("samples_*.jsonl")
    found = json.loads(results.read_text())["results"]["tpuctl_facts"]
    lines = sorted((json.loads(line) for line in samples.read_text().splitlines()), key=lambda line: line["doc_id"])
    answers = [answer for line in lines for answer in line["filtered_resps"]]
    return {
        "scores": {key: value for key, value in found.items() if key.startswith("acc")},
        "logprobs": [float(answer[0]) for answer in answers],
        "greedy": [str(answer[1]) for answer in answers],
    }
