"""Fixtures of all tests: one workspace for the session, a folder of its own for each test."""
import functools
import os

import pytest
import torch

from commands import COIN, TINY, call, log_and_save_every, make_coin
from evaluation import labeled, prediction
from pseudo_labels import Teacher
from toy import source
from training import pretrain
from weights.checkpoint import save_checkpoint

RUNS = {"diffusion": (), "mask": ("--order", "mask"), "none": ("--order", "none")}


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """Sums in the same order on every machine."""
    torch.set_num_threads(1)


@functools.cache
def open_teacher(device, file):
    """The embedded world's teacher, which embeds a list of phrases once."""
    teacher = source.load_teacher(device)
    encode = functools.cache(lambda phrases: Teacher.encode_phrases(teacher, phrases))
    teacher.encode_phrases = lambda phrases: encode((*phrases,)).clone()
    return teacher


@pytest.fixture(scope="session", autouse=True)
def one_teacher():
    """The embedded world's teacher is read once, and not by every command."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (labeled, prediction, pretrain):
            patch.setattr(module, "load_teacher", lambda device: open_teacher(
                str(device), source.TEACHER_FILE.resolve()))
        yield


@pytest.fixture(scope="session")
def workspace(tmp_path_factory):
    """A folder with coin/, the files of `make_coin`."""
    folder = tmp_path_factory.mktemp("workspace")
    make_coin(folder / "coin")
    return folder


@pytest.fixture(scope="session")
def trained(workspace):
    """The workspace with a tiny run of each order in it, and coin-run: h alone on features."""
    before = os.getcwd()
    os.chdir(workspace)
    with pytest.MonkeyPatch.context() as patch:
        log_and_save_every(1, patch)
        for name, flags in RUNS.items():
            call("train.py", *TINY, *flags, "--out", name)
        call("train.py", *COIN, "--out", "coin-run")
    os.chdir(before)
    return workspace


@pytest.fixture
def here(workspace, tmp_path, monkeypatch):
    """The current folder is a new one, with links to COIN files; each step is logged and saved."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "coin").symlink_to(workspace / "coin")
    log_and_save_every(1, monkeypatch)
    return tmp_path


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory):
    """A folder of random models to fine-tune."""
    from test_weights import MVIT, make_ours, published        # not for tests that ask for none
    folder = tmp_path_factory.mktemp("checkpoints")
    for name, made in {"diffusion": make_ours(), "none": make_ours("none"),
            "coin": make_ours(D=16, encoder=None), "published": published(),
            "timesformer": published(layers=None, dim=7),
            "tuned": published(task="forecast", classes=[40]), "mvit": published(MVIT)}.items():
        save_checkpoint(folder / f"{name}.pt", *made)
    return folder


@pytest.fixture
def inits(here, checkpoints):
    """These models are linked in the test's folder."""
    for path in checkpoints.iterdir():
        (here / path.name).symlink_to(path)
