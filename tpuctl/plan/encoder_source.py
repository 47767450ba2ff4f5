"""What the folder of an encoder says of itself; a built-in one is known beforehand, and nothing of it is read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from tpuctl.builtin_models import BUILTIN_DECODERS, BUILTIN_MODELS
from tpuctl.errors import WeightsError
from tpuctl.model_folder import read_config, read_json
from tpuctl.modelspec.encoder import ENCODERS, EncoderSpec, num_encoder_parameters
from tpuctl.plan.infer_schema import PoolingKind

_POOLING_FILE = "1_Pooling/config.json"
_POOLINGS: dict[str, PoolingKind] = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "first"}
_MINILM_LENGTH = 256
_MINILM_SPEC = EncoderSpec(
    vocab_size=30_522, hidden_size=384, num_layers=6, num_heads=12, mlp_size=1536, max_length=512, norm_eps=1e-12
)


@dataclass(frozen=True, kw_only=True, slots=True)
class EncoderSource:
    """An encoder: where it is, what its config describes, the length it was made for and how its states are pooled."""

    uri: str
    spec: EncoderSpec
    own_length: int
    pooling: PoolingKind = "mean"

    @property
    def parameters(self) -> int:
        """Weights of the whole model."""
        return num_encoder_parameters(self.spec)

    @classmethod
    def of_builtin(cls, uri: str) -> Self:
        """The built-in encoder, of which there is one."""
        return cls(uri=uri, spec=_MINILM_SPEC, own_length=_MINILM_LENGTH)

    @classmethod
    def of_folder(cls, uri: str) -> Self:
        """The encoder in a folder.

        Raises:
            WeightsError: there is none, or its states are pooled in a way that is not known here.
            ModelConfigError: it is of a kind that is not known here.
        """
        spec = EncoderSpec.of_config(read_config(uri))
        own = (read_json(uri, "sentence_bert_config.json") or {}).get("max_seq_length")
        length = own if isinstance(own, int) and 0 < own <= spec.max_length else spec.max_length
        return cls(uri=uri, spec=spec, own_length=length, pooling=_pooling(uri))


def is_encoder(uri: str) -> bool:
    """Whether a built-in model, or the model in a folder, is an encoder; raises as ``read_config`` does."""
    if uri in BUILTIN_MODELS:
        return uri not in BUILTIN_DECODERS
    return not uri.startswith("builtin:") and read_config(uri).get("model_type") in ENCODERS


def _pooling(uri: str) -> PoolingKind:
    """As sentence-transformers' file says it; the mean where there is none."""
    told: dict[str, Any] = read_json(uri, _POOLING_FILE) or {}
    chosen = [name for name, value in told.items() if name.startswith("pooling_mode_") and value is True]
    if not chosen:
        return "mean"
    if len(chosen) > 1 or chosen[0] not in _POOLINGS:
        raise WeightsError(f"{uri}: {_POOLING_FILE} says {', '.join(chosen)}", hint=f"known: {', '.join(_POOLINGS)}")
    return _POOLINGS[chosen[0]]
