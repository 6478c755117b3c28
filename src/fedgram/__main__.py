"""Run the command line: ``python -m fedgram``."""

from fedgram.cli import main

main(prog_name="fedgram")
