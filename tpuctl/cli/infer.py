"""``tpuctl infer``: every row of a dataset through a task, followed to its end."""

from __future__ import annotations

from tpuctl.cli.start import launching_verb

infer = launching_verb(
    "infer",
    kind="infer",
    about="Infer: every row of a dataset through a task, each exactly once. The same recipe again does what is "
    "missing.",
)
