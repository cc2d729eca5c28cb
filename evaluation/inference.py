"""What a checkpoint answers: embeddings of samples, scores against texts, forecasts.

Paper: Zhong et al., CVPR 2023 (arXiv:2303.17839), Sec. 3.3. What is made of the answers is
evaluate.py's. M samples of a task, N = 8 observed clips, Q Monte Carlo samples, S steps (the label
set), D embedding.
"""
import functools

from support.command import BadInput


def load_data(settings, model, device, needed=True, compare=True):
    """The split's videos, and the text embeddings of its label set (S, D).

    Activities and the actions of EPIC-Kitchens-100 are matched with no texts: None.
    compare: whether the teacher's features of clips are wanted beside ours.
    """
    import data
    from files import epic
    if settings.data == "epic":
        return epic.open_actions(settings, model.encoder.image, model.encoder.frames, needed), None
    named = settings.task != "activity"
    if settings.data == "coin":
        source, texts = (load_videos(settings, model, device, needed, compare) if settings.videos
                         else data.open_coin(settings, settings.split, needed))
        return source, texts if named else None
    from toy import grammar
    from toy import render
    if model.encoder.image != render.SIZE:
        raise BadInput(f"--data toy: its pictures are {render.SIZE} pixels wide, the "
                       f"checkpoint reads {model.encoder.image}; give it --data coin")
    teacher = data.toy_teacher(device) if named else None
    if named:
        require_teacher(teacher, model, settings)
    source = data.open_toy(settings.split, settings.toy_videos, model.encoder.frames,
                           named and compare, device)
    return source, teacher.encode_phrases(grammar.STEPS) if named else None


def require_teacher(teacher, model, settings):
    """BadInput if a checkpoint was trained with another teacher: texts lie elsewhere then.

    It holds the text of the first phrase of its pool, which is embedded again.
    """
    from model import same_texts
    witness = model.arguments.get("witness")
    if witness is None:                                # published, or trained on a features file
        return
    now = teacher.encode_phrases([witness])            # of another width: the scripts say so
    if now.shape[1] == model.dim and not same_texts(model.phrases[:1], now):
        path = getattr(settings, "checkpoint", None) or settings.init
        raise BadInput(f"{path}: was trained with another teacher, to which \"{witness}\" is "
                       "another point; give the same --clip and --clip-weights (of the embedded "
                       "world: its runs/toy_teacher.pt)")


@functools.lru_cache(maxsize=1)
def teacher_of(clip, weights, device):
    """The teacher of --clip, loaded once: a forecast table reads two splits."""
    from pseudo_labels import open_teacher
    return open_teacher(clip, weights, device)


@functools.lru_cache(maxsize=1)
def texts_of(teacher, names):
    """The teacher's embeddings of class names, a tuple: (S, D). COIN's are 22,000 prompts: once."""
    return teacher.encode_phrases(names)


def load_videos(settings, model, device, needed, compare):
    """COIN from video files. With a text embeddings file no teacher is needed, nor compared."""
    import torch

    from files import annotations
    import data
    import tasks
    named = settings.task != "activity"
    teacher = (teacher_of(settings.clip, settings.clip_weights, device)
               if named and not settings.text_embeddings else None)
    if teacher:
        require_teacher(teacher, model, settings)
    source, names = data.open_coin_videos(settings, model.encoder.image, model.encoder.frames,
                                          teacher if compare else None, needed,
                                          model.encoder.seconds)
    if not named:
        return source, None
    texts = (texts_of(teacher, tuple(names)) if teacher else
             torch.from_numpy(annotations.load_text_embeddings(settings.text_embeddings)[1]))
    largest = max((sample.label for sample in tasks.classify_samples(source.listed, 1)), default=-1)
    if largest >= len(texts):
        raise BadInput(f"{settings.annotations}: class {largest + 1}, but there are {len(texts)} "
                       "names; row or line i must be class i")
    return source, texts


def distinct_texts(texts):
    """COIN has steps with the same text: which rows are the first of their kind.

    Scores of equal texts must tie exactly (ties go to the lowest index), whatever a matrix product
    does to two equal columns: so each text is scored once.

    Returns: unique (U, D), and index (S,) with unique[index] == texts.
    """
    import torch
    return torch.unique(texts, dim=0, return_inverse=True)


def in_batches(size, *columns):
    """Slices of `size` rows of lists and tensors of the same length, side by side."""
    for i in range(0, len(columns[0]), size):
        yield tuple(column[i:i + size] for column in columns)


def load_samples(source, samples):
    """The clips of some samples -> data.Loaded, and the samples that could be read."""
    requests = [(sample.video, sample.windows) for sample in samples]
    loaded = source.load(requests)
    read = {id(request) for request in loaded.requests}
    return loaded, [s for s, request in zip(samples, requests) if id(request) in read]


def encode_samples(model, source, samples, settings, device, title):
    """Embeddings of the samples' windows, and the teacher's features: (M, N, D) twice.

    All samples have the same number of windows N. Without a teacher its features are None.
    Returns: x, features, and the samples that could be read: M of them.
    Raises:  BadInput if too many of the videos are unreadable.
    """
    import torch
    from tqdm import tqdm

    from support.workers import prefetch
    ours, teachers, good, N = [], [], [], len(samples[0].windows)
    batches = list(samples[i:i + settings.batch] for i in range(0, len(samples), settings.batch))
    make = functools.partial(load_samples, source)
    with torch.no_grad():
        for loaded, read in tqdm(prefetch(make, batches, settings.workers), desc=title,
                                 total=len(batches), mininterval=1):
            source.unreadable |= loaded.failed
            if read:
                good += read
                ours.append(model.encode(loaded.clips.to(device)))
                if len(loaded.looks):
                    teachers.append(source.teach(loaded.looks).to(device))
    if not good or len(source.unreadable) > settings.max_unreadable * len(source):
        raise BadInput(f"{len(source.unreadable)} of {len(source)} videos cannot be read, more "
                       f"than --max-unreadable {settings.max_unreadable}; the first: "
                       f"{next(iter(source.unreadable.values()))}")
    x, features = (torch.cat(rows).unflatten(0, (-1, N)) if rows else None
                   for rows in (ours, teachers))
    return x, features, good


def score(match, x, texts):
    """log p over the label set, equal texts exactly equal: (..., D) -> (..., S).

    match: model.match_predicted for predictions, model.read for clips that were observed.
    """
    unique, index = distinct_texts(texts)
    log_p = match(x, unique)
    return (log_p - log_p[..., index].logsumexp(-1, keepdim=True))[..., index]


def answer(model, x, texts):
    """log p over the label set, (..., D) -> (..., S), for embeddings of clips or of h.

    Fine-tuned it is the classifier's. Zero-shot it is that of the texts (S, D), which are matched
    at the temperature of a prediction.
    """
    return model.classify(x)[0] if model.task else score(model.match_predicted, x, texts)


def forecasts(model, x, texts, samples, seed, batch):
    """Zero-noise log p (M, S), and log p of Q Monte Carlo samples (M, Q, S): Sec. 3.3.

    The noise of a sample depends on the seed and its place in the list, not on the batch.
    """
    import torch
    M, N, D = x.shape
    noise = torch.randn(M, samples, D, generator=torch.Generator().manual_seed(seed)).to(x.device)
    zero, drawn = [], []
    with torch.no_grad():
        for clips, eps in in_batches(batch, x, noise):
            queries = torch.cat([torch.zeros_like(eps[:, :1]), eps], 1)        # (B, 1 + Q, D)
            log_p = answer(model, model.forecast_next(clips, queries), texts)
            zero.append(log_p[:, 0])
            drawn.append(log_p[:, 1:])
    return torch.cat(zero), torch.cat(drawn)
