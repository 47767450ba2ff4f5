"""What may be asked and what errors look like. Every documented field is honoured or refused by name."""

from tpuctl.serve.protocol.body import Body, parse_body
from tpuctl.serve.protocol.chat import ChatBody, Message
from tpuctl.serve.protocol.completions import CompletionBody
from tpuctl.serve.protocol.embeddings import EmbeddingBody
from tpuctl.serve.protocol.errors import ApiError
from tpuctl.serve.protocol.tokenize import DetokenizeBody, TokenizeBody

__all__ = [
    "ApiError",
    "Body",
    "ChatBody",
    "CompletionBody",
    "DetokenizeBody",
    "EmbeddingBody",
    "Message",
    "TokenizeBody",
    "parse_body",
]
