"""A SentencePiece ``tokenizer.model`` as a tokenizer of the tokenizers library.

One engine for all tokenizers then: the same spans, the same special tokens, the same detokenising. The ids are those of
SentencePiece itself, which a test holds for models of both its kinds.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tokenizers
from google.protobuf.message import DecodeError
from sentencepiece import sentencepiece_model_pb2
from tokenizers import decoders, models, normalizers

from tpuctl.errors import DataError

_SPACE = "▁"
_UNIGRAM, _BPE = 1, 2
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = range(1, 7)
# Below every real score by far: these pieces are in the vocabulary for their ids, no text may become one.
_NEVER = 100.0


def read_model(path: Path) -> Any:
    """The protobuf message of a ``tokenizer.model``.

    Raises:
        DataError: the file is something else, or a kind of SentencePiece model that no decoder model uses.
    """
    model = sentencepiece_model_pb2.ModelProto()
    try:
        model.ParseFromString(path.read_bytes())
    except DecodeError as error:
        raise DataError(f"{path} is not a SentencePiece model: {error}") from error
    if not model.pieces:
        raise DataError(f"{path} is not a SentencePiece model: it has no pieces")
    trainer = model.trainer_spec
    if trainer.model_type not in (_UNIGRAM, _BPE) or trainer.treat_whitespace_as_suffix:
        raise DataError(
            f"{path}: only BPE and unigram models with the space before a word can be read",
            hint="convert it to a tokenizer.json",
        )
    return model


def to_backend(model: Any) -> tokenizers.Tokenizer:
    """The tokenizer of a message from ``read_model``."""
    backend = tokenizers.Tokenizer(_bpe(model) if model.trainer_spec.model_type == _BPE else _unigram(model))
    backend.normalizer = normalizers.Sequence(list(_normalizers(model.normalizer_spec)))
    leading = int(model.normalizer_spec.add_dummy_prefix)
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace(_SPACE, " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", leading, 0),
        ]
    )
    for kind, special in ((_CONTROL, True), (_UNKNOWN, True), (_USER_DEFINED, False)):
        names = [piece.piece for piece in model.pieces if piece.type == kind]
        backend.add_tokens([tokenizers.AddedToken(name, normalized=False, special=special) for name in names])
    return backend


def names_of(model: Any) -> dict[str, str]:
    """The model's own special tokens, by the names that configs have for them."""
    trainer, pieces = model.trainer_spec, model.pieces
    numbers = {"bos_token": trainer.bos_id, "eos_token": trainer.eos_id, "pad_token": trainer.pad_id}
    return {
        name: pieces[number].piece
        for name, number in numbers.items()
        if 0 <= number < len(pieces) and pieces[number].type == _CONTROL
    }


def _bpe(model: Any) -> models.BPE:
    vocabulary = {piece.piece: number for number, piece in enumerate(model.pieces)}
    return models.BPE(
        vocab=vocabulary,
        merges=_merges(model, vocabulary),
        unk_token=model.pieces[_unknown_id(model)].piece,
        fuse_unk=True,
        byte_fallback=model.trainer_spec.byte_fallback,
    )


def _merges(model: Any, vocabulary: dict[str, int]) -> list[tuple[str, str]]:
    """The pairs that make a piece, those of the best-scored piece first: SentencePiece merges in that order."""
    scored = []
    for piece in model.pieces:
        if piece.type in (_NORMAL, _USER_DEFINED, _UNUSED):
            pairs = sorted(_splits(piece.piece, vocabulary), key=lambda pair: (vocabulary[pair[0]], vocabulary[pair[1]]))
            scored += [(piece.score, pair) for pair in pairs]
    return [pair for _, pair in sorted(scored, key=lambda item: -item[0])]


def _splits(piece: str, vocabulary: dict[str, int]) -> Iterator[tuple[str, str]]:
    for cut in range(1, len(piece)):
        left, right = piece[:cut], piece[cut:]
        if left in vocabulary and right in vocabulary:
            yield left, right


def _unigram(model: Any) -> models.Unigram:
    pieces = model.pieces
    lowest = min(piece.score for piece in pieces) - _NEVER
    textual = (_NORMAL, _USER_DEFINED)
    vocabulary = [(piece.piece, piece.score if piece.type in textual else lowest) for piece in pieces]
    return models.Unigram(vocabulary, unk_id=_unknown_id(model), byte_fallback=model.trainer_spec.byte_fallback)


def _unknown_id(model: Any) -> int:
    return next(number for number, piece in enumerate(model.pieces) if piece.type == _UNKNOWN)


def _normalizers(spec: Any) -> Iterator[normalizers.Normalizer]:
    if spec.precompiled_charsmap:
        yield normalizers.Precompiled(spec.precompiled_charsmap)
    if spec.remove_extra_whitespaces:
        yield normalizers.Replace(tokenizers.Regex(" {2,}"), " ")
        yield normalizers.Strip()
    if spec.add_dummy_prefix:
        yield normalizers.Prepend(_SPACE)
    if spec.escape_whitespaces:
        yield normalizers.Replace(" ", _SPACE)
