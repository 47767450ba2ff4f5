"""The buckets of the emulator: objects in memory with generations, and the preconditions that guard them."""

from __future__ import annotations

import base64
import hashlib
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import google_crc32c

Query = Mapping[str, str]

_REASONS = {400: "invalid", 401: "required", 403: "forbidden", 404: "notFound", 409: "conflict", 412: "conditionNotMet"}


class Refused(Exception):
    """An answer of 4xx or 5xx."""

    def __init__(self, status: int, message: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.message = message or f"status {status}"

    def document(self) -> dict[str, Any]:
        """The answer's body."""
        reason = _REASONS.get(self.status, "backendError")
        errors = [{"message": self.message, "domain": "global", "reason": reason}]
        return {"error": {"code": self.status, "message": self.message, "errors": errors}}


@dataclass(frozen=True, kw_only=True)
class StoredObject:
    """One generation of an object."""

    bucket: str
    name: str
    data: bytes
    generation: int
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def crc32c(self) -> str:
        """As the service writes it."""
        return base64.b64encode(google_crc32c.Checksum(self.data).digest()).decode()

    @property
    def md5(self) -> str:
        """As the service writes it."""
        return base64.b64encode(hashlib.md5(self.data).digest()).decode()

    def document(self) -> dict[str, Any]:
        """The object resource of the JSON API."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(self.generation / 1e6)) + ".000Z"
        return {
            "kind": "storage#object",
            "id": f"{self.bucket}/{self.name}/{self.generation}",
            "bucket": self.bucket,
            "name": self.name,
            "size": str(len(self.data)),
            "generation": str(self.generation),
            "metageneration": "1",
            "crc32c": self.crc32c,
            "md5Hash": self.md5,
            "etag": f"etag{self.generation}",
            "storageClass": "STANDARD",
            "contentType": self.metadata.get("contentType") or "application/octet-stream",
            "metadata": self.metadata.get("metadata") or {},
            "timeCreated": stamp,
            "updated": stamp,
            "timeFinalized": stamp,
        }


class Buckets:
    """All buckets. Every change is one atomic step."""

    def __init__(self) -> None:
        self._objects: dict[str, dict[str, StoredObject]] = {}
        self._lock = threading.RLock()
        self._generation = 0

    def create(self, bucket: str) -> None:
        """Make a bucket, or empty it."""
        with self._lock:
            self._objects[bucket] = {}

    def of(self, bucket: str) -> dict[str, StoredObject]:
        """The objects of a bucket by name."""
        if bucket not in self._objects:
            raise Refused(404, "The specified bucket does not exist.")
        return self._objects[bucket]

    def get(self, bucket: str, name: str, query: Query) -> StoredObject:
        """An object, if it meets the query's preconditions."""
        with self._lock:
            found = self.of(bucket).get(name)
            if found is None or query.get("generation", str(found.generation)) != str(found.generation):
                raise Refused(404, f"No such object: {bucket}/{name}")
            _require(query, found, changed=304)
            return found

    def put(self, bucket: str, name: str, data: bytes, *, query: Query, metadata: Mapping[str, Any]) -> StoredObject:
        """Make ``data`` the object's live generation, if preconditions hold and its declared checksums are right."""
        if not name or len(name.encode()) > 1024 or "\n" in name or "\r" in name:
            raise Refused(400, f"Invalid object name {name!r}")
        with self._lock:
            _require(query, self.of(bucket).get(name))
            self._generation = max(time.time_ns() // 1000, self._generation + 1)
            new = StoredObject(bucket=bucket, name=name, data=data, generation=self._generation, metadata=metadata)
            for key, value in (("crc32c", new.crc32c), ("md5Hash", new.md5)):
                if metadata.get(key) not in (None, value):
                    raise Refused(400, f"Provided {key} {metadata[key]} doesn't match calculated {value}")
            self.of(bucket)[name] = new
            return new

    def fill(self, bucket: str, names: str, count: int, data: bytes) -> None:
        """Put ``count`` objects; ``names`` is a format for their numbers."""
        for number in range(count):
            self.put(bucket, names.format(number), data, query={}, metadata={})

    def delete(self, bucket: str, name: str, query: Query) -> None:
        """Remove an object, if preconditions hold."""
        with self._lock:
            self.get(bucket, name, {})
            _require(query, self.of(bucket)[name])
            del self.of(bucket)[name]

    def copy(self, source: StoredObject, bucket: str, name: str, query: Query) -> StoredObject:
        """A new object with the same content."""
        return self.put(bucket, name, source.data, query=query, metadata=dict(source.metadata))

    def list(self, bucket: str, query: Query) -> dict[str, Any]:
        """One page of a listing: items, and the prefixes that a delimiter rolls up."""
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        after, limit = query.get("pageToken", ""), min(1000, int(query.get("maxResults") or 1000))
        with self._lock:
            objects = dict(self.of(bucket))
        items: list[dict[str, Any]] = []
        prefixes: list[str] = []
        for name in sorted(objects, key=str.encode):
            rolled = _rolled_up(name, prefix, delimiter)
            if not _in_range(name, query) or rolled <= after or rolled in prefixes:
                continue
            if len(items) + len(prefixes) == limit:
                last = max([*(item["name"] for item in items), *prefixes])
                return {"kind": "storage#objects", "items": items, "prefixes": prefixes, "nextPageToken": last}
            if rolled != name or (
                rolled.endswith("/")
                and delimiter
                and query.get("includeTrailingDelimiter") != "true"
                and name != prefix
            ):
                prefixes.append(rolled)
            else:
                items.append(objects[name].document())
        return {"kind": "storage#objects", "items": items, "prefixes": prefixes}


def _rolled_up(name: str, prefix: str, delimiter: str) -> str:
    rest = name[len(prefix) :]
    if not delimiter or delimiter not in rest:
        return name
    return prefix + rest.partition(delimiter)[0] + delimiter


def _in_range(name: str, query: Query) -> bool:
    if not name.startswith(query.get("prefix", "")) or name < query.get("startOffset", ""):
        return False
    return "endOffset" not in query or name < query["endOffset"]


def _require(query: Query, current: StoredObject | None, *, changed: int = 412) -> None:
    generation = 0 if current is None else current.generation
    if int(query.get("ifGenerationMatch", generation)) != generation:
        raise Refused(412, "At least one of the pre-conditions you specified did not hold.")
    if int(query.get("ifGenerationNotMatch", -1)) == generation:
        raise Refused(changed, "At least one of the pre-conditions you specified did not hold.")
