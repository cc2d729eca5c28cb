"""What the embedded world looks and sounds like: frames, narrations, and a tiny teacher.

    word           here            meaning
    step           "verb object"   an object's sprite, and a tool's, which moves on an arc
    instance       Instance        a stretch of a video: one step, or one stretch of background
    nuisance       -               background, clutter, occluders, position, size, brightness, noise
    teacher        train_teacher   the image-language model of Sec. 3.2, a small open_clip.CLIP
    n frames, m instances, H = W = 32 pixels, uint8 0-255.

Position, clutter and colours stay the same within an instance; the tool, occluders and pixel noise
are new in every frame. All nuisance is drawn independently of the procedure and of the step.
"""
import math

import numpy as np

from toy import grammar

FPS = 0.5                                          # frames/s; frame i is taken at (i + 0.5) / FPS s
SIZE = 32                                          # pixels, height and width
SPRITE, MARGIN = 12, 8                             # pixels; sprites may reach over the image's edge

# ------------------------------------------------------------------------------------------------
# Sprites: a shape in two colours (0 = transparent, 1 = body, 2 = core), in two sizes.
# ------------------------------------------------------------------------------------------------
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
    "bar": lambda y, x: abs(y) < .35,
    "post": lambda y, x: abs(x) < .35,
    "hourglass": lambda y, x: abs(x) < abs(y),
    "stripes": lambda y, x: np.sin(8 * y) > 0,
    "tee": lambda y, x: (y < -.3) | (abs(x) < .3),
    "ell": lambda y, x: (y > .3) | (x < -.3),
}
SHAPE_ID = {name: i for i, name in enumerate(SHAPES)}

OBJECTS = {                                        # shape, body colour, core colour
    "bread": ("square", (150, 90, 40), (240, 205, 150)),
    "butter": ("square", (250, 230, 60), (255, 245, 150)),
    "cheese": ("triangle", (250, 165, 20), (220, 120, 10)),
    "dough": ("disc", (240, 200, 175), (225, 170, 140)),
    "egg": ("disc", (250, 250, 245), (250, 170, 10)),
    "jar": ("frame", (40, 220, 230), (40, 220, 230)),
    "milk": ("bowl", (110, 130, 250), (255, 255, 255)),
    "oil": ("bowl", (130, 140, 10), (190, 200, 40)),
    "onion": ("diamond", (170, 40, 170), (230, 160, 230)),
    "pan": ("disc", (30, 30, 40), (90, 90, 100)),
    "potato": ("disc", (130, 110, 90), (200, 160, 60)),
    "salt": ("hourglass", (255, 255, 255), (190, 190, 200)),
    "soup": ("bowl", (20, 130, 40), (110, 220, 90)),
    "tomato": ("disc", (225, 20, 20), (250, 90, 80)),
}
FACE = ("disc", (225, 180, 150), (120, 60, 50))
TOOLS = {                                          # shape, colour, arc's start and sweep, degrees
    "add": ("tee", (60, 190, 90), 80, 20),
    "bake": ("stripes", (220, 60, 60), -90, 30),
    "close": ("ring", (250, 130, 180), 120, -60),
    "crack": ("hourglass", (90, 220, 220), 60, 30),
    "cut": ("bar", (210, 210, 225), -10, 40),
    "flip": ("ell", (170, 110, 250), 135, 180),
    "fold": ("saltire", (250, 250, 90), -30, -30),
    "fry": ("stripes", (250, 150, 40), -120, 30),
    "grate": ("post", (180, 190, 200), 30, 20),
    "melt": ("plus", (250, 110, 40), -70, 30),
    "open": ("plus", (240, 70, 190), -45, 180),
    "peel": ("ell", (110, 220, 60), 150, 30),
    "pour": ("post", (70, 120, 250), 120, -30),
    "spread": ("bar", (150, 100, 220), 180, 30),
    "stir": ("post", (160, 100, 50), 45, 90),
    "wash": ("saltire", (40, 160, 240), -150, 30),
}
OBJECT_ID, TOOL_ID = ({name: i for i, name in enumerate(table)} for table in (OBJECTS, TOOLS))


def draw_sprites():
    """(shapes, 2 sizes, SPRITE, SPRITE) uint8: every shape at 10 and 12 pixels."""
    sprites = np.zeros((len(SHAPES), 2, SPRITE, SPRITE), np.uint8)
    for i, inside in enumerate(SHAPES.values()):
        for j, pixels in enumerate((10, 12)):
            y, x = (np.mgrid[:SPRITE, :SPRITE] - (SPRITE - 1) / 2) / (pixels / 2)
            box = np.maximum(abs(y), abs(x)) < 1
            core = np.maximum(abs(y), abs(x)) < .45
            sprites[i, j] = (inside(y, x) & box) * (1 + core)
    return sprites


SPRITES = draw_sprites()
OBJECT_SHAPE = np.array([SHAPE_ID[row[0]] for row in (*OBJECTS.values(), FACE)])
OBJECT_COLOURS = np.array([row[1:] for row in (*OBJECTS.values(), FACE)], np.float32)  # (15, 2, 3)
TOOL_SHAPE = np.array([SHAPE_ID[row[0]] for row in TOOLS.values()])
TOOL_COLOURS = np.array([(row[1], row[1]) for row in TOOLS.values()], np.float32)      # (16, 2, 3)
TOOL_ARC = np.radians([row[2:] for row in TOOLS.values()])                             # (16, 2)

RADIUS = 8                                         # pixels, of a tool's arc

# Nuisance: shapes per scene, share of the frames with another in front, pixels, and the spread of
# colours and of each pixel (0-255). It makes a single frame hard, and four frames less so.
CLUTTER, OCCLUDED, SHIFT, COLOUR_STD, NOISE_STD = 3, .5, 2.0, 10.0, 20.0
BACKGROUND_OBJECT, BACKGROUND_FACE = .35, .25      # shares of the background stretches


def look(phrase):
    """How "verb object" is shown: (object, tool, backwards), two ids and a bool.

    The second of a motion-only pair has the tool of the first and runs its arc backwards.
    """
    for first, second in grammar.MOTION_ONLY:
        if phrase == second:
            return *look(first)[:2], True
    verb, thing = phrase.split()
    return OBJECT_ID[thing], TOOL_ID[verb], False


def paste(images, which, shape, size, colours, y, x):
    """Draw k sprites in place on images[which]; colours (k, 2, 3), corner y, x (k,) in pixels."""
    level = SPRITES[shape, size]                                      # (k, SPRITE, SPRITE)
    y, x = (np.clip(np.rint(a).astype(int) + MARGIN, 0, SIZE + 2 * MARGIN - SPRITE) for a in (y, x))
    i, row, column = np.nonzero(level)
    images[which[i], y[i] + row, x[i] + column] = colours[i, level[i, row, column] - 1]


def paste_clutter(images, which, rng):
    """One random shape in two random colours, anywhere on each of images[which]."""
    k = len(which)
    colours = rng.uniform(40, 200, (k, 2, 3))
    y, x = rng.uniform(-SPRITE / 2, SIZE - SPRITE / 2, (2, k))
    paste(images, which, rng.integers(len(SHAPES), size=k), rng.integers(2, size=k), colours, y, x)


def draw_frames(objects, tools, backwards, instance, progress, rng):
    """Frames of m instances.

    Args:
        objects, tools: (m,) int. Ids, -1 for none; object len(OBJECTS) is a face.
        backwards:      (m,) bool. The tool runs its arc from the end to the start.
        instance:       (n,) int in 0..m-1. Which instance each frame shows.
        progress:       (n,) float in 0..1. How far its step has got.
    Returns: (n, 3, SIZE, SIZE) uint8.
    """
    m, n, side = len(objects), len(instance), SIZE + 2 * MARGIN
    everywhere = np.arange(m)
    scenes = np.empty((m, side, side, 3), np.float32)
    scenes[:] = rng.uniform(60, 120, (m, 1, 1, 1)) + rng.normal(0, 15, (m, 1, 1, 3))
    for _ in range(CLUTTER):
        paste_clutter(scenes, everywhere, rng)
    centre = SIZE / 2 + rng.uniform(-SHIFT, SHIFT, (m, 2)) - SPRITE / 2    # top left corner
    size, tint = rng.integers(2, size=(m, 2)), rng.normal(0, COLOUR_STD, (m, 2, 1, 3))
    gain = rng.uniform(.8, 1.1, m)
    shown = np.flatnonzero(objects >= 0)
    thing = objects[shown]
    paste(scenes, shown, OBJECT_SHAPE[thing], size[shown, 0],
          OBJECT_COLOURS[thing] + tint[shown, 0], *centre[shown].T)

    frames = scenes[instance]                                         # (n, side, side, 3)
    phase = np.where(backwards[instance], 1 - progress, progress)
    shown = np.flatnonzero(tools[instance] >= 0)
    at, tool = instance[shown], tools[instance[shown]]
    angle = TOOL_ARC[tool, 0] + TOOL_ARC[tool, 1] * phase[shown]
    y, x = centre[at].T + rng.normal(0, 1, (2, n))[:, shown]
    paste(frames, shown, TOOL_SHAPE[tool], size[at, 1], TOOL_COLOURS[tool] + tint[at, 1],
          y - RADIUS * np.sin(angle), x + RADIUS * np.cos(angle))
    paste_clutter(frames, np.flatnonzero(rng.random(n) < OCCLUDED), rng)
    frames = frames[:, MARGIN:-MARGIN, MARGIN:-MARGIN] * gain[instance, None, None, None]
    frames += NOISE_STD * rng.standard_normal(frames.shape, dtype=np.float32)
    return np.clip(frames, 0, 255, out=frames).astype(np.uint8).transpose(0, 3, 1, 2)


def render(video, fps=FPS):
    """All frames of a grammar.Video: (ceil(duration * fps), 3, SIZE, SIZE) uint8, at (i + 0.5) / fps s.

    The same video gives the same frames. Background shows clutter, and at times an object that
    nobody works on, or a face.
    """
    rng = np.random.default_rng((video.seed, 1))
    times = (np.arange(math.ceil(video.duration * fps)) + .5) / fps   # (n,)  s
    # Instances 0, 2, 4, .. are background (some of no length), 1, 3, 5, .. the steps.
    edges = np.array(video.segments, float).reshape(-1)               # (2 steps,)  s
    instance = np.searchsorted(edges, times, side="right")            # (n,)
    m = len(edges) + 1
    extra = rng.random(m)
    objects = np.where(extra < BACKGROUND_OBJECT, rng.integers(len(OBJECTS), size=m), -1)
    objects[extra > 1 - BACKGROUND_FACE] = len(OBJECTS)
    tools, backwards = np.full(m, -1), np.zeros(m, bool)
    looks = [look(grammar.STEPS[s]) for s in video.steps]
    objects[1::2], tools[1::2], backwards[1::2] = np.array(looks).T
    start = np.concatenate([[0], edges])
    length = np.diff(np.append(start, max(video.duration, times[-1]) + 1))
    progress = (times - start[instance]) / length[instance]
    return draw_frames(objects, tools, backwards, instance, progress, rng)


# ------------------------------------------------------------------------------------------------
# Narration, as a speech recogniser would write it down.
# ------------------------------------------------------------------------------------------------
SENTENCE_SECONDS = (4.4, 5.6)                       # s per sentence; one rate per video
MISSING, MISALIGNED, MAX_SHIFT = .15, .2, 6.0      # shares of the sentences; shift in s
PARAPHRASE = {                                     # how people say the steps nobody names
    "add onion": "throw in the chopped onion", "bake bread": "put the bread in the oven",
    "cut cheese": "slice up the cheese", "cut potato": "chop the potato up",
    "fry egg": "cook the egg in the hot pan"}
SAID = ("okay so now we're going to {}", "and then you {} like this", "go ahead and {}",
        "i like to {} really slowly", "you just want to {} here", "next up we {} right away",
        "so what i do is {}", "and i'm gonna {} just like that", "now it's time to {}")
GREETINGS = ("hi guys welcome back to my channel", "hello everyone and thanks for watching",
             "today i'm going to show you something easy", "hey what's up it's me again")
CHATTER = ("this is my favorite part of all", "i got this one from my grandma",
           "it smells so good in here already", "don't forget to like and subscribe",
           "my kids always ask me for this", "you can also {} if you like",
           "some people would {} at this point")


def sentence(step, greet, rng):
    """One sentence of 4-14 words. step: the phrase that is shown now, or None in background."""
    if step is None or rng.random() < .15:
        template = rng.choice(GREETINGS if greet else CHATTER)
        said = grammar.PHRASES[rng.integers(len(grammar.PHRASES))]           # independent of what is shown
    else:
        template, said = rng.choice(SAID), step
    verb, thing = said.split()
    article = rng.choice(("the", "some", "our", "this"))
    return str(template).format(PARAPHRASE.get(said, f"{verb} {article} {thing}"))


def narrate(video):
    """Noisy speech of a grammar.Video: a list of (start, end, text), s within the video, by start.

    Some sentences are missing, some are heard up to MAX_SHIFT seconds too early or too late. Lower
    case, no punctuation. The words of a held-out step are never said as its phrase.
    """
    rng = np.random.default_rng((video.seed, 2))
    spacing, time, heard = rng.uniform(*SENTENCE_SECONDS), rng.uniform(0, 2), []
    while time < video.duration - 1:
        length = min(spacing * rng.uniform(.7, 1), video.duration - time)
        middle = time + length / 2
        step = next((grammar.STEPS[s] for s, (start, end) in zip(video.steps, video.segments)
                     if start <= middle < end), None)
        text = sentence(step, middle < video.segments[0][0], rng)
        shift = rng.uniform(-MAX_SHIFT, MAX_SHIFT) if rng.random() < MISALIGNED else 0.0
        start = min(max(time + shift, 0.0), video.duration - length)
        if rng.random() >= MISSING:
            heard.append((round(start, 2), round(start + length, 2), text))
        time += spacing
    return sorted(heard)


# ------------------------------------------------------------------------------------------------
# The teacher: image and text towers trained on single pictures with captions, never on videos.
# ------------------------------------------------------------------------------------------------
MEAN, STD = .4, .25                                # of pixels / 255; for the teacher and for f
TEACHER_CONFIG = {                                 # as in open_clip's open_clip_config.json
    "model_cfg": {
        "embed_dim": 64, "init_logit_scale": math.log(1 / .03),
        "vision_cfg": {"image_size": SIZE, "layers": [1, 1, 1, 1], "width": 16, "patch_size": None},
        "text_cfg": {"context_length": 12, "vocab_size": 49408, "width": 64, "heads": 2,
                     "layers": 1}},
    "preprocess_cfg": {"mean": [MEAN] * 3, "std": [STD] * 3}}
# So few pictures that it remembers them in part: much of what it gets wrong is then an accident of
# the clutter and noise of a clip, which a model trained on many clips averages out.
TEACHER_IMAGES, TEACHER_STEPS, TEACHER_BATCH, TEACHER_LR = 1_800, 200, 256, 2e-3
RANDOM_PAIR, DROPPED_WORD, WRONG_WORD = .3, .15, .15                 # shares of the captions
CAPTIONS = ("{}", "a photo of {}.", "a photo of a person {}.", "a video of a person doing {}.",
            "a demonstration of {}.", "how to {}", "a person {} at home", "an example of {}.",
            "a person using {}.", "a person performing {}.", "a person during {}.")


def caption(verb, thing, rng):
    """What somebody might write under a picture of it: a word may be missing or wrong."""
    error = rng.random()
    if error < WRONG_WORD:
        if rng.random() < .5:
            verb = list(TOOLS)[rng.integers(len(TOOLS))]
        else:
            thing = list(OBJECTS)[rng.integers(len(OBJECTS))]
        if f"{verb} {thing}" in grammar.HELD_OUT:
            verb = "make"
    elif error < WRONG_WORD + DROPPED_WORD:
        verb, thing = (verb, "") if rng.random() < .5 else ("", thing)
    return CAPTIONS[rng.integers(len(CAPTIONS))].format(f"{verb} {thing}".strip())


def captioned_pictures(n, rng):
    """n pictures, (n, 3, SIZE, SIZE) uint8, and a list of n captions. No held-out pair is shown."""
    common = sorted({*grammar.STEPS, *grammar.OTHER_PHRASES} - {*grammar.HELD_OUT})
    every = sorted({f"{v} {o}" for v in TOOLS for o in OBJECTS} - {*grammar.HELD_OUT})
    phrases = [(every if rng.random() < RANDOM_PAIR else common) for _ in range(n)]
    phrases = [pool[rng.integers(len(pool))] for pool in phrases]
    objects, tools, backwards = np.array([look(phrase) for phrase in phrases]).T
    pictures = draw_frames(objects, tools, backwards.astype(bool), np.arange(n), rng.random(n), rng)
    return pictures, [caption(*phrase.split(), rng) for phrase in phrases]


def build_teacher():
    """The teacher, untrained, and its tokenizer. Pictures go in as (pixels / 255 - MEAN) / STD.

    Its word embeddings stay as drawn: 49,408 rows, of which this world uses about 50, would take
    most of the optimiser's time, and fixed random ones do as well.
    """
    import open_clip

    model = open_clip.CLIP(**TEACHER_CONFIG["model_cfg"])
    model.token_embedding.weight.requires_grad_(False)
    return model, open_clip.get_tokenizer("RN50", context_length=12)


def train_teacher(seed=0, progress=True, images=TEACHER_IMAGES, steps=TEACHER_STEPS,
                  batch_size=TEACHER_BATCH):
    """Contrastive training on pictures and captions, with open_clip's loss.

    Returns: (model in eval mode, tokenizer). The caller's random state is left as it was.
    """
    import open_clip
    import torch
    from tqdm import trange

    pictures, captions = captioned_pictures(images, np.random.default_rng((seed, 3)))
    contrastive = open_clip.ClipLoss()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model, tokenizer = build_teacher()
        pictures, tokens = torch.from_numpy(pictures), tokenizer(captions)
        weights = [p for p in model.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(weights, lr=TEACHER_LR, weight_decay=.1, betas=(.9, .98))
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, TEACHER_LR, steps)
        for _ in trange(steps, desc="teacher", mininterval=1, disable=not progress):
            batch = torch.randint(images, (batch_size,))
            x = model.encode_image((pictures[batch] / 255 - MEAN) / STD, normalize=True)    # (B, D)
            y = model.encode_text(tokens[batch], normalize=True)                           # (B, D)
            loss = contrastive(x, y, model.logit_scale.exp().clamp(max=100))
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            schedule.step()
    return model.eval(), tokenizer
