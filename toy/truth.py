"""What the toy world knows, beside what a model answers: `truth` of its data.Source.

M examples, S steps. p: probabilities (M, S). Where no label names look-alikes, the two of a pair
count as one.
"""
import numpy as np
import torch

from data import Example
from support.metrics import share_of
from toy import grammar


def observed_steps(example, video):
    """What a forecast may know: labels of the steps that are seen for 1 s or more; whether the
    video's first step is among them."""
    begin, labels = example.windows[0, 0], []
    for step in video.steps[:example.step]:
        if step.end - begin >= 1:
            labels.append(step.label)
    return labels, video.steps[0].end - begin >= 1


def twins():
    """The id of each step's look-alike, or its own id if it has none: (S,) int64."""
    twin = torch.arange(len(grammar.STEPS))
    for pair in grammar.LOOK_ALIKES:
        a, b = grammar.STEP_ID[pair[0]], grammar.STEP_ID[pair[1]]
        twin[a], twin[b] = b, a
    return twin


class Truth:
    """The truth of a toy.source.Toy."""
    steps = grammar.STEPS                              # names of the S steps
    as_one = torch.from_numpy(grammar.AS_ONE)          # (S,) id of a step, or of its pair's first

    def __init__(self, source):
        self.source = source

    # --- Forecasts ---
    def known(self, examples):
        """`observed_steps` of each example."""
        videos = self.source.videos
        return [observed_steps(example, videos[example.video]) for example in examples]

    def next_steps(self, examples):
        """The exact distribution of the next step, from the sequence of the steps shown ("exact")
        and from their set: {name: p (M, S)}."""
        by_sequence, by_set = grammar.Grammar(), grammar.Grammar("set")
        exact, of_set = [], []
        for labels, from_start in self.known(examples):
            exact.append(by_sequence.next_step(labels, from_start))
            of_set.append(by_set.next_step(labels, from_start))
        return {"exact": torch.from_numpy(np.array(exact)),
                "set": torch.from_numpy(np.array(of_set))}

    def is_new(self, examples):
        """Which forecasts have a history and a next step that no training video shows: (M,)
        bool."""
        trained = grammar.Grammar(training=True)
        new = []
        for (labels, from_start), example in zip(self.known(examples), examples):
            new.append(trained.chance(labels, from_start, [example.label]) == 0)
        return torch.tensor(new)

    def by_place(self, right, examples):
        """{k: `share_of` the forecasts after k steps of a video}. right: {name: (M,) bool}."""
        place = torch.tensor([example.step for example in examples])
        found = {}
        for k in place.unique().tolist():
            found[k] = share_of(right, place == k)
        return found

    # --- Steps to recognize, or to forecast ---
    def parts(self, labels):
        """Which examples are of a step that no phrase of the pool names ("held_out"), of one of two
        look-alikes, or of any other step ("distinct"): {name: (M,) bool} of labels (M,)."""
        held_out = torch.tensor([grammar.STEP_ID[step] for step in grammar.HELD_OUT])
        look_alikes = twins()[labels] != labels
        return {"held_out": torch.isin(labels, held_out), "look_alikes": look_alikes,
                "distinct": ~look_alikes}

    def told_apart(self, p, labels):
        """Whether a look-alike's own name is likelier than the other of its pair: (M,) bool of p
        (M, S). A video shows both: a constant answer is right half the time. False for others."""
        rows = torch.arange(len(labels))
        return p[rows, labels] > p[rows, twins()[labels]]

    # --- One video, for predict.py ---
    def place_to_stop(self, left):
        """The end, s, of a random step of the first video, such that `left` steps remain."""
        video = self.source.videos[0]
        rng = np.random.default_rng(grammar.number_of(video))
        return video.steps[rng.integers(max(len(video.steps) - left, 1))].end

    def step_at(self, video, time):
        """The name of the step that a video shows at a time, s; None if it shows none."""
        for step in video.steps:
            if step.start <= time < step.end:
                return self.steps[step.label]
        return None

    def of_forecast(self, windows, futures, joined=None):
        """What is true of the first video: the step of each window or None, the exact "next" step
        and share of each of the futures, if the video goes on, and what "follows" in it.

        joined: {name: the name that it shares with its look-alike}, if they count as one.
        """
        joined = joined or {}
        called = [joined.get(step, step) for step in self.steps]               # (S,) of each step
        exact, video = grammar.Grammar(), self.source.videos[0]
        shown = []
        for middle in windows.mean(1):
            step = self.step_at(video, middle)
            shown.append(joined.get(step, step))
        begun = sum(step.start <= windows[-1, 1] - 1 for step in video.steps)
        before, from_start = observed_steps(Example(0, windows, -1, begun), video)
        p = exact.next_step(before, from_start)
        chances, ids_of = {}, {}                           # by name
        for k, name in enumerate(called):
            chances[name] = chances.get(name, 0.0) + float(p[k])
            ids_of.setdefault(name, []).append(k)
        following = []
        for name in sorted(chances, key=chances.get, reverse=True):    # equals stay in their order
            if chances[name] > 0:
                following.append({"step": name, "p": chances[name]})
        exact_futures = []
        for future in futures:
            meant = [ids_of.get(step, [-1]) for step in future["steps"]]
            exact_futures.append(future | {"share": exact.share(before, from_start, meant)})
        return {"clips": shown, "next": following, "futures": exact_futures,
                "follows": [called[step.label] for step in video.steps[begun:]]}
