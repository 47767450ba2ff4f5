"""Writes a tiny random BERT and what transformers makes of a few texts; needs torch and transformers, unlike the tests.

python tests/infer/make_bert_reference.py tests/infer/tiny_bert
python tests/infer/make_bert_reference.py tests/infer/minilm --model FOLDER      # the reference alone, of a real model
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import tokenizers
import torch
import transformers

TEXTS = ["a b", "c", "", "b a c d e f g h a b c d e f g h a b c d", "h h h h h h h h h h"]
REAL_TEXTS = [
    "A man is eating food.",
    "Someone is having a meal.",
    "The stock market crashed today.",
    "",
    "def f(x):\n    return x + 1\n" * 40,
]


def write_tiny(folder: Path) -> None:
    torch.manual_seed(0)
    words = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", *"abcdefgh"]
    config = transformers.BertConfig(
        vocab_size=len(words),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=24,
        max_position_embeddings=32,
    )
    model = transformers.BertModel(config)
    for parameter in model.parameters():  # norms and biases too, so that none can be left out unseen
        torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder)
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.WordPiece({word: i for i, word in enumerate(words)}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))


def write_reference(folder: Path, model_folder: Path, texts: list[str], *, max_length: int) -> None:
    model = transformers.BertModel.from_pretrained(model_folder).eval()
    tokenizer = tokenizers.Tokenizer.from_file(str(model_folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(max_length)
    found: dict[str, list[list[float]]] = {"mean": [], "first": []}
    for text in texts:
        with torch.no_grad():
            hidden = model(torch.tensor([tokenizer.encode(text).ids])).last_hidden_state[0]
        for name, vector in (("mean", hidden.mean(0)), ("first", hidden[0])):
            found[name].append([round(x, 7) for x in (vector / vector.norm()).tolist()])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "reference.json").write_text(json.dumps({"texts": texts, **found}) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", type=Path)
    given = parser.parse_args()
    if given.model is None:
        write_tiny(given.folder)
        write_reference(given.folder, given.folder, TEXTS, max_length=32)
    else:
        write_reference(given.folder, given.model, REAL_TEXTS, max_length=256)
