"""python -m harken: the same as the command `harken`."""

from harken.cli import main

main()
