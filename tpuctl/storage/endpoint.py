"""Where the buckets are: Google's own service, or one other endpoint for every client in every process.

A training process reaches gs:// by four client libraries, and each has a setting of its own. ``TPUCTL_GCS_ENDPOINT``
is the one setting of ours; ``client_env`` is what it means to the others. No credential ever passes through here:
every machine has its own.
"""

from __future__ import annotations

import os
from urllib.parse import urlsplit

ENDPOINT_VARIABLE = "TPUCTL_GCS_ENDPOINT"

_ALWAYS = {
    # etils would else import TensorFlow where it is installed.
    "EPATH_USE_TF": "0",
    # gcsfs keeps listings for ever: a process that has listed once never sees what others write.
    "FSSPEC_GCS": '{"use_listings_cache": false}',
}


def endpoint() -> str | None:
    """The endpoint this process was told to use; None for Google's own."""
    return os.environ.get(ENDPOINT_VARIABLE) or None


def client_env(endpoint: str | None) -> dict[str, str]:
    """The environment by which every client library reaches ``endpoint``. To be set before any of them is imported.

    Sources: the documentation of google-cloud-storage, google-auth, Arrow C++, TensorStore and gcsfs.
    """
    if not endpoint:
        return dict(_ALWAYS)
    host = urlsplit(endpoint).netloc
    return {
        **_ALWAYS,
        ENDPOINT_VARIABLE: endpoint,
        "STORAGE_EMULATOR_HOST": endpoint,
        "CLOUD_STORAGE_EMULATOR_ENDPOINT": endpoint,
        "TENSORSTORE_GCS_HTTP_URL": endpoint,
        # An emulator answers for the metadata server too, which clients ask for their tokens.
        "GCE_METADATA_HOST": host,
        "GCE_METADATA_IP": host,
        "GCE_METADATA_ROOT": host,
        # By default gcsfs asks by gRPC, which an emulator has not, and waits a minute for each answer.
        "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
        "DISABLE_GCS_PYTHON_CLIENT_OTEL_BUCKET_METADATA": "true",
    }
