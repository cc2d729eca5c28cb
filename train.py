"""Train f and h: `python train.py --stage pretrain`, or `--stage finetune` with labels.

Paper: Zhong et al., CVPR 2023 (arXiv:2303.17839), Sec. 3.2 and 4.

Pre-training is `main`: one loop with the whole objective, Eq. 7, by SGD and then by AdamW. In one
update f encodes each clip once, and h is asked for many of them, a row each: data.missing_rows.
Where batches come from, resuming, logging and interrupts are in training/pretrain.py and
training/run.py; fine-tuning is in training/finetune.py. Every random choice of a step is drawn from
(seed, step), so that a resumed run continues as if it had never stopped. Several GPUs share a step:
support/parallel.py.

    paper          here           shape        meaning
    v_i            batch.clips    (C, F, 3, H, W)  consecutive clips of B videos
    -              batch.teacher  (C, D)       the teacher's features of the clips
    x_i            x              (C, D)       f(v_i)
    p'_i           targets        (C, K)       soft targets of the teacher, over the K phrases
    {x_i}          rows           (R, N)       clips of each row, by their numbers; -1 = padding
    j              j, missing     (R, P)       places of the missing clips in their rows, and their
                                               numbers; the paper's P is 1
    {i != j}       observed       (R, N)       bool
    x_j^0          xj, z0         (R, P, D)    the missing clips; standardized
    x_j^t          zt             (R, P, D)    z0 noised to level t, counted from 0
    x_hat_j^0      x_hat, z_hat   (R, P, D)    what h predicts; standardized
"""
import sys
from dataclasses import dataclass
from pathlib import Path

from support.command import DATA, PAPER, RUN, WHAT, Parser, check, opt, run
from support.flags import COIN, FEATURES, FinetuneSettings, RunSettings


def main(settings):
    """Pre-training (Sec. 3.2): f and h together."""
    import torch

    from diffusion import add_noise
    from losses import match, mc_loss, mse_loss, xe_loss
    from pseudo_labels import soft_targets
    from support import parallel
    from support.device import mixed_precision
    from training.pretrain import Pretraining
    from training.run import learning_rate

    parallel.start(settings.device)
    run = Pretraining(settings)                            # data, teacher, model, resuming
    model, levels = run.model, len(run.model.alpha_bar)
    for stage in run.stages:
        optimizer = run.make_optimizer(stage)              # SGD, then AdamW
        for step, batch in run.batches(stage, optimizer):
            optimizer.param_groups[0]["lr"] = learning_rate(step, stage)   # up, then down to 0
            with mixed_precision(run.device):
                x = run.encode(batch)                                  # x_i = f(v_i)
                model.standardize.update(x)
                targets = soft_targets(batch.teacher, model.phrases, model.tau)
                log_p = match(x, model.phrases, model.tau)             # Eq. 6
                xe = xe_loss(log_p, targets)                           # Eq. 8
                mse = mc = x.new_zeros(())
                if model.denoiser is not None:                     # None with --order none
                    sure, phrase = log_p.detach().max(-1)      # clips of one phrase: one step
                    rows, j = run.missing_rows(batch, phrase, sure)
                    missing, observed = rows.gather(1, j), (rows >= 0).scatter(1, j, False)
                    xj = x[missing].detach()                                       # x_j^0
                    z0 = model.standardize(xj)
                    t = torch.randint(levels, j.shape[:1], device=x.device)  # t ~ U[1, T]
                    zt = add_noise(z0, torch.randn_like(z0), model.alpha_bar[t])   # Eq. 2
                    if settings.order == "mask":                   # h sees nothing of x_j
                        zt, t = torch.zeros_like(zt), torch.full_like(t, levels - 1)
                    z_hat = model.h(zt, x[rows], observed, j, t)       # Eq. 5; padding is hidden
                    x_hat = model.standardize.inverse(z_hat)
                    mse = mse_loss(x_hat, xj)                          # Eq. 9, of x and not of z
                    mc = mc_loss(match(x_hat, model.phrases, model.tau),
                                 targets[missing])                     # Eq. 10, of the same x_hat
                loss = xe + mse + mc                                               # Eq. 7
            model.zero_grad()
            loss.backward()
            parallel.average_gradients(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            run.log(len(x), loss=loss, xe=xe, mse=mse, mc=mc)


def finetune(settings):
    """Fine-tuning, in training/finetune.py."""
    from training import finetune
    finetune.finetune(settings)


# --- Flags: opt(help, default, heading in --help, limits) ---
HOWTO, NARRATED = ("howto100m",), ("toy", "howto100m")         # kinds of --data with narrations


@dataclass(frozen=True)
class TrainSettings(RunSettings):
    """Pre-train the encoder f and the denoiser h (paper, Sec. 3.2), without labels."""
    stage: str = opt("finetune has its own flags", "pretrain", WHAT,
                     choices=("pretrain", "finetune"))
    order: str = opt("how h learns the order of steps", "diffusion", WHAT,
                     choices=("diffusion", "mask", "none"))
    encoder: str = opt("the encoder f; mvit: Table D", "timesformer", WHAT,
                       choices=("timesformer", "mvit"), data=NARRATED)
    size: str = opt("of f and h: ViT-B, or 32 pixels", "paper", WHAT,
                    choices=("small", "paper"), data=HOWTO)
    init: Path = opt("start from a run, checkpoint or weights", None, WHAT)
    data: str = opt("toy: no files; coin: features, h alone", "toy",
                    DATA, choices=("toy", "howto100m", "coin"))
    toy_videos: int = opt("training videos of the embedded world", 6000, DATA, low=1, data=("toy",))
    clips: str = opt("what h orders: steps as f sees them", "steps", DATA,
                     choices=("steps", "clips", "annotated"), data=NARRATED,
                     order=("diffusion", "mask"))
    videos: Path = opt("folder of videos, ID.mp4 and the like", None, DATA, data=HOWTO)
    captions: Path = opt("ID.csv, ID.srt or ID.vtt; or caption.json", None, DATA, data=HOWTO)
    ids: Path = opt("use only these videos: an id per line", None, DATA, data=HOWTO)
    phrases: Path = opt("pool, a phrase per line [that of toy/]", None, DATA, data=NARRATED)
    clip: str = opt("teacher: open_clip model, or local-dir:DIR", "ViT-B-16-quickgelu", DATA,
                    data=HOWTO)
    clip_weights: str = opt("its weights: a tag, or a file [openai]", None, DATA, data=HOWTO)
    teacher_features: Path = opt("of `python -m files teach`, where it has a video", None, DATA,
                                 data=HOWTO, targets=("vision", "both"))
    augment: bool = opt("random squares, half of them mirrored", True, DATA, data=HOWTO)
    annotations: Path = opt("COIN.json", None, DATA, data=COIN)
    features: Path = opt("npz of clip embeddings, one row per window", None, DATA, data=COIN)
    text_embeddings: Path = opt("npz of the classes' text embeddings", None, DATA, data=COIN)
    targets: str = opt("soft targets of frames, speech, both", "vision", PAPER,
                       choices=("vision", "narration", "both"), data=NARRATED)
    tau: float = opt("of Eq. 6 [CLIP .02, toy .045, coin estimated]", None, PAPER, low=1e-6)
    sgd_epochs: float = opt("epochs of SGD, first stage", 0.25, PAPER, low=0)
    epochs: float = opt("epochs of AdamW, second stage", 10.0, PAPER, low=0)
    missing: int = opt("most clips missing together", 1, PAPER, low=1, high=3,
                       order=("diffusion", "mask"))
    batch: int = opt("videos per step; the paper's is 128", 8, PAPER, low=1)
    lr: float = opt("peak rate of AdamW; release 5e-5", 4e-3, PAPER, above=0)
    out: Path = opt("folder of the run's files", Path("runs/pretrain"), RUN, folder=True)
    resume: bool = opt("continue from OUT/checkpoint.pt", False, RUN)
    micro_batch: int = opt("clips f encodes at once [what memory allows]", None, RUN, low=1,
                           data=NARRATED)

    def __post_init__(self):
        super().__post_init__()
        check(self.teacher_features is None or self.teacher_features.is_dir(), "teacher_features",
              self.teacher_features, "no such folder; `python -m files teach` makes one")
        self.require({"toy": (), "howto100m": ("videos", "captions", "phrases"),
                      "coin": FEATURES}[self.data], f"--data {self.data}")
        check(self.epochs or self.lr == type(self).lr, "lr", self.lr,
              "has no effect with --epochs 0: it is AdamW's")
        check(self.clips != "annotated" or self.data == "toy", "clips", self.clips,
              "only the embedded world's narrated videos have annotated steps")
        check(self.order != "none" or self.data != "coin", "order", "none",
              "--data coin trains h alone: without it there is nothing to train")


def command_of(argv):
    """The function and the flags that `--stage` chooses: both stages are one command."""
    parser = Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("--stage")
    tuned = parser.parse_known_args(argv)[0].stage == "finetune"
    return (finetune, FinetuneSettings) if tuned else (main, TrainSettings)


if __name__ == "__main__":
    run(*command_of(sys.argv[1:]))
