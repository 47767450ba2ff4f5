"""``tpuctl train``: from a recipe to a training run that is followed to its end."""

from __future__ import annotations

from tpuctl.cli.start import launching_verb

train = launching_verb(
    "train",
    kind="train",
    about="Train: reserve the slice, run the job, follow it to its end. The same recipe again attaches or resumes.",
)
