"""Reading a Hugging Face ``config.json`` key by key, so that none is passed over in silence."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tpuctl.modelspec.values import (
    LARGEST,
    ModelConfigError,
    as_flag,
    as_list,
    as_number,
    as_size,
    as_table,
    as_word,
    shown,
)

_MISSING: Any = object()

__all__ = ["Config", "ModelConfigError"]

# Keys that change nothing a forward pass computes: where the file came from, how to train, generate or classify.
_HARMLESS = frozenset(
    {
        "_attn_implementation",
        "_name_or_path",
        "_num_labels",
        "architectures",
        "attention_dropout",
        "attn_implementation",
        "attn_pdrop",
        "auto_map",
        "bos_token_id",
        "cache_implementation",
        "chunk_size_feed_forward",
        "dtype",
        "embd_pdrop",
        "eos_token_id",
        "gradient_checkpointing",
        "id2label",
        "initializer_range",
        "is_encoder_decoder",
        "is_llama_config",
        "label2id",
        "model_type",
        "n_ctx",
        "num_labels",
        "output_attentions",
        "output_hidden_states",
        "output_past",
        "output_router_logits",
        "pad_token_id",
        "pretraining_tp",
        "problem_type",
        "reorder_and_upcast_attn",
        "resid_pdrop",
        "return_dict",
        "router_aux_loss_coef",
        "router_jitter_noise",
        "summary_activation",
        "summary_first_dropout",
        "summary_proj_to_labels",
        "summary_type",
        "summary_use_proj",
        "task_specific_params",
        "tokenizer_class",
        "torch_dtype",
        "torchscript",
        "transformers.js_config",
        "transformers_version",
        "unk_token_id",
        "unsloth_fixed",
        "unsloth_version",
        "use_cache",
        "use_return_dict",
    }
)


class Config:
    """A config's keys, each taken at most once and every one accounted for at the end."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values
        self._taken: set[str] = set()

    def take(self, key: str, default: Any = _MISSING) -> Any:
        """The value of a key. ``null`` is as good as not there.

        Raises:
            ModelConfigError: it is not there and has no default.
        """
        self._taken.add(key)
        value = self._values.get(key)
        if value is not None:
            return value
        if default is _MISSING:
            raise ModelConfigError(f"the model's config does not say {key!r}")
        return default

    def take_size(self, key: str, default: Any = _MISSING, *, least: int = 1, most: int = LARGEST) -> Any:
        """A whole number, or the default as it is; raises ``ModelConfigError`` as ``take`` does, or for another
        value."""
        return self._typed(key, default, lambda value: as_size(key, value, least=least, most=most))

    def take_number(self, key: str, default: Any = _MISSING, *, above: float = 0.0) -> Any:
        """A finite number as a float, or the default as it is; raises as ``take_size`` does."""
        return self._typed(key, default, lambda value: as_number(key, value, above=above))

    def take_flag(self, key: str, default: bool) -> bool:
        """True or false; raises as ``take_size`` does."""
        return bool(self._typed(key, default, lambda value: as_flag(key, value)))

    def take_word(self, key: str, default: str) -> str:
        """A text; raises as ``take_size`` does."""
        return str(self._typed(key, default, lambda value: as_word(key, value)))

    def take_table(self, key: str) -> dict[str, Any]:
        """An object, empty where there is none; raises as ``take_size`` does."""
        return dict(self._typed(key, {}, lambda value: as_table(key, value)))

    def take_words(self, key: str) -> list[str]:
        """A list of texts, empty where there is none; raises as ``take_size`` does."""
        return [as_word(key, item) for item in self._typed(key, [], lambda value: as_list(key, value))]

    def take_sizes(self, key: str) -> list[int]:
        """A list of whole numbers from 0 on, empty where there is none; raises as ``take_size`` does."""
        return [as_size(key, item, least=0) for item in self._typed(key, [], lambda value: as_list(key, value))]

    def take_explicit_size(self, key: str, default: int | None) -> int | None:
        """A whole number, where ``null`` is a value of its own and differs from the key's not being there."""
        value = self.take_explicit(key, default)
        return None if value is None else as_size(key, value, least=1)

    def take_explicit_number(self, key: str, default: float | None) -> float | None:
        """The same of a number above 0."""
        value = self.take_explicit(key, default)
        return None if value is None else as_number(key, value, above=0.0)

    def take_explicit(self, key: str, default: Any) -> Any:
        """The value of a key, where ``null`` is a value of its own and differs from the key's not being there."""
        self._taken.add(key)
        return self._values.get(key, default)

    def require(self, key: str, expected: Any, *, why: str) -> None:
        """Refuse any value of ``key`` but the expected one; that stands for a missing key, too."""
        if (value := self.take(key, expected)) != expected:
            raise ModelConfigError(f"{key} = {shown(value)} in the model's config: {why}")

    def finish(self) -> None:
        """Refuse what nothing has taken and is not known to be harmless.

        Raises:
            ModelConfigError: naming the keys.
        """
        self.require("quantization_config", None, why="quantised checkpoints can't be read; use one in bfloat16")
        rest = self._values.keys() - self._taken - _HARMLESS
        unknown = sorted(key for key in rest if self._values[key] is not None and self._values[key] is not False)
        if unknown:
            raise ModelConfigError(
                f"the model's config has {', '.join(map(repr, unknown))}, and it is not known what that changes",
                hint="a family or an option that tpuctl does not have; remove the key if it changes nothing",
            )

    def _typed(self, key: str, default: Any, read: Callable[[Any], Any]) -> Any:
        value = self.take(key, default)
        return value if value is default else read(value)
