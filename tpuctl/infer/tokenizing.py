"""The tokenizer of a model folder, as a task on text needs it."""

from __future__ import annotations

import tokenizers

from tpuctl.errors import WeightsError
from tpuctl.storage import NotFoundError, join, open_storage


def load_tokenizer(uri: str) -> tokenizers.Tokenizer:
    """The folder's ``tokenizer.json``, without the padding and truncation that some have built in.

    Raises:
        WeightsError: there is none, or none that can be read.
    """
    place = join(uri, "tokenizer.json")
    try:
        tokenizer = tokenizers.Tokenizer.from_buffer(open_storage(place).read(place).data)
    except NotFoundError as error:
        raise WeightsError(f"{uri} has no tokenizer.json") from error
    except ValueError as error:
        raise WeightsError(f"{place} is no tokenizer: {error}") from error
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer
