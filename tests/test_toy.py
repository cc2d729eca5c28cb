"""The embedded world is what it claims to be: its properties, its truth and its filter.

Numbers are printed with `pytest -s tests/test_toy.py`.
"""
from collections import Counter, defaultdict

import numpy as np
import pytest

from toy import grammar
from grammar.grammar import SEQUENCES, STEP_ID, STEPS, Grammar, make_video

GRAMMAR = Grammar()
S = len(STEPS)
WINDOW = 68.0                                     # s before the end of step k, as in evaluation
ALL = [(p / len(SEQUENCES), tuple(STEP_ID[step] for step in steps))
       for options in SEQUENCES.values() for p, steps in options]
VIDEOS = [make_video("train", i) for i in range(20_000)]


def forecasts(videos):
    """One sample per pair (k, k + 1) of a video: shown (list of tuples), from_start (M,), start
    and end of the window (M,) s, last step k (M,), next step (M,), video (list)."""
    rows = []
    for video in videos:
        for k in range(len(video.steps) - 1):
            end = video.segments[k][1]
            start = max(0.0, end - WINDOW)
            seen = [i for i, (a, b) in enumerate(video.segments)
                    if min(b, end) - max(a, start) >= 1]
            rows.append((tuple(video.steps[i] for i in seen), seen[0] == 0, start, end,
                         video.steps[k], video.steps[k + 1], video))
    shown, *columns, video = zip(*rows)
    return shown, *map(np.array, columns), video


TEST = forecasts([make_video("test", i) for i in range(300)])


def truth(samples):
    """(M, S) next-step distribution of each sample."""
    return np.stack([GRAMMAR.next_step(*sample) for sample in zip(samples[0], samples[1])])


def bigram():
    """(S, S) exact share of each step among the successors of the true last step."""
    counts = np.zeros((S, S))
    for p, steps in ALL:
        for a, b in zip(steps, steps[1:]):
            counts[a, b] += p
    return counts / np.maximum(counts.sum(1, keepdims=True), 1e-12)


def check_difficulty(bayes, oracle, pair, copy):
    """The four bounds of the world, neither trivial nor hopeless."""
    assert .55 <= bayes <= .70 and .85 <= oracle <= .95
    assert bayes - pair >= .10 and copy < .15


def test_every_sequence_has_five_to_nine_steps_and_no_step_twice_in_a_row():
    """Catches: a procedure edited too short or long, an alternative that repeats its neighbour."""
    for _, steps in ALL:
        assert 5 <= len(steps) <= 9
        assert all(a != b for a, b in zip(steps, steps[1:]))


def test_probabilities_sum_to_one():
    """Catches: weights of `either` that do not add up, orders that share more or less than all."""
    for options in SEQUENCES.values():
        assert sum(p for p, _ in options) == pytest.approx(1, abs=1e-9)
        assert min(p for p, _ in options) > 0
    assert GRAMMAR.mass[GRAMMAR.depth == 1].sum() == pytest.approx(1, abs=1e-9)
    longest = defaultdict(float)
    for p, steps in ALL:
        longest[len(steps)] += p
    for k in range(2, 10):                        # what ends at k is the mass not continued
        at = GRAMMAR.depth == k
        ended = GRAMMAR.mass[at].sum() - GRAMMAR.next_mass[at].sum()
        assert ended == pytest.approx(longest[k], abs=1e-9)


def test_any_order_is_the_given_order_half_of_the_time():
    """Catches: the given order counted among the others, or the others sharing unevenly."""
    options = grammar.expand(grammar.any_order("a", "b", "c"))
    assert dict((steps, p) for p, steps in options).pop(("a", "b", "c")) == .5
    assert sorted(p for p, _ in options) == pytest.approx([.1] * 5 + [.5])


def test_there_are_forty_steps_and_half_are_in_two_or_more_procedures():
    """Catches: a step renamed in one procedure only, so that it gives the procedure away."""
    procedures = defaultdict(set)
    for name, options in SEQUENCES.items():
        for _, steps in options:
            for step in steps:
                procedures[step].add(name)
    shared = sum(len(names) >= 2 for names in procedures.values())
    print(f"\n{shared} of {S} steps are in two or more procedures")
    assert S == 40 and set(procedures) == set(STEPS) and shared >= S / 2
    assert all(len(step.split()) == 2 for step in STEPS)


def test_held_out_steps_are_composed_of_known_words_and_not_in_the_pool():
    """Catches: a held-out phrase in the pool, a word that captions never teach, the pool of
    phrases being the label set."""
    verbs, objects = (set(words) for words in zip(*(p.split() for p in grammar.PHRASES)))
    for step in grammar.HELD_OUT:
        verb, thing = step.split()
        assert step in STEPS and step not in grammar.PHRASES
        assert verb in verbs and thing in objects
    assert set(grammar.PHRASES) == set(STEPS) - set(grammar.HELD_OUT) | set(grammar.OTHER_PHRASES)
    assert not set(grammar.OTHER_PHRASES) & set(STEPS) and len(grammar.PHRASES) == 60


def test_at_most_a_fifth_of_the_steps_differ_by_motion_alone():
    """Catches: a pair added that moves the scores reported apart into the main figures."""
    steps = [step for pair in grammar.MOTION_ONLY for step in pair]
    ids = [STEP_ID[step] for step in steps]
    shown = sum(p * sum(s in ids for s in sequence) for p, sequence in ALL)
    share = shown / sum(p * len(sequence) for p, sequence in ALL)
    print(f"\nmotion only: {len(steps) / S:.3f} of the steps, {share:.3f} of the steps shown")
    assert len(set(steps)) == len(steps) <= S / 5 and share <= .2


def test_difficulty_with_all_steps_shown():
    """Catches: an edit of the grammar that makes forecasting trivial or hopeless. Exact."""
    bayes = oracle = pair = copy = total = 0.0
    follows, best = defaultdict(lambda: np.zeros(S)), bigram().argmax(1)
    for p, steps in ALL:
        for k in range(1, len(steps)):
            follows[steps[:k]][steps[k]] += p
    for prefix, mass in follows.items():
        q = mass / mass.sum()
        total += mass.sum()
        bayes += mass.max()
        oracle += (mass * (1 - (1 - q) ** 5)).sum()
        pair += mass[best[prefix[-1]]]
        copy += mass[prefix[-1]]
    scores = [value / total for value in (bayes, oracle, pair, copy)]
    print("\nall shown: Bayes {:.4f}, oracle-5 {:.4f}, bigram {:.4f}, copy {:.4f}".format(*scores))
    check_difficulty(*scores)


def test_difficulty_on_forecasting_samples():
    """Catches: windows of 68 s that hide what the forecast needs, or a truth that is too sure."""
    _, from_start, _, _, last, label, _ = TEST
    p = truth(TEST)
    own = p[np.arange(len(label)), label]
    scores = [(p.argmax(1) == label).mean(), (1 - (1 - own) ** 5).mean(),
              (bigram().argmax(1)[last] == label).mean(), (last == label).mean()]
    expected = p.max(1).mean(), (p * (1 - (1 - p) ** 5)).sum(1).mean()
    print("\n{} samples, {:.3f} from the start: Bayes {:.4f}, oracle-5 {:.4f}, bigram {:.4f}, "
          "copy {:.4f}; ".format(len(label), from_start.mean(), *scores)
          + "by the truth's own claim: Bayes {:.4f}, oracle-5 {:.4f}".format(*expected))
    check_difficulty(*scores)
    assert scores[0] == pytest.approx(expected[0], abs=.04)       # 3 standard errors
    assert scores[1] == pytest.approx(expected[1], abs=.03)


def test_next_step_equals_enumerating_all_sequences():
    """Catches: the first of several occurrences taken for all, `from_start` ignored or inverted,
    procedures weighted by their number of sequences, ended sequences counted as going on."""
    samples = sorted(set(zip(TEST[0][:400], TEST[1][:400].tolist())))
    samples += [(shown[-n:], False) for shown, _ in samples[::4] for n in (1, 2) if len(shown) > n]
    for shown, from_start in samples:
        n, mass = len(shown), np.zeros(S)
        for p, steps in ALL:
            places = [0] if from_start else range(1, len(steps))
            for i in places:
                if steps[i:i + n] == shown and i + n < len(steps):
                    mass[steps[i + n]] += p
        np.testing.assert_allclose(GRAMMAR.next_step(shown, from_start), mass / mass.sum(),
                                   atol=1e-12)
    first = Counter()
    for p, steps in ALL:
        first[steps[0]] += p
    np.testing.assert_allclose(GRAMMAR.next_step((), True), [first[s] for s in range(S)],
                               atol=1e-12)                        # nothing seen yet


def test_next_two_steps_equal_enumerating_all_sequences():
    """Catches: pairs that are not one after another, a sequence that ends after one step counted,
    first and second exchanged."""
    samples = sorted(set(zip(TEST[0][:200], TEST[1][:200].tolist())))
    for shown, from_start in samples:
        n, mass = len(shown), np.zeros((S, S))
        for p, steps in ALL:
            for i in [0] if from_start else range(1, len(steps)):
                if steps[i:i + n] == shown and i + n + 1 < len(steps):
                    mass[steps[i + n], steps[i + n + 1]] += p
        if mass.sum() == 0:
            with pytest.raises(ValueError, match="no procedure shows"):
                GRAMMAR.next_two_steps(shown, from_start)
            continue
        np.testing.assert_allclose(GRAMMAR.next_two_steps(shown, from_start), mass / mass.sum(),
                                   atol=1e-12)


def test_next_step_agrees_with_counts_over_sampled_videos():
    """Catches: a truth of another grammar than the one `make_video` draws from."""
    counts = defaultdict(lambda: np.zeros(S))
    for video in VIDEOS:
        for k in range(1, len(video.steps)):
            counts[video.steps[:k], True][video.steps[k]] += 1
            for n in range(1, min(3, k)):
                counts[video.steps[k - n:k], False][video.steps[k]] += 1
    keys = sorted(counts, key=lambda key: -counts[key].sum())
    frequent = [key for key in keys if key[1]][:40] + [key for key in keys if not key[1]][:40]
    for shown, from_start in frequent:
        seen = counts[shown, from_start]
        n, p = seen.sum(), GRAMMAR.next_step(shown, from_start)
        assert n > 300
        assert (np.abs(seen - n * p) <= 4.5 * np.sqrt(n * p * (1 - p)) + 1e-9).all()


def test_next_step_refuses_what_cannot_be():
    """Catches: 0 / 0 as NaN for an impossible history, or for one that is always the last."""
    with pytest.raises(ValueError, match="no procedure shows"):
        GRAMMAR.next_step([STEP_ID["bake dough"]], False)         # ends every pizza
    with pytest.raises(ValueError, match="no procedure shows"):
        GRAMMAR.next_step([STEP_ID["flip dough"]], True)          # never the first


def clips(samples):
    """What a perfect encoder sees at the middle of each of 8 clips: (M, 8, S), and (M,) s."""
    _, _, start, end, _, _, videos = samples
    length = (end - start) / 8
    likelihood = np.full((len(start), 8, S), 1e-4)                # background is 1
    for m, video in enumerate(videos):
        for i in range(8):
            middle = start[m] + (i + .5) * length[m]
            for step, (a, b) in zip(video.steps, video.segments):
                if a <= middle < b:
                    likelihood[m, i, step] = 1e4
    return likelihood, length


def test_filter_fed_with_the_truth_is_the_truth():
    """Catches: clips in reverse, background not let through, short steps that stop the
    filter. Not exact: a clip may miss a short step."""
    pick = np.random.default_rng(0).choice(len(TEST[1]), 300, replace=False)
    samples = tuple([column[i] for i in pick] if isinstance(column, tuple) else column[pick]
                    for column in TEST)
    likelihood, seconds = clips(samples)
    q = GRAMMAR.next_step_from_clips(likelihood, samples[1], seconds)
    p = truth(samples)
    np.testing.assert_allclose(q.sum(1), 1, atol=1e-9)
    agree, distance = (q.argmax(1) == p.argmax(1)).mean(), np.abs(p - q).sum(1).mean() / 2
    print(f"\nfilter on true clips: top-1 agrees {agree:.4f}, mean total variation {distance:.4f}")
    assert agree > .95 and distance < .1


def test_filter_treats_the_rows_of_a_batch_apart():
    """Catches: one `from_start` or clip length applied to the whole batch, rows mixed up."""
    rng = np.random.default_rng(0)
    likelihood = rng.uniform(.2, 2, (6, 8, S))
    from_start, seconds = np.array([True, False] * 3), rng.uniform(2, 8.5, 6)
    together = GRAMMAR.next_step_from_clips(likelihood, from_start, seconds)
    for i in range(6):
        one = slice(i, i + 1)
        alone = GRAMMAR.next_step_from_clips(likelihood[one], from_start[one], seconds[one])
        np.testing.assert_allclose(alone[0], together[i], atol=1e-9)


def test_filter_fed_with_nothing_knows_only_how_far_a_video_may_be():
    """Catches: prefixes counted by number instead of mass, mass lost or made by moving on, a first
    clip that cannot show the first step.

    One clip: the share of each step among all steps that follow another (from the start: among the
    second steps). Eight clips: the same share per number of steps done k, weighted by the chance
    of k after seven moves.
    """
    from_start, seconds = np.array([False]), np.array([8.5])
    q1, q8 = (GRAMMAR.next_step_from_clips(np.ones((1, n, S)), from_start, seconds)[0]
              for n in (1, 8))
    follow = np.zeros((10, S))                                    # [k, s]: step s after k others
    for p, steps in ALL:
        for k in range(1, len(steps)):
            follow[k, steps[k]] += p
    unigram = follow.sum(0) / follow.sum()
    np.testing.assert_allclose(q1, unigram, atol=1e-7)
    first = GRAMMAR.next_step_from_clips(np.ones((1, 1, S)), ~from_start, seconds)[0]
    np.testing.assert_allclose(first, follow[1] / follow[1].sum(), atol=1e-7)

    stay, share = np.exp(-8.5 / np.mean(grammar.STEP_SECONDS)), grammar.GAP_SHARE
    rest = np.exp(-8.5 / np.mean(grammar.GAP_SECONDS))
    on, off = [np.r_[0, np.full(9, weight)] for weight in (1 - share, share)]    # (10,) k = 0..9
    for _ in range(7):
        go = (1 - stay) * (1 - share) * on + (1 - rest) * off     # leaves k for k + 1
        on, off = stay * on, (1 - stay) * share * on + rest * off
        on[2:] += go[1:-1]
    expected = on @ follow
    np.testing.assert_allclose(q8, expected / expected.sum(), atol=1e-7)
    print(f"\neight empty clips: {np.abs(q8 - unigram).sum() / 2:.4f} in total variation off the "
          "unigram")


def test_make_video_is_deterministic_and_in_time_order():
    """Catches: a global random state, segments that overlap, a step beyond the end."""
    for i in range(50):
        video = make_video("test", i)
        assert video == make_video("test", i)
        times = [0, *(t for segment in video.segments for t in segment), video.duration]
        assert times == sorted(times) and len(video.segments) == len(video.steps)
        names = tuple(STEPS[s] for s in video.steps)
        assert names in {steps for _, steps in SEQUENCES[video.procedure]}
        assert times[1] > 0 and video.duration > times[-2]


def test_splits_are_disjoint():
    """Catches: two splits sharing seeds (test videos trained on), one script drawn for all."""
    splits = {name: [make_video(name, i) for i in range(300)] for name in grammar.SPLIT_SEEDS}
    assert set(splits) == {"train", "validation", "test"}
    for key in ("seed", "name", "segments"):
        values = {getattr(video, key) for videos in splits.values() for video in videos}
        assert len(values) == 900
    starts = sorted(grammar.SPLIT_SEEDS.values())
    assert min(np.diff(starts)) >= 1_000_000                      # room for as many videos


def within(groups, sigmas=4):
    """Is the mean of each group within so many standard errors of the mean of all?"""
    everything = np.concatenate(list(groups.values()))
    return all(abs(np.mean(g) - everything.mean()) < sigmas * everything.std() / np.sqrt(len(g))
               for g in groups.values())


def test_times_do_not_depend_on_the_step_nor_the_procedure():
    """Catches: a duration, gap or intro that gives the step, the procedure or the order away."""
    groups = [defaultdict(list) for _ in range(8)]
    for video in VIDEOS:
        name = video.procedure
        groups[0][name].append(video.segments[0][0])                             # intro
        groups[1][name].append(video.duration - video.segments[-1][1])           # last gap, outro
        for i, (step, (a, b)) in enumerate(zip(video.steps, video.segments)):
            groups[2][name].append(b - a)
            groups[3][step].append(b - a)
            groups[4][min(i, 6)].append(b - a)
            if i + 1 < len(video.steps):
                gap = video.segments[i + 1][0] - b
                groups[5][name].append(gap)
                groups[6][step].append(gap)                                      # before the next
                groups[7][video.steps[i + 1]].append(gap)
    assert all(len(group) >= 6 and within(group) for group in groups)
    lengths = np.concatenate(list(groups[2].values()))
    gaps = np.concatenate(list(groups[5].values()))
    intros = np.concatenate(list(groups[0].values()))
    assert (gaps > 0).mean() == pytest.approx(grammar.GAP_SHARE, abs=.01)
    for times, (low, high) in ((lengths, grammar.STEP_SECONDS), (gaps[gaps > 0], grammar.GAP_SECONDS),
                               (intros, grammar.INTRO_SECONDS)):
        assert low - .02 <= times.min() and times.max() <= high + .02        # rounded to 0.01 s
        assert times.mean() == pytest.approx((low + high) / 2, rel=.01)


def test_procedures_are_equally_likely():
    """Catches: procedures drawn by their number of sequences, which the truth does not assume."""
    counts = np.array(list(Counter(video.procedure for video in VIDEOS).values()))
    n = len(VIDEOS)
    assert len(counts) == 6
    assert np.abs(counts - n / 6).max() < 4 * np.sqrt(n * 5 / 36)
