"""The toy world: its grammar and truth, pictures and narrations, its teacher, its files."""
import csv
from collections import Counter, defaultdict
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import weights.checkpoint
from commands import call, fails
from data import examples_of, frame_times
from files import lists
from files.video import read_clips
from support.errors import InputError
from test_train import ONE
from toy import __main__, export, grammar, render, source, teacher
from toy.grammar import PROCEDURES, STEP_ID, STEPS, Grammar, make_video

GRAMMAR, S = Grammar(), len(STEPS)
FIRST = {second: first for first, second in grammar.LOOK_ALIKES}


def labels_of(video):
    return tuple(step.label for step in video.steps)


# --- The grammar, and the truth about it ---
def test_parts_of_a_procedure_have_their_probabilities():
    """Catches: weights that do not add up, an order counted twice, an end of the other order."""
    for options in PROCEDURES.values():
        assert sum(p for p, _ in options) == pytest.approx(1, abs=1e-9)
    assert grammar.one_of("a", grammar.block("b", "c")) == [(.5, ("a",)), (.5, ("b", "c"))]
    made = grammar.procedure("!", ("a", "b", "x", "y"), ("c", "d", "z", "w"), "-+")
    assert len(made) == 8 and dict((steps, p) for p, steps in made) == {
        ("!", first[0], second[0], first[1], second[1], end, between, last): 1 / 8
        for first, end in (("ab", "x"), ("ba", "y")) for second, last in (("cd", "z"), ("dc", "w"))
        for between in "-+"}


def test_next_step_and_chance_equal_a_search_of_all_sequences():
    """Catches: one occurrence for all, `from_start` ignored, sequences that weigh the same; 0/0; an
    order in the set, earlier steps in the last or the last two, look-alikes told apart."""
    see = {"sequence": lambda steps, start: (steps, start), "last": lambda steps, start: steps[-1:],
           "last_two": lambda steps, start: (steps[-2:], start), "alike": lambda steps, start: (
               tuple(FIRST.get(STEPS[step], STEPS[step]) for step in steps), start),
           "set": lambda steps, start: (tuple(sorted({*steps})), start),
           "set_last": lambda steps, start: (tuple(sorted({*steps})), steps[-1:], start)}
    steps = labels_of(make_video("test", 0))
    contexts = {(steps[:4], True), (steps[1:4], False), ((STEP_ID["fold dough"],), False),
                ((STEP_ID["spread butter"],), True)}
    mass = {(known, context): np.zeros(S + 1) for known in see for context in contexts}
    wanted = [(known, see[known](*context), row) for (known, context), row in mass.items()]
    for p, names in sum(PROCEDURES.values(), []):
        steps = (*map(STEP_ID.get, names), S)                      # S: the end
        for last in range(1, len(steps)):                          # the steps before it are known
            seen = {known: {key(steps[first:last], first == 0) for first in range(last)}
                    for known, key in see.items()}
            for known, same, row in wanted:
                row[steps[last]] += p * (same in seen[known])
    grammars = {known: Grammar(known) for known in see}
    for (known, (observed, from_start)), row in mass.items():
        exact = grammars[known]
        p = exact.next_step(observed, from_start)
        np.testing.assert_allclose(p, row[:S] / (row[:S].sum() or 1), atol=1e-12)
        for a in np.flatnonzero(p)[:2]:
            then = exact.next_step((*observed, a), from_start)
            both = p[a] * then[b := then.argmax()]
            assert exact.chance(observed, from_start, [a, b]) == pytest.approx(both)
    assert GRAMMAR.chance((), True, [-1]) == 0 < GRAMMAR.next_step((), True).max()


def test_the_order_of_the_steps_tells_what_follows():
    """Catches: a world in which the set of the steps, the last two or the last tell as much;
    look-alikes whose order other steps show, or decide too often."""
    exact, best, asked, stake = {name: Grammar(name) for name in grammar.KNOWN}, Counter(), 0, 0
    for p, names in sum(PROCEDURES.values(), []):
        steps = [STEP_ID[name] for name in names]
        for k in range(1, len(steps)):
            after = {name: world.next_step(steps[:k], True) for name, world in exact.items()}
            for name, q in after.items():
                best[name] += p * (q.argmax() == steps[k])
            sure, blind = (after[name][grammar.ALIKE == grammar.ALIKE[steps[k]]].sum()
                           for name in ("sequence", "alike"))
            if abs(sure - blind) > 1e-9:
                assert (sure, blind) == pytest.approx((1, .5))
                stake += p
            asked += p
    best = {name: hits / asked for name, hits in best.items()}
    assert .55 < best["sequence"] < .72 and stake / asked == pytest.approx(grammar.STAKE / 42)
    assert max(best["set"], best["set_last"], best["alike"]) < best["sequence"] - .08
    assert best["last"] < best["last_two"] < best["sequence"] - .12


def test_videos_are_drawn_with_the_probabilities_of_the_grammar():
    """Catches: a truth of another grammar than `make_video` draws from."""
    after = defaultdict(lambda: np.zeros(S))
    for i in range(10_000):
        steps = labels_of(make_video("test", i))
        for k in range(len(steps)):
            after[steps[:k]][steps[k]] += 1
    for observed, drawn in after.items():
        p, n = GRAMMAR.next_step(observed, True), drawn.sum()
        assert not drawn[p == 0].any()
        if n > 200:
            assert np.all(abs(drawn - n * p) <= 4.5 * np.sqrt(n * p * (1 - p)))


def test_an_eighth_of_the_sequences_is_in_no_training_video():
    """Catches: new sequences in training videos, or nowhere; what training can show called new."""
    trained = Grammar(training=True)
    for _, names in sum(PROCEDURES.values(), []):
        *before, last = map(STEP_ID.get, names)
        assert (trained.chance(before, True, [last]) == 0) == grammar.is_new(names)
    new = {split: np.mean([grammar.is_new([STEPS[k] for k in labels_of(make_video(split, i))])
                           for i in range(500)]) for split in grammar.SPLIT_SEEDS}
    assert new["train"] == 0 and .07 < min(new["validation"], new["test"])
    assert max(new.values()) < .18


# --- Pictures and narrations ---
def test_default_world_is_that_of_the_published_figures():
    """Catches: another draw, with which no figure can be compared, but grammar.VERSION kept."""
    video = make_video("test", 0)
    assert video.duration == 113.18 and labels_of(video) == (37, 22, 36, 7, 32, 23, 18, 16)
    frames = render.render(video)
    assert frames.dtype == np.uint8 and frames.shape == (57, 3, render.SIZE, render.SIZE)
    assert frames.sum() == pytest.approx(17_198_720, rel=1e-5)    # another draw of noise: 5e-4
    assert render.narrate(video)[2] == (9.12, 13.46, "and i'm gonna wash some pan just like that")
    assert grammar.SPLIT_SEEDS == {"train": 0, "validation": 1_000_000, "test": 2_000_000}


def test_nothing_but_the_step_itself_shows_which_step_it_is():
    """Catches: one drawing for all; a background, or a place, that depends on the step."""
    for i in range(5):
        video = make_video("validation", i)
        other = video._replace(activity=None, steps=tuple(
            step._replace(label=STEP_ID["wash pan"]) for step in video.steps))
        same = render.render(video) == render.render(other)
        assert same.mean() < .95 and same[:, :, -4:, -4:].mean() > .9   # a corner that stays empty


def test_only_a_lamp_tells_look_alikes_apart(monkeypatch):
    """Catches: a tool or color that gives a pair away; a lamp of other steps; pairs that are not
    listed; a lamp that goes with a caption of the teacher."""
    def draw(phrase):
        thing, tool, lamp = (np.array([value]) for value in render.appearance(phrase))
        return render.draw_frames(thing, tool, lamp, np.zeros(7, int), np.linspace(0, 1, 7),
                                  np.random.default_rng(0)).astype(int)

    def look(phrase):
        verb, thing = phrase.split()
        return render.OBJECTS[thing], render.TOOLS[verb]
    for first, second in grammar.LOOK_ALIKES:
        more = draw(first) - draw(second)                              # (7, 3, SIZE, SIZE)
        lamp = np.zeros_like(more)
        lamp[..., :render.LAMP_SIZE, :render.LAMP_SIZE] = render.LAMP
        assert np.array_equal(more > 0, lamp > 0) and more.min() == 0
    others = set(STEPS).difference(*grammar.LOOK_ALIKES)
    assert not any(render.appearance(step)[2] for step in others)
    assert len(set(map(look, STEPS))) == S - len(grammar.LOOK_ALIKES)

    given = []
    monkeypatch.setattr(teacher, "draw_frames", lambda *args: given.append(args))
    teacher.captioned_pictures(2000, np.random.default_rng(0))
    _, tools, lamps, *_ = given[0]
    for verb in "open", "close", "wash":
        assert 2 < np.bincount(lamps[tools == [*render.TOOLS].index(verb)] + 1, minlength=3).min()


def test_held_out_steps_are_never_named():
    """Catches: a held-out pair in the pool, a narration or a caption; a word that nothing names."""
    texts = [text for i in range(200) for _, _, text in render.narrate(make_video("train", i))]
    assert any(render.PARAPHRASE["fry egg"] in text for text in texts)
    texts += sum(teacher.captioned_pictures(800, np.random.default_rng(0))[1], [*grammar.PHRASES])
    words = [set(text.rstrip(".").split()) for text in texts]
    for pair in (set(step.split()) for step in grammar.HELD_OUT):
        assert not any(pair <= own for own in words) and pair <= set().union(*words)


# --- The source and the teacher ---
def test_clips_are_the_last_frames_taken_before():
    """Catches: a frame that is taken later, another video's clips, features of other frames."""
    known = source.load_teacher("cpu")
    toy, rng = source.ToySource("train", 3, 4), np.random.default_rng(0)
    assert (toy.absent, toy.unreadable) == ([], {})
    start = rng.uniform(0, 50, (3, 5))
    requests = [*zip((2, 0, 1), np.stack([start, start + rng.uniform(0, 20, (3, 5))], 2))]
    loaded, clips = toy.load(requests), []
    for i, windows in requests:
        frames = torch.from_numpy(render.render(make_video("train", i)))
        for time in frame_times(windows, 4).flatten():
            clips.append(frames[max(k for k in range(len(frames)) if k / render.FPS <= time)])
    assert torch.equal(loaded.clips.flatten(0, 1), torch.stack(clips))              # (60, 3, ..)
    features = known.encode_frames(torch.stack(clips)).unflatten(0, (15, 4)).mean(1)
    torch.testing.assert_close(known.watch(toy).encode_clips(loaded.views), features)
    assert len(toy.pretrain_windows(0, rng)) > 1


def test_a_forecast_is_shown_nothing_of_what_follows(monkeypatch, tmp_path):
    """With other steps after the history, a forecast is given the same clips, to the last bit, in
    memory and from a file. Catches: any picture, or draw, that depends on later steps."""
    real, known, at = grammar.make_video, source.load_teacher("cpu"), 2

    def changed(split, index):
        video = real(split, index)
        steps = [step._replace(label=(step.label + 7) % S) for step in video.steps[at:]]
        return video._replace(steps=(*video.steps[:at], *steps))

    given, pixels, f = [], [], SimpleNamespace(image=render.SIZE, frames=4, seconds=None)
    for name, make in ("as it is", real), ("changed", changed):
        monkeypatch.setattr(grammar, "make_video", make)
        toy = source.ToySource("test", 4, 4)
        examples = [e for e in examples_of("forecast", toy.videos) if e.step <= at]
        loaded = toy.load(examples)
        pixels.append(toy.pixels)
        given.append([loaded.clips, known.watch(toy).encode_clips(loaded.views)])
        export.export(tmp_path / name, 0, 4, 0)
        for example in examples[:4]:
            path = tmp_path / name / "videos" / f"{toy.videos[example.video].name}.mp4"
            given[-1].append(read_clips(path, f, example.windows))
    assert not torch.equal(*pixels)
    for one, other in zip(*given, strict=True):
        assert torch.equal(one, other)
    assert torch.equal(torch.cat(given[0][2:]), given[0][0][:32])         # the file's, and memory's


def test_the_teacher_knows_most_steps_from_single_pictures():
    """Catches: weights or a normalization of another teacher (chance: 2.5 % of the pictures)."""
    known, right = source.load_teacher("cpu"), []
    texts = torch.nn.functional.normalize(known.encode_phrases(STEPS), dim=-1)
    for i in range(10):
        video = make_video("validation", i)
        cosine = known.encode_frames(torch.from_numpy(render.render(video))) @ texts.T   # (n, S)
        times = np.arange(len(cosine)) / render.FPS
        for start, end, label in video.steps:
            right += (grammar.ALIKE[cosine[(start <= times) & (times < end)].argmax(1)] ==
                      grammar.ALIKE[label]).tolist()
    assert np.mean(right) > .6


def test_the_command_trains_a_teacher_and_writes_it(monkeypatch, tmp_path):
    """Catches: training without effect, weights lost; a file of another version."""
    model, tokenizer = teacher.train_teacher(images=64, steps=30, batch_size=32)
    monkeypatch.setattr(__main__, "train_teacher", lambda: (model, tokenizer))
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    monkeypatch.setattr(source, "TEACHER_FILE", tmp_path / "teacher.pt")
    call("toy", "teacher", "--out", tmp_path / "teacher.pt")
    loaded = source.load_teacher("cpu")
    torch.testing.assert_close(dict(loaded.model.state_dict()), dict(model.state_dict()),
                               rtol=1e-3, atol=1e-6)
    pictures, captions = teacher.captioned_pictures(64, np.random.default_rng((0, 3)))
    loaded.model.train()                               # few updates: not yet its running statistics
    cosine = loaded.encode_frames(torch.from_numpy(pictures)) @ loaded.encode_sentences(
        captions[0]).T
    assert cosine.diag().mean() > cosine.mean() + .1
    monkeypatch.setattr(grammar, "VERSION", 4)
    with pytest.raises(InputError, match="of version 3 .* needs 4; `python -m toy teacher`"):
        source.load_teacher("cpu")


# --- The world as files ---
@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """The folder of an export of three videos, and the videos."""
    out = tmp_path_factory.mktemp("export") / "world"
    call("toy", "export", "--out", out, "--train", 2, "--test", 1, "--workers", 1)
    return out, [make_video("train", 0), make_video("train", 1), make_video("test", 0)]


def test_exported_lists_are_those_of_the_world(world, capsys):
    """Catches: a column too few, another order; an export into a folder with files."""
    out, videos = world
    for video in videos:
        rows = csv.reader((out / f"captions/{video.name}.csv").read_text().splitlines())
        assert next(rows) == ["start", "end", "text"]
        assert [(float(a), float(b), text) for a, b, text in rows] == render.narrate(video)
    names = [video.name for video in videos[:2]]
    for name, lines in ("steps", STEPS), ("phrases", grammar.PHRASES), ("train", names):
        assert (out / f"{name}.txt").read_text(encoding="utf-8").splitlines() == list(lines)
    assert "not empty; choose another" in fails(capsys, "toy", "export", "--out", out)


def test_another_version_of_the_world_is_one_line(world, trained, here, monkeypatch, capsys):
    """Catches: scores, a forecast or a start of an older world, in silence."""
    monkeypatch.setattr(weights.checkpoint, "WORLD", 9)
    monkeypatch.setattr(lists, "WORLD", 9)
    run = trained / "diffusion"
    for argv in (("evaluate.py", "--checkpoint", run), ("predict.py", "--checkpoint", run),
                 ("train.py", "--init", run, *ONE, "--out", "run")):
        assert "version 3 of the toy world" in fails(capsys, *argv)
    with pytest.raises(InputError, match="version 3 of the toy world"):
        lists.load_coin(world[0] / "COIN.json")
