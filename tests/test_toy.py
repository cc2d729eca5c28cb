"""The embedded world's properties and truth; `pytest -s tests/test_toy.py` prints numbers."""
from collections import Counter, defaultdict

import numpy as np
import pytest

from data import forecast_samples, observed_steps
from toy import grammar
from toy.grammar import PROCEDURES, STEP_ID, STEPS, Grammar, make_video

GRAMMAR = Grammar()
S = len(STEPS)
ALL = [(p / len(PROCEDURES), tuple(STEP_ID[step] for step in steps))
       for options in PROCEDURES.values() for p, steps in options]
VIDEOS = [make_video("train", i) for i in range(20_000)]
TEST = [make_video("test", i) for i in range(300)]
SAMPLES = forecast_samples(TEST)
OBSERVED = [(tuple(steps), from_start) for steps, from_start in
            (observed_steps(sample, TEST[sample.video]) for sample in SAMPLES)]


def labels_of(video):
    return tuple(step.label for step in video.steps)


def test_procedures_are_distributions_of_sequences_that_share_steps():
    """Catches: weights that do not add up, an order counted twice, maybe(p) inverted."""
    procedures = defaultdict(set)
    for name, options in PROCEDURES.items():
        assert sum(p for p, _ in options) == pytest.approx(1, abs=1e-9)
        for p, steps in options:
            assert p > 0 and 5 <= len(steps) <= 9
            assert all(a != b for a, b in zip(steps, steps[1:]))
            for step in steps:
                procedures[step].add(name)
    assert S == 40 and sum(len(names) >= 2 for names in procedures.values()) >= S / 2
    options = {steps: p for p, steps in grammar.any_order("a", "b", "c")}
    assert options.pop(("a", "b", "c")) == .5
    assert list(options.values()) == pytest.approx([.1] * 5)
    assert grammar.maybe(.3, "a") == [(.7, ()), (.3, ("a",))]


def test_held_out_steps_and_those_told_apart_by_motion():
    """Catches: a held-out phrase in the pool, a word never taught; too many told by motion."""
    verbs, objects = (set(words) for words in zip(*(p.split() for p in grammar.PHRASES)))
    for step in grammar.HELD_OUT:
        verb, thing = step.split()
        assert step in STEPS and step not in grammar.PHRASES
        assert verb in verbs and thing in objects
    assert not set(grammar.OTHER_PHRASES) & set(STEPS) and len(grammar.PHRASES) == 60
    steps = sum(grammar.MOTION_ONLY, ())
    ids = {STEP_ID[step] for step in steps}
    share = (sum(p * sum(s in ids for s in sequence) for p, sequence in ALL)
             / sum(p * len(sequence) for p, sequence in ALL))
    assert len(ids) == len(steps) <= S / 5 and share <= .2


def test_difficulty():
    """Catches: a grammar with which forecasting is trivial or hopeless, a truth too sure."""
    label, last = np.array([(sample.label, steps[-1])
                            for sample, (steps, _) in zip(SAMPLES, OBSERVED)]).T
    p, follows = np.array([GRAMMAR.next_step(*observed) for observed in OBSERVED]), np.zeros((S, S))
    for weight, steps in ALL:
        for a, b in zip(steps, steps[1:]):
            follows[a, b] += weight
    own = p[np.arange(len(label)), label]
    bayes, oracle = (p.argmax(1) == label).mean(), (1 - (1 - own) ** 5).mean()
    pair = (follows.argmax(1)[last] == label).mean()
    print(f"\n{len(label)} samples: Bayes {bayes:.4f}, oracle-5 {oracle:.4f}, bigram {pair:.4f}")
    assert .55 <= bayes <= .70 and .85 <= oracle <= .95
    assert bayes - pair >= .10
    assert bayes == pytest.approx(p.max(1).mean(), abs=.04)       # 3 standard errors
    assert oracle == pytest.approx((p * (1 - (1 - p) ** 5)).sum(1).mean(), abs=.03)


def test_next_steps_equal_enumerating_all_sequences():
    """Catches: one occurrence for all, `from_start` ignored, weights by number; 0 / 0."""
    samples = sorted({*OBSERVED[:400]}) + [((), True)]
    samples += [(steps[-n:], False) for steps, _ in samples[::4] for n in (1, 2) if len(steps) > n]
    samples += [((STEP_ID["bake dough"],), False), ((STEP_ID["flip dough"],), True)]   # no next
    for observed, from_start in samples:
        n, one, two = len(observed), np.zeros(S), np.zeros((S, S))
        for p, steps in ALL:
            for i in [0] if from_start else range(1, len(steps)):
                if steps[i:i + n] == observed and i + n < len(steps):
                    one[steps[i + n]] += p
                    if i + n + 1 < len(steps):
                        two[steps[i + n], steps[i + n + 1]] += p
        for forecast, mass in ((GRAMMAR.next_step, one), (GRAMMAR.next_two_steps, two)):
            np.testing.assert_allclose(forecast(observed, from_start), mass / (mass.sum() or 1),
                                       atol=1e-12)
    assert GRAMMAR.chance((), True, [S - 1]) > 0 == GRAMMAR.chance((), True, [-1])


def test_videos_are_drawn_with_the_probabilities_of_the_grammar():
    """Catches: a truth of another grammar than `make_video` draws from."""
    expected, n = Counter(), len(VIDEOS)
    for p, steps in ALL:
        for k in range(1, len(steps) + 1):
            expected[steps[:k]] += p
    counts = Counter(labels_of(video)[:k] for video in VIDEOS
                     for k in range(1, len(video.steps) + 1))
    frequent = [prefix for prefix, p in expected.items() if n * p > 100]
    assert set(counts) <= set(expected) and len(frequent) > 80
    for prefix in frequent:
        p = expected[prefix]
        assert abs(counts[prefix] - n * p) <= 4.5 * np.sqrt(n * p * (1 - p)), prefix


def test_videos_are_deterministic_ordered_in_time_and_of_one_split():
    """Catches: a global random state, segments that overlap; splits that share seeds."""
    videos, again = ([make_video(split, i) for split in grammar.SPLIT_SEEDS for i in range(300)]
                     for _ in range(2))
    assert videos == again
    for video in videos:
        times = [0, *(t for step in video.steps for t in step[:2]), video.duration]
        assert times == sorted(times) and times[1] > 0 and video.duration > times[-2]
        options = list(PROCEDURES.values())[video.activity]
        assert tuple(STEPS[label] for label in labels_of(video)) in {s for _, s in options}
    for key in (grammar.seed_of, lambda video: video.name, lambda video: video.steps):
        assert len(set(map(key, videos))) == 900
    starts = sorted(grammar.SPLIT_SEEDS.values())
    assert len(starts) == 3 and min(np.diff(starts)) >= 1_000_000     # room for as many videos


def test_times_do_not_depend_on_the_step_nor_the_procedure():
    """Catches: a duration, gap or intro that gives the step, the procedure or the order away."""
    groups = defaultdict(lambda: defaultdict(list))         # what: of which: s, one per occurrence
    for video in VIDEOS:
        name, last = video.activity, len(video.steps) - 1
        groups["intro"][name].append(video.steps[0].start)
        groups["end"][name].append(video.duration - video.steps[-1].end)      # last gap, outro
        for i, (a, b, step) in enumerate(video.steps):
            for what, which in (("step", name), ("by step", step), ("by place", min(i, 6))):
                groups[what][which].append(b - a)
            if i < last:
                for what, which in (("gap", name), ("gap after", step),
                                    ("gap before", video.steps[i + 1].label)):
                    groups[what][which].append(video.steps[i + 1].start - b)
    assert len(groups) == 8
    everything = {what: np.concatenate([*group.values()]) for what, group in groups.items()}
    for what, group in groups.items():
        mean, std = everything[what].mean(), everything[what].std()
        assert len(group) >= 6
        assert all(abs(np.mean(s) - mean) < 4 * std / np.sqrt(len(s)) for s in group.values()), what
    intros, lengths, gaps = (everything[what] for what in ("intro", "step", "gap"))
    assert (gaps > 0).mean() == pytest.approx(grammar.GAP_SHARE, abs=.01)
    for times, (low, high) in ((lengths, grammar.STEP_SECONDS), (intros, grammar.INTRO_SECONDS),
                               (gaps[gaps > 0], grammar.GAP_SECONDS)):
        assert low - .02 <= times.min() and times.max() <= high + .02        # rounded to 0.01 s
        assert times.mean() == pytest.approx((low + high) / 2, rel=.01)
