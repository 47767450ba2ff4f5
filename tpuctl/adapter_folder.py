"""An adapter's folder as PEFT writes it, local or in a bucket: ``adapter_config.json``, ``adapter_model.safetensors``.

Reads the config and the header, never a tensor; shared by both sides, so it imports no jax. Which tensors a model's
adapter has, and of which shape, is not known here.
Format: https://huggingface.co/docs/peft/developer_guides/checkpoint
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tpuctl.errors import WeightsError
from tpuctl.model_folder import read_json
from tpuctl.modelspec.adapters import TARGETS
from tpuctl.safetensors import Tensor, read_tensor_file
from tpuctl.storage import NotFoundError, join

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"

# What no rank or alpha comes near.
_BOUND = 1 << 31
_FACTOR = re.compile(r"\.(?P<module>[^.]+)\.lora_[AB]\.weight$")

# What changes the meaning of the factors, or adds others; PEFT's defaults of all of them are empty.
_UNSUPPORTED = (
    "use_rslora",
    "use_dora",
    "use_qalora",
    "fan_in_fan_out",
    "lora_bias",
    "modules_to_save",
    "layers_to_transform",
    "layer_replication",
    "rank_pattern",
    "alpha_pattern",
    "target_parameters",
    "trainable_token_indices",
    "alora_invocation_tokens",
    "arrow_config",
    "kasa_config",
    "monteclora_config",
    "use_bdlora",
    "velora_config",
)
# The other ways to begin change the base weights, too.
_BEGINNINGS = (None, True, False, "gaussian", "orthogonal", "eva")


@dataclass(frozen=True, kw_only=True, slots=True)
class AdapterFolder:
    """An adapter as its folder tells of it: rank and alpha of its config, and every tensor by PEFT's name."""

    uri: str
    rank: int
    alpha: float
    tensors: Mapping[str, Tensor]

    @property
    def targets(self) -> tuple[str, ...]:
        """The projections it stands beside, by the tensors there are: a config may name them by an expression."""
        modules = {found["module"] for name in self.tensors if (found := _FACTOR.search(name))}
        return tuple(target for target in TARGETS if target in modules)


def open_adapter(uri: str) -> AdapterFolder:
    """The adapter in a folder.

    Raises:
        WeightsError: there is none, it is damaged, or of a kind that is not supported.
        StorageError: it can't be read.
    """
    config = read_json(uri, CONFIG_FILE)
    if config is None:
        raise WeightsError(
            f"{uri} is no adapter: it has no {CONFIG_FILE}", hint=f"name a folder with it and {WEIGHTS_FILE}"
        )
    _check_kind(uri, config)
    rank, alpha = (_number(uri, config, key) for key in ("r", "lora_alpha"))
    if rank != int(rank):
        raise WeightsError(f"{join(uri, CONFIG_FILE)}: r is {rank:g}, and has to be a whole number")
    try:
        tensors = read_tensor_file(join(uri, WEIGHTS_FILE)).tensors
    except NotFoundError as error:
        raise WeightsError(f"{uri} is no adapter: it has no {WEIGHTS_FILE}") from error
    return AdapterFolder(uri=uri, rank=int(rank), alpha=alpha, tensors=tensors)


def _number(uri: str, config: dict[str, Any], key: str) -> float:
    value = config.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < _BOUND:
        raise WeightsError(f"{join(uri, CONFIG_FILE)}: {key} is {value!r}, and has to be a number above 0")
    return float(value)


def _check_kind(uri: str, config: dict[str, Any]) -> None:
    if config.get("peft_type") != "LORA":
        raise WeightsError(f"{uri} is an adapter of type {config.get('peft_type')!r}, not LORA")
    odd = [key for key in _UNSUPPORTED if config.get(key)] + ["bias"] * (config.get("bias", "none") != "none")
    odd += ["init_lora_weights"] * (config.get("init_lora_weights") not in _BEGINNINGS)
    if odd:
        raise WeightsError(f"{uri} is an adapter of a kind that is not supported: it sets {', '.join(odd)}")
