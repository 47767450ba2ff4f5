"""``python -m tpuctl.entrypoints.leash GRACE COMMAND...``: a command that does not outlive who started it.

Stdin is the leash. When it closes, because the holder lets go or has died, the command and all it started get SIGTERM,
and SIGKILL after the grace time. Ends with the command's exit code; 128 + n if signal n ended it, 126 and 127 as a
shell does. Standard library only: it starts as fast as Python does.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from typing import NoReturn


def main() -> NoReturn:
    """Run the command on the command line."""
    grace_seconds, command = float(sys.argv[1]), sys.argv[2:]
    # Whoever holds the leash decides; a signal meant for a whole group of processes must not end us before the command.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=_heed_signals, close_fds=True
        )
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr, flush=True)
        sys.exit(127 if isinstance(error, FileNotFoundError) else 126)
    threading.Thread(target=_hold, args=(process, grace_seconds), daemon=True).start()
    code = process.wait()
    # What the command left running goes with it.
    _signal(process, signal.SIGKILL)
    sys.exit(code if code >= 0 else 128 - code)


def _heed_signals() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _hold(process: subprocess.Popen[bytes], grace_seconds: float) -> None:
    while os.read(0, 4096):
        pass
    _signal(process, signal.SIGTERM)
    try:
        process.wait(grace_seconds)
    except subprocess.TimeoutExpired:
        _signal(process, signal.SIGKILL)


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Signal the command and all it started."""
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return


if __name__ == "__main__":
    main()
