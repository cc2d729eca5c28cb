"""charts.py: the numbers given are the numbers drawn; tour.py. Drawing needs matplotlib."""
import json
import re
from pathlib import Path

import numpy as np
import pytest

import predict
from commands import call
from experiments import charts, pictures, tables, tour
from support.command import BadInput


@pytest.fixture
def drawing():
    """For tests that draw."""
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")


def make_content(truth=False):
    """An answer of predict.py."""
    clips = [{"start": 8.0 * i, "end": 8.0 * i + 8, "steps": [{"step": f"step {i}", "p": 0.5}]}
             for i in range(8)]
    futures = [{"steps": ["a", "b"], "share": 0.5}, {"steps": ["c", "b"], "share": 0.3},
               {"steps": ["a", "c"], "share": 0.2}]
    content = {"video": "folder/x.mp4", "clips": clips, "warning": None, "futures": futures,
               "next": [{"step": name, "p": 0.2, "share": p}
                        for name, p in (("a", 0.6), ("c", 0.3), ("b", 0.1))]}
    if truth:
        content["truth"] = {"clips": ["a"] * 7 + [None], "follows": ["a"],
                            "next": [{"step": "b", "p": 0.9}, {"step": "a", "p": 0.1}],
                            "futures": [{**future, "share": 0.25} for future in futures]}
    return content


def texts(labels):
    return [text.get_text() for text in labels]


# ---- without matplotlib --------------------------------------------------------------------------
def test_the_tree_of_futures_by_hand(monkeypatch):
    """Catches: the share of a prefix counted from the drawn futures alone; crossing branches."""
    futures = {"ab": 0.4, "cd": 0.2, "ac": 0.2, "cc": 0.1, "ad": 0.1}
    monkeypatch.setattr(charts, "LEAVES", 3)
    tree = charts.grow_tree({tuple(steps): share for steps, share in futures.items()})
    a, b, c, d = "abcd"
    expected = {(): (1.0, 1.0), (a,): (0.5, 0.7), (c,): (2.0, 0.3), (a, b): (0.0, 0.4),
                (a, c): (1.0, 0.2), (c, d): (2.0, 0.2)}
    assert tree.keys() == expected.keys()
    for prefix, (row, share) in tree.items():
        assert (row, share) == pytest.approx(expected[prefix]), prefix


ROW = '{"step": 1, "epoch": 0.5, "lr": 0.1, "xe": 2}\n'


@pytest.mark.parametrize("text", [
    None, "", "{}\n", "no json\n", "3\n", "[" * 100_000, ROW + "[3]\n", *(
        ROW + ROW.replace(old, new) for old, new in (
            ("1,", '"1",'), ("1,", "null,"), ("0.5", "[0.5]"), ("0.1", "NaN"), ("2", '"2"'),
            ("2", "{}"), ("2", "1e30"), ("2", "1" + 400 * "0")))])
def test_files_that_are_no_metrics(tmp_path, text):
    """Catches: a traceback for a run that has not logged yet, another folder, or other types."""
    if text is not None:
        (tmp_path / "metrics.jsonl").write_text(text)
    with pytest.raises(BadInput, match="metrics.jsonl"):
        charts.load_metrics(tmp_path)


# ---- with matplotlib -----------------------------------------------------------------------------
@pytest.mark.parametrize("truth", [False, True])
def test_a_forecast_shows_its_numbers(drawing, truth, tmp_path):
    """Catches: bars of other numbers or steps, a frame or branch left out; a figure without h."""
    pictures = np.random.default_rng(0).integers(0, 255, (8, 3, 9, 16), np.uint8)
    painted = {"a": pictures[0], "c": pictures[1]}
    content = make_content(truth)
    figure = charts.plot_forecast(content, pictures, painted)
    strip, (bars, tree), below = figure.axes[:8], figure.axes[8:10], figure.axes[10:]
    for axes, picture in zip(strip, pictures):
        assert np.array_equal(axes.images[0].get_array(), picture.transpose(1, 2, 0))
    assert [axes.get_xlabel() for axes in below] == ["a", "c"]
    assert strip[3].get_xlabel() == "step 3\n50%" + ("\ntrue: a" if truth else "")
    widths = [bar.get_width() for bar in bars.patches]
    assert widths == [0.6, 0.3, 0.1] + ([0.1, 0.0, 0.9] if truth else [])
    assert texts(bars.get_yticklabels()) == ["a", "c", "b"]
    assert texts(bars.texts) == ["60%", "30%", "10%"] + ["10%", "0%", "90%"] * truth
    clips = [clip | {"steps": [{"step": "ring\a \udcff", "p": 0.5}]} for clip in content["clips"]]
    odd = charts.plot_forecast(content | {"clips": clips, "video": "x\udcff.mp4"}, pictures, {})
    assert odd.axes[0].get_xlabel() == "ring\\x07\n\\udcff\n50%" + "\ntrue: a" * truth
    charts.save(tmp_path / "a.png", lambda: odd)
    assert sorted(texts(tree.texts)) == ["a\n70%", "b\n30%", "b\n50%", "c\n20%", "c\n30%",
                                         "now"] + ["true: 25%"] * 3 * truth
    charts.save(tmp_path / "a.png", lambda: figure)
    assert [path.name for path in tmp_path.iterdir()] == ["a.png"]
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    figure = charts.plot_forecast({**content, "next": [], "futures": []}, pictures, {})
    assert len(figure.axes) == 8
    charts.save(tmp_path / "a.svg", lambda: figure)


def test_where_the_points_are_lost(drawing, tmp_path, capsys):
    """Catches: a loss drawn at the wrong bar, or from zero; a traceback for another JSON."""
    content = {"truth": {"bayes_top1": 60.0, "bayes_top1_pixels": 57.0, "form": {
        "zero_noise": 50.0}}, "top1": {"zero_noise": 43.5}}
    (axes,) = charts.plot_losses([60.0, 57.0, 50.0, 43.5]).axes
    bars = [(bar.get_x(), bar.get_width()) for bar in axes.patches]
    assert bars == [(0, 60), (0, 57), (57, 3), (0, 50), (50, 7), (0, 43.5), (43.5, 6.5)]
    assert texts(axes.texts) == ["60.0", "57.0", "f: 3.0", "50.0", "objective and texts: 7.0",
                                 "43.5", "h: 6.5"]
    file, out = tmp_path / "f.json", tmp_path / "losses.svg"
    file.write_text(json.dumps(content))
    charts.main(charts.ChartSettings(forecast=file, out=out))
    assert "objective and texts: 7.0" in out.read_text() and capsys.readouterr().out == f"{out}\n"
    text = json.dumps(content)
    for bad in ('{"truth": null}', text.replace("60.0", "null"), text.replace("57.0", '"57"'),
                text.replace("50.0", "[]"), text.replace("43.5", "NaN"), '{"truth": [3]}'):
        file.write_text(bad)
        with pytest.raises(BadInput, match="f.json: "):
            charts.main(charts.ChartSettings(forecast=file, out=out))


def test_steps_seen_and_novel(drawing, tmp_path):
    """Catches: a step's bar at another step, or a step that did not occur drawn as 0."""
    file = tmp_path / "f.json"

    def load(task="forecast", data="toy", setting="zero-shot", last=1.0):
        file.write_text(json.dumps({"data": data, "task": task, "setting": setting,
                                    "by_class": [80, None, None, last]}))
        return charts.load_steps(file, "forecast", 4)
    values = load()
    axes = charts.plot_steps("abcd", "d", {"one": values, "other": values}).axes
    assert [bar.get_height() for bar in axes[0].patches] == [80, 1]
    assert texts(axes[1].get_xticklabels()) == ["a", "d"]
    assert texts(axes[0].get_legend().texts) == ["seen steps, mean 80.0", "novel steps, mean 1.0"]
    alone = charts.plot_steps("abcd", "", {"one": values, "other": values}).axes[0]
    assert texts(alone.get_legend().texts)[1] == "novel steps, none"
    for change in ({"last": "x"}, {"last": -1}, {"last": 101}, {"last": float("nan")},
                   {"data": "coin"}, {"task": "classify"}, {"setting": "fine-tuned"}):
        with pytest.raises(BadInput, match="f.json: not the JSON of evaluate.py --task forecast"):
            load(**change)


def test_training_curves(drawing, tmp_path, capsys):
    """Catches: a null drawn as 0, a stage that is not marked, a term that is left out."""
    rows = [{"step": 20 * i, "epoch": i % 5 / 10, "loss": 1.0, "lr": 0.1, "xe": 9.0 - i, "mc": None,
             "mse": None if i < 5 else 0.5, "clips_per_s": 1.0} for i in range(1, 10)]
    losses, rate = charts.plot_training(rows).axes
    curves = {line.get_label(): line for line in losses.lines}
    assert [label for label in curves if not label.startswith("_")] == [
        "L_XE, clips", "L_MSE", "a stage begins"]
    assert list(curves["L_MSE"].get_xdata()) == [100, 120, 140, 160, 180]
    assert len(rate.lines[0].get_xdata()) == 9 and list(rate.lines[1].get_xdata()) == [90, 90]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines = charts.plot_training(rows, 0.7).axes[0].lines
    assert [0.7, 0.7] in [[*line.get_ydata()] for line in lines]
    out = tmp_path / "curves.pdf"
    charts.main(charts.ChartSettings(run=tmp_path, out=out))
    assert out.read_bytes().startswith(b"%PDF") and capsys.readouterr().out == f"{out}\n"


def test_the_page_shows_each_picture_with_its_text_and_code(drawing, trained, here, capsys):
    """Catches: a picture that cannot be drawn, stale code beside it, another rule for the lead."""
    call("tour.py", "--checkpoint", str(trained / "diffusion"), "--video", "1", "--after", "2",
         "--out", "page", "--lead", "3")
    tv = {}
    for seed in range(3):
        found = predict.predict(seed=seed, checkpoint=trained / "diffusion")
        true = {row["step"]: row["p"] for row in found["truth"]["next"]}
        tv[seed] = sum(abs(row["share"] - true.get(row["step"], 0)) for row in found["next"]) / 2
    assert f"--seed {sorted(tv, key=tv.get)[1]}\n" in capsys.readouterr().out
    page, ours = (re.sub("(?<=so far:\n).*", "", path.read_text())
                  for path in (Path("page/tour.md"), tour.PAGE))
    assert page == ours and ours.count("```python\ndef ") == len(pictures.PICTURES) == 8
    for number, compute in enumerate(pictures.PICTURES, start=1):
        assert Path(f"page/figures/tour-{number}.png").read_bytes()[1:4] == b"PNG"
        assert re.search(rf"tour-{number}.png[^#]*\ndef {compute.__name__}\(", ours)


def test_claims_are_bars_of_means_over_seeds(drawing, monkeypatch):
    """Catches: a number of another cell, one seed for their mean, a row without a run drawn."""
    results = {"mask forecast top1.zero_noise": {"1": 40, "2": 50},
               "diffusion forecast top1.zero_noise": {"1": 30.0}}
    monkeypatch.setattr(tables, "read_json", lambda path, need: results)
    title, rows = tables.rows_of_claim("mask-or-diffusion")
    assert rows == [("mask, one forecast", [40, 50]), ("diffusion, one forecast", [30.0])]
    axes = charts.plot_claim(title, rows).axes[0]
    assert [bar.get_width() for bar in axes.patches] == [45, 30]
    assert [[*line.get_xdata()] for line in axes.lines] == [[40, 50], [30]]
    assert texts(axes.get_yticklabels()) == ["mask, one forecast", "diffusion, one forecast"]
    with pytest.raises(BadInput, match="results.json: no run behind order; "):
        tables.rows_of_claim("order")
