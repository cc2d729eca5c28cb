"""benchmark.py at a tiny size: what it compares is the same thing, its figures are in the JSON."""
import json
import math
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import benchmark  # noqa: E402
import protocols  # noqa: E402
from commands import call, fails  # noqa: E402
from video import duration  # noqa: E402

NEEDS_FFMPEG = pytest.mark.skipif(not shutil.which("ffmpeg"), reason="no ffmpeg")


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """An empty folder, and 3 clips for 9: ffmpeg is started for each."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(protocols, "CLIPS", 3)


@NEEDS_FFMPEG
def test_both_loaders_read_the_same_clips(tmp_path):
    """Catches: a comparison with something else: fewer frames, other clips, a part of the file."""
    benchmark.make_video(tmp_path / "a.mp4", 20, (90, 160), 10)
    length = duration(tmp_path / "a.mp4")
    one, other = (way(tmp_path / "a.mp4", length, 3) for way in (benchmark.ours, benchmark.ffmpegs))
    assert length == pytest.approx(20) and len(one) == len(other) == 3
    rows = [torch.stack([torch.nn.functional.interpolate(clip.float(), (9, 16), mode="area")
                         for clip in clips]) for clips in (one, other)]
    assert rows[0].shape == rows[1].shape == (3, 8, 3, 9, 16)
    error = (rows[0][:, None] - rows[1][None]).abs().mean((2, 3, 4, 5))      # (3, 3) clips
    assert (error.argmin(1) == torch.arange(3)).all()


def test_windows_are_those_of_pre_training():
    """Catches: windows beyond the end, the same in every round, of another length."""
    for seconds in (180.0, 20.0, 4.0):
        first, second = (benchmark.windows_of(seconds, round) for round in (0, 1))
        assert first.shape == (3, 2) and 0 <= first.min() and second.max() <= seconds + 1e-9
        assert np.allclose(np.diff(first), min(9, seconds))
        assert (seconds < 23) or not np.allclose(first, second)
    assert np.allclose(np.diff(benchmark.windows_of(180.0, 0)[:, 0]), benchmark.PACE)


@NEEDS_FFMPEG
def test_the_loader_part(tmp_path, capsys):
    """Catches: figures that are not in the JSON, a video of the user's left out."""
    benchmark.make_video(tmp_path / "mine.mp4", 3, (48, 64), 10)
    call("benchmark.py", "--seconds", "2", "--repeats", "1", "--videos", ".", "--json", "o.json")
    result = json.loads(Path("o.json").read_text())
    assert result.keys() == {"loader", "machine"} and result["machine"]["cores"] >= 1
    assert result["loader"].keys() == {"made", "mine"}
    for row in result["loader"].values():
        figures = [row[f"{way}{kind}"] for way in ("ours", "ours_small", "ffmpegs", "ffmpegs_small")
                   for kind in ("_s", "_cpu_s")]
        assert all(0 < figure < math.inf for figure in figures)
    assert "one ffmpeg per clip" in capsys.readouterr().out


def test_memory_and_start(monkeypatch, capsys):
    """Catches: a source that reads the files it lists; a worker that is another process's."""
    for name, value in (("SAMPLES", 6), ("ROUND", 3), ("LISTED", 200)):
        monkeypatch.setattr(benchmark, name, value)
    call("benchmark.py", "--parts", "memory,start", "--json", "o.json")
    result = json.loads(Path("o.json").read_text())
    assert list(result["memory"]) == ["3", "6"] and min(result["memory"].values()) > 20
    assert result["start"]["listed"] == 200 and result["start"]["json_listed"] == 2
    assert result["start"]["total_s"] > 0


def test_what_is_missing_is_one_line(monkeypatch, capsys):
    """Catches: a traceback without ffmpeg; a part that does not exist passed over."""
    monkeypatch.setattr(benchmark.shutil, "which", lambda name: None)
    assert "apt-get install ffmpeg" in fails(capsys, 2, "benchmark.py")
    assert "loader, memory, start" in fails(capsys, 2, "benchmark.py", "--parts", "loader,speed")


@NEEDS_FFMPEG
def test_a_video_that_cannot_be_read_is_one_line(tmp_path, monkeypatch, capsys):
    """Catches: a traceback in the middle of a measurement."""
    monkeypatch.setattr(benchmark, "make_video", lambda path, seconds: path.write_bytes(b"none"))
    line = fails(capsys, 2, "benchmark.py", "--seconds", "2", "--repeats", "1")
    assert "made.mp4" in line
    with pytest.raises(benchmark.BadInput, match="ffmpeg gives no picture"):
        benchmark.ffmpegs(tmp_path / "none.mp4", 9.0, 0)
