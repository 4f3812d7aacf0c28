"""`python -m workers`: the command line."""

from workers.cli import main

main()
