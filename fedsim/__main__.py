"""`python -m fedsim` is the command `fedsim`."""

from fedsim.cli.main import main

if __name__ == "__main__":
    main()
