"""The decoder, from a ModelSpec."""
