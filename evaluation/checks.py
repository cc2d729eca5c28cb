"""Whether a checkpoint fits the task, the data and the teacher: each check raises BadInput."""
from data import PIECES, samples_of
from support.command import require
from weights.checkpoint import same_texts


def require_task(model, settings):
    """The checkpoint must be able to do the task of evaluate.py, zero-shot or fine-tuned for it."""
    path, epic = settings.checkpoint, settings.data == "epic"
    finetune = f"python train.py --stage finetune --task {settings.task}" + " --data epic" * epic
    require(model.task or not (settings.task == "activity" or epic), f"{path}: is not fine-tuned, "
            f"and there is no zero-shot --task {settings.task} of --data {settings.data}; "
            f"`{finetune}` does it")
    actions = bool(model.task) and len(model.classes) > 1
    require(not model.task or (model.task, actions) == (settings.task, epic), f"{path}: is fine-"
            f"tuned for {'verbs and nouns' if actions else f'--task {model.task}'}; `{finetune}` "
            "makes the checkpoint that is needed here")
    require(settings.task not in ("forecast", "infill") or model.denoiser, f"{path}: trained with "
            "--order none; matching alone has no zero-shot forecasts (train with --order diffusion "
            "or mask)")
    if settings.horizon > 1:                           # with --task forecast only
        most = model.denoiser.clips - PIECES
        require(settings.horizon <= most, f"--horizon {settings.horizon}: {path} was trained with "
                f"at most {most} clips missing together; train with --missing {settings.horizon}")


def require_teacher(teacher, model, path):
    """The checkpoint must have been trained with this teacher, which embeds its witness again."""
    if model.witness is None:                          # published, or trained on a features file
        return
    now = teacher.encode_phrases([model.witness])      # of another width: see `require_width`
    require(now.shape[1] != model.dim or same_texts(model.phrases[:1], now), f"{path}: was trained "
            f"with another teacher, which embeds \"{model.witness}\" differently; give the same "
            "--clip and --clip-weights (that of the embedded world is in ~/.cache/procedurevrl)")


def require_width(model, given, path):
    """Embeddings of the checkpoint must be as wide as those given, (.., D)."""
    require(given.shape[1] == model.dim, f"{path}: embeddings of width {model.dim}, those given "
            f"have {given.shape[1]}; give the --data, or the --clip, it was trained with")


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
    require(count == model.classes[0] and largest < count, f"{path}: is fine-tuned to "
            f"{model.classes[0]} classes, there are {max(count, largest + 1)} here; give the "
            "--data it was fine-tuned on")
