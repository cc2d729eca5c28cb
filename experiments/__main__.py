"""`python -m experiments`: the commands of this package, one line each."""
import sys
from importlib import import_module

from experiments import COMMANDS
from support.command import require
from support.process import ending

with ending():
    require(not sys.argv[1:], f"takes no flags; give one of {', '.join(COMMANDS)} to `python -m "
            "experiments.NAME`")
    for name in COMMANDS:
        print(f"{name:10} {import_module(f'experiments.{name}').__doc__.splitlines()[0]}")
