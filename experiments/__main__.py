"""`python -m experiments`: the commands of this package, one line each."""
from importlib import import_module

from experiments import COMMANDS

for name in COMMANDS:
    print(f"{name:10} {import_module(f'experiments.{name}').__doc__.splitlines()[0]}")
