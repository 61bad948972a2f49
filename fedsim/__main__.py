"""The command `fedsim`, also as `python -m fedsim`."""

import sys


def main() -> None:
    """Run the command line. Ctrl-C while its modules are imported ends it as quietly as Ctrl-C in a command."""
    try:
        from fedsim.cli.main import main as run
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        raise SystemExit(130) from None
    run()


if __name__ == "__main__":
    main()
