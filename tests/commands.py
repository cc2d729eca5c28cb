"""What the tests of commands share: run one in this process, by its command line."""
import importlib
import json
import sys
from pathlib import Path

import pytest

from support.errors import run


def call(program, *argv):
    """Run `python PROGRAM ...` in this process; of "files", files/__main__.py."""
    name, argv = program.removesuffix(".py").replace("/", "."), [*map(str, argv)]
    module = importlib.import_module(name if program.endswith(".py") else f"{name}.__main__")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [f"/somewhere/{program}", *argv])
        return run(module.main, lambda: module.parse(argv))


def fails(capsys, program, *argv, status=2):
    """The one line of stderr that a command ends with."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as end:
        call(program, *argv)
    line = capsys.readouterr().err.rstrip("\n").split("\n")[-1].split("\r")[-1]
    assert end.value.code == status and "error: " in line, line
    return line


def read_json(path):
    """Strict JSON: no NaN, no Infinity."""
    return json.loads(Path(path).read_text(encoding="utf-8"),
                      parse_constant=lambda text: pytest.fail(text))
