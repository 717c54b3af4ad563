"""`python -m sinkscope` is the command line."""

from sinkscope.cli import main

main()
