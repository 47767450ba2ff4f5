"""Sphinx configuration: ``sphinx-build -W docs OUT``."""

project = "tpuctl"
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
html_theme = "alabaster"
myst_heading_anchors = 3
suppress_warnings = ["myst.header"]
