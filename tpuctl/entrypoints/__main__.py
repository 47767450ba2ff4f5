"""``python -m tpuctl.entrypoints plan.json``: the one command a job runs. Reads the Plan, runs its entrypoint.

This is the border of the cluster side: an error we can explain becomes one event line and an exit code, which
the Jobs API hands back to the control side.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import NoReturn, TextIO, cast

from tpuctl.errors import TpuctlError
from tpuctl.masking import MaskedStream, Masker
from tpuctl.plan.schema import Plan, plan_loads
from tpuctl.runs.events import event, format_line


def main() -> NoReturn:
    """Run the plan named on the command line and exit with its code."""
    # A job's driver must never hold the chips its workers need, whatever it imports.
    os.environ["JAX_PLATFORMS"] = "cpu"
    plan = plan_loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    _mask_output(plan)
    try:
        code = importlib.import_module(plan.entrypoint).main(plan)
    except TpuctlError as error:
        print(
            format_line(event("failed", reason=error.message, hint=error.hint, error=type(error).__name__)), flush=True
        )
        code = int(error.exit_code)
    sys.exit(code)


def _mask_output(plan: Plan) -> None:
    """What the job and its workers print passes through this process: here it loses the values of secrets."""
    if plan.job.secrets:
        mask = Masker(plan.job.secrets.values())
        sys.stdout = cast(TextIO, MaskedStream(sys.stdout, mask))
        sys.stderr = cast(TextIO, MaskedStream(sys.stderr, mask))


if __name__ == "__main__":
    main()
