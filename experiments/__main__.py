"""`python -m experiments`: the commands of this package, one line each."""
import importlib

from experiments import COMMANDS

for name in COMMANDS:
    print(f"{name:10} {importlib.import_module(f'experiments.{name}').__doc__.splitlines()[0]}")
