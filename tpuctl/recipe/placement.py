"""The tables that say where a job runs: run, slice, cluster, mesh, job."""

# ruff: noqa: RUF009 — `setting()` makes a dataclass field, it is no mutable default
from __future__ import annotations

from dataclasses import dataclass

from tpuctl.recipe.settings import setting


@dataclass(frozen=True, kw_only=True, slots=True)
class RunTable:
    """The run: a name and the one directory that holds its checkpoints, events and logs."""

    name: str | None = setting(
        None,
        doc="Name of the run; shown in listings and part of the job's id.",
        pattern=r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}",
        pattern_says="letters, digits, '.', '_' and '-', at most 63, beginning with a letter or digit",
        absent="the recipe's file name",
        also=("run_name", "job_name", "experiment"),
        example="first-run",
    )
    directory: str | None = setting(
        None,
        doc="Run directory, a path every host sees. A relative path starts at the current directory.",
        example="/mnt/shared/runs/first",
        absent="runs/<name>",
        also=("output_dir", "out_dir", "run_dir", "checkpoint_dir", "ckpt_dir"),
    )
    shared: bool = setting(
        False, doc="Vouch that a local run directory is one and the same file system on every host of the slice."
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class SliceTable:
    """The TPU slice the job gets whole."""

    accelerator: str = setting(
        doc="TPU generation or type in any usual spelling: v6e, TPU-V6E, v6e-16, tpu-v5-lite-podslice, "
        "ct6e-standard-4t.",
        example="v6e",
        also=("accelerator_type", "tpu_type", "type", "generation", "tpu"),
    )
    topology: str | None = setting(
        None,
        doc="Shape of one slice in chips. `tpuctl slices` lists them.",
        example="4x4",
        absent="from the accelerator, where that leaves no choice",
        also=("tpu_topology", "shape"),
    )
    slices: int = setting(
        1, doc="Number of such slices; more than one talk over DCN.", minimum=1, maximum=256, also=("num_slices",)
    )
    chips_per_host: int | None = setting(
        None,
        doc="Size of one host; only v5e and v6e 2x4 have a choice (8 or 4).",
        unit="chips",
        minimum=1,
        maximum=8,
        absent="Ray's choice, which is said",
        also=("chips_per_vm", "num_chips_per_host"),
        example="4",
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterTable:
    """Which Ray cluster; left out, a simulated slice on this machine."""

    address: str | None = setting(
        None,
        doc="Address of the Ray dashboard. `--cluster` overrides it.",
        pattern=r"https?://[^\s/]+.*",
        pattern_says="an http:// or https:// address",
        example="http://head:8265",
        absent="TPUCTL_CLUSTER, RAY_API_SERVER_ADDRESS, else a simulated slice",
        also=("url", "ray_address"),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class MeshTable:
    """Length of each mesh axis; 0 is chosen. Their product is the number of devices."""

    slice: int = setting(0, doc="Replicas over DCN: the number of slices.", minimum=0, maximum=256)
    data: int = setting(0, doc="Replicas of the model within a slice.", minimum=0, maximum=65_536)
    fsdp: int = setting(0, doc="Shards of parameters and batch.", minimum=0, maximum=65_536)
    expert: int = setting(
        0,
        doc="Parts that the experts of a mixture are dealt out in, each with its share of the batch; 1 unless given.",
        minimum=0,
        maximum=65_536,
        also=("ep", "expert_parallel"),
    )
    tensor: int = setting(
        0, doc="Shards of heads, MLP and vocabulary.", minimum=0, maximum=65_536, also=("tp", "model")
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class JobTable:
    """How the job is run on the cluster."""

    env: dict[str, str] = setting(
        {}, doc="Environment variables of every process. Names that look secret are masked like secrets."
    )
    secrets: dict[str, str] = setting(
        {},
        doc="Environment variables whose values are masked wherever tpuctl prints them. Prefer pass_env: it keeps "
        "the value out of the recipe.",
        secret=True,
    )
    pass_env: tuple[str, ...] = setting(
        (), doc="Names of variables taken from your own environment, e.g. HF_TOKEN.", example='["HF_TOKEN"]'
    )
    pip: tuple[str, ...] = setting(
        (), doc="Extra packages for the workers, as pip requirements.", example='["zstandard"]'
    )
    compile_cache: str | None = setting(
        None,
        doc="Folder that keeps compiled programs for the next start, local or gs://. Several runs may share one; "
        "whoever can write there can run code in them.",
        absent="compiled in the run directory, or the cache a simulated cluster has for the whole machine",
        example="gs://bucket/compiled",
        also=("compilation_cache", "compilation_cache_dir", "jax_compilation_cache_dir", "cache_dir"),
    )
    max_failures: int = setting(
        3, doc="Restarts from the newest checkpoint before the job fails.", minimum=0, maximum=10_000, also=("retries",)
    )
    timeout: float | None = setting(
        None,
        doc="End the job after this long; such an end is not retried.",
        above=0,
        maximum=31_536_000,
        duration=True,
        absent="no limit",
        example="12h",
    )
    start_timeout: float = setting(
        600.0, doc="Give up when the slice is not ours by then.", above=0, maximum=604_800, duration=True
    )
    stop_grace: float = setting(
        60.0,
        doc="Time to save a checkpoint between being told to stop and being killed.",
        minimum=0,
        maximum=3600,
        duration=True,
    )
