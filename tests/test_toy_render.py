"""What is seen and heard of the embedded world, and its teacher."""
import dataclasses

import numpy as np
import pytest
import torch

from toy import grammar
from toy import render
from toy.render import draw_frames, look, narrate, render

VIDEOS = [grammar.make_video("validation", i) for i in range(120)]


def draw(phrase, progress, seed=0):
    """Frames of one instance of a step, with the nuisance of a seed."""
    thing, tool, backwards = (np.array([value]) for value in look(phrase))
    rng = np.random.default_rng(seed)
    same = np.zeros(len(progress), int)
    return draw_frames(thing, tool, backwards, same, np.array(progress), rng)


def test_frames_are_deterministic_uint8_and_one_per_two_seconds():
    """Catches: a global random state, a float image, a frame rate that disagrees with FPS."""
    for video in VIDEOS[:5]:
        frames = render(video)
        n = int(np.ceil(video.duration * render.FPS))
        assert frames.dtype == np.uint8 and frames.shape == (n, 3, 32, 32)
        assert np.array_equal(frames, render(video))
    assert not np.array_equal(render(VIDEOS[0])[:5], render(VIDEOS[1])[:5])


def test_nuisance_does_not_depend_on_the_steps():
    """Catches: background or clutter drawn from the procedure (a video's steps replaced, all else
    kept: background frames and most pixels of the step frames must stay as they were)."""
    for video in VIDEOS[:10]:
        other = dataclasses.replace(video, procedure="none", steps=tuple(
            grammar.STEP_ID["wash pan"] for _ in video.steps))
        a, b = render(video), render(other)
        times = (np.arange(len(a)) + .5) / render.FPS
        shown = np.any([(s <= times) & (times < e) for s, e in video.segments], 0)
        assert np.array_equal(a[~shown], b[~shown])
        corner = np.s_[:, :, :4, :4]                     # no tool nor object reaches into it often
        assert (a[corner] == b[corner]).mean() > .9


@pytest.mark.parametrize("pair", grammar.MOTION_ONLY)
def test_motion_only_pairs_are_the_same_frames_in_reverse(pair):
    """Catches: a tool, colour or arc that gives the second of a pair away in a single frame."""
    progress = np.linspace(0, 1, 7)
    assert np.array_equal(draw(pair[0], progress), draw(pair[1], 1 - progress))
    assert not np.array_equal(draw(pair[0], progress), draw(pair[1], progress))


def test_only_the_declared_pairs_look_alike():
    """Catches: two steps that share object and tool without being listed as motion-only."""
    looks = {}
    for step in grammar.STEPS:
        looks.setdefault(look(step)[:2], []).append(step)
    alike = {frozenset(steps) for steps in looks.values() if len(steps) > 1}
    assert alike == {frozenset(pair) for pair in grammar.MOTION_ONLY}


def test_nearest_mean_of_pixels_sees_the_object():
    """Catches: sprites hidden by clutter or noise. 30 pictures per step; chance 1 / 14."""
    def pictures(seed):
        drawn = [np.concatenate([draw(step, [.5], seed + i) for i in range(30)])
                 for step in grammar.STEPS]
        return np.stack(drawn)[:, :, :, 8:24, 8:24].astype(np.float32)     # (S, 30, 3, 16, 16)
    def centred(x):
        return (x - x.mean((-1, -2), keepdims=True)).reshape(*x.shape[:2], -1)
    means = centred(pictures(0)).mean(1)                                   # (S, pixels)
    test = centred(pictures(1000))                                         # (S, 30, pixels)
    distance = ((test[:, :, None] - means) ** 2).sum(-1)                   # (S, 30, S)
    things = np.array([look(step)[0] for step in grammar.STEPS])
    assert (things[distance.argmin(-1)] == things[:, None]).mean() > .3


def test_narration_is_lower_case_and_inside_the_video():
    """Catches: spans beyond the end after a shift, punctuation, sentences too long or short."""
    for video in VIDEOS:
        heard = narrate(video)
        assert heard == narrate(video)
        assert heard == sorted(heard)
        for start, end, text in heard:
            assert 0 <= start < end <= video.duration + .01
            assert text == text.lower() and not set(text) & set(".,!?;:")
            assert 4 <= len(text.split()) <= 14


def said_share(videos):
    """Share of the sentences inside a step that name it, and sentences per second."""
    named = [all(word in text.split() for word in grammar.STEPS[s].split())
             for video in videos for s, (a, b) in zip(video.steps, video.segments)
             if grammar.STEPS[s] not in grammar.HELD_OUT
             for start, end, text in narrate(video) if a <= (start + end) / 2 < b]
    spoken = sum(len(narrate(video)) for video in videos)
    return np.mean(named), spoken / sum(video.duration for video in videos)


def test_shares_of_missing_and_misaligned_sentences(monkeypatch):
    """Catches: a share applied twice or not at all."""
    noisy, rate = said_share(VIDEOS)
    monkeypatch.setattr(render, "MISALIGNED", 0.0)
    aligned, _ = said_share(VIDEOS)
    monkeypatch.setattr(render, "MISSING", 0.0)
    _, full_rate = said_share(VIDEOS)
    assert .03 < aligned - noisy < .20
    assert .12 < 1 - rate / full_rate < .18
    assert 1 / 6 < full_rate < 1 / 4                     # about one sentence per 5 s


def test_held_out_steps_are_never_named():
    """Catches: a held-out pair in a narration or a caption: no longer unseen."""
    texts = [text for video in VIDEOS for _, _, text in narrate(video)]
    texts += render.captioned_pictures(4000, np.random.default_rng(0))[1]
    for phrase in grammar.HELD_OUT:
        verb, thing = phrase.split()
        assert not any(verb in text.split() and thing in text.rstrip(".").split() for text in texts)
    assert any(render.PARAPHRASE["fry egg"] in text for text in texts)


def test_captioned_pictures_are_compositional_and_noisy():
    """Catches: captions that name the step exactly, always or never."""
    rng = np.random.default_rng(0)
    texts = [render.caption("cut", "tomato", rng) for _ in range(2000)]
    exact = np.mean(["cut tomato" in text for text in texts])
    assert abs(exact - (1 - render.WRONG_WORD - render.DROPPED_WORD)) < .05


def teacher_loss(model, tokenizer):
    """Contrastive loss, nats, on the 64 pictures of seed 0; batch statistics, as in training."""
    from open_clip import ClipLoss

    pictures, texts = render.captioned_pictures(64, np.random.default_rng((0, 3)))
    with torch.no_grad():
        x = (torch.from_numpy(pictures) / 255 - render.MEAN) / render.STD
        x, y = model.train().encode_image(x, normalize=True), model.encode_text(tokenizer(texts))
        y = torch.nn.functional.normalize(y, dim=1)
        return ClipLoss()(x, y, model.logit_scale.exp()).item()


def test_teacher_learns_from_pictures_and_captions():
    """Catches: a tower without gradient, a caption cut off, a changed random state outside."""
    before = torch.random.get_rng_state()
    short, tokenizer = render.train_teacher(progress=False, images=64, steps=4, batch_size=32)
    long, _ = render.train_teacher(progress=False, images=64, steps=30, batch_size=32)
    assert torch.equal(before, torch.random.get_rng_state())
    assert teacher_loss(long, tokenizer) < teacher_loss(short, tokenizer)
    tokens = tokenizer(["a photo of a person performing spread butter."])
    assert tokens.shape == (1, 12) and long.encode_text(tokens).shape == (1, 64)
    assert tokens[0].max() == tokens[0][(tokens[0] != 0).nonzero().max()]     # ends with <end>


def test_teacher_is_rebuilt_from_its_weights():
    """Catches: a configuration that lacks something which training had added."""
    model, _ = render.train_teacher(progress=False, images=32, steps=1, batch_size=16)
    again, _ = render.build_teacher()
    again.load_state_dict(model.state_dict())
    picture = torch.zeros(2, 3, 32, 32)
    assert torch.equal(again.eval().encode_image(picture), model.encode_image(picture))
