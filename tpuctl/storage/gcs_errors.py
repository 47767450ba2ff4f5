"""Google's errors made ours: what is missing, the bucket, the object or a right, and whether trying again may help."""

from __future__ import annotations

import json
import re

from google.api_core import exceptions as google
from google.auth import exceptions as auth
from google.cloud.storage.exceptions import InvalidResponse
from requests import exceptions as requests

from tpuctl.errors import StorageError
from tpuctl.storage.errors import (
    BucketMissingError,
    ChangedError,
    ForbiddenError,
    NotFoundError,
    UnreachableStorageError,
)
from tpuctl.storage.uri import split_gcs

GOOGLE_ERRORS = (google.GoogleAPIError, auth.GoogleAuthError, requests.RequestException, ConnectionError, TimeoutError)
"""All that a call of google-cloud-storage raises, but for checksums that don't agree (``DataCorruption``)."""

_RIGHT = re.compile(r"\bstorage\.[a-z]+\.[A-Za-z]+")
_URL = re.compile(r"^[A-Z]+ https?://\S+: ")
_RIGHTS_HINT = (
    "grant it to the account this machine runs as: roles/storage.objectAdmin for the objects, "
    "roles/storage.legacyBucketReader for the bucket itself"
)


def explained(error: Exception, *, uri: str, needs_object: bool = True) -> StorageError:
    """The error of ours for one of ``GOOGLE_ERRORS``.

    ``needs_object``: the call was about an object that should be there, so that a 404 may mean the object.
    """
    text = _words(error)
    if isinstance(error, google.RetryError):
        return UnreachableStorageError(
            f"{uri}: gave up after trying again for some time: {_words(error.cause or error)}",
            hint="the run resumes from its last checkpoint: start it again once the storage answers",
        )
    if isinstance(error, google.NotFound):
        return _missing(text, uri=uri, needs_object=needs_object)
    if isinstance(error, google.PreconditionFailed):
        return ChangedError(f"{uri}: changed meanwhile")
    if isinstance(error, google.Forbidden | google.Unauthorized):
        return _forbidden(text, uri=uri)
    if isinstance(error, auth.GoogleAuthError):
        return UnreachableStorageError(
            f"{uri}: no credentials for Google Cloud: {text}",
            hint="run `gcloud auth application-default login`, or give the machine a service account",
        )
    if isinstance(error, google.ServerError | google.TooManyRequests) or not isinstance(error, google.GoogleAPIError):
        return UnreachableStorageError(f"{uri}: {text}")
    return StorageError(f"{uri}: {text}")


def _missing(text: str, *, uri: str, needs_object: bool) -> StorageError:
    bucket, _ = split_gcs(uri)
    # The service tells the two apart in words only.
    if not needs_object or "bucket does not exist" in text:
        return BucketMissingError(
            f"{uri}: there is no bucket {bucket!r}",
            hint=f"check the name, or create it: gcloud storage buckets create gs://{bucket}",
        )
    return NotFoundError(f"{uri}: not found")


def _forbidden(text: str, *, uri: str) -> ForbiddenError:
    right = _RIGHT.search(text)
    what = f"the right {right[0]} is missing" if right else f"access denied: {text}"
    return ForbiddenError(f"{uri}: {what}", hint=_RIGHTS_HINT)


def _words(error: BaseException) -> str:
    """What the service says, without the request's URL."""
    if isinstance(error, InvalidResponse):
        return f"{error.response.status_code} {_message(error.response.text)}"
    if isinstance(error, google.GoogleAPICallError):
        code = "" if error.code is None else int(error.code)
        return f"{code} {_URL.sub('', str(error.message))}".strip()
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _message(body: str) -> str:
    """The message of an error's JSON document, or the first words of a page."""
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return body.strip()[:200]
