"""Frames and narrations of the toy world.

A step "verb object" shows the object and the verb's tool, which moves on an arc. Two look-alikes
differ only by a lamp in a corner, which no caption names. It is lit during the first and dark
during the second. All else is drawn independently of the steps.

n frames; m instances (segments of a video: one step, or background); k sprites.
"""
import tomllib
from pathlib import Path

import numpy as np

from toy import grammar

FPS = 0.5                                          # frames/s; frame i is taken at i / FPS s
SIZE = 32                                          # pixels, height and width
SPRITE, MARGIN = 12, 8                             # pixels; sprites may cross the image's edge
MEAN, STD = .4, .25                                # of pixels / 255, as the encoders expect them


# --- Sprites: a shape in two colors (0 = transparent, 1 = body, 2 = core), in two sizes ---
def shapes_at(y, x):
    """Which points each shape covers: {name: array of bool}. y, x: arrays of -1 to 1."""
    tall, wide, squared = abs(y), abs(x), y * y + x * x
    covered = {}
    covered["disc"] = squared < 1
    covered["square"] = np.maximum(tall, wide) < .85
    covered["diamond"] = tall + wide < 1.1
    covered["triangle"] = wide < (y + 1) / 2
    covered["bowl"] = (squared < 1.1) & (y > -.2)
    covered["ring"] = (squared < 1) & (squared > .3)
    covered["frame"] = (np.maximum(tall, wide) > .5) & (tall < .9)
    covered["plus"] = np.minimum(tall, wide) < .3
    covered["saltire"] = abs(tall - wide) < .3
    covered["bar"] = tall < .35
    covered["post"] = wide < .35
    covered["hourglass"] = wide < tall
    covered["stripes"] = np.sin(8 * y) > 0
    covered["tee"] = (y < -.3) | (wide < .3)
    covered["ell"] = (y > .3) | (x < -.3)
    return covered


def draw_sprites():
    """Every shape at 10 and 12 pixels: {name: (2 sizes, SPRITE, SPRITE) uint8}."""
    at = np.mgrid[:SPRITE, :SPRITE] - (SPRITE - 1) / 2
    sprites = {}
    for pixels in (10, 12):
        y, x = at / (pixels / 2)
        far = np.maximum(abs(y), abs(x))
        level = np.where(far < .45, 2, 1) * (far < 1)
        for name, covered in shapes_at(y, x).items():
            sprites.setdefault(name, []).append((covered * level).astype(np.uint8))
    return {name: np.stack(sizes) for name, sizes in sprites.items()}


BY_NAME = draw_sprites()
SHAPES, SPRITES = list(BY_NAME), np.stack(list(BY_NAME.values()))      # (15, 2, SPRITE, SPRITE)
DRAWN = tomllib.loads(Path(__file__).with_name("sprites.toml").read_text("utf-8"))
OBJECTS, TOOLS = list(DRAWN["objects"]), list(DRAWN["tools"])          # names; ids are their places
THINGS = list(DRAWN["objects"].values()) + [DRAWN["face"]]
OBJECT_SHAPE = np.array([SHAPES.index(thing["shape"]) for thing in THINGS])            # (16,)
OBJECT_COLORS = np.array([[thing["body"], thing["core"]] for thing in THINGS], np.float32)
HELD = list(DRAWN["tools"].values())
TOOL_SHAPE = np.array([SHAPES.index(tool["shape"]) for tool in HELD])                  # (20,)
TOOL_COLORS = np.array([[tool["color"], tool["color"]] for tool in HELD], np.float32)
TOOL_ARC = np.radians([[tool["start"], tool["sweep"]] for tool in HELD])               # (20, 2)
RADIUS = 8                                         # pixels, of a tool's arc
LAMP, LAMP_SIZE = 50, 6                            # gray levels added or subtracted; side in pixels
LAMPS = {}                                         # of look-alikes: 1 lit, -1 dark
for lit, dark in grammar.LOOK_ALIKES:
    LAMPS[lit], LAMPS[dark] = 1, -1

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
    """How "verb object" is drawn: (object id, tool id, lamp), where the lamp is 1 if lit, -1 if
    dark, and 0 if there is none."""
    verb, thing = phrase.split()
    return OBJECTS.index(thing), TOOLS.index(verb), LAMPS.get(phrase, 0)


def whole_pixels(corner):
    """Coordinates of sprites' corners, pixels, as int, such that no sprite leaves the margin."""
    return np.clip(np.rint(corner).astype(int) + MARGIN, 0, SIZE + 2 * MARGIN - SPRITE)


def paste(images, which, shape, size, colors, y, x):
    """Draw k sprites in place on images[which]; colors (k, 2, 3), corner y, x (k,) in pixels."""
    level = SPRITES[shape, size]                                      # (k, SPRITE, SPRITE)
    top, left = whole_pixels(y), whole_pixels(x)
    i, row, column = np.nonzero(level)
    images[which[i], top[i] + row, left[i] + column] = colors[i, level[i, row, column] - 1]


def paste_clutter(images, which, rng):
    """One random shape in two random colors, anywhere on each of images[which]."""
    k = len(which)
    colors = rng.uniform(40, 200, (k, 2, 3))
    y, x = rng.uniform(-SPRITE / 2, SIZE - SPRITE / 2, (2, k))
    shape, size = rng.integers(len(SHAPES), size=k), rng.integers(2, size=k)
    paste(images, which, shape, size, colors, y, x)


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
    gain = rng.uniform(.8, 1.1, m).astype(np.float32)
    shown = np.flatnonzero(objects >= 0)                              # instances with an object
    thing = objects[shown]
    paste(scenes, shown, OBJECT_SHAPE[thing], size[shown, 0],
          OBJECT_COLORS[thing] + tint[shown, 0], corner[shown, 0], corner[shown, 1])

    frames = scenes[instance]                                         # (n, side, side, 3)
    used = np.flatnonzero(tools[instance] >= 0)                       # frames with a tool
    at, tool = instance[used], tools[instance[used]]
    angle = TOOL_ARC[tool, 0] + TOOL_ARC[tool, 1] * progress[used]
    y, x = corner[at].T + rng.normal(0, 1, (2, n))[:, used]
    paste(frames, used, TOOL_SHAPE[tool], size[at, 1], TOOL_COLORS[tool] + tint[at, 1],
          y - RADIUS * np.sin(angle), x + RADIUS * np.cos(angle))
    paste_clutter(frames, np.flatnonzero(rng.random(n) < OCCLUDED), rng)
    lamp = slice(MARGIN, MARGIN + LAMP_SIZE)                          # of rows, and of columns
    frames[:, lamp, lamp] += LAMP * lamps[instance, None, None, None].astype(np.float32)
    frames = frames[:, MARGIN:-MARGIN, MARGIN:-MARGIN] * gain[instance, None, None, None]
    noise = rng.standard_normal(frames.shape, dtype=np.float32)
    frames += np.float32(NOISE_STD) * noise
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
PARTS = Path(__file__).with_name("sentences.txt").read_text("utf-8").strip().split("\n\n")
STEP_SENTENCES, GREETINGS, CHATTER, GOODBYES = [part.split("\n") for part in PARTS]


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
    parts = [(video.steps[0].start / 2, GREETINGS, None)]  # middle, s; sentences; phrase
    for step in video.steps:
        parts.append(((step.start + step.end) / 2, STEP_SENTENCES, grammar.STEPS[step.label]))
    parts.append(((video.steps[-1].end + video.duration) / 2, GOODBYES, None))

    sentences = []
    for middle, templates, phrase in parts:
        moved = middle + rng.uniform(-.5, .5)
        for time in (moved - length, moved):
            forms, named = templates, phrase
            if phrase and rng.random() < CHATTERED:
                forms, named = CHATTER, None
            if named is None:
                named = grammar.PHRASES[rng.integers(len(grammar.PHRASES))]
            text = say(rng.choice(forms), named, rng)
            shift = 0.0
            if rng.random() < MISALIGNED:
                shift = rng.uniform(-MAX_SHIFT, MAX_SHIFT)
            start = min(max(time + shift, 0.0), video.duration - length)
            if rng.random() >= DROPPED:
                sentences.append((round(start, 2), round(start + length, 2), text))
    return sorted(sentences)
