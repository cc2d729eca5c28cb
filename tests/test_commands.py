"""train.py and evaluate.py as a user runs them, barely trained, on both kinds of data."""
import copy
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from commands import COIN, TINY, call, coin_flags, measure, read_json, read_rows
from data import Loaded, missing_rows
from files.sources import open_coin_features
from pseudo_labels import estimate_tau
from support.process import locks
from toy import grammar, teacher
from toy.source import ToySource
from train import TrainSettings
from training import pretrain
from weights.checkpoint import load_model

ROOT = Path(__file__).parent.parent
HEAD = ["task", "data", "split", "setting", "order", "listed", "evaluated", "missing",
        "unreadable", "classes"]
TAIL = ["seed", "checkpoint", "seconds"]
ROW = ["step", "epoch", "loss", "xe", "mse", "mc", "lr", "clips_per_s"]


@pytest.mark.parametrize("name", ["diffusion", "mask", "none", "coin-run"])
def test_a_run_folder_is_complete(trained, name):
    """Catches: settings not recorded, rows renamed or NaN, another rate, a wrong sum of terms."""
    out = trained / name
    assert {path.name for path in out.iterdir()} - {"checkpoint_before.pt", "missing.json"} == {
        "checkpoint.pt", "config.json", "metrics.jsonl"}
    config, given = read_json(out / "config.json"), TrainSettings()
    assert config["settings"]["order"] == (name if name in ("mask", "none") else "diffusion")
    assert config["settings"].keys() == set(TrainSettings.__dataclass_fields__) - {"resume"}
    assert config["versions"]["torch"] == torch.__version__
    assert config["versions"]["world"] == teacher.digest()
    coin, rows = name == "coin-run", read_rows(out)
    peaks = [pretrain.SGD_LR, given.lr][coin:]         # of two stages, or of AdamW alone
    assert len(rows) == 3 * len(peaks)
    assert (out / "metrics.jsonl").read_text().count('"clips_per_s": ') == len(rows)
    for i, row in enumerate(rows):
        peak, step = peaks[i // 3], i % 3
        assert list(row) == ROW[:-1] and row["step"] == i + 1
        assert row["epoch"] == pytest.approx((step + 1) / 3 * (3 if coin else 0.75))
        assert row["loss"] == pytest.approx(row["xe"] + row["mse"] + row["mc"], rel=1e-5)
        assert (row["mse"] == row["mc"] == 0) == (name == "none")
        assert row["lr"] == pytest.approx(
            peak * min(1, (step + 1) / (.05 * 3 + 1), (3 - step) / (.95 * 3)))
    model, _, content = load_model(out)
    assert content["step"] == len(rows) and (model.denoiser is None) == (name == "none")


def p_of(x, texts, tau):
    """Eq. 6 for one embedding (D,), in float64: (K,)."""
    x, texts = x.double(), texts.double()
    weights = (texts @ x / (texts.norm(dim=1) * x.norm()) / tau).exp()
    return weights / weights.sum()


def terms_by_loops(model, batch, most, clips, mask):
    """L_XE, L_MSE and L_MC (Eqs. 8-10) of a batch, row by row without padding, in float64; P.
    Random numbers are drawn in the order of train.py. mask: x_j^t is 0, at the last level."""
    x = model.encode(batch.clips).double()                                         # (C, D)
    p = [p_of(clip, model.phrases, model.tau).tolist() for clip in x]
    shown, sure = zip(*((row.index(max(row)), max(row)) for row in p))
    if clips == "clips":
        shown, sure = range(len(x)), [0] * len(x)
    rows, j = missing_rows(batch.runs, np.array(shown), np.array(sure), most, batch.rng)
    (R, P), T = j.shape, len(model.alpha_bar)
    t, noise = torch.randint(T, (R,)), torch.randn(R, P, model.dim).double()
    mean, scale = model.standardize.mean.double(), model.standardize.variance.double() ** 0.5
    targets = [p_of(features, model.phrases, model.tau) for features in batch.teacher]
    xe = [-p @ p_of(clip, model.phrases, model.tau).log() for p, clip in zip(targets, x)]
    mse, mc = [], []
    for row, j, level, drawn in zip(rows.tolist(), j.tolist(), t, noise):
        clips = [i for i in row if i >= 0]
        z = (x[clips] - mean) / scale                                              # (n, D)
        level = T - 1 if mask else level
        signal = model.alpha_bar[level].double()
        zt = 0 * drawn if mask else signal ** 0.5 * z[j].detach() + (1 - signal) ** 0.5 * drawn
        observed = torch.tensor([[i not in j for i in range(len(clips))]])
        z_hat = model.denoiser(zt[None].float(), z[None].float(), observed, torch.tensor([j]),
                               torch.tensor([level]))[0]
        for place, x_hat in zip(j, mean + scale * z_hat):
            i = clips[place]
            mse.append(((x_hat - x[i].detach()) ** 2).sum())
            mc.append(-targets[i] @ p_of(x_hat, model.phrases, model.tau).log())
    return {name: sum(terms) / len(terms)
            for name, terms in dict(xe=xe, mse=mse, mc=mc).items()}, P


@pytest.mark.parametrize("order, clips", [("diffusion", "steps"), ("diffusion", "clips"),
                                          ("mask", "steps")])
def test_eq7_every_step_minimizes_the_sum_of_the_terms_by_loops(here, monkeypatch, order, clips):
    """Catches: a term left out, weighted, or of other clips; a gradient cut, or not cut to 1; steps
    by another phrase than f's likeliest of now."""
    batches, steps = pretrain.Pretraining.batches, set()

    def watched(self, stage, optimizer):
        for step, batch in batches(self, stage, optimizer):
            before, same, state = *copy.deepcopy((self.model, batch)), torch.get_rng_state()
            yield step, batch
            before.standardize = self.model.standardize        # the loop updates it
            torch.set_rng_state(state)
            terms, P = terms_by_loops(before, same, 2, clips, order == "mask")
            terms["loss"] = sum(terms.values())
            terms["loss"].backward()
            assert {name: value.item() for name, value in self.terms.items()} == pytest.approx(
                {name: value.item() for name, value in terms.items()}, rel=1e-4)
            whole = sum((p.grad ** 2).sum() for p in before.parameters()) ** 0.5
            for (name, p), old in zip(self.model.named_parameters(), before.parameters()):
                expected = old.grad / max(whole, 1)
                torch.testing.assert_close(p.grad, expected, rtol=1e-3, atol=1e-6, msg=name)
                assert not p.grad.any() or not torch.equal(p, old), f"{name} does not move"
            steps.add((stage.name, P))
    monkeypatch.setattr(pretrain.Pretraining, "batches", watched)
    call("train.py", *TINY, "--order", order, "--clips", clips, "--missing", "2",
         "--sgd-epochs", "1", "--epochs", "1", "--seed", "14", "--out", "run")
    assert steps == {(stage, P) for stage in ("sgd", "adamw") for P in (1, 2)}


def test_temperatures_of_a_run(trained, here):
    """Catches: the temperature of other data, a --tau without effect; another length."""
    toy_model, coin_model = (load_model(trained / name)[0] for name in ("mask", "coin-run"))
    assert toy_model.tau == teacher.TAU
    source, texts = open_coin_features(*coin_flags()[3::2], "train")
    middles = [np.array([(step.start + step.end) / 2 for step in video.steps])
               for video in source.videos]
    x = torch.from_numpy(np.concatenate([
        source.features.embedding[source.features.nearest(video.name, middle)]
        for video, middle in zip(source.videos, middles)]))
    assert coin_model.tau == pytest.approx(estimate_tau(x, texts), rel=1e-5)
    assert coin_model.standardize(coin_model.encode(x)).square().mean() == pytest.approx(1, abs=.2)
    call("train.py", *COIN, "--tau", "0.3", "--out", "run")
    assert load_model("run")[0].tau == 0.3


def test_a_finished_run_stays_as_it_is(trained, here, capsys):
    """Catches: a finished run that is changed without a word; a folder that two runs may write."""
    shutil.copytree(trained / "mask", "mask")
    before = {path: path.read_bytes() for path in Path("mask").iterdir()}
    call("train.py", *TINY, "--order", "mask", "--out", "mask", "--resume")
    assert {path: path.read_bytes() for path in Path("mask").iterdir()} == before
    assert "finished before, 6 steps" in capsys.readouterr().out
    assert os.path.realpath("mask") in locks


def test_steps_without_a_clip(here, monkeypatch):
    """Catches: a batch in which nothing is said, or can be read; a bad video's name in no file."""
    silent, whole = grammar.make_video("train", 1).name, ToySource.pretrain_windows
    monkeypatch.setattr(ToySource, "pretrain_windows", lambda self, video, rng: np.zeros(
        (0, 2)) if self.videos[video].name == silent else whole(self, video, rng))
    broken, load = grammar.make_video("train", 0).name, ToySource.load

    def load_one(self, requests, rng):
        names = [self.videos[video].name for video, _ in requests]
        if names in ([], [broken]):
            return Loaded([], torch.empty(0), torch.empty(0), dict.fromkeys(names, "cut off"))
        return load(self, requests, rng)
    monkeypatch.setattr(ToySource, "load", load_one)
    call("train.py", "--toy-videos", "6", "--batch", "1", "--sgd-epochs", "1", "--epochs", "1",
         "--device", "cpu", "--max-unreadable", "0.2", "--out", "run")
    rows = read_rows("run")
    assert len(rows) == 2 * 4 and all(row["loss"] > 0 for row in rows)
    assert load_model("run")[2]["step"] == 2 * 6
    assert read_json("run/unreadable.json") == {broken: "cut off"}


def test_what_is_around_a_run(trained, here, monkeypatch):
    """Catches: metrics of a run killed before its first checkpoint, counted twice; no git."""
    Path("run").mkdir()
    Path("run/metrics.jsonl").write_text(json.dumps(dict.fromkeys(ROW, 1)) + '\n{"step": 4, "ep')
    monkeypatch.setenv("PATH", "")
    call("train.py", *COIN, "--out", "run")
    assert read_rows("run") == read_rows(trained / "coin-run")
    assert read_json("run/config.json")["versions"]["commit"] is None


def test_one_video_and_batches_of_one(here):
    """Catches: a division by the number of batches, a shape squeezed away."""
    call("train.py", *TINY, "--toy-videos", "1", "--batch", "1", "--out", "1")
    call("evaluate.py", "--toy-videos", "1", "--batch", "1", "--samples", "1", "--checkpoint",
         "1/checkpoint.pt", "--json", "one.json")
    assert read_json("one.json")["distinct"] == 1


def require_forecast_keys(content):
    """The forecast JSON has exactly the keys promised, in order; every number is one or null."""
    assert list(content) == HEAD + ["samples", "top1", "top5", "deviation", "distinct",
                                    "baselines", "truth", "by_class_bayes", "by_class"] + TAIL
    assert list(content["top1"]) == ["zero_noise", "expectation", "oracle", "oracle_softmax"]
    assert list(content["top5"]) == ["zero_noise", "expectation"]
    assert list(content["baselines"]) == ["random", "unigram", "clip", "bigram", "bigram_soft"]
    for part in ("top1", "top5", "baselines"):
        assert all(v is None or 0 <= v <= 100 for v in content[part].values())
    assert 1 <= content["distinct"] <= content["samples"]


def test_forecast_json_does_not_depend_on_batch_and_workers(trained, here):
    """Catches: keys renamed, NaN, noise drawn per batch, a command bound to the root."""
    flags = ("--checkpoint", str(trained / "diffusion"), "--toy-videos", "4", "--oracle", "5")
    end = subprocess.run([sys.executable, ROOT / "evaluate.py", "--task", "forecast", *flags,
                          "--device", "cpu", "--json", "a.json"], capture_output=True, text=True,
                         env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert end.returncode == 0 and "zero_noise" in end.stdout and "Traceback" not in end.stderr
    a, b = read_json("a.json"), measure(*flags, "--batch", "3", "--workers", "2")
    require_forecast_keys(a)
    assert list(a["truth"]) == ["bayes_top1", "bayes_top1_pixels", "form", "ideal_expectation",
                                "ideal_oracle", "ideal_distinct", "possible_next", "tv",
                                "tv_ideal", "tv_draws", "tv_forecasts", "expectations"]
    assert a["samples"] == 5 and a["truth"]["tv_draws"] == 200 and a["missing"] == 0
    assert a["listed"] == a["evaluated"] > 0 and a["top1"]["oracle_softmax"] is not None
    for name in ("form", "expectations", "possible_next"):
        found, same = (content["truth"].pop(name) for content in (a, b))
        for key, value in found.items():
            assert same[key] == pytest.approx(value, rel=1e-4)
    for key in a.keys() - {"seconds"}:                                 # up to rounding
        assert b[key] == (pytest.approx(a[key], rel=1e-4) if isinstance(a[key], dict) else a[key])


def test_forecast_on_coin(trained, here):
    """Catches: an invented truth; a video without features not counted; test features refused."""
    assert read_json(trained / "coin-run/missing.json") == ["unseen"]
    flags = "--checkpoint", str(trained / "coin-run")
    content = measure(*coin_flags(), *flags)
    require_forecast_keys(content)
    pairs = {name: len(entry["annotation"]) - 1
             for name, entry in read_json("coin/COIN.json")["database"].items()
             if entry["subset"] == "testing"}
    assert content["truth"] is None and content["missing"] == 1        # "gone"
    assert content["evaluated"] == sum(pairs.values()) - pairs["gone"]
    assert content["listed"] == sum(pairs.values()) and content["classes"] == 6
    assert content["baselines"]["random"] == pytest.approx(100 / 6)
    shutil.copytree("coin", "test-only")
    table = dict(np.load("coin/features.npz"))
    keep = np.char.startswith(table["video"], "t")
    np.savez("test-only/features.npz", **{key: value[keep] for key, value in table.items()})
    content = measure(*coin_flags("test-only"), *flags)
    require_forecast_keys(content)
    assert content["top1"]["zero_noise"] is not None
    assert content["top1"]["oracle_softmax"] is None and content["baselines"]["bigram"] is None


@pytest.mark.parametrize("name", ["none", "coin-run"])
def test_classify(trained, here, name):
    """Catches: classification that needs h; the teacher's row left out."""
    content = measure("--task", "classify", "--checkpoint", str(trained / name),
                      *(coin_flags() if "coin" in name else ("--toy-videos", "4")))
    assert [key for key in content if key in HEAD + TAIL] == HEAD + TAIL
    assert list(content["top1"]) == list(content["top5"]) == ["ours", "teacher"]
    assert content["top1"]["ours"] <= content["top5"]["ours"] and "samples" not in content
    if "coin" in name:                                 # the embedding is its own teacher
        assert content["top1"]["ours"] == content["top1"]["teacher"]
