"""Some cases of damage.py, of which fuzz.py runs thousands; and fuzz.py itself."""
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import damage  # noqa: E402

CASES = {"captions": 60, "list": 30, "video": 16}      # of each kind; of the others 12


@pytest.fixture(autouse=True)
def handler():
    """Commands that run in this process set a handler."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("kind", damage.KINDS)
def test_damaged_files_end_in_data_or_one_line(kind):
    """Catches: a traceback, wrong data or a hang on damage nobody thought of."""
    outcomes = [damage.run_case(kind, number) for number in range(CASES.get(kind.split()[0], 12))]
    assert "refused" in outcomes                       # the damage is felt


FAKE = """
import os, sys, time
from types import SimpleNamespace
sys.path.insert(0, {tests!r})

def run_case(kind, number):
    if number == 1:
        os.abort()
    if number == 3:
        time.sleep(60)
    if number == 4:
        raise KeyError("bug")
    return "data"

sys.modules["damage"] = SimpleNamespace(KINDS=["a", "b"], kind_of=lambda i: "ab"[i % 2],
                                        run_case=run_case)
import fuzz
fuzz.LIMIT = 1
sys.exit(fuzz.main(__file__))
"""


def test_the_command_names_what_fails(tmp_path):
    """Catches: a crash, a hang or a bug that passes for a refusal, or that ends the command."""
    script = tmp_path / "fake.py"
    script.write_text(FAKE.format(tests=str(ROOT / "tests")))
    done = subprocess.run([sys.executable, script, "--cases", "6"], capture_output=True, text=True)
    assert done.returncode == 1 and done.stdout.endswith("6 cases, 3 failed\n")
    lines = done.stdout.split("\n")
    assert [line for line in lines if line.startswith("case")] == [
        "case 1 failed: b", "case 3 failed: b", "case 4 failed: a"]
    assert "b: status -6" in lines and "b: status 1" in lines and "KeyError: 'bug'" in lines
