"""An OpenAI-compatible endpoint over one engine: HTTP in, tokens out of a thread of its own, text back.

The files of this room: ``protocol`` (what may be asked, field by field, and what an error looks like), ``served`` (the
model that is served), ``prompts`` and ``asking`` (a body to engine requests), ``bridge`` (asyncio to the engine's
thread and back), ``sample``, ``stops`` and ``tool_calls`` (tokens to text, cut where they must be), ``generation`` (all
samples of a request), ``completions`` and ``chat`` (what each endpoint answers), ``keys``, ``metrics``, ``wire`` and
``http`` (the app).

Imports no ray, and no jax: the engine is what ``bridge.EngineLike`` says, and knows no HTTP.
"""
