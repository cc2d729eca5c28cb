"""benchmark.py at a tiny size: what it compares is the same thing, its figures are in the JSON."""
import json
import math
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from experiments import benchmark  # noqa: E402
from experiments import benchmark_encoder  # noqa: E402
from experiments import benchmark_loader  # noqa: E402
import protocols  # noqa: E402
from commands import call, fails  # noqa: E402
from encoder import TimeSformer  # noqa: E402
from settings_optional import BenchmarkSettings  # noqa: E402
from files.video import duration  # noqa: E402

NEEDS_FFMPEG = pytest.mark.skipif(not shutil.which("ffmpeg"), reason="no ffmpeg")


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """An empty folder, and 3 clips for 9: ffmpeg is started for each."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(protocols, "CLIPS", 3)


@NEEDS_FFMPEG
def test_both_loaders_read_the_same_clips(tmp_path):
    """Catches: a comparison with something else: fewer frames, other clips, a part of the file."""
    benchmark_loader.make_video(tmp_path / "a.mp4", 20, (90, 160), 10)
    length = duration(tmp_path / "a.mp4")
    one, other = (way(tmp_path / "a.mp4", length, 3)
                  for way in (benchmark_loader.ours, benchmark_loader.ffmpegs))
    assert length == pytest.approx(20) and len(one) == len(other) == 3
    rows = [torch.stack([torch.nn.functional.interpolate(clip.float(), (9, 16), mode="area")
                         for clip in clips]) for clips in (one, other)]
    assert rows[0].shape == rows[1].shape == (3, 8, 3, 9, 16)
    error = (rows[0][:, None] - rows[1][None]).abs().mean((2, 3, 4, 5))      # (3, 3) clips
    assert (error.argmin(1) == torch.arange(3)).all()


def test_windows_are_those_of_pre_training():
    """Catches: windows beyond the end, the same in every round, of another length."""
    for seconds in (180.0, 20.0, 4.0):
        first, second = (benchmark_loader.windows_of(seconds, round) for round in (0, 1))
        assert first.shape == (3, 2) and 0 <= first.min() and second.max() <= seconds + 1e-9
        assert np.allclose(np.diff(first), min(9, seconds))
        assert (seconds < 23) or not np.allclose(first, second)
    assert np.allclose(np.diff(benchmark_loader.windows_of(180.0, 0)[:, 0]), benchmark_loader.PACE)


@NEEDS_FFMPEG
def test_the_loader_part(tmp_path, capsys):
    """Catches: figures that are not in the JSON, a video of the user's left out."""
    benchmark_loader.make_video(tmp_path / "mine.mp4", 3, (48, 64), 10)
    call("benchmark.py", "--seconds", "2", "--repeats", "1", "--videos", ".", "--json", "o.json")
    result = json.loads(Path("o.json").read_text())
    assert result.keys() == {"loader", "machine"} and result["machine"]["cores"] >= 1
    assert result["loader"].keys() == {"made", "mine"}
    for row in result["loader"].values():
        figures = [row[f"{way}{kind}"] for way in ("ours", "ours_small", "ffmpegs", "ffmpegs_small")
                   for kind in ("_s", "_cpu_s")]
        assert all(0 < figure < math.inf for figure in figures)
        assert row["clips_per_s_per_worker"] == pytest.approx(3 / row["ours_cpu_s"])
    assert "one ffmpeg per clip" in capsys.readouterr().out


def test_memory_and_start(monkeypatch, capsys):
    """Catches: a source that reads the files it lists; a worker that is another process's."""
    for name, value in (("SAMPLES", 6), ("ROUND", 3), ("LISTED", 200)):
        monkeypatch.setattr(benchmark_loader, name, value)
    call("benchmark.py", "--parts", "memory,start", "--json", "o.json")
    result = json.loads(Path("o.json").read_text())
    assert list(result["memory"]) == ["3", "6"] and min(result["memory"].values()) > 20
    assert result["start"]["listed"] == 200 and result["start"]["json_listed"] == 2
    assert result["start"]["total_s"] > 0


def test_what_is_missing_is_one_line(monkeypatch, capsys):
    """Catches: a traceback without ffmpeg; a part that does not exist passed over."""
    monkeypatch.setattr(benchmark_loader.shutil, "which", lambda name: None)
    assert "apt-get install ffmpeg" in fails(capsys, 2, "benchmark.py")
    assert "loader, memory, start" in fails(capsys, 2, "benchmark.py", "--parts", "loader,speed")


@NEEDS_FFMPEG
def test_a_video_that_cannot_be_read_is_one_line(tmp_path, monkeypatch, capsys):
    """Catches: a traceback in the middle of a measurement."""
    monkeypatch.setattr(benchmark_loader, "make_video",
                        lambda path, seconds: path.write_bytes(b"none"))
    line = fails(capsys, 2, "benchmark.py", "--seconds", "2", "--repeats", "1")
    assert "made.mp4" in line
    with pytest.raises(benchmark_loader.BadInput, match="ffmpeg gives no picture"):
        benchmark_loader.ffmpegs(tmp_path / "none.mp4", 9.0, 0)


# ---- f, h and a step ---------------------------------------------------------------------------
SMALL = ("--size", "small", "--repeats", "1", "--seconds", "20", "--device", "cpu")


def figures_of(part):
    """All numbers of a part of the JSON, however deep."""
    for value in part.values():
        if isinstance(value, dict):
            yield from figures_of(value)
        elif isinstance(value, (int, float)):
            yield value


def test_the_parts_of_the_model(monkeypatch, capsys):
    """Catches: figures that are not in the JSON, a part that no longer fits train.py or model.py;
    other clips, or another function, in what is compared."""
    for name, value in (("PHRASES", 12), ("FUTURES", (1, 5)), ("FRAMES_GROWN", (2, 4)),
                        ("CLIPS_GROWN", (9, 12)), ("PHRASES_GROWN", (10, 20))):
        monkeypatch.setattr(benchmark, name, value)
    monkeypatch.setitem(sys.modules, "transformers", None)                     # not installed
    call("benchmark.py", "--parts", "encoder,sampling,step,growth", *SMALL, "--batch", "2",
         "--micro-batch", "4", "--json", "o.json")
    result, out = json.loads(Path("o.json").read_text()), capsys.readouterr().out
    assert list(result) == ["encoder", "sampling", "step", "growth", "machine"]
    assert all(0 <= figure < math.inf for part in ("encoder", "step", "growth")
               for figure in figures_of(result[part]))
    assert "transformers is not installed" in out and result["encoder"]["difference"] < 1e-5
    for kind in "forward", "forward_backward":
        row = result["encoder"][kind]
        assert row["ours_s"] > 0 and row["naive_s"] > 0 and row["hf_s"] is None
        assert row["ours_cpu_s"] > 0
    assert row["ours_gflop"] > 2.5 * result["encoder"]["forward"]["ours_gflop"]
    assert {"encode_s", "zero_noise_s", "m1_s", "m5_s"} <= result["sampling"].keys()
    step = result["step"]
    assert step["clips"] == 4 and step["videos"] == 2              # of 20 s: two clips in each
    assert min(step["everything_s"], step["decode_s"], step["kept_s"]) > 0
    assert list(result["growth"]["phrases"]) == ["10", "20"]


def test_it_is_the_same_as_timesformer_model():
    """Catches: weights in another's place, so that another function's speed is compared."""
    pytest.importorskip("transformers")
    settings = BenchmarkSettings(size="small", device="cpu", precision="bfloat16")
    bench = benchmark.Bench(settings)
    ways = benchmark_encoder.encoder_ways(bench)
    clips, tokens, gradients = bench.random(2, 3, 4, 32, 32), {}, {}
    assert ways.keys() == {"ours", "naive", "hf", "hf_sdpa", "hf_float32"}
    for name, (module, way) in ways.items():
        module.zero_grad()
        tokens[name] = way(clips)
        tokens[name].square().sum().backward()
        gradients[name] = next(p.grad for p in module.parameters() if p.shape == (64, 3, 8, 8))
    for name in ways:
        torch.testing.assert_close(tokens[name], tokens["ours"], atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(gradients[name], gradients["ours"], atol=1e-4, rtol=1e-3)
    with bench.mixed():
        assert ways["hf"][1](clips).dtype != ways["hf_float32"][1](clips).dtype or not torch.equal(
            ways["hf"][1](clips), ways["hf_float32"][1](clips))


def test_flops_of_a_clip_at_paper_size():
    """Catches: a count that leaves out attention, or another size than the paper's: TimeSformer has
    392 GFLOP (as counted of TimesformerModel), ours does some 8 % fewer for the same result."""
    with torch.device("meta"):
        f = TimeSformer()
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            f.features(torch.empty(1, 3, 8, 224, 224))
    assert counter.get_total_flops() / 1e9 == pytest.approx(361, abs=1)
