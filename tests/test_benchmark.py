"""experiments.benchmark at a tiny size: it compares the same thing; its numbers are in the JSON."""
import json
import math
from pathlib import Path

import numpy as np
import pytest

from commands import call, fails
from experiments import speed
from files.video import duration


@pytest.fixture(autouse=True)
def tiny(tmp_path, monkeypatch):
    """An empty folder, one round, a short video, and 3 clips for 9."""
    monkeypatch.chdir(tmp_path)
    for name, value in (("CLIPS", 3), ("REPEATS", 1), ("SECONDS", 20.0), ("PHRASES", 12),
                        ("FUTURES", (1, 5))):
        monkeypatch.setattr(speed, name, value)


def test_the_loader_part(monkeypatch, capsys):
    """Catches: other windows than pre-training's; numbers not in the JSON; a traceback."""
    Path("videos").mkdir()
    speed.make_video(Path("videos/mine.mp4"))
    monkeypatch.setattr(speed, "SECONDS", 2.0)
    call("benchmark.py", "--videos", "videos", "--json", "o.json")
    result, out = json.loads(Path("o.json").read_text()), capsys.readouterr().out
    assert result["machine"]["cores"] >= 1 and result["loader"].keys() == {"made", "mine"}
    for name, table in result["loader"].items():
        assert table.keys() == {"file", "small copy"}
        assert all(0 < row["s"] < math.inf and row["clips/s"] == pytest.approx(3 / row["s"])
                   for row in table.values()) and f"| loader: {name}" in out

    windows = speed.windows_of(duration("videos/mine.mp4"))
    assert np.allclose(windows, [[0, 9], [5.5, 14.5], [11, 20]])
    assert np.allclose(speed.windows_of(4.0), [0, 4])
    assert np.allclose(speed.windows_of(180.0)[:, 0], 85.5 + speed.PACE * np.arange(-1, 2))
    monkeypatch.setattr(speed, "make_video", lambda path: path.write_bytes(b"none"))
    assert "made.mp4" in fails(capsys, 2, "benchmark.py")
    assert "encoder, sampling, step, loader" in fails(capsys, 2, "benchmark.py", "--parts", "speed")


def test_the_parts_of_the_model(monkeypatch, capsys):
    """Catches: numbers not in the JSON, a part that no longer fits, no gradients."""
    models, build, seen = [], speed.random_model, set()

    def watched(*args):
        models.append(build(*args))
        for name, p in models[-1].named_parameters():
            p.register_post_accumulate_grad_hook(lambda p, name=name: seen.add(name))
        return models[-1]
    monkeypatch.setattr(speed, "random_model", watched)
    call("benchmark.py", "--parts", "encoder,sampling,step", "--size", "small", "--batch", "2",
         "--device", "cpu", "--json", "o.json")
    result, out = json.loads(Path("o.json").read_text()), capsys.readouterr().out
    assert "| encoder: forward" in out and result["batch"] == 2
    one, both = result["encoder"]["forward"], result["encoder"]["forward_backward"]
    assert one.keys() == both.keys() == {"ours", "naive"}
    assert both["ours"]["TFLOP"] > 2.5 * one["ours"]["TFLOP"] and one["ours"]["MiB"] is None
    (title, step), = result["step"].items()
    assert title.startswith("2 videos, 6 clips, 6 rows, ")      # 2 forecasts of each, one other
    assert step.keys() == {"decode", "teacher", "f", "rows", "h and matching"}
    assert all(row["clips/s"] == pytest.approx(6 / row["s"]) for row in step.values())
    assert seen == {name for name, _ in models[1].named_parameters()}
    assert result["sampling"]["8 clips"].keys() == {"encode", "zero noise", "M = 1", "M = 5"}
