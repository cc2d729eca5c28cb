"""Damaged files, thousands of them: `python tests/fuzz.py --cases 10000`.

Case N damages the same file in the same way each time (`--first N --cases 1`): see damage.py. What
ends neither in good data nor in the promised one line is printed with its number: another exception,
wrong data, a crash of native code, a case that hangs or takes all memory. Cases run in batches, in
processes of their own; the suite runs the first few of each kind (test_fuzz.py).
"""
import argparse
import faulthandler
import resource
import subprocess
import sys
import traceback
from collections import Counter

from tqdm import tqdm

BATCH = 1000                  # cases of one process
LIMIT = 60                    # s for a case
MEMORY = 8 * 2 ** 30          # bytes of address space for a process


def batch(numbers):
    """In a process of its own: a line as each case ends, with a traceback if it failed."""
    import damage
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    for number in numbers:
        faulthandler.dump_traceback_later(LIMIT, exit=True)          # native code that hangs, too
        try:
            print(damage.run_case(damage.kind_of(number), number), flush=True)
        except BaseException:
            print("failed", flush=True)
            traceback.print_exc()
        faulthandler.cancel_dump_traceback_later()


def main(script=__file__):
    """Run all cases, print what failed and the counts; status 1 if anything did."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--cases", type=int, default=10_000, help="how many")
    parser.add_argument("--first", type=int, default=0, help="number of the first")
    parser.add_argument("--batch", action="store_true", help="run them within this process")
    arguments = parser.parse_args()
    number, last = arguments.first, arguments.first + arguments.cases
    if arguments.batch:
        return batch(range(number, last))
    from damage import KINDS, kind_of
    counts = {kind: Counter() for kind in KINDS}
    with tqdm(total=last - number, desc="cases", mininterval=1) as bar:
        while number < last:
            size = min(BATCH, last - number)
            done = subprocess.run([sys.executable, script, "--batch", "--first", str(number),
                                   "--cases", str(size)], capture_output=True, text=True)
            ended = done.stdout.split()
            if len(ended) < size:                      # the process ended: a crash, a hang
                print(f"\n{kind_of(number + len(ended))}: status {done.returncode}", flush=True)
                ended.append("failed")
            if "failed" in ended:
                print(done.stderr[-5000:], flush=True)
            for case, outcome in enumerate(ended, start=number):
                counts[kind_of(case)][outcome] += 1
                if outcome == "failed":
                    print(f"case {case} failed: {kind_of(case)}", flush=True)
            number += len(ended)
            bar.update(len(ended))
    for kind, outcomes in counts.items():
        print(f"{kind:24}" + "".join(f"{outcomes[name]:8} {name}"
                                     for name in ("data", "refused", "failed")))
    failed = sum(outcomes["failed"] for outcomes in counts.values())
    print(f"{arguments.cases} cases, {failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
