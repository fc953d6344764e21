"""``python -m colibri`` is the command ``colibri``."""

from colibri.cli import main

if __name__ == "__main__":
    main()
