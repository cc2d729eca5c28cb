"""A linear layer on the teacher's features, fine-tuned as train.py fine-tunes one on f's (Table 2).

    python -m experiments.probe --json probe.json
"""
from dataclasses import dataclass
from pathlib import Path

from support.command import DATA, PAPER, Settings, opt, run, write_json


@dataclass(frozen=True)
class ProbeSettings(Settings):
    """Fine-tune one linear layer on the teacher's features, in the embedded world."""
    toy_videos: int = opt("training videos", 6000, DATA, low=1)
    test_videos: int = opt("videos that are evaluated", 1000, DATA, low=1)
    split: str = opt("which videos are evaluated", "test", DATA, choices=("test", "validation"))
    labels: float = opt("share of the labeled videos that is used", 1.0, DATA, above=0, high=1)
    epochs: float = opt("times each sample is seen", 15.0, PAPER, above=0)
    batch: int = opt("samples per step", 64, PAPER, low=1)
    lr: float = opt("peak learning rate of AdamW", 1e-3, PAPER, above=0)
    out: Path = opt("run folder", Path("runs/probe"))
    json: Path = opt("also write the number here", None, file=())
    seed: int = opt("of batches and of which labels are used", 0, low=0, high=2 ** 32 - 1)
    device: str = opt("auto: a CUDA GPU if there is one", "auto")


def main(settings):
    """Train on the steps of the training videos, evaluate on those of the split."""
    import torch
    from torch.nn import functional

    from data import classify_samples
    from evaluation.metrics import percent, topk_correct
    from support.device import pick_device, set_seed
    from toy.grammar import STEPS
    from toy.source import ToySource, load_teacher
    from training.finetune import draw_labeled, train_cached
    from training.pretrain import SIZES, TAU
    from weights.checkpoint import build_model

    device = pick_device(settings.device)
    set_seed(settings.seed)
    settings.out.mkdir(parents=True, exist_ok=True)
    teacher = load_teacher(device)

    def features(split, count, samples_of):
        """The teacher's features of the samples' views (M, 3, D), and their labels (M,)."""
        source = ToySource(split, count, SIZES["small"]["encoder"]["frames"], teacher)
        samples = samples_of(source)
        views = source.load([(sample.video, sample.windows) for sample in samples]).views
        x = functional.normalize(source.teacher_features(views), dim=-1)
        return x.unflatten(0, (len(samples), -1)), torch.tensor([s.label for s in samples])

    x, y = features("train", settings.toy_videos,
                    lambda source: draw_labeled(classify_samples(source.videos), settings))
    texts = teacher.encode_phrases(STEPS)
    arguments = {"encoder": None, "denoiser": None, "order": "none", "tau": TAU, "pixels": None,
                 "task": "classify", "classes": [len(texts)]}
    model = build_model(texts, **arguments)
    model.classifier.weight.data.copy_(functional.normalize(texts, dim=-1))    # the zero-shot model
    model.classifier.bias.data.zero_()
    train_cached(settings, model, arguments, [], x, y, device)
    x, y = features(settings.split, settings.test_videos,
                    lambda source: classify_samples(source.videos))
    with torch.no_grad():
        hits = topk_correct(model.classify(x)[0].exp().mean(1), y, 1)          # (M,)
    content = {"task": "classify", "setting": "fine-tuned", "evaluated": len(hits),
               "top1": {"ours": percent(hits)}, "seed": settings.seed}
    print(content)
    if settings.json:
        write_json(settings.json, content)


if __name__ == "__main__":
    run(main, ProbeSettings)
