"""experiments.benchmark at a tiny size: it compares the same thing; its numbers are in the JSON."""
import pytest

from commands import call, fails, read_json
from data import classify_windows
from experiments import benchmark, speed


@pytest.fixture(autouse=True)
def tiny(tmp_path, monkeypatch):
    """An empty folder, one round, a short video, and 3 clips for 9."""
    monkeypatch.chdir(tmp_path)
    for name, value in (("REPEATS", 1), ("SECONDS", 20.0), ("PHRASES", 12), ("SAMPLES", (1, 5)),
                        ("WINDOWS", classify_windows(0, 20, 20, 3))):
        monkeypatch.setattr(speed, name, value)


def test_the_parts(monkeypatch, capsys):
    """Catches: numbers not in the JSON, a part that no longer fits, no gradients; a part that does
    not exist passed over."""
    models, build, seen = [], speed.random_model, set()

    def watched(*args):
        models.append(build(*args))
        for name, p in models[-1][0].named_parameters():
            p.register_post_accumulate_grad_hook(lambda p, name=name: seen.add(name))
        return models[-1]
    monkeypatch.setattr(speed, "random_model", watched)
    call("benchmark.py", "--parts", ",".join(benchmark.PARTS), "--size", "small", "--batch", "2",
         "--device", "cpu", "--json", "o.json")
    result, out = read_json("o.json"), capsys.readouterr().out
    assert "| encoder: forward" in out and "| loader: made" in out
    one, both = result["encoder"]["forward"], result["encoder"]["forward_backward"]
    assert one.keys() == both.keys() == {"ours", "naive"}
    (title, step), = result["step"].items()
    assert title == "2 videos, 6 clips, 6 rows"                 # 2 forecasts of each, one other
    assert step.keys() == {"f", "h and matching"}
    assert all(row["clips/s"] == pytest.approx(6 / row["s"]) for row in step.values())
    assert seen == {name for name, _ in models[2][0].named_parameters()}
    assert result["sampling"]["8 clips"].keys() == {"zero noise", "M = 1", "M = 5"}
    assert result["loader"]["made"].keys() == {"file", "small copy"}
    assert all(row["s"] > 0 and row["clips/s"] == pytest.approx(3 / row["s"])
               for row in result["loader"]["made"].values())
    assert "encoder, sampling, step, loader" in fails(capsys, 2, "benchmark.py", "--parts", "speed")
