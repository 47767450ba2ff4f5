"""Batch inference: every row of a dataset through a task, exactly once, into a folder of parts.

Knows rows, parts, tasks and the output folder. Imports no ray, and jax only where a task computes.
"""
