"""The [job] table of a job of the user's own: what is run, and which files it needs."""

from __future__ import annotations

from dataclasses import dataclass

from tpuctl.recipe.placement import JobTable
from tpuctl.recipe.settings import setting


@dataclass(frozen=True, kw_only=True, slots=True)
class CustomJobTable(JobTable):
    """What is run on every host, and how the job is run on the cluster."""

    command: tuple[str, ...] | None = setting(
        None,
        doc="Run on every host. As one string it is cut into words as a shell would; as a list every word arrives as "
        "it is written. No shell ever reads it. JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID are set.",
        command=True,
        absent="entrypoint says what is run",
        also=("cmd", "run", "script"),
        example="python -c 'import jax; print(jax.local_devices())'",
    )
    entrypoint: str | None = setting(
        None,
        doc="A function of yours, called with the plan on every host, after the hosts have joined one JAX cluster.",
        pattern=r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*",
        pattern_says="module:function; a command line goes into job.command",
        absent="command says what is run",
        also=("function", "main"),
        example="my_job:main",
    )
    working_directory: str | None = setting(
        None,
        doc="Directory whose files travel with the job and are its current directory there. Version control, caches "
        "and what .gitignore names stay behind, except files that the command names.",
        absent="no files travel",
        also=("working_dir", "workdir", "cwd"),
        example=".",
    )
    include: tuple[str, ...] = setting(
        (), doc="Files that travel whatever .gitignore says.", example='["configs/model.json"]'
    )
    exclude: tuple[str, ...] = setting(
        (),
        doc="What stays behind, in the language of .gitignore.",
        also=("excludes", "ignore"),
        example='["*.ckpt", "data/"]',
    )
    max_failures: int = setting(
        0,
        doc="Restarts of the whole job, from its beginning, when a host's command or function fails.",
        minimum=0,
        maximum=10_000,
        also=("retries",),
    )
