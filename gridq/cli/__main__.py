"""`python -m gridq.cli`: the program `gridq` of this very Python, wherever the console script stands."""

from gridq.cli import main

main()
