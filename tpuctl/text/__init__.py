"""Text to token ids and back, and conversations to text. Must not import jax or ray.

The files of this room: ``tokenizer`` (what a tokenizer is; bytes), ``file`` (tokenizer.json), ``sentencepiece_model``
(tokenizer.model), ``special`` (which tokens begin, end and pad), ``pieces`` and ``detokenize`` (ids to text, also as
they come), ``load`` (by the name in a plan), ``place`` (wherever it lies), ``bpe`` (training one), ``template``,
``template_environment`` and ``template_files`` (chat templates), ``chat`` (conversations, and the part of them that is
an answer).

Every tokenizer accounts for bytes: the ids of a text carry the number of UTF-8 bytes each stands for, and they
sum to the bytes of the text. That makes bits per byte comparable between tokenizers and with gzip.
"""

from tpuctl.text.bpe import SEPARATOR, train_bpe
from tpuctl.text.detokenize import Detokenizer
from tpuctl.text.load import TOKENIZER_FILE, bpe_vocab_size, load_tokenizer, tokenizer_path
from tpuctl.text.special import SpecialTokens
from tpuctl.text.tokenizer import BYTES_VOCAB_SIZE, ByteTokenizer, Encoded, Parsed, Tokenizer

__all__ = [
    "BYTES_VOCAB_SIZE",
    "SEPARATOR",
    "TOKENIZER_FILE",
    "ByteTokenizer",
    "Detokenizer",
    "Encoded",
    "Parsed",
    "SpecialTokens",
    "Tokenizer",
    "bpe_vocab_size",
    "load_tokenizer",
    "tokenizer_path",
    "train_bpe",
]
