"""All tables by one command, the tour, charts: `python -m experiments` lists the commands."""
import sys

COMMANDS = "benchmark", "charts", "reproduce", "simulate", "tour"

if sys.argv[0] == "-m":                                # while python -m looks for what to run
    name = next((arg[12:] for arg in sys.orig_argv if arg.startswith("experiments.")), COMMANDS[0])
    if name not in COMMANDS:
        print(f"{name}: error: no command; `python -m experiments` lists them", file=sys.stderr)
        raise SystemExit(2)
