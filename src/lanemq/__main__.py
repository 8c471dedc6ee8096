"""`python -m lanemq`: the `lanemq` command, for a shell that does not find it."""

from lanemq.cli.main import main

if __name__ == "__main__":
    main(prog_name="lanemq")
