"""Measure a checkpoint, zero-shot or fine-tuned: `python evaluate.py --task forecast --oracle 5`.

Paper: Zhong et al., CVPR 2023 (arXiv:2303.17839), Sec. 3.3, 4.1, 4.2, appendix C.

    task        measures                                            paper          in evaluation/
    forecast    which step comes next, from the clips before it     Tables 1, 5    forecasting.py
    classify    which step a clip shows                             Table 2        tasks.py
    activity    which activity a video shows, fine-tuned            Table A        tasks.py
    infill      which step is missing, from the others              Sec. 3.1       tasks.py
    classify, --data epic    verb, noun and action, fine-tuned      Table 3        tasks.py
    features    writes embeddings of whole videos to a file         -              embedding.py

The table also holds label-free baselines and, in the embedded world, the truth. M samples of a
task, N clips of each, Q Monte Carlo samples, S steps (the label set), D embedding.
"""
import time
from dataclasses import dataclass
from pathlib import Path

from support.command import DATA, PAPER, RUN, WHAT, check, opt, run, write_json
from support.flags import CHECKPOINT, LabeledSettings, adopt_run, adopt_teacher

SCORED = "forecast", "classify", "activity", "infill"          # tasks with a table


@dataclass(frozen=True)
class EvaluateSettings(LabeledSettings):
    """Measure a checkpoint: classification and forecasting, zero-shot or fine-tuned."""
    task: str = opt("what to measure; features: write a features file; default forecast, and "
                    "classify with --data epic", None, WHAT, choices=(*SCORED, "features"))
    checkpoint: Path = CHECKPOINT
    split: str = opt("which videos", "test", DATA, choices=("test", "validation", "train"),
                     data=("toy", "coin"))
    toy_videos: int = opt("videos of the embedded world's split", 1000, DATA, low=1, data=("toy",),
                          videos=(None,))
    min_steps: int = opt("leave out videos with fewer annotated steps", 2, DATA, low=2,
                         task=("forecast", "infill"))
    ids: Path = opt("only these videos, an id per line", None, DATA, task=("features",), videos=())
    samples: int = opt("Monte Carlo samples per forecast (Eq. 11)", 5, PAPER, low=1,
                       high=1000, alias="oracle", task=("forecast", "infill"))
    horizon: int = opt("how many of the next steps, in turn and together", 1, PAPER, low=1, high=3,
                       task=("forecast",))
    json: Path = opt("also write the numbers here", None, file=(), task=SCORED)
    out: Path = opt("the file to write", Path("features.npz"), file=(), task=("features",))
    stride: float = opt("s between two windows", 4.0, low=0.1, task=("features",))
    batch: int = opt("samples per step; changes speed and memory, not the result", 64, RUN, low=1,
                     task=SCORED)

    def __post_init__(self):
        self.default("task", "classify" if self.data == "epic" else "forecast")
        super().__post_init__()
        one = self.videos if self.task == "features" else str(self.annotations).endswith(".csv")
        check(not one or self.split == "test", "split", self.split,
              "has no effect: all of these videos are of one split")
        if not self.without_effect("clip"):
            adopt_teacher(self, self.checkpoint)
        adopt_run(self, real=self.data != "toy" or self.videos is not None)


def main(settings):
    """Load, measure, print, and write the JSON if asked for."""
    import torch

    from data import EPIC_SECONDS, classify_samples, samples_of
    from diffusion import expectation
    from evaluation.embedding import encode_samples, write_features
    from evaluation.forecasting import forecast_rows
    from evaluation.inference import draw_noise, predict_missing
    from evaluation.labeled import open_labeled, require_fit, require_task
    from evaluation.metrics import accuracy_rows, oracle_correct, percent
    from evaluation.table import print_table
    from evaluation.tasks import VIEWS, actions, activity, classify, infill
    from files.listings import epic_split
    from support.device import pick_device
    from weights.checkpoint import load_model

    # 1. The checkpoint, the videos, and the texts of their label set.
    began = time.perf_counter()
    torch.manual_seed(settings.seed)
    if settings.task == "features":
        return write_features(settings)
    device = pick_device(settings.device)
    model = load_model(settings.checkpoint)[0].to(device)
    require_task(model, settings)
    source, texts = open_labeled(settings, settings.split, model, settings.checkpoint, device)
    require_fit(model, source, texts, settings)
    texts = None if texts is None else texts.to(device)            # (S, D)
    epic = settings.data == "epic"

    def samples_in(videos):
        return (classify_samples(videos, VIEWS, EPIC_SECONDS) if epic else
                samples_of(settings.task, videos, settings.min_steps))

    # 2. The clips of all samples through f. Forecasting (Sec. 3.3), or another task.
    samples = samples_in(source.videos)
    check(samples, "split", settings.split, f"no video of use for --task {settings.task}; steps "
          f"are needed, --min-steps {settings.min_steps} in a video to forecast or infill")
    x, teacher, samples = encode_samples(model, source, samples, settings, device)
    if settings.task == "forecast":
        y = torch.tensor([sample.label for sample in samples])             # (M,) the next step
        noise = draw_noise(len(y), (settings.samples, model.dim), settings.seed)    # (M, Q, D)

        def forecast(noise):                   # x_hat_j of h (Sec. 3.3), then log p(y_j | x_hat_j)
            return predict_missing(model, x, texts, noise, settings.batch)    # (M, Q, S)

        zero = forecast(torch.zeros_like(noise[:, :1]))[:, 0]      # approximate inference (M, S)
        log_p = forecast(noise)                                    # Monte Carlo samples
        mean = expectation(log_p)                                  # Eq. 11               (M, S)
        picks = log_p.argmax(-1)                                   # a step per sample    (M, Q)
        rows = accuracy_rows({"zero_noise": (zero, y), "expectation": (mean, y)})
        softmax, others = forecast_rows(model, source, samples, x, teacher, texts, zero, log_p,
                                        settings, device)
        rows["top1"] |= {"oracle": percent(oracle_correct(picks, y)), "oracle_softmax": softmax}
        rows |= others
    else:
        measure = actions if epic else dict(
            classify=classify, activity=activity, infill=infill)[settings.task]
        with torch.no_grad():
            rows = measure(model, source, samples, x, teacher, texts, settings)

    # 3. The table.
    content = {"task": settings.task, "data": settings.data,
               "split": epic_split(settings.annotations) if epic else settings.split,
               "setting": "fine-tuned" if model.task else "zero-shot", "order": model.order,
               "listed": len(samples_in(source.listed)), "evaluated": len(samples),
               "missing": len(source.missing), "unreadable": len(source.unreadable),
               "classes": sum(model.classes) if texts is None else len(texts),
               **({"samples": settings.samples} if settings.task == "forecast" else {}), **rows,
               "seed": settings.seed, "checkpoint": str(settings.checkpoint),
               "seconds": time.perf_counter() - began}
    write_json(settings.json, content)
    print_table(content)


if __name__ == "__main__":
    run(main, EvaluateSettings)
