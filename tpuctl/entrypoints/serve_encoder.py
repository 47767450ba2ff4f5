"""The encoder of an endpoint made ready on this host's chips: weights, tokenizer, and every length compiled."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from tpuctl.builtin_models.fetch import model_folder
from tpuctl.entrypoints.programs import keep_programs
from tpuctl.errors import JobFailedError
from tpuctl.model_folder import read_config
from tpuctl.modelspec.encoder import EncoderSpec
from tpuctl.nn.embedder import Embedder, EmbedderOptions
from tpuctl.plan.schema import EmbeddingPlan
from tpuctl.serve.served import Served
from tpuctl.serve.server import LoadedEncoder
from tpuctl.text.place import TokenizerRef
from tpuctl.train.devices import verify_devices

Tell = Callable[..., None]


def load_served_encoder(plan: EmbeddingPlan, *, simulated: bool, tell: Tell) -> LoadedEncoder:
    """The plan's encoder, ready to be served. ``tell`` takes a phase's name and its fields.

    Raises:
        ClusterError: These are not the plan's devices.
        WeightsError: There is no such encoder in the folder; or a built-in one can't be fetched.
        DataError: The tokenizer can't be read, or has more ids than the model has rows.
        JobFailedError: Its vectors are no numbers.
    """
    verify_devices(plan, simulated=simulated)
    keep_programs(plan, tell=lambda text: tell("programs", detail=text))
    encoder = plan.encoder
    folder = model_folder(encoder.uri, tell=tell)
    spec = EncoderSpec.of_config(read_config(folder))
    tokenizer = TokenizerRef(name=folder, directory=folder, vocab_size=spec.vocab_size).load()
    started = time.monotonic()
    embedder = Embedder(
        folder,
        EmbedderOptions(
            pooling=encoder.pooling,
            normalise=encoder.normalise,
            max_length=encoder.max_length,
            batch_rows=encoder.batch_rows,
        ),
    )
    tell("weights", seconds=time.monotonic() - started, detail=f"{encoder.parameters:,} parameters from {folder}")
    _warm_up(embedder, tell=tell)
    served = Served(
        name=plan.endpoint.name,
        tokenizer=tokenizer,
        chat=None,
        max_length=encoder.max_length,
        vocab_size=tokenizer.vocab_size,
        created=int(time.time()),
    )
    return LoadedEncoder(embedder=embedder, served=served)


def _warm_up(embedder: Embedder, *, tell: Tell) -> None:
    for number, length in enumerate(embedder.lengths, start=1):
        started = time.monotonic()
        found = embedder.vectors([[0] * length])
        if not np.isfinite(found).all():
            raise JobFailedError(f"the vector of a text of {length} tokens is no vector of numbers")
        detail = f"{number} of {len(embedder.lengths)} lengths: {embedder.batch_rows} texts of {length} tokens"
        tell("compiled", seconds=time.monotonic() - started, detail=detail)
