"""URIs as text: what they are of, and what lies below them. An object's name is taken as it stands, never unquoted."""

from __future__ import annotations

GCS = "gs://"


def join(base: str, *parts: str) -> str:
    """The URI of something below ``base``."""
    return "/".join([base.rstrip("/"), *(part.strip("/") for part in parts)])


def is_gcs(uri: str) -> bool:
    """Whether the URI names something in a bucket."""
    return uri.startswith(GCS)


def split_gcs(uri: str) -> tuple[str, str]:
    """Bucket and object name of a ``gs://`` URI; the name is "" if it is the bucket's own."""
    bucket, _, name = uri.removeprefix(GCS).partition("/")
    return bucket, name
