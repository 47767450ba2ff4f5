"""tpuctl launches TPU jobs on intact slices of a Ray cluster."""

__version__ = "0.1.0"
