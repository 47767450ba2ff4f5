"""``python -m tpuctl``: the same as the ``tpuctl`` command."""

from tpuctl.cli.app import main

main()
