"""The other side of an OpenAI-compatible endpoint, ours or any: talking to it, and putting load on it.

Control side: httpx, and nothing of the serving room.
"""
