"""`python -m fedsim` is the command `fedsim`."""

from fedsim.cli import main

if __name__ == "__main__":
    main()
