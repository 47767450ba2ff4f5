"""The weights of a local folder held against its config, by their headers alone: which layers, and how many ids.

A job holds every tensor against the model before it loads one; this is what shows at once where a config was edited
or the files are another model's.
"""

from __future__ import annotations

import re

from tpuctl.errors import WeightsError
from tpuctl.model_folder import WeightFiles, open_weights
from tpuctl.modelspec import ModelSpec

_LAYER = re.compile(r"(?:^|model\.|transformer\.)(?:layers|h)\.(\d+)\.")
_EMBEDDING = re.compile(r"(?:^|\.)(?:embed_tokens|wte)\.weight$")


def check_header(uri: str, spec: ModelSpec) -> WeightFiles:
    """The weights of a folder, whose headers agree with the config's sizes.

    Raises:
        WeightsError: there are none, they are damaged, or they tell of another number of layers, ids or another width.
        StorageError: a file can't be read.
    """
    weights = open_weights(uri)
    layers = {int(found[1]) for name in weights.tensors if (found := _LAYER.search(name))}
    if layers != set(range(spec.num_layers)):
        raise _other(uri, f"{len(layers)} layers, and config.json tells of {spec.num_layers}")
    shapes = [tensor.shape for name, tensor in weights.tensors.items() if _EMBEDDING.search(name)]
    wanted = (spec.vocab_size, spec.hidden_size)
    if shapes != [wanted]:
        found = " and ".join("×".join(map(str, shape)) for shape in shapes) or "no embedding"
        raise _other(uri, f"an embedding of {found}, and config.json tells of {wanted[0]}×{wanted[1]}")
    return weights


def _other(uri: str, what: str) -> WeightsError:
    message = f"the weights in {uri} are not those of its config.json: they have {what}"
    return WeightsError(message, hint="are the weights another's, or was config.json changed? copy the folder again")
