"""The inference engine: token ids in, token ids out, continuously batched over a paged KV cache.

``request``, ``pages`` and ``scheduler`` are plain Python and import no jax; ``sampling`` is pure jax; ``runner`` is
the only file that jits; ``engine`` ties them. Knows no HTTP, no Ray and no text.
"""
