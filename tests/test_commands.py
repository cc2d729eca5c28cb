"""train.py and evaluate.py as a user runs them, at a tiny size, on both kinds of data.

Most runs are in this process (starting Python with torch takes seconds); a kill needs a real one.
The teacher of the embedded world is barely trained here: its scores mean nothing in this file.
"""
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import data  # noqa: E402
import pseudo_labels  # noqa: E402
from training import run  # noqa: E402
from toy import grammar  # noqa: E402
import train  # noqa: E402
from commands import (TINY, call, cannot_read, coin_flags, fails, flags_of,  # noqa: E402
                      make_coin, make_teacher)
from model import ProcedureModel, load_model  # noqa: E402
from settings import TrainSettings  # noqa: E402
from train import videos_of_step  # noqa: E402

HEAD = ["task", "data", "split", "setting", "order", "listed", "evaluated", "missing",
        "unreadable", "classes"]
TAIL = ["seed", "checkpoint", "seconds"]
ROW = ["step", "epoch", "loss", "xe", "mse", "mc", "lr", "clips_per_s"]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A working folder with the embedded world's teacher, and COIN files made up in coin/.

    One thread: on a busy machine several are much slower at this size, and a run repeated in
    another process adds in the same order.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("commands")
    make_teacher(folder)
    (folder / "coin").mkdir()
    make_coin(folder / "coin")
    yield folder
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def here(place, monkeypatch):
    """Work in that folder; leave the process's SIGTERM as it was."""
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.chdir(place)
    yield
    signal.signal(signal.SIGTERM, before)


def script(program, *argv):
    """The same in a process of its own, and what it starts in one group with it."""
    return subprocess.Popen([sys.executable, str(ROOT / program), *argv], text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
                            env={**os.environ, "OMP_NUM_THREADS": "1"})


def weights(out):
    return torch.load(Path(out) / "checkpoint.pt", weights_only=True)["model"]


def same_weights(a, b):
    a, b = weights(a), weights(b)
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


def rows(out):
    """metrics.jsonl without what a clock says."""
    found = [json.loads(line) for line in (Path(out) / "metrics.jsonl").read_text().splitlines()]
    return [{key: row[key] for key in row if key != "clips_per_s"} for row in found]


def read_json(path):
    """Strict JSON: no NaN, no Infinity."""
    return json.loads(Path(path).read_text(), parse_constant=lambda text: pytest.fail(text))


@pytest.fixture(scope="module")
def trained(place):
    """Run folders of tiny run, once: the three orders on grammar, two on coin."""
    before, handler = os.getcwd(), signal.getsignal(signal.SIGTERM)
    os.chdir(place)
    for order in ("diffusion", "mask", "none"):
        call("train.py", *TINY, "--order", order, "--out", f"runs/{order}")
    for order in ("diffusion", "mask"):
        call("train.py", *TINY, *coin_flags(), "--order", order, "--out", f"runs/coin-{order}")
    os.chdir(before)
    signal.signal(signal.SIGTERM, handler)
    return place / "runs"


# ---- training ----------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["diffusion", "mask", "none", "coin-diffusion", "coin-mask"])
def test_a_run_folder_is_complete(trained, name):
    """Catches: settings not recorded, rows renamed or NaN, a checkpoint that runs code to load."""
    out = trained / name
    assert {path.name for path in out.iterdir()} >= {"checkpoint.pt", "config.json",
                                                     "metrics.jsonl"}
    assert not list(out.glob("*.part"))
    config = read_json(out / "config.json")
    assert config["settings"]["order"] == name.removeprefix("coin-")
    assert config["settings"].keys() >= set(TrainSettings.__dataclass_fields__) - {"resume"}
    assert config["versions"]["torch"] == torch.__version__
    steps = 0
    for line in (out / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line, parse_constant=lambda text: pytest.fail(text))
        steps += 1
        assert list(row) == ROW and row["step"] == steps and row["loss"] > 0 and row["lr"] > 0
    assert bool(row["mc"]) == (name != "none") and bool(row["mse"]) == ("diffusion" in name)
    model, content = load_model(out)
    assert content["step"] == steps > 1 and (model.denoiser is None) == (name == "none")


def test_each_stage_trains_its_terms_at_its_rate(trained):
    """Catches: a joint stage of L_XE alone, a last stage with L_XE, a stage left out or in another
    order, a loss that is not the sum of its terms, a rate that is constant or another stage's."""
    given, found = TrainSettings(), rows("runs/diffusion")
    terms = (["xe"], ["xe"], ["xe", "mse", "mc"], ["mse", "mc"])
    peaks = (given.sgd_lr, given.lr, given.order_lr, given.order_lr)
    assert len(found) == 4 * 3                             # 0.75 epochs of 16 videos, 4 a step
    for i, row in enumerate(found):
        stage, step = divmod(i, 3)
        assert [name for name in ("xe", "mse", "mc") if row[name] is not None] == terms[stage]
        assert row["loss"] == pytest.approx(sum(row[name] for name in terms[stage]), rel=1e-5)
        rate = min(1, (step + 1) / (.05 * 3 + 1), (3 - step) / (.95 * 3))
        assert row["lr"] == pytest.approx(peaks[stage] * rate)


def test_temperatures_of_a_run(trained):
    """Catches: soft targets as flat as the teacher is calibrated, clips of a features file read at
    the student's temperature, the two exchanged, a --teacher-tau without effect."""
    toy_model, coin_model = (load_model(f"runs/{name}")[0] for name in ("mask", "coin-mask"))
    assert toy_model.teacher_tau == pytest.approx(train.SHARPER * train.CALIBRATED_TAU)
    assert (toy_model.tau, toy_model.clip_tau) == (TrainSettings().tau, TrainSettings().tau)
    source, texts = data.open_coin(TrainSettings(data="coin", **{
        flag[2:].replace("-", "_"): Path(value) for flag, value in
        zip(coin_flags()[2::2], coin_flags()[3::2])}), "train")
    middles = [np.array([(step.start + step.end) / 2 for step in video.steps])
               for video in source.videos]
    x = np.concatenate([source.features.embedding[source.features.nearest(video.name, middle)]
                        for video, middle in zip(source.videos, middles)])
    calibrated = pseudo_labels.estimate_tau(torch.from_numpy(x), texts)
    assert coin_model.clip_tau == pytest.approx(calibrated, rel=1e-5)
    assert coin_model.teacher_tau == pytest.approx(train.SHARPER * calibrated, rel=1e-5)
    assert coin_model.tau == TrainSettings().tau


def test_rates_rise_and_fall_within_a_stage(tmp_path):
    """Catches: a constant rate, one schedule for all stages, groups that share a rate, dropout that
    never acts (the model left in eval mode). The loss has slope 1: a step is as long as its rate.
    """
    model, used = torch.nn.Linear(1, 1).eval(), []
    model.arguments, start = {}, [p.item() for p in model.parameters()]
    optimizer = torch.optim.SGD([{"params": [p], "peak": peak} for p, peak in
                                 zip(model.parameters(), (2.0, 0.5))], lr=0.0)

    def terms_of(step, _):
        assert model.training
        used.append([p.item() for p in model.parameters()])
        return {"loss": model(torch.ones(1, 1)).sum()}, 1
    with run.Run(TrainSettings(out=tmp_path), model, torch.device("cpu"), 0, 50, 1) as going:
        going.train("match", range(10, 50), 1, optimizer, range(40), terms_of)
    used.append([p.item() for p in model.parameters()])
    share = [min(1, (i + 1) / 3, (40 - i) / 38) for i in range(40)]      # 2 of 40 steps to warm up
    for part, peak in enumerate((2.0, 0.5)):
        moved = [before[part] - after[part] for before, after in zip(used, used[1:])]
        assert used[0][part] == start[part]
        assert moved == pytest.approx([peak * value for value in share], abs=1e-4)
    assert [run.schedule(step, 100) for step in (0, 5, 50, 99)] == pytest.approx(
        [1 / 6, 1, 50 / 95, 1 / 95])


def test_a_folder_with_a_checkpoint_is_refused(trained, capsys):
    """Catches: the night's run overwritten by the same command."""
    before = (trained / "diffusion" / "checkpoint.pt").read_bytes()
    line = fails(capsys, 2, "train.py", *TINY, "--out", "runs/diffusion")
    assert "runs/diffusion" in line and "--resume" in line
    assert (trained / "diffusion" / "checkpoint.pt").read_bytes() == before


def test_resuming_a_finished_run(trained, capsys):
    """Catches: steps added to a finished run; a run resumed with settings it was not made with."""
    before = {path: path.read_bytes() for path in (trained / "mask").iterdir()}
    again = (*TINY, "--order", "mask", "--out", "runs/mask", "--resume")
    call("train.py", *again)
    line = fails(capsys, 2, "train.py", *again, "--lr", "0.5")
    assert "--lr 0.5" in line and "config.json" in line
    assert {path: path.read_bytes() for path in (trained / "mask").iterdir()} == before


def test_resuming_with_other_texts(trained, capsys):
    """Catches: a run that goes on with the old texts while the files, or the teacher, are others."""
    path = Path("coin/texts.npz")
    kept = path.read_bytes()
    with np.load(path) as texts:
        names, embeddings = texts["names"], texts["embeddings"]
    np.savez(path, names=names, embeddings=embeddings[::-1])
    try:
        line = fails(capsys, 2, "train.py", *TINY, *coin_flags(), "--order", "diffusion", "--out",
                     "runs/coin-diffusion", "--resume")
        assert "runs/coin-diffusion was trained with other phrases" in line
    finally:
        path.write_bytes(kept)


@pytest.mark.parametrize("stop", [2, -1])
def test_an_interrupted_run_goes_on_as_if_it_had_not_been(trained, stop):
    """Catches: momentum, noise, order of videos or learning rate that starts again on resuming.

    Once within the first stage and once within the last. Ctrl-C comes in the middle of a step.
    """
    stop %= len(rows("runs/diffusion"))
    out, count = f"runs/stop-{stop}", [0]

    def interrupt(optimizer, *_):
        count[0] += 1
        if count[0] > stop:
            raise KeyboardInterrupt
    hook = register_optimizer_step_pre_hook(interrupt)
    try:
        with pytest.raises(SystemExit) as end:
            call("train.py", *TINY, "--out", out)
    finally:
        hook.remove()
    assert end.value.code == 130 and load_model(out)[1]["step"] == stop
    with open(f"{out}/metrics.jsonl", "a") as file:
        file.write(json.dumps(dict.fromkeys(ROW, stop + 1)) + '\n{"step": 4, "ep')    # cut off
    call("train.py", *TINY, "--out", out, "--resume")
    assert same_weights(out, "runs/diffusion") and rows(out) == rows("runs/diffusion")


def test_killed_at_any_moment_and_resumed():
    """Catches: a checkpoint half written, `.part` files that stop the next run."""
    flags = (*TINY, *coin_flags(), *flags_of("epochs", 15))
    process = script("train.py", *flags, "--out", "runs/killed")
    while not Path("runs/killed/checkpoint.pt").exists() and process.poll() is None:
        time.sleep(0.002)
    process.kill()
    assert process.wait() == -signal.SIGKILL, process.communicate()
    killed = load_model("runs/killed")[1]["step"]
    call("train.py", *flags, "--out", "runs/killed", "--resume")
    call("train.py", *flags, "--out", "runs/whole")
    assert same_weights("runs/killed", "runs/whole") and rows("runs/killed") == rows("runs/whole")
    assert 1 <= killed < len(rows("runs/whole"))


def test_sigterm_ends_with_143():
    """Catches: a scheduler's SIGTERM that leaves a traceback, a torn checkpoint or .part files."""
    process = script("train.py", *TINY, *coin_flags(), *flags_of("epochs", 10_000),
                     "--out", "runs/term")
    while not Path("runs/term/checkpoint.pt").exists() and process.poll() is None:
        time.sleep(0.01)
    process.terminate()
    _, err = process.communicate(timeout=30)
    assert process.returncode == 143 and "Traceback" not in err
    assert load_model("runs/term")[1]["step"] >= 1 and not list(Path("runs/term").glob("*.part"))


def test_ctrl_c_reaches_the_workers_too():
    """Catches: workers that die of Ctrl-C first (a terminal sends it to all), so that the step is
    lost and a traceback shown; workers that outlive the run."""
    process = script("train.py", *TINY, *flags_of("epochs", 10_000), "--workers", "2", "--out",
                     "runs/ctrl-c")
    while not Path("runs/ctrl-c/checkpoint.pt").exists() and process.poll() is None:
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130 and "Traceback" not in err, err
    assert load_model("runs/ctrl-c")[1]["step"] >= 1
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


def test_workers_change_nothing(trained):
    """Catches: random choices that are drawn in a worker's order; a resumed run that differs."""
    call("train.py", *TINY, "--workers", "2", "--out", "runs/workers")
    assert same_weights("runs/workers", "runs/diffusion")
    assert rows("runs/workers") == rows("runs/diffusion")


def test_videos_that_cannot_be_read_are_named_and_left_out(trained, monkeypatch, capsys):
    """Catches: a step that fails for one bad file, a bad video's name in no file, a last stage that
    stumbles over a video without embeddings; a run that goes on with hardly any video left."""
    names = [grammar.make_video("train", i).name for i in videos_of_step(0, 16, 4, 0)[:3]]
    cannot_read(monkeypatch, data.ToySource, names[0])
    call("train.py", *TINY, "--max-unreadable", "0.1", "--out", "runs/broken")
    assert read_json("runs/broken/unreadable.json") == {names[0]: "cut off"}
    assert len(rows("runs/broken")) == len(rows("runs/diffusion"))
    cannot_read(monkeypatch, data.ToySource, *names[1:])
    call("train.py", *TINY, "--max-unreadable", "0.2", "--out", "runs/broken-3")
    assert read_json("runs/broken-3/unreadable.json").keys() == set(names)
    capsys.readouterr()
    with pytest.raises(SystemExit) as end:
        call("train.py", *TINY, "--out", "runs/broken-more")
    err = capsys.readouterr().err
    assert end.value.code == 2 and "Traceback" not in err
    assert "3 of 16 videos cannot be read" in err and "runs/broken-more/unreadable.json" in err


def test_the_last_stage_names_what_it_cannot_read(trained, monkeypatch):
    """Catches: a video that no step has read before, left out of the kept embeddings in silence."""
    last = [grammar.make_video("train", i).name for i in videos_of_step(3, 16, 4, 0)]
    cannot_read(monkeypatch, data.ToySource, last[0])      # not among three quarters of an epoch
    call("train.py", *TINY, "--max-unreadable", "0.1", "--out", "runs/broken-last")
    assert read_json("runs/broken-last/unreadable.json") == {last[0]: "cut off"}
    cannot_read(monkeypatch, data.ToySource, *last)
    with pytest.raises(SystemExit) as end:
        call("train.py", *TINY, "--out", "runs/broken-end")
    assert end.value.code == 2


def test_steps_without_a_clip(trained, monkeypatch):
    """Catches: a batch of videos in which nothing is said, or of which none can be read (nothing
    to concatenate)."""
    silent, whole = grammar.make_video("train", 1).name, data.ToySource.pretrain_windows
    monkeypatch.setattr(data.ToySource, "pretrain_windows", lambda self, video, rng: np.zeros(
        (0, 2)) if self.videos[video].name == silent else whole(self, video, rng))
    cannot_read(monkeypatch, data.ToySource, grammar.make_video("train", 0).name)
    call("train.py", *TINY, *flags_of("batch", 1), "--max-unreadable", "0.1", "--out",
         "runs/silent")
    found = rows("runs/silent")
    assert len(found) > 36 and all(row["loss"] > 0 for row in found)
    assert load_model("runs/silent")[1]["step"] == 4 * 12


def test_old_rows_of_a_run_without_checkpoint_are_dropped(trained):
    """Catches: metrics of a run that was killed before its first checkpoint, counted twice."""
    Path("runs/early").mkdir()
    Path("runs/early/metrics.jsonl").write_text(json.dumps(dict.fromkeys(ROW, 1)) + "\n")
    call("train.py", *TINY, *coin_flags(), "--out", "runs/early")
    assert [row["step"] for row in rows("runs/early")] == [
        row["step"] for row in rows("runs/coin-diffusion")]


@pytest.mark.parametrize("how", ["gradient", "rate"])
def test_a_loss_that_is_not_finite_ends_with_1(capsys, how):
    """Catches: hours of NaN; weights that are NaN saved over the last good checkpoint."""
    count = [0]

    def poison(optimizer, *_):
        count[0] += 1
        if count[0] == 3:
            for group in optimizer.param_groups:
                for p in group["params"]:
                    p.grad = None if p.grad is None else p.grad * float("nan")
    flags = (*TINY, *coin_flags(), *flags_of("epochs", 2), "--out", f"runs/nan-{how}")
    hook = register_optimizer_step_pre_hook(poison)
    try:
        line = fails(capsys, 1, "train.py", *flags,
                     *(("--lr", "1e30", "--order-lr", "1e30") if how == "rate" else ()))
    finally:
        hook.remove()
    assert "step" in line and "--lr" in line
    if how == "gradient":
        assert load_model(f"runs/nan-{how}")[1]["step"] == 2
        assert all(p.isfinite().all() for p in weights(f"runs/nan-{how}").values())


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_disk_ends_with_2(capsys):
    """Catches: a traceback of torch.save's, the last checkpoint lost."""
    Path("runs/full").mkdir()
    Path("runs/full/checkpoint.pt.part").symlink_to("/dev/full")
    capsys.readouterr()
    with pytest.raises(SystemExit) as end:
        call("train.py", *TINY, *coin_flags(), "--out", "runs/full")
    assert end.value.code == 2 and "train.py: error: " in capsys.readouterr().err
    assert not Path("runs/full/checkpoint.pt").exists()


def test_a_machine_without_git(monkeypatch):
    """Catches: `train.py: error: No such file or directory: 'git'`."""
    monkeypatch.setenv("PATH", "")
    call("train.py", *TINY, *coin_flags(), "--out", "runs/no-git")
    assert read_json("runs/no-git/config.json")["versions"]["commit"] is None


def test_one_video_and_batches_of_one():
    """Catches: a division by the number of batches, a shape squeezed away."""
    call("train.py", *TINY, "--toy-videos", "1", *flags_of("batch", 1), "--out", "runs/1")
    call("evaluate.py", "--toy-videos", "1", "--batch", "1", "--samples", "1", "--checkpoint",
         "runs/1/checkpoint.pt", "--json", "one.json")
    assert read_json("one.json")["distinct"] == 1


# ---- measuring ---------------------------------------------------------------------------------
def forecast_keys(content):
    """The forecast JSON has exactly the keys promised, in order; every number is one or null."""
    assert list(content) == HEAD + ["samples", "top1", "top5", "mean_class", "deviation",
                                    "distinct", "baselines", "truth", "by_class_bayes",
                                    "by_class"] + TAIL
    assert list(content["top1"]) == ["zero_noise", "expectation", "oracle", "oracle_softmax"]
    assert list(content["top5"]) == ["zero_noise", "expectation"]
    assert list(content["baselines"]) == ["random", "unigram", "clip", "bigram", "bigram_soft"]
    for part in ("top1", "top5", "baselines"):
        assert all(v is None or 0 <= v <= 100 for v in content[part].values())
    assert 1 <= content["distinct"] <= content["samples"]


def test_forecast_json_does_not_depend_on_batch_and_workers(trained):
    """Catches: keys renamed, NaN, noise drawn per batch, a command that only works from here."""
    flags = ("--checkpoint", "runs/diffusion", "--toy-videos", "4", "--oracle", "5", "--device",
             "cpu")
    process = script("evaluate.py", "--task", "forecast", *flags, "--json", "a.json")
    out, err = process.communicate()
    assert process.returncode == 0, err
    assert "zero_noise" in out and "Traceback" not in err
    call("evaluate.py", *flags, "--batch", "3", "--workers", "2", "--json", "b.json")
    a, b = read_json("a.json"), read_json("b.json")
    forecast_keys(a)
    assert list(a["truth"]) == ["bayes_top1", "bayes_top1_pixels", "ideal_oracle",
                                "ideal_distinct", "tv", "tv_ideal", "tv_draws"]
    assert a["samples"] == 5 and a["truth"]["tv_draws"] == 200 and a["missing"] == 0
    assert a["listed"] == a["evaluated"] > 0 and a["top1"]["oracle_softmax"] is not None
    for key in a.keys() - {"seconds"}:
        assert b[key] == (pytest.approx(a[key], rel=1e-4) if isinstance(a[key], dict) else a[key])


def test_noise_belongs_to_the_sample(trained, monkeypatch):
    """Catches: noise drawn per batch, one noise for all samples, --seed without effect.

    In place of h's forecast stands its noise: every sample then shows its own.
    """
    monkeypatch.setattr(ProcedureModel, "forecast", lambda self, x, observed, j, noise: noise)
    found = []
    for flags in (("--batch", "64"), ("--batch", "3"), ("--seed", "1")):
        call("evaluate.py", *coin_flags(), "--checkpoint", "runs/coin-diffusion", "--samples", "4",
             "--json", "f.json", *flags)
        content = read_json("f.json")
        found.append({key: content[key] for key in ("top1", "top5", "distinct")})
    for key in found[0]:
        assert found[1][key] == pytest.approx(found[0][key])
    assert found[0]["distinct"] > 2 and found[0] != found[2]


@pytest.mark.parametrize("order", ["diffusion", "mask"])
def test_forecast_on_coin(trained, order):
    """Catches: truth invented where there is none; a listed video without features not counted."""
    call("evaluate.py", *coin_flags(), "--checkpoint", f"runs/coin-{order}", "--json", "c.json")
    content = read_json("c.json")
    forecast_keys(content)
    database = json.loads(Path("coin/COIN.json").read_text())["database"]
    pairs = {name: len(entry["annotation"]) - 1 for name, entry in database.items()
             if entry["subset"] == "testing"}
    assert content["truth"] is None and content["missing"] == 1        # "gone"
    assert content["evaluated"] == sum(pairs.values()) - pairs["gone"]
    assert content["listed"] == sum(pairs.values()) and content["classes"] == 6
    assert content["baselines"]["random"] == pytest.approx(100 / 6)


@pytest.mark.parametrize("program, flag", [("evaluate.py", "--checkpoint"),
                                           ("train.py --stage finetune", "--init"),
                                           ("predict.py", "--checkpoint")])
def test_another_teacher_than_that_of_the_training_is_refused(trained, capsys, program, flag):
    """Catches: texts that lie elsewhere than those of the training, which costs points unseen."""
    kept = data.TEACHER_FILE.read_bytes()
    assert torch.load("runs/none/checkpoint.pt", weights_only=True)["arguments"]["witness"] == \
        grammar.PHRASES[0]
    content = torch.load(data.TEACHER_FILE, weights_only=True)
    torch.manual_seed(0)
    content["model"]["text_projection"] += 0.05 * torch.randn(64, 64)
    torch.save(content, data.TEACHER_FILE)
    try:
        videos = () if "predict" in program else ("--toy-videos", "4")
        line = fails(capsys, 2, *program.split(), flag, "runs/diffusion", *videos,
                     *("--out", "other") * ("train" in program))
        assert "runs/diffusion: was trained with another teacher" in line
    finally:
        data.TEACHER_FILE.write_bytes(kept)


@pytest.mark.parametrize("name", ["none", "coin-diffusion"])
def test_classify(trained, name):
    """Catches: classification that needs h; teacher's row left out."""
    flags = coin_flags() if "coin" in name else ("--toy-videos", "4")
    call("evaluate.py", "--task", "classify", *flags, "--checkpoint", f"runs/{name}", "--json",
         "d.json")
    content = read_json("d.json")
    assert [key for key in content if key in HEAD + TAIL] == HEAD + TAIL
    assert list(content["top1"]) == list(content["top5"]) == ["ours", "teacher"]
    assert content["top1"]["ours"] <= content["top5"]["ours"] and "samples" not in content
    if "coin" in name:                                 # the embedding is its own teacher
        assert content["top1"]["ours"] == content["top1"]["teacher"]


def test_features_of_the_test_videos_are_enough(trained):
    """Catches: `--split test` refused because nobody computed features of the training videos."""
    shutil.copytree("coin", "test-only")
    table = dict(np.load("coin/features.npz"))
    keep = np.char.startswith(table["video"], "t")
    np.savez("test-only/features.npz", **{key: value[keep] for key, value in table.items()})
    call("evaluate.py", *coin_flags("test-only"), "--checkpoint", "runs/coin-diffusion", "--json",
         "e.json")
    content = read_json("e.json")
    forecast_keys(content)
    assert content["top1"]["zero_noise"] is not None
    assert content["top1"]["oracle_softmax"] is None and content["baselines"]["bigram"] is None


@pytest.mark.parametrize("task", ["forecast", "classify"])
def test_videos_that_cannot_be_read_are_counted(trained, monkeypatch, task):
    """Catches: a video that cannot be read counted as measured or as missing, its samples' labels
    kept; the other videos' numbers changed by it."""
    flags = (*coin_flags(), "--task", task, "--checkpoint", "runs/coin-diffusion", "--json",
             "u.json")
    call("evaluate.py", *flags)
    whole = read_json("u.json")
    assert whole["unreadable"] == 0
    cannot_read(monkeypatch, data.FeatureSource, "t1")
    call("evaluate.py", *flags, "--max-unreadable", "0.25", "--batch", "2")
    content = read_json("u.json")
    entry = json.loads(Path("coin/COIN.json").read_text())["database"]["t1"]
    gone = len(entry["annotation"]) - (task == "forecast")
    assert content["unreadable"] == 1 and content["evaluated"] == whole["evaluated"] - gone
    assert (content["listed"], content["missing"]) == (whole["listed"], whole["missing"])
    database = json.loads(Path("coin/COIN.json").read_text())["database"]
    database["t1"]["annotation"] = []                            # as if it had never been listed
    Path("without.json").write_text(json.dumps({"database": database}))
    monkeypatch.undo()
    monkeypatch.chdir(trained.parent)
    call("evaluate.py", *flags, "--annotations", "without.json")
    without = read_json("u.json")
    for key in ("evaluated", "top1", "top5"):
        assert without[key] == (pytest.approx(content[key], rel=1e-4)
                                if isinstance(content[key], dict) else content[key]), key
