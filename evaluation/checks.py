"""Whether a checkpoint fits the task, the data and the teacher: each check raises BadInput."""
from data import PIECES, samples_of
from support.command import BadInput
from weights.checkpoint import same_texts


def require_task(model, settings):
    """The checkpoint must be able to do the task of evaluate.py, zero-shot or fine-tuned for it."""
    path, epic = settings.checkpoint, settings.data == "epic"
    finetune = f"python train.py --stage finetune --task {settings.task}" + " --data epic" * epic
    if model.task is None and (settings.task == "activity" or epic):
        raise BadInput(f"{path}: is not fine-tuned, and there is no zero-shot --task "
                       f"{settings.task} of --data {settings.data}; `{finetune}` does it")
    if model.task not in (None, settings.task) or model.task and epic != (len(model.classes) > 1):
        what = "verbs and nouns" if len(model.classes) > 1 else f"--task {model.task}"
        raise BadInput(f"{path}: is fine-tuned for {what}; `{finetune}` makes the checkpoint that "
                       "is needed here")
    if settings.task in ("forecast", "infill") and model.denoiser is None:
        raise BadInput(f"{path}: trained with --order none; matching alone has no "
                       "zero-shot forecasts (train with --order diffusion or mask)")
    H = settings.horizon                               # above 1 with --task forecast only
    if H > 1 and H > model.denoiser.clips - PIECES:
        raise BadInput(f"--horizon {H}: {path} was trained with at most "
                       f"{model.denoiser.clips - PIECES} clips missing together; train with "
                       f"--missing {H}")


def require_teacher(teacher, model, path):
    """The checkpoint must have been trained with this teacher, which embeds its witness again."""
    if model.witness is None:                          # published, or trained on a features file
        return
    now = teacher.encode_phrases([model.witness])      # of another width: see `require_width`
    if now.shape[1] == model.dim and not same_texts(model.phrases[:1], now):
        raise BadInput(f"{path}: was trained with another teacher, which embeds "
                       f"\"{model.witness}\" differently; give the same --clip and --clip-weights "
                       "(that of the embedded world is kept in ~/.cache/procedurevrl)")


def require_width(model, given, path):
    """Embeddings of the checkpoint must be as wide as those given, (.., D)."""
    if given.shape[1] != model.dim:
        raise BadInput(f"{path}: embeddings of width {model.dim}, those given have "
                       f"{given.shape[1]}; give the --data, or the --clip, it was trained with")


def require_fit(model, source, texts, settings):
    """Widths must be equal, and a fine-tuned checkpoint must have as many classes as the data."""
    path = settings.checkpoint
    if settings.features:
        require_width(model, source.features.embedding, path)
    elif texts is not None and model.task != "classify":           # else no text is matched
        require_width(model, texts, path)
    if model.task is None or settings.data == "epic":
        return
    count = len(texts) if texts is not None else model.classes[0]
    largest = max((sample.label for sample in samples_of(settings.task, source.listed)), default=-1)
    if count != model.classes[0] or largest >= count:
        raise BadInput(f"{path}: is fine-tuned to {model.classes[0]} classes, there are "
                       f"{max(count, largest + 1)} here; give the --data it was fine-tuned on")


def require_samples(samples, settings):
    """The samples of --task forecast; BadInput if there are none."""
    if not samples:
        raise BadInput(f"--split {settings.split}: no video with {settings.min_steps} steps; "
                       "there is nothing to forecast")
    return samples
