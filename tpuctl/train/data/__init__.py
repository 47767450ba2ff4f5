"""Parquet rows to packed token rows, reproducibly. NumPy and pyarrow; must not import jax or ray.

Batch k of a run is a pure function of (dataset, seed, k). The files of this room, in the order of the data:
``columns`` (what is read, and as what), ``parquet`` (open, check and read one file), ``corpus`` (which files, how many
rows), ``groups`` (decoded row groups in bounded memory), ``order`` (chunks and their seeded permutations), ``lanes``
(one endless document sequence per batch row), ``documents`` and ``conversations`` (rows into documents), ``faults``
(rows that become none), ``packing`` (documents into rows), ``stream`` (all lanes of a host), ``feed`` (what the
training loop holds).
"""
