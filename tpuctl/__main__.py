"""The ``tpuctl`` command, also as ``python -m tpuctl``."""

from typing import NoReturn


def main() -> NoReturn:
    """Run the command line. Ctrl-C is quiet from the first moment on, while the imports still run."""
    try:
        from tpuctl.cli.app import main as run
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    run()


if __name__ == "__main__":
    main()
