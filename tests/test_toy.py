"""The toy world: its grammar and truth, pictures and narrations, its teacher."""
import itertools
import zlib
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from commands import call, fails

from data import NarratedVideos, forecast_examples
from files.video import find_videos, read_clips
from losses import match
from support.read import load_phrases
from toy import __main__, grammar, render, source, teacher
from toy.grammar import PROCEDURES, STEP_ID, STEPS, Grammar, make_video

S, SEQUENCES = len(STEPS), sum(PROCEDURES.values(), [])


# --- The grammar, and the truth about it ---
def slow_next(shown, from_start, see, training=False):
    """P(next step) (S,) after the labels shown, by a search of all sequences, or those of training.
    see(steps): what is known of them, such as their set."""
    mass = np.zeros(S)
    for p, names in SEQUENCES:
        steps = [*map(STEP_ID.get, names)]
        for k in range(0 if training and grammar.is_new(names) else len(steps)):
            firsts = [0] if from_start else range(1, k + 1)
            if any(see(steps[first:k]) == see(shown) for first in firsts):
                mass[steps[k]] += p
    return mass / (mass.sum() or 1)


def test_next_steps_equal_a_search_of_all_sequences():
    """Catches: one occurrence for all, `from_start` ignored, sequences that weigh the same; 0/0; an
    order in the set; the end of a video as a step; a sum of chances for their product."""
    steps, exact = [step.label for step in make_video("test", 0).steps], Grammar()
    for shown, start in ((steps[:4], True), (steps[1:4], False), ([], True), (steps[3:4], True)):
        for name, see in ("sequence", list), ("set", set):
            np.testing.assert_allclose(Grammar(name).next_step(shown, start),
                                       slow_next(shown, start, see), atol=1e-12)
        p = exact.next_step(shown, start)
        for a in np.flatnonzero(p)[:2]:
            then = slow_next([*shown, a], start, list)
            chance = exact.chance(shown, start, [a, then.argmax()])
            assert chance == pytest.approx(p[a] * then.max())
    assert exact.chance((), True, [-1]) == 0


# --- Pictures and narrations ---
def test_default_world_is_that_of_the_published_figures():
    """Catches: another draw, with which no figure can be compared, but VERSION kept."""
    videos = [make_video(split, i) for split in grammar.SPLIT_SEEDS for i in range(200)]
    captions = teacher.captioned_pictures(200, np.random.default_rng(0))[1]
    for content, known in (
            (SEQUENCES, 143778450), (videos, 1266880321), (captions, 3670911905),
            ([*map(render.narrate, videos)], 4171115133),
            ([*map(render.appearance, STEPS)], 1498763386)):
        assert zlib.crc32(repr(content).encode()) == known, content[:2]
    frames = np.concatenate([*map(render.render, videos[::200])])
    assert frames.dtype == np.uint8 and frames.shape[1:] == (3, render.SIZE, render.SIZE)
    assert frames.sum() == pytest.approx(51_396_527, rel=1e-5)    # another draw of noise: 5e-4


def test_sentences_of_wikihow_stand_for_the_phrases_of_the_pool():
    """Catches: a sentence without its phrase; one that the teacher reads as another; a pool that
    names a held-out step or a lamp, or has a sentence that the teacher was trained with."""
    path = teacher.HOWTO_FILE.with_name("wikihow.txt")
    known, pool = teacher.HOWTO_FILE.read_text("utf-8").splitlines(), load_phrases(path)
    assert len(pool) == len(grammar.PHRASES) and not {*known} & {*pool}
    for sentence, phrase in zip(pool, grammar.PHRASES):
        words = set(sentence.lower().rstrip(".").split())
        assert words >= set(phrase.split()) and not words & {"lamp", "light", "lit", "dark"}
        assert not any(words >= set(step.split()) for step in grammar.HELD_OUT), sentence
    clip = source.load_teacher("cpu")
    texts, phrases = clip.encode_phrases(pool), clip.encode_phrases(grammar.PHRASES)
    likeliest = match(texts, phrases, 1.0).argmax(-1)
    assert (likeliest == torch.arange(len(pool))).float().mean() > .9


def test_held_out_steps_are_never_named():
    """Catches: a held-out pair in the pool, a narration or a caption; a word that nothing names."""
    texts = [text for i in range(200) for _, _, text in render.narrate(make_video("train", i))]
    assert any(render.PARAPHRASE["fry egg"] in text for text in texts)
    texts += sum(teacher.captioned_pictures(800, np.random.default_rng(0))[1], [*grammar.PHRASES])
    words = [set(text.rstrip(".").split()) for text in texts]
    for pair in (set(step.split()) for step in grammar.HELD_OUT):
        assert not any(pair <= own for own in words) and pair <= set().union(*words)


# --- The source and the teacher ---
def test_a_forecast_is_shown_nothing_of_what_follows(monkeypatch, tmp_path):
    """With other steps after the history, it is given the same clips, in memory and from a file.
    Catches: a picture or draw that depends on later steps; features of other frames."""
    real, known, at = grammar.make_video, source.load_teacher("cpu"), 2
    f = SimpleNamespace(image=render.SIZE, frames=4, seconds=None)

    def changed(split, index):
        video = real(split, index)
        steps = [step._replace(label=(step.label + 7) % S) for step in video.steps[at:]]
        return video._replace(steps=(*video.steps[:at], *steps))

    def given():
        toy, paths = source.Toy.of("test", range(2), 4, known), find_videos(tmp_path)
        examples = [e for e in forecast_examples(toy.videos, 11.0) if e.step <= at]
        clips, seen = map(torch.cat, zip(*(toy.clips(e.video, e.windows) for e in examples)))
        read = [read_clips(paths[toy.videos[e.video].name], f, e.windows) for e in examples]
        assert torch.equal(clips, torch.cat(read))
        torch.testing.assert_close(seen, known.encode_clips(clips))
        return toy.frames, clips, seen
    __main__.export(tmp_path, 0, 2)
    one = given()
    monkeypatch.setattr(grammar, "make_video", changed)
    other = given()
    assert not torch.equal(one[0], other[0])
    assert torch.equal(one[1], other[1]) and torch.equal(one[2], other[2])


def test_frames_that_no_narrated_clip_shows_are_not_drawn():
    """Catches: a frame of a clip that is not drawn; another one in its place; features of another
    frame; frames drawn that no clip can show."""
    known = source.load_teacher("cpu")
    whole = source.Toy.of("train", range(5), 4, known)
    part = source.Toy.of("train", range(5), 4, known, narrated=True)
    assert len(part.frames) < 0.95 * len(whole.frames)
    for stride, epoch, i in itertools.product((1, 2, 3), range(3), range(5)):
        reads = [NarratedVideos(toy, 0, stride)[epoch, i, 0] for toy in (whole, part)]
        assert torch.equal(reads[0].clips, reads[1].clips)
        torch.testing.assert_close(reads[0].seen, reads[1].seen)


def test_the_command_trains_a_teacher_and_writes_it(monkeypatch, tmp_path):
    """Catches: training without effect, weights lost."""
    for name, value in (("IMAGES", 64), ("UPDATES", 30), ("BATCH", 32),
                        ("TEACHER_FILE", tmp_path / "teacher.pt")):
        monkeypatch.setattr(teacher, name, value)
    monkeypatch.setattr(source, "TEACHER_FILE", tmp_path / "teacher.pt")
    call("toy", "teacher")
    known = source.load_teacher("cpu")
    known.model.train()                                # few updates: not yet its running statistics
    pictures, captions = teacher.captioned_pictures(64, np.random.default_rng((0, 3)))
    cosine = known.encode_frames(torch.from_numpy(pictures)) @ known.encode_sentences(captions[0]).T
    assert cosine.diag().mean() > cosine.mean() + .05


def test_another_version_of_the_world_is_one_line(trained, here, capsys):
    """Catches: scores, a forecast or a start of an older world, in silence."""
    content = torch.load(trained / "diffusion" / "checkpoint.pt", weights_only=True)
    content["settings"]["world"] = 3
    torch.save(content, "old.pt")
    few = "--toy-videos", "9"
    for argv in (("evaluate.py", *few, "--checkpoint"), ("predict.py", "--checkpoint"),
                 ("train.py", *few, "--init"),
                 ("train.py", "--stage", "finetune", "--task", "activity", *few, "--init")):
        assert "was trained in version 3 of the" in fails(capsys, *argv, "old.pt")
