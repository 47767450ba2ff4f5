"""Taking an output folder into use: what the mode allows, what must go first, what closes it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from tpuctl.errors import OutputError
from tpuctl.infer.output import Output, Record
from tpuctl.infer.work import Work, work_from_json, work_to_json
from tpuctl.plan.infer_schema import OutputMode
from tpuctl.storage import NotFoundError, join, open_storage

MANIFEST_SCHEMA = "tpuctl.manifest/1"
MANIFEST, SUCCESS = "_manifest.json", "_SUCCESS"
_OURS = ("_tpuctl/", "_quarantine/", MANIFEST, SUCCESS)
# All that this room ever writes into a folder, name by name: nothing else is its to delete.
_KEY = "[0-9a-f]{8}"
_WRITTEN = re.compile(
    rf"part-{_KEY}-[0-9]{{6,}}\.parquet|_quarantine/{_KEY}-[0-9]{{6,}}\.parquet"
    rf"|_tpuctl/{_KEY}/(work\.json|columns\.arrow|[0-9]{{6,}}\.json)|{re.escape(MANIFEST)}|{SUCCESS}"
)
_SHOWN = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Folder:
    """A folder in use for a work. ``finished``: all of it is there, and nothing is to be done."""

    output: Output
    work: Work
    finished: bool


def take_folder(uri: str, work: Work, *, mode: OutputMode) -> Folder:
    """Make the folder ready for a work, by the mode. To be called by one process, before any part is written.

    Raises:
        OutputError: it holds what the mode doesn't let us go on from or write beside.
    """
    names = _names(uri)
    if mode == "overwrite":
        _clear(uri, names)
        return _begin(uri, work)
    works = _works(uri, names)
    data = [name for name in names if name.endswith(".parquet") and not name.startswith(_OURS)]
    if mode == "error" and (works or data):
        hint = 'use another folder, or output.mode = "overwrite"'
        raise OutputError(f"{uri} holds output already: {(data or ['no parts yet'])[0]}", hint=hint)
    if work.key in works:
        return _go_on(uri, works[work.key], finished=SUCCESS in names)
    if mode == "resume":
        _require_free(uri, work, list(works.values()), data)
    return _begin(uri, work)


def finish(folder: Folder, records: Iterable[Record]) -> dict[str, Any]:
    """Write the manifest, then the marker of success; the work's entry in the manifest.

    Raises:
        OutputError: rows are missing or too many; nothing has been written then.
    """
    work, done = folder.work, sorted(records, key=lambda record: record.index)
    found = sum(record.rows + record.quarantined for record in done)
    if found != work.rows:
        raise OutputError(f"{folder.output.uri}: {found} rows are accounted for, of {work.rows}")
    entry = {
        "key": work.key,
        "input": {"uri": work.uri, "fingerprint": work.fingerprint, "columns": list(work.columns)},
        "task": work.task,
        "rows": sum(record.rows for record in done),
        "quarantined": sum(record.quarantined for record in done),
        "dropped": work.dropped,
        "parts": [asdict(record) for record in done],
    }
    uri = folder.output.uri
    others = [item for item in read_manifest(uri) if item["key"] != work.key]
    document = {"schema": MANIFEST_SCHEMA, "works": [*others, entry]}
    storage = open_storage(uri)
    storage.write(join(uri, MANIFEST), (json.dumps(document, indent=2) + "\n").encode())
    storage.write(join(uri, SUCCESS), b"")
    return entry


def read_manifest(uri: str) -> list[dict[str, Any]]:
    """The works of a folder that are finished; none if there is no manifest."""
    place = join(uri, MANIFEST)
    try:
        works: list[dict[str, Any]] = json.loads(open_storage(uri).read(place).data)["works"]
    except NotFoundError:
        return []
    return works


def _begin(uri: str, work: Work) -> Folder:
    storage = open_storage(uri)
    storage.delete(join(uri, SUCCESS))
    storage.write(join(uri, "_tpuctl", work.key, "work.json"), work_to_json(work))
    return Folder(output=Output(uri, key=work.key), work=work, finished=False)


def _go_on(uri: str, work: Work, *, finished: bool) -> Folder:
    listed = any(item["key"] == work.key for item in read_manifest(uri))
    return Folder(output=Output(uri, key=work.key), work=work, finished=finished and listed)


def _require_free(uri: str, work: Work, works: list[Work], data: list[str]) -> None:
    hint = 'use another folder, or output.mode = "overwrite", or "append" to add to it'
    if works:
        raise OutputError(f"{uri} holds other work: {work.difference(works[-1])}", hint=hint)
    if data:
        raise OutputError(f"{uri} holds parquet files that no job of this folder wrote: {data[0]}", hint=hint)


def _works(uri: str, names: list[str]) -> dict[str, Work]:
    storage = open_storage(uri)
    found = {}
    for name in names:
        if name.startswith("_tpuctl/") and name.endswith("/work.json"):
            try:
                found[name.split("/")[1]] = work_from_json(storage.read(join(uri, name)).data)
            except (ValueError, TypeError) as error:
                raise OutputError(f"{join(uri, name)} is of another version of tpuctl") from error
    return found


def _clear(uri: str, names: list[str]) -> None:
    """Delete parts and what is kept beside them. The marker goes first: what is half deleted is no success.

    A folder with anything else in it, or without a trace of a job, is somebody's: none of it is deleted.
    """
    strange = [name for name in names if not _WRITTEN.fullmatch(name)]
    if names and not strange and not _has_trace(uri, names):
        strange = names
    if strange:
        more = f" and {len(strange) - _SHOWN} more" if len(strange) > _SHOWN else ""
        message = f"{uri} holds what no job wrote, and is left as it is: {', '.join(strange[:_SHOWN])}{more}"
        raise OutputError(message, hint="use another folder, or empty this one yourself")
    storage = open_storage(uri)
    for name in sorted(names, key=lambda name: name != SUCCESS):
        storage.delete(join(uri, name))


def _has_trace(uri: str, names: list[str]) -> bool:
    """Whether there is more than names that others use, too; what a manifest says is read."""
    if MANIFEST in names:
        try:
            return str(json.loads(open_storage(uri).read(join(uri, MANIFEST)).data)["schema"]) == MANIFEST_SCHEMA
        except (ValueError, KeyError, TypeError):
            return False
    return any(name.startswith(("_tpuctl/", "part-")) for name in names)


def _names(uri: str) -> list[str]:
    head = join(uri, "")
    return [found.removeprefix(head) for found in open_storage(uri).list(uri)]
