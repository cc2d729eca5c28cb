"""Fixtures of all tests: one thread, no GPU, what is fixed made once, tiny runs to evaluate."""
import functools
import multiprocessing
import os

import pytest
import torch
from commands import call

from toy import grammar, render, source

os.environ["CUDA_VISIBLE_DEVICES"] = ""                # in bfloat16, numbers differ by 1e-3
torch.set_num_threads(1)                               # sums in the same order on every machine
TINY = ("--toy-videos", "16", "--batch", "4", "--sgd-epochs", "0.75", "--epochs", "0.75",
        "--device", "cpu")                             # 3 updates of each stage


@pytest.fixture(scope="session", autouse=True)
def made_once():
    """What does not change within the world, and took a third of the time."""
    known = {}

    class Once(source.Teacher):
        def encode_phrases(self, phrases):
            key = tuple(phrases)
            if key not in known:
                known[key] = super().encode_phrases(phrases)
            return known[key].clone()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source, "Teacher", Once)
        patch.setattr(source, "build_teacher", functools.cache(source.build_teacher))
        patch.setattr(render, "render", functools.cache(render.render))
        patch.setattr(grammar, "Grammar", functools.cache(grammar.Grammar))
        yield


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """A folder with a tiny run of each order: diffusion, mask, none. Every update is logged."""
    folder = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        log_and_save_every(1, patch)
        for order in ("diffusion", "mask", "none"):
            call("train.py", *TINY, "--order", order, "--out", folder / order)
    return folder


def log_and_save_every(updates, patch):
    """A row of metrics and a checkpoint after every so many updates."""
    import finetune
    import train
    from support import run
    parse = finetune.parse

    def parse_and_set(argv):
        args = parse(argv)
        args.log_every = updates
        return args
    patch.setitem(train.SIZES["small"], "log_every", updates)
    patch.setattr(finetune, "parse", parse_and_set)
    patch.setattr(run, "FIRST_SAVE", 0.0)              # s
    patch.setattr(run, "MOST_BETWEEN", 0.0)


@pytest.fixture
def float64():
    """Numbers are float64 by default: h makes its mask and its sinusoids of the default type."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def start_method():
    """A function that sets how workers start: "fork", or "spawn" as on macOS and Windows."""
    before = multiprocessing.get_start_method()
    yield functools.partial(multiprocessing.set_start_method, force=True)
    multiprocessing.set_start_method(before, force=True)


@pytest.fixture
def forked(start_method):
    """Worker processes are forked: what is patched holds in them."""
    if "fork" not in multiprocessing.get_all_start_methods():
        pytest.skip("worker processes cannot be forked here")
    start_method("fork")


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The current folder is a new one; each update is logged and saved."""
    monkeypatch.chdir(tmp_path)
    log_and_save_every(1, monkeypatch)
    return tmp_path


@pytest.fixture
def drawn(monkeypatch):
    """The figures that are saved."""
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    from matplotlib.figure import Figure
    figures, write = [], Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda figure, *args, **kwargs: (
        figures.append(figure), write(figure, *args, **kwargs)))
    return figures
