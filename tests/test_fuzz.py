"""Damaged videos, captions, lists, json and npz end in good data or in the promised one line.

    python -m pytest -q tests/test_fuzz.py                                            # a few cases
    FUZZ=100 python -m pytest -q tests/test_fuzz.py -o faulthandler_timeout=600       # thousands

Case N of a kind damages the same file in the same way each time: see damage.py. The last case in a
failure's output is the one that failed. A crash or a hang of native code ends with its traceback.
"""
import os

import damage
import pytest

CASES = {"captions": 60, "list": 30, "video": 16}      # of each kind; 12 of the others


@pytest.mark.parametrize("kind", damage.KINDS)
def test_damaged_files_end_in_data_or_one_line(kind):
    """Catches: a traceback, wrong data or a hang on damage nobody thought of."""
    outcomes = set()
    for number in range(CASES.get(kind.split()[0], 12) * int(os.environ.get("FUZZ", 1))):
        print(f"case {number} of {kind}")
        outcomes.add(damage.run_case(kind, number))
    assert "refused" in outcomes                       # the damage is felt
