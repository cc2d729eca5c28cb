"""experiments/: runs made once, means over seeds, tables; charts, key frames, speed, COIN."""
import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import evaluate
import test_lists
import train
from commands import call, fails, read_json
from data import Example
from evaluation import figures, keyframes, metrics
from experiments import benchmark, coin, tables
from experiments.tables import EVALUATIONS, RECIPES, TABLES
from encoder import TimeSformer
from files.lists import load_phrases
from model import ProcedureModel
from support.errors import InputError
from support.write import write_json
from toy import grammar

ROOT = Path(__file__).resolve().parents[1]
PARSE = {"train.py": train.parse, "evaluate.py": evaluate.parse, "experiments.coin": coin.parse}


# --- Runs and tables ---
@pytest.fixture
def here(tmp_path, monkeypatch):
    """A project with a page of two tables, and no results. Commands only check their flags, make
    their file, and are listed; they fail if there is a file "fail"."""
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments/results.json").write_text("{}")
    (tmp_path / "README.md").write_text("a\n<!-- table: targets -->\nold\n<!-- end -->\nb\n"
                                        "<!-- table: videos -->\n<!-- end -->\n")
    ran, made = [], []

    def fake(line, **options):
        script, *flags = line[2:] if line[1] == "-m" else line[1:]
        given = PARSE[script](flags)
        ran.append(script)
        if script == "train.py":
            assert given.seed == 3 and (given.stage == "pretrain" or given.init in made)
            made.append(given.out)
        else:
            assert script == "experiments.coin" or given.checkpoint in made
            columns = {column for _, _, key in tables.cells_of(TABLES)
                       for column in tables.column_of(key)[:1]}
            right = dict.fromkeys(columns, "80") | {
                "per_video": [1], "parts": {"new": "80", "held_out": "80", "look_alikes": "80"}}
            write_json(given.json, {"top1": {"zero_noise": 12.3, "oracle": 23.4, "ours": 34.5},
                                    "evaluated": 1, "seed": 3, "right": right})
        return SimpleNamespace(returncode=7 if Path("fail").exists() else 0)
    monkeypatch.setattr(tables, "ROOT", tmp_path)
    monkeypatch.setattr(subprocess, "run", fake)
    monkeypatch.chdir(tmp_path)
    return ran


def test_runs_are_made_once_and_fill_the_pages(here, capsys):
    """Catches: a run or its training made again, one forgotten, a flag that a script refuses, a
    checkpoint of another run, a cell of another, a page's text changed, a failure passed over."""
    flags = "--seeds", "3", "--out", "out", "--coin", "folder"
    call("experiments/tables.py", "targets", "videos", *flags)
    page = Path("README.md").read_text()
    assert len([*Path("out").glob("*/*.json")]) == 10
    assert re.search(r"\| vision +\| 34\.5 +\| not run +\| not run +\| 12\.3 +\| 23\.4 +\|", page)
    assert re.search(r"\| 2,000 +\| 12\.3 +\| 23\.4 +\| 34\.5 +\| not run +\|", page)
    assert page.startswith("a\n") and "old" not in page and "<!-- end -->\nb\n" in page
    del here[:]
    call("experiments/tables.py", "scores", "videos", *flags)
    assert here == 2 * ["evaluate.py"] and Path("README.md").read_text() == page
    call("experiments/tables.py", *flags)
    made = {(path.parent.name, path.stem) for path in Path("out").glob("*/*.json")}
    assert made == {(f"{recipe}-3", name) for recipe, name, _ in tables.cells_of(TABLES)}
    assert [len({*part}) for part in zip(*made)] == [len(RECIPES), len(EVALUATIONS)]
    Path("fail").touch()
    assert "diffusion-3: train.py ended with 7; see its log.txt" in fails(
        capsys, "experiments/tables.py", *flags, "--out", "other")
    assert "nothing: no such table" in fails(capsys, "experiments/tables.py", "nothing")


def test_cells_are_means_over_seeds(tmp_path, monkeypatch):
    """Catches: seeds of another recipe, a deviation of one seed, null counted as 0, a list's other
    place, a difference without the error of both."""
    difference = "mask classify top1.ours - both classify top1.ours"
    row = ["mask", "mask classify top1.ours", "mask classify top1.teacher",
           "mask infill by_position.1", difference]
    monkeypatch.setitem(TABLES, "videos", {"title": "T", "columns": list("abcde"), "rows": [row]})
    monkeypatch.setitem(TABLES, "targets", {
        "title": "T", "columns": list("abcde"), "compared": True,
        "rows": [["**h**"], ["m", *difference.split(" - ")], ["o", "mask classify top1.ours",
                                                            "bag classify top1.ours"],
                 ["**no rows**"]]})
    examples = [Example(video, None, 0, 0) for video in range(10)]
    for run, value in {"mask-1": 10.0, "mask-2": 20.0, "mask-30": 33.0, "mask-or-1": 99.0,
                       "both-1": 40.0, "both-2": 60.0, "bag-1": 9.0}.items():
        (tmp_path / run).mkdir()
        right = {"ours": torch.arange(10) < value // 10}
        write_json(tmp_path / run / "classify.json", {
            "top1": {"ours": value, "teacher": None}, "evaluated": 10, "seed": int(run[-1]),
            "right": metrics.pack(right, examples)})
    (tmp_path / "mask-2/infill.json").write_text('{"by_position": [1, 0.25, 3]}')
    (tmp_path / "results.json").write_text('{"mask infill by_position.0": {"9": 5}}')
    results = tables.collect(tmp_path, tmp_path / "results.json")
    assert results == read_json(tmp_path / "results.json")
    assert results[row[1]] == {"1": 10.0, "2": 20.0, "30": 33.0} and row[2] not in results
    assert results["mask infill by_position.0"] == {"2": 1, "9": 5}
    text = tables.markdown("videos", results)
    assert [cell.strip() for cell in text.split("\n")[4].split("|")] == [
        "", "mask", "21.0 ± 11.5", "not run", "0.250", "-30.0 ± 15.8", ""]
    assert text.endswith("mask 1, 2, 30 (classify); mask 2 (infill); both 1, 2.\n")
    compared = [[cell.strip() for cell in line.split("|")[1:-1]]
                for line in tables.markdown("targets", results).split("\n")[4:7]]
    assert compared[:2] == [["**h**", "", "", "", ""], [
        "m", "21.0 ± 11.5", "50.0 ± 14.1", "-30.0 ± 15.8", "undecided"]]
    assert compared[2][-1] == "one run"
    assert "no rows" not in tables.markdown("targets", results)


def test_tables_are_whole_and_on_the_pages():
    """Catches: a row without a cell, a cell taken for text, a figure typed by hand, a page's table
    that does not exist, or was measured again and not written."""
    for name, table in TABLES.items():
        sizes = {1, 3} if table.get("compared") else {len(table["columns"])}
        assert {len(row) for row in table["rows"]} == sizes
        assert not any(tables.cells_in(row[0]) for row in table["rows"])
        assert all(tables.cells_in(text) for _, *texts in tables.rows_of(name) for text in texts
                   if re.match("[a-z]", text))
    assert len(load_phrases(ROOT / "toy/howto.txt")) == len(grammar.PHRASES)
    results = read_json(ROOT / "experiments/results.json")
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        text = page.read_text(encoding="utf-8")
        for name in re.findall(r"<!-- table: (?!speed-|memory)(\S+) -->", text):
            assert tables.replace(text, name, tables.markdown(name, results)) == text, page


# --- Charts and key frames ---
@pytest.fixture
def drawn(monkeypatch):
    """The figures that are saved."""
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    from matplotlib.figure import Figure
    figures, write = [], Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda figure, *args, **kwargs: (
        figures.append(figure), write(figure, *args, **kwargs)))
    return figures


def texts(items):
    return [item.get_text() for item in items]


@pytest.mark.parametrize("truth", [True, False])
def test_a_forecast_is_drawn(drawn, tmp_path, truth):
    """Catches: a wrong frame above a caption, forecast and truth exchanged, a true step left out,
    shares not summed at a branch, no figure without futures, bars of steps that neither knows."""
    shares = {"a": .6, "b": .3, "c": .1, "d": 0., "e": 0., "f": 0.}
    futures = {"ac": .4, "bb": .3, "ab": .2, "cc": .1}
    content = {"video": "a $x.mp4", "truth": None, "clips": [
        {"start": i, "end": i + 1, "steps": [{"step": f"step {i}", "p": 0.5}]} for i in range(8)],
        "next": [{"step": step, "share": share} for step, share in shares.items()],
        "futures": [{"steps": [*steps], "share": share} for steps, share in futures.items()]}
    if truth:
        content["truth"] = {"clips": [None] * 3 + ["a"] + [None] * 4,
                            "next": [{"step": "f", "p": .9}, {"step": "a", "p": .1}],
                            "futures": [{"steps": ["a", "c"], "share": .25}]}
    pictures = np.random.default_rng(0).integers(0, 256, (8, 3, 6, 8), dtype=np.uint8)
    figures.save(tmp_path / "a.png", figures.plot_forecast, content, pictures, {"a": pictures[0]})
    content |= {"next": [], "futures": []}
    figures.save(tmp_path / "a.svg", figures.plot_forecast, content, pictures, {})
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG") and len(drawn) == 2
    strip, (bars, tree), below = drawn[0].axes[:8], drawn[0].axes[8:10], drawn[0].axes[10:]
    assert all(np.array_equal(axes.images[0].get_array(), picture.transpose(1, 2, 0))
               for axes, picture in zip(strip, pictures))
    assert strip[3].get_xlabel() == "step 3\n50%" + "\ntrue: a" * truth
    assert texts(bars.get_yticklabels()) == [*"abc"] + ["f"] * truth
    widths = [bar.get_width() for bar in bars.patches]
    assert widths == [.6, .3, .1] + [0, .1, 0, 0, .9] * truth
    assert sorted(texts(tree.texts)) == ["a\n60%", "b\n20%", "b\n30%", "b\n30%", "c\n10%", "c\n10%",
                                         "c\n40%", "now"] + ["true: 25%"] * truth
    assert [axes.get_xlabel() for axes in below] == ["a"]


def test_curves_of_runs_are_drawn(drawn, here):
    """Catches: a curve of another run, or in another panel; a null, a row that is cut off."""
    for run, last in ("a", 6), ("b", None):
        Path(run).mkdir()
        row = dict(loss=1, xe=2, mse=3, mc=4, match=5, match_h=last, lr=9)
        Path(run, "metrics.jsonl").write_text("".join(
            json.dumps({"epoch": e, **row}) + "\n" for e in (.5, 1.)) + '{"epoch": 1.5, "lo')
    call("experiments/charts.py", "--curves", "a", "b", "--out", "a.png")
    for axes, name, y in zip(drawn[0].axes, row, (1, 2, 3, 4, 5, 6)):
        assert axes.get_title("left") == name
        curves, both = [line.get_xydata().tolist() for line in axes.lines], [[.5, y], [1, y]]
        assert curves == [both, both if name != "match_h" else []]
    assert texts(drawn[0].axes[0].get_legend().texts) == ["a", "b"]


def test_every_step_is_painted_from_the_same_frame_and_noise(tmp_path):
    """Catches: a shared generator, settings not passed on, sides exchanged, odd file names."""
    calls = []

    def painter(prompt, image, generator, **flags):
        calls.append((prompt, image.size, torch.rand(1, generator=generator), *flags.values()))
        return SimpleNamespace(images=[image])
    painter.vae_scale_factor = 8
    painter.unet = SimpleNamespace(config=SimpleNamespace(sample_size=64, down_block_types="abcd"))
    picture = np.zeros((3, 30, 40), np.uint8)
    picture[0, :, 20:] = 255                                         # the right half is red
    painted = keyframes.paint_steps(painter, picture, ["pour egg", "a/b: c?", "pour egg", *"de"],
                                    tmp_path / "a", seed=3)
    noise = torch.rand(1, generator=torch.Generator().manual_seed(3))
    assert calls == [(step, (704, 512), noise, 0.6, 50, 7.5) for step in painted]
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == [
        "1_pour_egg.png", "2_a_b_c_.png", "3_d.png"]
    pixels = painted["a/b: c?"]
    assert pixels.shape == (3, 512, 704) and pixels.dtype == np.uint8
    assert pixels[0, :, -1].min() == 255 and pixels[0, :, 0].max() == pixels[1:].max() == 0


def test_an_optional_package_that_is_absent_is_one_line(tmp_path, monkeypatch):
    """Catches: a traceback in place of the pip line; weights loaded from a pickle, which can run
    code; a traceback of diffusers for a model that it does not find."""
    for name in ("matplotlib", "matplotlib.figure", "diffusers"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(InputError, match="pip install matplotlib$"):
        figures.save(tmp_path / "a.png", None)
    with pytest.raises(InputError, match="pip install diffusers transformers$"):
        keyframes.open_painter("here", "cpu")

    def refuse(name, use_safetensors, **flags):
        assert use_safetensors is True
        raise OSError("no file named model.safetensors\nmore lines")
    monkeypatch.setitem(sys.modules, "diffusers", SimpleNamespace(
        StableDiffusionImg2ImgPipeline=SimpleNamespace(from_pretrained=refuse)))
    with pytest.raises(InputError, match="^--keyframe-model here: no file [^\n]*; needed is "):
        keyframes.open_painter("here", "cpu")


# --- Speed, and h on COIN's orders ---
def test_speed_fills_its_table(tmp_path, monkeypatch, capsys):
    """Catches: a part that no longer fits the model, a table of another device."""
    tiny = dict(image=32, frames=2, width=32, depth=1, heads=2)
    for name, value in dict(SECONDS=0.01, PHRASES=12, D=64, ENCODER=tiny).items():
        monkeypatch.setattr(benchmark, name, value)
    page = tmp_path / "page.md"
    text = "<!-- table: speed-cuda -->\n-\n<!-- end -->\n<!-- table: speed-cpu -->\n{}<!-- end -->"
    page.write_text(text)
    call("experiments/benchmark.py", "--batch", "2", "--device", "cpu", "--page", page)
    table = capsys.readouterr().out
    assert page.read_text() == text.format(table) and len(table.splitlines()) == 9
    assert "group of 2 videos, h on 18 rows" in table


def test_live_memory_is_parameters_gradients_and_moments():
    """Catches: a storage counted twice, a freed one, none of a kind; a view taken for a tensor."""
    f = TimeSformer(image=32, frames=2, width=32, depth=2, heads=2, dim=16)
    clips = torch.rand(4, 3, 2, 32, 32)
    with benchmark.Live([*f.parameters(), clips]) as live:
        optimizer = torch.optim.AdamW(f.parameters(), fused=True)
        f(clips).square().sum().backward()
        optimizer.step()
    sizes = [p.numel() for p in f.parameters()]            # weight, gradient, two moments; a step
    kept = sum(4 * 4 * size + 4 for size in sizes) + 4 * clips.numel()
    assert sum(live.storages.values()) == kept <= live.peak


def test_memory_grows_with_the_micro_batch(monkeypatch, tmp_path):
    """Catches: a micro-batch that does not fit the card, or another's memory; operations of two
    updates for one, attention or gradients left out."""
    for name, value in dict(PHRASES=12, TEACHER=0, CARDS=(4,), ENCODER={"depth": 1}).items():
        monkeypatch.setattr(benchmark, name, value)
    command = 96, 8, ProcedureModel.encode, 1
    monkeypatch.setattr(benchmark, "COMMANDS", {"a": command})
    page = tmp_path / "page.md"
    page.write_text("<!-- table: memory -->\n<!-- end -->")
    call("experiments/benchmark.py", "--memory", "--page", page)
    peak = benchmark.rehearse(benchmark.make_model(), command, 64).peak / 2**30
    products = 8 * 1568 * 768**2       # of a clip: pixels, 5 in time, 2 across; then 3 times again
    tflop = 96 * 3 * 2 * products / 1e12
    assert re.search(rf"\| a +\| 64: {peak:.1f} +\| {tflop:.0f} +\|\n", page.read_text())


def test_coin_learns_an_order_without_labels(tmp_path):
    """Catches: a history of another step, the clip that is asked for among what h reads, testing
    videos in training, a number that the file lacks."""
    videos = {}
    for i in range(60):                                    # the order of steps is 3, 1, 4, 2,
        steps = enumerate([3, 1, 4, 5 if i >= 50 else 2])  # but tests end with another step
        steps = [(str(step), [20.0 * k, 20.0 * k + 20], f"text {step}") for k, step in steps]
        videos[f"v{i}"] = test_lists.entry(*steps, subset="testing" if i >= 50 else "training")
    (tmp_path / "COIN.json").write_text(test_lists.coin(**videos))
    np.savez(tmp_path / "t.npz", names=[f"text {k + 1}" for k in range(5)],
             embeddings=np.random.default_rng(0).standard_normal((5, 32)).astype(np.float32))
    call("experiments/coin.py", "--annotations", tmp_path / "COIN.json", "--texts",
         tmp_path / "t.npz", "--sigma", "0.5", "--epochs", "40", "--json", tmp_path / "o.json")
    found = read_json(tmp_path / "o.json")
    assert found["evaluated"] == 30 and found["distinct"] >= 1
    scores = [*found["top1"].values(), *found["baselines"].values()]
    assert len(scores) == 8 and scores == pytest.approx([200 / 3] * 8, abs=0.01)
