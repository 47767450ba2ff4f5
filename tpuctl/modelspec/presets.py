"""Architectures known by name: sizes as published, and tiny ones of our own for trying things out on a CPU."""

from __future__ import annotations

from tpuctl.modelspec.spec import ModelSpec

PRESETS: dict[str, ModelSpec] = {
    spec.name: spec
    for spec in (
        # For trying things out on a CPU; vocab_size 0 takes the tokenizer's, and the names count with theirs.
        ModelSpec(
            name="tiny-1m",
            vocab_size=0,
            hidden_size=256,
            num_layers=2,
            num_heads=4,
            num_kv_heads=2,
            head_dim=64,
            mlp_size=352,
        ),
        ModelSpec(
            name="tiny-5m",
            vocab_size=0,
            hidden_size=256,
            num_layers=6,
            num_heads=4,
            num_kv_heads=2,
            head_dim=64,
            mlp_size=768,
        ),
        ModelSpec(
            name="tiny-64m",
            vocab_size=0,
            hidden_size=768,
            num_layers=8,
            num_heads=12,
            num_kv_heads=4,
            head_dim=64,
            mlp_size=2048,
        ),
        # Published architectures, only those the decoder has exactly: no rope scaling, no q/k norms, no biases.
        ModelSpec(
            name="smollm2-135m",
            vocab_size=49_152,
            hidden_size=576,
            num_layers=30,
            num_heads=9,
            num_kv_heads=3,
            head_dim=64,
            mlp_size=1536,
            rope_theta=100_000.0,
        ),
        ModelSpec(
            name="tinyllama-1.1b",
            vocab_size=32_000,
            hidden_size=2048,
            num_layers=22,
            num_heads=32,
            num_kv_heads=4,
            head_dim=64,
            mlp_size=5632,
            tied_embedding=False,
        ),
        ModelSpec(
            name="llama3-8b",
            vocab_size=128_256,
            hidden_size=4096,
            num_layers=32,
            num_heads=32,
            num_kv_heads=8,
            head_dim=128,
            mlp_size=14_336,
            rope_theta=500_000.0,
            tied_embedding=False,
        ),
        ModelSpec(
            name="llama3-70b",
            vocab_size=128_256,
            hidden_size=8192,
            num_layers=80,
            num_heads=64,
            num_kv_heads=8,
            head_dim=128,
            mlp_size=28_672,
            rope_theta=500_000.0,
            tied_embedding=False,
        ),
    )
}
