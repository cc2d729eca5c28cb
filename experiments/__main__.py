"""`python -m experiments`: the commands of this package, one line each."""
import ast
from pathlib import Path

from experiments import COMMANDS

for name in COMMANDS:
    text = Path(__file__).with_name(f"{name}.py").read_text(encoding="utf-8")
    print(f"{name:10} {ast.get_docstring(ast.parse(text)).splitlines()[0]}")
