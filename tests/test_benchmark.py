"""experiments.benchmark at a tiny size: it compares the same thing; its numbers are in the JSON."""
import json
import math
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from commands import call, fails
from encoder import TimeSformer
from experiments import speed
from files.video import duration

NEEDS_FFMPEG = pytest.mark.skipif(not shutil.which("ffmpeg"), reason="no ffmpeg")


@pytest.fixture(autouse=True)
def tiny(tmp_path, monkeypatch):
    """An empty folder, one round, a short video, and 3 clips for 9: ffmpeg is started for each."""
    monkeypatch.chdir(tmp_path)
    for name, value in (("CLIPS", 3), ("REPEATS", 1), ("SECONDS", 20.0), ("PHRASES", 12),
                        ("FUTURES", (1, 5))):
        monkeypatch.setattr(speed, name, value)


@NEEDS_FFMPEG
def test_both_loaders_read_the_same_clips(tmp_path):
    """Catches: a comparison with something else: fewer frames, other clips, a part of the file."""
    speed.make_video(tmp_path / "a.mp4", 20, (90, 160), 10)
    length = duration(tmp_path / "a.mp4")
    one, other = (read(tmp_path / "a.mp4", length, 3)
                  for read in (speed.read_ours, speed.read_ffmpegs))
    assert length == pytest.approx(20) and len(one) == len(other) == 3
    rows = [torch.stack([torch.nn.functional.interpolate(clip.float(), (9, 16), mode="area")
                         for clip in clips]) for clips in (one, other)]
    assert rows[0].shape == rows[1].shape == (3, 8, 3, 9, 16)
    error = (rows[0][:, None] - rows[1][None]).abs().mean((2, 3, 4, 5))      # (3, 3) clips
    assert (error.argmin(1) == torch.arange(3)).all()


def test_windows_are_those_of_pre_training():
    """Catches: windows beyond the end, the same in every round, of another length."""
    for seconds in (180.0, 20.0, 4.0):
        first, second = (speed.windows_of(seconds, round) for round in (0, 1))
        assert first.shape == (3, 2) and 0 <= first.min() and second.max() <= seconds + 1e-9
        assert np.allclose(np.diff(first), min(9, seconds))
        assert (seconds < 23) or not np.allclose(first, second)
    assert np.allclose(np.diff(speed.windows_of(180.0, 0)[:, 0]), speed.PACE)


@NEEDS_FFMPEG
def test_the_loader_part(tmp_path, monkeypatch, capsys):
    """Catches: numbers that are not in the JSON, a video of the user's left out; a traceback for a
    video that cannot be read."""
    monkeypatch.setattr(speed, "SECONDS", 2.0)
    speed.make_video(tmp_path / "mine.mp4", 3, (48, 64), 10)
    call("benchmark.py", "--videos", ".", "--json", "o.json")
    result = json.loads(Path("o.json").read_text())
    assert result.keys() == {"loader", "machine"} and result["machine"]["cores"] >= 1
    assert result["loader"].keys() == {"made", "mine"}
    for row in result["loader"].values():
        assert all(0 < row[f"{way}{kind}"] < math.inf for kind in ("_s", "_cpu_s")
                   for way in ("ours", "ours_small", "ffmpegs", "ffmpegs_small"))
        assert row["clips_per_s_per_worker"] == pytest.approx(3 / row["ours_cpu_s"])
    assert "clips/s of a worker" in capsys.readouterr().out
    with pytest.raises(speed.BadInput, match="ffmpeg gives no picture"):
        speed.read_ffmpegs(tmp_path / "none.mp4", 9.0, 0)
    monkeypatch.setattr(speed, "make_video", lambda path, length: path.write_bytes(b"none"))
    assert "made.mp4" in fails(capsys, 2, "benchmark.py")


def test_bad_input_is_one_line(monkeypatch, capsys):
    """Catches: a traceback without ffmpeg; a part that does not exist passed over."""
    monkeypatch.setattr(speed.shutil, "which", lambda name: None)
    with pytest.raises(SystemExit) as end:
        call("benchmark.py", "--device", "cpu")
    err = capsys.readouterr().err
    assert end.value.code == 2 and "apt-get install ffmpeg" in err and err.count("\n") == 1
    assert "encoder, sampling, step, loader" in fails(capsys, 2, "benchmark.py", "--parts", "speed")


def test_the_parts_of_the_model(monkeypatch, capsys):
    """Catches: numbers that are not in the JSON, a part that no longer fits training or model.py;
    another function in what is compared; a step that updates nothing."""
    monkeypatch.setitem(sys.modules, "transformers", None)                     # not installed
    models, build = [], speed.random_model
    monkeypatch.setattr(speed, "random_model", lambda *args: models.append(build(*args)) or
                        models[-1])
    call("benchmark.py", "--parts", "encoder,sampling,step", "--size", "small", "--batch", "2",
         "--device", "cpu", "--json", "o.json")
    result, out = json.loads(Path("o.json").read_text()), capsys.readouterr().out
    assert list(result) == ["encoder", "sampling", "step", "machine"]
    assert "transformers is not installed" in out and result["encoder"]["difference"] < 1e-5
    for kind in "forward", "forward_backward":
        row = result["encoder"][kind]
        assert row["ours_s"] > 0 and row["naive_s"] > 0 and row["hf_s"] is None
        assert row["ours_cpu_s"] > 0 and row["ours_mib"] is None
    assert row["ours_gflop"] > 2.5 * result["encoder"]["forward"]["ours_gflop"]
    assert min(result["sampling"][f"{name}_s"] for name in ("encode", "zero_noise", "m1", "m5")) > 0
    step = result["step"]
    assert step["videos"] == 2 and step["clips"] == 4              # of 20 s: two clips in each
    assert step["everything_s"] > step["encoder_s"] > 0 and step["decode_s"] > 0
    new = build("small", torch.device("cpu"), models[1].dim)
    for one, other in ((models[1].encoder, new.encoder), (models[1].denoiser, new.denoiser)):
        assert not torch.equal(next(one.parameters()), next(other.parameters()))


def test_timesformer_model_has_our_size():
    """Catches: a comparison with a model of another size or other clips."""
    pytest.importorskip("transformers")
    settings = speed.SimpleNamespace(size="small", compiled=False)
    ways = speed.encoder_ways(settings, torch.device("cpu"))
    (f, ours), (hf, theirs) = ways["ours"], ways["hf"]
    sizes = [sum(p.numel() for p in module.parameters()) for module in (f, f.head, hf)]
    assert sizes[0] - sizes[1] == sizes[2]
    clips = torch.randn(2, 3, 4, 32, 32)
    assert ours(clips).shape == theirs(clips).shape


def test_flops_of_a_clip_at_paper_size():
    """Catches: a count that leaves out attention, or another size than the paper's: TimeSformer has
    392 GFLOP (as counted of TimesformerModel), ours does some 8 % fewer for the same result."""
    with torch.device("meta"):
        f = TimeSformer()
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            f.features(torch.empty(1, 3, 8, 224, 224))
    assert counter.get_total_flops() / 1e9 == pytest.approx(361, abs=1)
