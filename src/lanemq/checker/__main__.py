"""`python -m lanemq.checker HISTORY…`: the checker without the rest of the command line."""

from lanemq.checker.command import check

if __name__ == "__main__":
    check()
