"""Write the toy world as real files (export), or train its teacher again (teacher)."""
from pathlib import Path

import torch

from support.arguments import Parser
from support.errors import run
from toy.export import export
from toy.teacher import TEACHER_FILE, train_teacher, write_weights


def parse(argv=None):
    """The command line."""
    parser = Parser(__doc__, prog="python -m toy")
    commands = parser.add_subparsers(dest="command", required=True)
    flags = commands.add_parser("export", description="Write the toy world as real files.")
    flags.add_argument("--out", type=Path, required=True, help="folder, empty or new")
    flags.add_argument("--train", type=int, default=6000, help="training videos; a tenth of "
                       "them, by their ids, are for validation")
    flags.add_argument("--test", type=int, default=1000, help="test videos")
    flags.add_argument("--no-videos", action="store_true", help="write all else: for features")
    flags.add_argument("--workers", type=int, default=0, help="processes")
    flags = commands.add_parser("teacher", description="Train the teacher: a minute on one core.")
    flags.add_argument("--out", type=Path, default=TEACHER_FILE, help="file to write")
    return parser.parse_args(argv)


def main(args):
    """Run the command."""
    if args.command == "export":
        export(args.out, args.train, args.test, args.workers, not args.no_videos)
    else:
        torch.set_num_threads(1)                           # sums are added in one order
        write_weights(args.out, train_teacher()[0])


if __name__ == "__main__":
    run(main, parse)
