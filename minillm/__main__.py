"""``python -m minillm``: the command line, where the script is not on the path."""

from minillm.cli import main

main()
