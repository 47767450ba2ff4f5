"""What makes a model folder of exported weights: its config, its tokenizer, and which token ends a text."""

from __future__ import annotations

import json
from typing import Any

import tokenizers
from tokenizers import decoders, pre_tokenizers
from tokenizers.models import BPE

from tpuctl.builtin_models.fetch import model_folder
from tpuctl.errors import StorageError, WeightsError
from tpuctl.model_folder import CONFIG_FILE, GENERATION_FILE, read_config, read_json, tokenizer_files
from tpuctl.modelspec.config import ModelConfigError
from tpuctl.modelspec.huggingface import config_from_spec, spec_from_config
from tpuctl.plan.schema import TrainingPlan
from tpuctl.storage import join, open_storage
from tpuctl.text import SEPARATOR, TOKENIZER_FILE, ByteTokenizer, bpe_vocab_size
from tpuctl.text.place import TokenizerRef


def model_config(plan: TrainingPlan, *, dtype: str) -> dict[str, Any]:
    """``config.json`` of a run's model: that of the folder it started from while it is there, else made of the spec.

    Raises:
        ModelConfigError: no family computes this model.
    """
    config = _config_of_source(plan)
    if config is None:
        ends = _separator_id(plan)
        config = {**config_from_spec(plan.model), "bos_token_id": ends, "eos_token_id": ends}
    config.pop("dtype", None)
    return {**config, "torch_dtype": dtype}


def write_config(plan: TrainingPlan, folder: str, config: dict[str, Any]) -> None:
    """``generation_config.json``, then ``config.json``."""
    generation = None
    if plan.weights is not None:
        try:
            generation = read_json(model_folder(plan.weights.uri), GENERATION_FILE)
        except (WeightsError, StorageError):
            generation = None
    ids: dict[str, Any] = {
        key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id") if key in config
    }
    _write_json(join(folder, GENERATION_FILE), generation or ids)
    _write_json(join(folder, CONFIG_FILE), config)


def write_tokenizer(plan: TrainingPlan, folder: str) -> None:
    """The tokenizer's files: as they are, or for bytes and a BPE of the run's own in transformers' form.

    Raises:
        StorageError: they can't be read or written.
    """
    name = model_folder(plan.data.tokenizer)
    if name == "bytes":
        _write(join(folder, TOKENIZER_FILE), _byte_tokenizer().to_str(pretty=True).encode())
    elif bpe_vocab_size(name) is not None:
        _write(join(folder, TOKENIZER_FILE), _read(join(plan.run.directory, TOKENIZER_FILE)))
    else:
        source = name.rpartition("/")[0] if name.endswith((".json", ".model")) else name
        for file in tokenizer_files(source):
            _write(join(folder, file), _read(join(source, file)))
        return
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": SEPARATOR, "bos_token": SEPARATOR}
    _write_json(join(folder, "tokenizer_config.json"), config)


def _config_of_source(plan: TrainingPlan) -> dict[str, Any] | None:
    if plan.weights is None:
        return None
    try:
        config = read_config(model_folder(plan.weights.uri))
        spec = spec_from_config(config, name=plan.model.name)
    except (WeightsError, StorageError, ModelConfigError):
        return None
    return config if spec == plan.model else None


def _separator_id(plan: TrainingPlan) -> int:
    ref = TokenizerRef(name=plan.data.tokenizer, directory=plan.run.directory, vocab_size=plan.model.vocab_size)
    return ref.load().separator_id


def _byte_tokenizer() -> tokenizers.Tokenizer:
    """Ids that are bytes, as a byte-level BPE that never merges."""
    visible = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    vocab = {_visible(byte): byte for byte in range(ByteTokenizer.separator_id)}
    made = tokenizers.Tokenizer(BPE(vocab=vocab, merges=[]))
    made.pre_tokenizer = visible
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([tokenizers.AddedToken(SEPARATOR, special=True, normalized=False)])
    return made


def _visible(byte: int) -> str:
    """The character that stands for a byte in byte-level BPE (GPT-2): itself if visible, else one from 256 on."""
    seen = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [value for value in range(256) if value not in seen]
    return chr(byte if byte in seen else 256 + hidden.index(byte))


def _read(uri: str) -> bytes:
    return open_storage(uri).read(uri).data


def _write(uri: str, data: bytes) -> None:
    open_storage(uri).write(uri, data)


def _write_json(uri: str, document: dict[str, Any]) -> None:
    _write(uri, (json.dumps(document, indent=2) + "\n").encode())
