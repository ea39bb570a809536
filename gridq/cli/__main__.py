"""Run the program `gridq` with this Python: `python -m gridq.cli`."""

from gridq.cli import main

main()
