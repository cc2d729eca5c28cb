"""The checkpoint that comes with the code: its file, damage, and the commands that use it."""
import json
import os
from pathlib import Path

import pytest
import torch

from commands import call, coin_flags, fails, measure, read_json
from experiments.charts import load_metrics
from support.flags import DEFAULT
from support.device import digest_of, read_tensors
from toy import teacher
from train import TrainSettings
from training.run import MAY_CHANGE
from weights.checkpoint import load_model, open_start

NOTE = "no runs/pretrain: the default checkpoint that comes with the code (seed 0)\n"


# ---- the file ----------------------------------------------------------------------------------
def test_it_is_whole_of_this_world_and_of_the_default_run():
    """Catches: weights, settings or curves of another run or world; an optimizer's states."""
    tensors, said = read_tensors(DEFAULT)
    assert said.pop("digest") == digest_of(tensors, said)
    assert said["world"] == teacher.digest()
    assert DEFAULT.stat().st_size < 2_000_000
    for name, value in json.loads(said["settings"]).items():
        assert value == getattr(TrainSettings(), name), name


@pytest.fixture
def copy(trained, here, monkeypatch):
    """The file of a tiny run, and the run's folder."""
    monkeypatch.setattr("experiments.runs.require_settings", lambda wanted: None)
    monkeypatch.setattr("experiments.runs.DEFAULT", Path("copy.safetensors"))
    call("reproduce.py", "--default-from", str(trained / "diffusion"))
    return Path("copy.safetensors"), trained / "diffusion"


def test_it_is_the_run(copy):
    """Catches: half precision, an argument or buffer left out; settings or curves of others."""
    (new, arguments, _), (run, before, _) = map(load_model, copy)
    assert arguments == {**before, "pixels": [*before["pixels"]]}
    assert new.state_dict().keys() == run.state_dict().keys()
    assert all(map(torch.equal, new.state_dict().values(), run.state_dict().values()))
    assert load_metrics(copy[0]) == load_metrics(copy[1])
    said, config = read_tensors(copy[0])[1], read_json(copy[1] / "config.json")
    assert said["world"] == config["versions"]["world"]
    kept = json.loads(said["settings"])
    assert kept.items() <= config["settings"].items()
    assert config["settings"].keys() - kept.keys() == {*MAY_CHANGE}
    assert open_start(copy[0]).keys() >= {"encoder.cls_token", "denoiser.position.weight"}


def test_another_run_is_refused(trained, here, capsys, monkeypatch):
    """Catches: the figures of another seed, of fewer videos or of no run beside the note."""
    monkeypatch.setattr("experiments.runs.DEFAULT", Path("a"))
    line = fails(capsys, 2, "reproduce.py", "--default-from", str(trained / "diffusion"))
    assert "--toy-videos 6000" in line and "with 16" in line and not Path("a").exists()


@pytest.mark.parametrize("damage, named", [
    (lambda content: content[:-1] + bytes([content[-1] ^ 1]), "is damaged"),
    (lambda content: content.replace(b'\\"tau\\": 0.0', b'\\"tau\\": 0.1', 1), "is damaged"),
    (lambda content: content.replace(b'"digest"', b'"dogest"', 1), "is damaged"),
    (lambda content: content[:-100], "cut off"), (lambda content: content[:20], "cut off"),
    (lambda content: content.replace(b'"arguments":"{', b'"arguments":"[', 1), "cut off")])
def test_damage_is_one_line(copy, capsys, damage, named):
    """Catches: forecasts of damaged weights, or of another model than was trained."""
    path, whole = copy[0], copy[0].read_bytes()
    path.write_bytes(damage(whole))
    assert path.read_bytes() != whole
    line = fails(capsys, 2, "evaluate.py", "--toy-videos", "2", "--checkpoint", str(path))
    assert str(path) in line and named in line


def test_the_digest_covers_names_shapes_and_what_is_said():
    """Catches: two tensors of equal bytes exchanged, or reshaped, unseen."""
    a, b = torch.arange(4.), torch.ones(2, 2)
    digests = {digest_of({"a": a, "b": b}, {}), digest_of({"a": b, "b": a}, {}),
               digest_of({"a": a.view(2, 2), "b": b}, {}), digest_of({"a": a, "b": b}, {"c": "d"})}
    assert len(digests) == 4


# ---- the commands ------------------------------------------------------------------------------
def test_without_a_run_of_ones_own_and_with_one(trained, here, capsys):
    """Catches: a first forecast that needs a training; a checkpoint taken without a word, or in
    place of the run that was just made."""
    flags = "--samples", "2", "--device", "cpu"
    call("predict.py", *flags, "--json", "a.json")
    assert capsys.readouterr().out.startswith(NOTE)
    call("predict.py", *flags, "--checkpoint", os.path.relpath(DEFAULT), "--json", "b.json")
    assert NOTE not in capsys.readouterr().out and read_json("a.json") == read_json("b.json")
    assert measure("--toy-videos", "2", *flags)["checkpoint"] == str(DEFAULT)
    assert capsys.readouterr().out.startswith(NOTE)
    Path("runs").mkdir()
    Path("runs/pretrain").symlink_to(trained / "diffusion")
    assert measure("--toy-videos", "2", *flags)["checkpoint"] == "runs/pretrain"
    assert NOTE not in capsys.readouterr().out


def test_pictures_without_a_run(here, capsys):
    """Catches: a tour or curves that need a run's metrics.jsonl."""
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    call("tour.py", "--video", "1", "--after", "2", "--out", "page")
    call("charts.py", "--out", "curves.png")
    assert capsys.readouterr().out.count(NOTE) == 2
    assert len(list(Path("page/figures").iterdir())) == 8
    assert Path("page/tour.ipynb").exists() and Path("curves.png").exists()


@pytest.mark.parametrize("command", [
    ("predict.py", "v.mp4"), ("evaluate.py", "--task", "features", "--videos", "coin"),
    ("evaluate.py", *coin_flags())])
def test_real_videos_need_a_run(here, capsys, command):
    """Catches: answers of the embedded world's model, or another error, for real videos."""
    Path("v.mp4").touch()
    line = fails(capsys, 2, *command)
    assert "runs/pretrain: no such checkpoint" in line
    assert "python train.py --stage pretrain" in line
