"""Frames and narrations of the toy world.

A step "verb object" shows the object and the verb's tool, which moves on an arc. Two look-alikes
differ only by a lamp in a corner, which no caption names. It is lit during the first and dark
during the second. All else is drawn independently of the steps.

n frames; m instances (segments of a video: one step, or background); k sprites.
"""
from pathlib import Path

import numpy as np

from toy import grammar

FPS = 0.5                                          # frames/s; frame i is taken at i / FPS s
SIZE = 32                                          # pixels, height and width
SPRITE, MARGIN = 12, 8                             # pixels; sprites may cross the image's edge
MEAN, STD = .4, .25                                # of pixels / 255, as the encoders expect them


# --- Sprites: a shape in two colors (0 = transparent, 1 = body, 2 = core), in two sizes ---
SHAPES = {                                         # of y, x in -1..1
    "disc": lambda y, x: y * y + x * x < 1,
    "square": lambda y, x: np.maximum(abs(y), abs(x)) < .85,
    "diamond": lambda y, x: abs(y) + abs(x) < 1.1,
    "triangle": lambda y, x: abs(x) < (y + 1) / 2,
    "bowl": lambda y, x: (y * y + x * x < 1.1) & (y > -.2),
    "ring": lambda y, x: (y * y + x * x < 1) & (y * y + x * x > .3),
    "frame": lambda y, x: (np.maximum(abs(y), abs(x)) > .5) & (abs(y) < .9),
    "plus": lambda y, x: np.minimum(abs(y), abs(x)) < .3,
    "saltire": lambda y, x: abs(abs(y) - abs(x)) < .3,
    "bar": lambda y, x: abs(y) < .35, "post": lambda y, x: abs(x) < .35,
    "hourglass": lambda y, x: abs(x) < abs(y), "stripes": lambda y, x: np.sin(8 * y) > 0,
    "tee": lambda y, x: (y < -.3) | (abs(x) < .3), "ell": lambda y, x: (y > .3) | (x < -.3),
}

OBJECTS = {                                        # shape, body color, core color
    "bread": ("square", (150, 90, 40), (240, 205, 150)),
    "butter": ("square", (250, 230, 60), (255, 245, 150)),
    "cheese": ("triangle", (250, 165, 20), (220, 120, 10)),
    "dough": ("disc", (240, 200, 175), (225, 170, 140)),
    "egg": ("disc", (250, 250, 245), (250, 170, 10)),
    "jar": ("frame", (40, 220, 230), (40, 220, 230)),
    "milk": ("bowl", (110, 130, 250), (255, 255, 255)),
    "oil": ("bowl", (130, 140, 10), (190, 200, 40)),
    "onion": ("diamond", (170, 40, 170), (230, 160, 230)),
    "oven": ("square", (80, 80, 105), (250, 120, 40)),
    "pan": ("disc", (30, 30, 40), (90, 90, 100)),
    "potato": ("disc", (130, 110, 90), (200, 160, 60)),
    "salt": ("hourglass", (255, 255, 255), (190, 190, 200)),
    "soup": ("bowl", (20, 130, 40), (110, 220, 90)),
    "tomato": ("disc", (225, 20, 20), (250, 90, 80)),
}
FACE = ("disc", (225, 180, 150), (120, 60, 50))
OPEN, HEAT = ("plus", (240, 70, 190), -45, 180), ("ring", (250, 130, 180), 120, -60)
START = ("triangle", (190, 250, 200), 10, 40)
TOOLS = {                                          # shape, color, arc's start and sweep, degrees
    "add": ("tee", (60, 190, 90), 80, 20), "bake": ("stripes", (220, 60, 60), -90, 30),
    "close": OPEN, "cool": HEAT, "crack": ("hourglass", (90, 220, 220), 60, 30),
    "cut": ("bar", (210, 210, 225), -10, 40), "flip": ("ell", (170, 110, 250), 135, 180),
    "fold": ("saltire", (250, 250, 90), -30, -30), "fry": ("stripes", (250, 150, 40), -120, 30),
    "grate": ("post", (180, 190, 200), 30, 20), "heat": HEAT,
    "melt": ("plus", (250, 110, 40), -70, 30), "open": OPEN,
    "peel": ("ell", (110, 220, 60), 150, 30), "pour": ("post", (70, 120, 250), 120, -30),
    "spread": ("bar", (150, 100, 220), 180, 30), "start": START,
    "stir": ("post", (160, 100, 50), 45, 90), "stop": START,
    "wash": ("saltire", (40, 160, 240), -150, 30),
}


def draw_sprites():
    """(shapes, 2 sizes, SPRITE, SPRITE) uint8: every shape at 10 and 12 pixels."""
    sprites = np.zeros((len(SHAPES), 2, SPRITE, SPRITE), np.uint8)
    for i, inside in enumerate(SHAPES.values()):
        for j, pixels in enumerate((10, 12)):
            y, x = (np.mgrid[:SPRITE, :SPRITE] - (SPRITE - 1) / 2) / (pixels / 2)
            far = np.maximum(abs(y), abs(x))
            sprites[i, j] = (inside(y, x) & (far < 1)) * (1 + (far < .45))
    return sprites


SPRITES = draw_sprites()
OBJECT_SHAPE = np.array([list(SHAPES).index(row[0]) for row in (*OBJECTS.values(), FACE)])
OBJECT_COLORS = np.array([row[1:] for row in (*OBJECTS.values(), FACE)], np.float32)   # (16, 2, 3)
TOOL_SHAPE = np.array([list(SHAPES).index(row[0]) for row in TOOLS.values()])
TOOL_COLORS = np.array([(row[1], row[1]) for row in TOOLS.values()], np.float32)       # (20, 2, 3)
TOOL_ARC = np.radians([row[2:] for row in TOOLS.values()])                             # (20, 2)
RADIUS = 8                                         # pixels, of a tool's arc
LAMP, LAMP_SIZE = 30, 6                            # gray levels added or subtracted; side in pixels
LAMPS = {step: lamp for pair in grammar.LOOK_ALIKES for step, lamp in zip(pair, (1, -1))}

# Shapes per scene, share of frames with one more in front, pixels, deviation of colors and pixels.
CLUTTER, OCCLUDED, SHIFT, COLOR_STD, NOISE_STD = 3, .5, 2.0, 10.0, 20.0
BACKGROUND_OBJECT, BACKGROUND_FACE = .35, .25      # shares of the background segments


def count_frames(video):
    """How many frames a video has."""
    return int(np.ceil(video.duration * FPS))


def last_taken(times, n):
    """Which of a video's n frames is the last one taken at or before each of the times (s): int."""
    return np.floor(times * FPS).astype(int).clip(0, n - 1)


def appearance(phrase):
    """How "verb object" is drawn: two ids, (object, tool, lamp); lamp 1 lit, -1 dark, 0 none."""
    verb, thing = phrase.split()
    return list(OBJECTS).index(thing), list(TOOLS).index(verb), LAMPS.get(phrase, 0)


def paste(images, which, shape, size, colors, y, x):
    """Draw k sprites in place on images[which]; colors (k, 2, 3), corner y, x (k,) in pixels."""
    level = SPRITES[shape, size]                                      # (k, SPRITE, SPRITE)
    y, x = (np.clip(np.rint(a).astype(int) + MARGIN, 0, SIZE + 2 * MARGIN - SPRITE) for a in (y, x))
    i, row, column = np.nonzero(level)
    images[which[i], y[i] + row, x[i] + column] = colors[i, level[i, row, column] - 1]


def paste_clutter(images, which, rng):
    """One random shape in two random colors, anywhere on each of images[which]."""
    k = len(which)
    colors = rng.uniform(40, 200, (k, 2, 3))
    y, x = rng.uniform(-SPRITE / 2, SIZE - SPRITE / 2, (2, k))
    paste(images, which, rng.integers(len(SHAPES), size=k), rng.integers(2, size=k), colors, y, x)


def draw_frames(objects, tools, lamps, instance, progress, rng):
    """Frames of m instances: (n, 3, SIZE, SIZE) uint8.

    objects, tools: (m,) int. Ids, -1 for none; object len(OBJECTS) is a face.
    lamps:          (m,) int. 1 lit, -1 dark, 0 none.
    instance:       (n,) int in 0..m-1. Which instance each frame shows.
    progress:       (n,) float in 0..1. Time since the start of its step / length of the step.
    """
    m, n, side = len(objects), len(instance), SIZE + 2 * MARGIN
    scenes = np.empty((m, side, side, 3), np.float32)
    scenes[:] = rng.uniform(60, 120, (m, 1, 1, 1)) + rng.normal(0, 15, (m, 1, 1, 3))
    for _ in range(CLUTTER):
        paste_clutter(scenes, np.arange(m), rng)
    corner = SIZE / 2 + rng.uniform(-SHIFT, SHIFT, (m, 2)) - SPRITE / 2    # top left, of a sprite
    size, tint = rng.integers(2, size=(m, 2)), rng.normal(0, COLOR_STD, (m, 2, 1, 3))
    gain = rng.uniform(.8, 1.1, m)
    visible = np.flatnonzero(objects >= 0)
    thing = objects[visible]
    paste(scenes, visible, OBJECT_SHAPE[thing], size[visible, 0],
          OBJECT_COLORS[thing] + tint[visible, 0], *corner[visible].T)

    frames = scenes[instance]                                         # (n, side, side, 3)
    visible = np.flatnonzero(tools[instance] >= 0)
    at, tool = instance[visible], tools[instance[visible]]
    angle = TOOL_ARC[tool, 0] + TOOL_ARC[tool, 1] * progress[visible]
    y, x = corner[at].T + rng.normal(0, 1, (2, n))[:, visible]
    paste(frames, visible, TOOL_SHAPE[tool], size[at, 1], TOOL_COLORS[tool] + tint[at, 1],
          y - RADIUS * np.sin(angle), x + RADIUS * np.cos(angle))
    paste_clutter(frames, np.flatnonzero(rng.random(n) < OCCLUDED), rng)
    lamp = slice(MARGIN, MARGIN + LAMP_SIZE)                          # of rows, and of columns
    frames[:, lamp, lamp] += LAMP * lamps[instance, None, None, None]
    frames = frames[:, MARGIN:-MARGIN, MARGIN:-MARGIN] * gain[instance, None, None, None]
    frames += NOISE_STD * rng.standard_normal(frames.shape, dtype=np.float32)
    return np.clip(frames, 0, 255, out=frames).astype(np.uint8).transpose(0, 3, 1, 2)


def render(video):
    """All frames of a video: (n, 3, SIZE, SIZE) uint8."""
    rng = np.random.default_rng((grammar.seed_of(video), 1))
    times = np.arange(count_frames(video)) / FPS                      # (n,)  s
    # Instances 0, 2, 4, .. are background (some of length 0); 1, 3, 5, .. are steps.
    edges = np.array([step[:2] for step in video.steps]).reshape(-1)  # (2 steps,)  s
    instance = np.searchsorted(edges, times, side="right")            # (n,)
    m = len(edges) + 1
    extra = rng.random(m)
    objects = np.where(extra < BACKGROUND_OBJECT, rng.integers(len(OBJECTS), size=m), -1)
    objects[extra > 1 - BACKGROUND_FACE] = len(OBJECTS)
    tools, lamps = np.full(m, -1), np.zeros(m, int)
    steps = [appearance(grammar.STEPS[step.label]) for step in video.steps]
    objects[1::2], tools[1::2], lamps[1::2] = np.array(steps).T
    bounds = np.concatenate([[0], edges, [video.duration + 1]])
    progress = (times - bounds[instance]) / np.diff(bounds)[instance]
    return draw_frames(objects, tools, lamps, instance, progress, rng)


# --- Narration, as a speech recognizer transcribes it ---
# Every step is told twice, so that every second sentence (data.py) gives one clip of each step.
SENTENCE_SECONDS = 3.5                             # of each sentence
DROPPED, MISALIGNED, CHATTERED = .05, .2, .15      # shares of the sentences
MAX_SHIFT = 6.0                                    # s, of a misaligned sentence
PARAPHRASE = {                                     # of the held-out steps, never named directly
    "add onion": "throw in the chopped onion", "bake bread": "put the bread in the oven",
    "cut cheese": "slice up the cheese", "cut potato": "chop the potato up",
    "fry egg": "cook the egg in the hot pan"}
# What is said of a step, at the beginning, of nothing shown, and at the end; {} is a phrase.
STEP_SENTENCES, GREETINGS, CHATTER, GOODBYES = (
    part.split("\n") for part in Path(__file__).with_name("sentences.txt").read_text(
        "utf-8").strip().split("\n\n"))


def say(template, phrase, rng):
    """A sentence that names a phrase with an article, or by its paraphrase if it is held out."""
    verb, thing = phrase.split()
    article = rng.choice(("the", "some", "our", "this"))
    return str(template).format(PARAPHRASE.get(phrase, f"{verb} {article} {thing}"))


def narrate(video):
    """Noisy narration of a video: [(start s, end s, text), ...], by start. A greeting, every step
    and a goodbye have two sentences each of 14 to 21 words, one before and one after the middle. A
    share CHATTERED of them, and greetings and goodbyes, name no phrase or a random one."""
    rng, length = np.random.default_rng((grammar.seed_of(video), 2)), SENTENCE_SECONDS
    first, last, sentences = video.steps[0], video.steps[-1], []
    parts = [(first.start / 2, GREETINGS, None),
             *(((step.start + step.end) / 2, STEP_SENTENCES, grammar.STEPS[step.label])
               for step in video.steps),
             ((last.end + video.duration) / 2, GOODBYES, None)]
    for middle, templates, phrase in parts:
        middle += rng.uniform(-.5, .5)
        for time in (middle - length, middle):
            forms, named = templates, phrase
            if phrase and rng.random() < CHATTERED:
                forms, named = CHATTER, None
            named = named or grammar.PHRASES[rng.integers(len(grammar.PHRASES))]
            text = say(rng.choice(forms), named, rng)
            shift = rng.uniform(-MAX_SHIFT, MAX_SHIFT) if rng.random() < MISALIGNED else 0.0
            start = min(max(time + shift, 0.0), video.duration - length)
            if rng.random() >= DROPPED:
                sentences.append((round(start, 2), round(start + length, 2), text))
    return sorted(sentences)
