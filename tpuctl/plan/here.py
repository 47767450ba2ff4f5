"""Where a recipe is being resolved: what relative paths and ``~`` mean."""

from __future__ import annotations

import os.path
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Here:
    """Where the recipe is being resolved: relative paths start at ``cwd``, ``~`` is ``home``."""

    cwd: str
    home: str | None

    @classmethod
    def of(cls, cwd: os.PathLike[str] | str, environ: Mapping[str, str]) -> Here:
        """The place of this working directory and environment."""
        return cls(cwd=os.fspath(cwd), home=environ.get("HOME"))

    def absolute(self, path: str) -> str:
        """A local path, absolute and without ``..``."""
        if self.home and (path == "~" or path.startswith("~/")):
            path = self.home + path[1:]
        return os.path.normpath(os.path.join(self.cwd, path))
