"""The part of a plan that says what a custom job runs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkPlan:
    """What a custom job runs on every host, and which of the user's files travel with it.

    Either ``command``, word by word as it is executed (no shell reads it), or ``function``, as ``module:name``.
    ``directory`` is an absolute path on the submitting machine, None if no files travel; ``include`` and ``exclude``
    are relative to it, the latter in the language of ``.gitignore``.
    """

    command: tuple[str, ...]
    function: str | None
    directory: str | None
    include: tuple[str, ...]
    exclude: tuple[str, ...]
