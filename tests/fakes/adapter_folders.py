"""Adapters in PEFT's form beside the tiny model folder, and that model with one merged into it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from tests.fakes.model_folders import CONFIG, SPEC, llama_tensors
from tests.fakes.tensor_files import write_tensors
from tpuctl.modelspec.adapters import adapter_parameters
from tpuctl.nn.peft import Adapted, write_adapter
from tpuctl.plan.weights_schema import LoraPlan
from tpuctl.safetensors import read_tensor_file

LORAS = {
    "poet": LoraPlan(rank=4, alpha=12.0, targets=("q_proj", "v_proj", "o_proj"), dropout=0.0, adapter=None),
    "clerk": LoraPlan(rank=2, alpha=4.0, targets=("gate_proj", "down_proj"), dropout=0.0, adapter=None),
}


def write_adapter_folder(folder: Path, name: str) -> Path:
    """One of ``LORAS``, drawn at random and large enough to be heard."""
    folder.mkdir(parents=True, exist_ok=True)
    lora, random = LORAS[name], np.random.default_rng(list(LORAS).index(name))
    known = adapter_parameters(SPEC, rank=lora.rank, targets=lora.targets)
    factors = {path: random.normal(size=item.stacked_shape).astype(np.float32) for path, item in known.items()}
    write_adapter(Adapted(spec=SPEC, family="llama", lora=lora), str(folder), base="tiny", read=factors.__getitem__)
    return folder


def write_merged(folder: Path, adapter: Path) -> Path:
    """The tiny model with an adapter merged into its weights, by PEFT's definition: W + alpha / r · B A."""
    folder.mkdir(parents=True, exist_ok=True)
    config = json.loads((adapter / "adapter_config.json").read_text())
    file = read_tensor_file(str(adapter / "adapter_model.safetensors"))
    data = Path(file.uri).read_bytes()
    factors = {
        name: np.frombuffer(data[tensor.start : tensor.end], np.float32).reshape(tensor.shape)
        for name, tensor in file.tensors.items()
    }
    tensors = llama_tensors()
    for name, a in factors.items():
        if name.endswith(".lora_A.weight"):
            b = factors[name.replace("lora_A", "lora_B")]
            weight = name.removeprefix("base_model.model.").replace(".lora_A", "")
            tensors[weight] = tensors[weight] + config["lora_alpha"] / config["r"] * (b @ a)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    write_tensors(folder / "model.safetensors", tensors)
    return folder
