"""`python -m aiforge.cli` is the same as `aiforge`."""

from aiforge.cli import main

if __name__ == "__main__":
    main()
