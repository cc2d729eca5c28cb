"""What is seen and heard of the embedded world, and its teacher."""
import dataclasses
import functools
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from open_clip import ClipLoss

from commands import call, flip
from data import HISTORY, PIECES, sentence_windows
from support.command import BadInput
from toy import grammar, render, source, teacher
from toy.render import appearance, narrate

VIDEOS = [grammar.make_video("validation", i) for i in range(120)]


def draw(phrase, progress, seed=0):
    """Frames of one instance of a step, with the nuisance of a seed."""
    thing, tool, backwards = (np.array([value]) for value in appearance(phrase))
    same = np.zeros(len(progress), int)
    return render.draw_frames(thing, tool, backwards, same, np.array(progress),
                              np.random.default_rng(seed))


def test_frames_are_deterministic_and_their_nuisance_does_not_depend_on_the_steps():
    """Catches: a global random state, another frame rate, one drawing for all, a telling scene."""
    for video, next_video in zip(VIDEOS[:10], VIDEOS[1:]):
        other = dataclasses.replace(video, activity=None, steps=tuple(
            step._replace(label=grammar.STEP_ID["wash pan"]) for step in video.steps))
        a, again, b, c = map(render.render, (video, video, other, next_video))
        assert a.dtype == np.uint8 and np.array_equal(a, again)
        assert a.shape == (int(np.ceil(video.duration * render.FPS)), 3, 32, 32)
        assert not np.array_equal(a[:5], c[:5])
        times = (np.arange(len(a)) + .5) / render.FPS
        in_step = np.any([(s <= times) & (times < e) for s, e, _ in video.steps], 0)
        assert np.array_equal(a[~in_step], b[~in_step])
        corner = np.s_[:, :, :4, :4]                # tools and objects seldom reach into it
        assert (a[corner] == b[corner]).mean() > .9


def test_only_motion_tells_the_declared_pairs_apart():
    """Catches: a tool or color that gives a pair away in one frame; pairs that are not listed."""
    progress = np.linspace(0, 1, 7)
    for pair in grammar.MOTION_ONLY:
        assert np.array_equal(draw(pair[0], progress), draw(pair[1], 1 - progress))
        assert not np.array_equal(draw(pair[0], progress), draw(pair[1], progress))
    assert len({appearance(step)[:2] for step in grammar.STEPS}) == (
        len(grammar.STEPS) - len(grammar.MOTION_ONLY))


def test_captions_are_noisy_and_held_out_steps_are_never_named():
    """Catches: a held-out pair that is named; captions that name the step always or never."""
    texts = [text for video in VIDEOS for _, _, text in narrate(video)]
    texts += teacher.captioned_pictures(4000, np.random.default_rng(0))[1]
    for verb, thing in map(str.split, grammar.HELD_OUT):
        assert not any(verb in text.split() and thing in text.rstrip(".").split() for text in texts)
    assert any(render.PARAPHRASE["fry egg"] in text for text in texts)
    rng = np.random.default_rng(0)
    exact = np.mean(["cut tomato" in teacher.caption("cut", "tomato", rng) for _ in range(2000)])
    assert abs(exact - (1 - teacher.WRONG_WORD - teacher.DROPPED_WORD)) < .05


def test_narrated_windows_lie_as_far_apart_as_the_pieces_of_a_history():
    """Catches: a narrator so slow that h is trained on other spacings than it forecasts with."""
    rng, spacing = np.random.default_rng(0), []
    for i in range(100):
        video = grammar.make_video("train", i)
        windows = sentence_windows(narrate(video), video.duration, rng)
        spacing += [*np.diff(windows.mean(1))]
    assert np.mean(spacing) == pytest.approx(HISTORY / PIECES, abs=.3)


def test_teacher_learns_from_pictures_and_captions():
    """Catches: a tower without gradient, a caption cut off, a configuration that does not fit."""
    pictures, texts = teacher.captioned_pictures(64, np.random.default_rng((0, 3)))
    pictures = (torch.from_numpy(pictures) / 255 - render.MEAN) / render.STD
    before, losses = torch.random.get_rng_state(), []
    for steps in (4, 30):
        model, tokenizer = teacher.train_teacher(images=64, steps=steps, batch_size=32)
        assert torch.equal(before, torch.random.get_rng_state())
        with torch.no_grad():
            x = model.train().encode_image(pictures, normalize=True)  # as in training
            y = model.encode_text(tokenizer(texts), normalize=True)
            losses.append(ClipLoss()(x, y, model.logit_scale.exp()).item())
    assert losses[1] < losses[0]
    again, _ = teacher.build_teacher()
    assert torch.equal(again.token_embedding.weight, model.token_embedding.weight)
    assert again.token_embedding.weight.std() == pytest.approx(.02, rel=.01)
    tokens = tokenizer(["a photo of a person performing spread butter."])
    assert tokens.shape == (1, 12) and model.encode_text(tokens).shape == (1, 64)
    assert tokens[0].max() == tokens[0][(tokens[0] != 0).nonzero().max()]     # ends with <end>


def test_digest_is_that_of_the_constants(monkeypatch):
    """Catches: one that depends on files, and so changes with a comment."""
    before = teacher.digest()
    monkeypatch.setattr("builtins.open", None)
    monkeypatch.setattr(Path, "read_bytes", None)
    assert teacher.digest() == before


@pytest.mark.parametrize("module, name, value", [
    (grammar, "PROCEDURES", {}), (grammar, "HELD_OUT", ()), (grammar, "GAP_SHARE", .13),
    (render, "SPRITES", 1 - render.SPRITES), (render, "SIZE", 33), (teacher, "TOKEN_SEED", (0, 5)),
    (teacher, "TEACHER_CONFIG", {}), (teacher, "TEACHER_LR", .1), (teacher, "VERSION", 2)])
def test_the_teacher_of_another_world_is_refused(monkeypatch, module, name, value):
    """Catches: a world that was changed, and not its teacher."""
    monkeypatch.setattr(module, name, value)
    with pytest.raises(BadInput, match="of another version .* `python -m toy teacher` makes it"):
        source.load_teacher("cpu")


def test_the_teacher_that_comes_with_the_code_knows_most_steps():
    """Catches: a file of other weights: in 20 videos 65 % of frames and 80 % of steps are right."""
    known = source.load_teacher("cpu")
    texts, frames_right, steps_right = known.encode_phrases(grammar.STEPS), [], []
    texts = torch.nn.functional.normalize(texts, dim=-1)
    for video in VIDEOS[:20]:
        cosine = known.encode_frames(torch.from_numpy(render.render(video))) @ texts.T     # (n, S)
        times = (np.arange(len(cosine)) + .5) / render.FPS
        for start, end, label in video.steps:
            of_step = cosine[(start <= times) & (times < end)]
            frames_right += (of_step.argmax(1) == label).tolist()
            steps_right.append(of_step.mean(0).argmax() == label)
    assert np.mean(frames_right) > .6 and np.mean(steps_right) > .75


@pytest.fixture
def copy(tmp_path, monkeypatch):
    """A copy of the teacher's file, in its place."""
    path = tmp_path / "teacher.safetensors"
    shutil.copy(source.TEACHER_FILE, path)
    monkeypatch.setattr(source, "TEACHER_FILE", path)
    return path


@pytest.mark.parametrize("fault", [
    *(functools.partial(flip, position=position) for position in (-1, 100_000, 0, 8)), Path.unlink,
    lambda path: path.write_bytes(b""), lambda path: path.write_bytes(path.read_bytes()[:-200])])
def test_a_file_that_is_not_whole_is_refused(copy, fault):
    """Catches: weights that are not the teacher's, used without a word."""
    fault(copy)
    with pytest.raises(BadInput, match=f"{copy.name}: missing, damaged, or .*toy teacher`"):
        source.load_teacher("cpu")


def test_the_command_makes_a_file_that_loads(copy, monkeypatch, capsys):
    """Catches: a file that depends on threads or the torch seed, or is refused; weights lost."""
    quick, made = functools.partial(teacher.train_teacher, 64, 2, 16), []
    monkeypatch.setattr(teacher, "train_teacher", lambda: made.append(quick()) or made[-1])
    for out in (copy, copy.with_name("again.safetensors")):
        torch.set_num_threads(2)
        torch.rand(1)
        call("toy", "teacher", "--out", str(out))
        assert torch.get_num_threads() == 1 and str(out) in capsys.readouterr().out
    assert copy.read_bytes() == out.read_bytes() and copy.stat().st_size < 3e6
    ours, loaded = made[0][0].state_dict(), source.load_teacher("cpu").model.state_dict()
    assert ours.keys() == loaded.keys()
    for name, value in ours.items():
        torch.testing.assert_close(loaded[name], value, rtol=1e-3, atol=1e-6)
