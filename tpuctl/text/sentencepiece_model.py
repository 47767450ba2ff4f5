"""A SentencePiece ``tokenizer.model`` as a tokenizer of the tokenizers library.

One engine for all tokenizers then: the same spans, the same special tokens, the same detokenising. The ids are those of
SentencePiece itself, which a test holds.
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
_BPE = 2
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = range(1, 7)


def read_model(path: Path) -> Any:
    """The protobuf message of a ``tokenizer.model``.

    Raises:
        DataError: the file is something else, or a kind of SentencePiece model that no decoder model uses.
    """
    model = sentencepiece_model_pb2.ModelProto()  # type: ignore[attr-defined]  # made at import
    try:
        model.ParseFromString(path.read_bytes())
    except DecodeError as error:
        raise DataError(f"{path} is not a SentencePiece model: {error}") from error
    if not model.pieces:
        raise DataError(f"{path} is not a SentencePiece model: it has no pieces")
    if why := _unlike_sentencepiece(model):
        raise DataError(f"{path}: a SentencePiece model {why} can't be read", hint="convert it to a tokenizer.json")
    return model


def to_backend(model: Any) -> tokenizers.Tokenizer:
    """The tokenizer of a message from ``read_model``."""
    backend = tokenizers.Tokenizer(_bpe(model))
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


def _unlike_sentencepiece(model: Any) -> str | None:
    """What the tokenizers library would do otherwise, so that some texts got other ids."""
    if model.trainer_spec.model_type != _BPE:
        return "that is no BPE"  # unigram models: ties are broken otherwise, and text may become a control piece
    if model.trainer_spec.treat_whitespace_as_suffix:
        return "with the space behind a word"
    if model.normalizer_spec.precompiled_charsmap and any(piece.type == _USER_DEFINED for piece in model.pieces):
        return "with symbols of its own and a normalisation"  # which must spare them, and would not
    return None


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
            pairs = sorted(
                _splits(piece.piece, vocabulary), key=lambda pair: (vocabulary[pair[0]], vocabulary[pair[1]])
            )
            scored += [(piece.score, pair) for pair in pairs]
    return [pair for _, pair in sorted(scored, key=lambda item: -item[0])]


def _splits(piece: str, vocabulary: dict[str, int]) -> Iterator[tuple[str, str]]:
    for cut in range(1, len(piece)):
        left, right = piece[:cut], piece[cut:]
        if left in vocabulary and right in vocabulary:
            yield left, right


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
