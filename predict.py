"""Show the steps of one video, and sample what may come next: `python predict.py VIDEO`.

Paper: Zhong et al., CVPR 2023 (arXiv:2303.17839), Sec. 3.3 and Fig. 3.

N observed clips, at most eight; Q samples, each a future of H steps; S steps, S' if look-alikes
count as one; D embedding.
"""
from argparse import Namespace
from collections import Counter
from operator import itemgetter
from pathlib import Path

import torch

import weights
from data import Pictures, Video, frame_times, history_windows
from diffusion import expectation
from files.features import Features
from files.folder import VideoFolder
from files.lists import clock
from model import encode_parts, match_labels, merge, sample_in_turn
from sources import (
    choose,
    clip_of,
    data_set,
    history_of,
    look_alikes_of,
    open_teacher,
    require_widths,
    require_world,
    steps_of,
    texts_of,
    warn_of_data,
)
from support import figures, keyframes
from support.arguments import (
    Parser,
    add_checkpoint_flag,
    add_device_flags,
    add_teacher_flags,
    default_checkpoint,
    existing,
    mixed_precision,
    pick_device,
    positive,
    seed_number,
    share_number,
)
from support.errors import require, run_command
from support.read import load_names, video_name
from support.write import write_json

PRINTED = 5               # steps of a window in the JSON; next steps and futures that are printed


# --- What is observed ---
def open_one(video, name, model, seed):
    """The Source of one video: of a file; of video `name` in a file of features; without `video`,
    of test video number `seed` of the toy world, which knows its steps."""
    f = model.encoder
    if video is None:
        require(model.config.clip == "toy", f"VIDEO is needed: {model.path} was trained on real "
                "videos")
        return data_set("toy").of("test", [seed], f.frames)
    if f.image:
        require(not name, "the checkpoint reads videos, not features")
        source = VideoFolder(Namespace(videos=video))
    else:
        require(name, "the checkpoint reads features: give F.npz --video ID")
        source = Features(Namespace(features=video))
        require_widths(source, f.features, model.dim)
    choose(source, [Video(video_name(name or video))])
    source.open(Pictures.of(f), None)
    return source


def observe(source, model, at, left):
    """What is observed before `at` s -> windows (N, 2) s, N <= 8, and their clips. None: the end
    of the video or, if its steps are known, of a random step after which `left` steps remain."""
    length = source.duration(0)
    end = length
    if at is not None:
        end = at
    elif source.truth:
        end = source.truth.place_to_stop(left)
    require(0 < end <= length, f"--at {end:g}: must be above 0 and at most {length:.1f}, the end "
            f"of {source.videos[0].name}")
    windows = history_windows(end, history_of(model)[1])
    clips, _ = source.clips(0, windows)
    return windows, clips


# --- The steps to choose among ---
def open_steps(steps, model, clip, clip_weights):
    """The names of the S steps, and their texts (S, D). Arguments are those of `predict`."""
    names = steps or steps_of(model)
    require(names, "--steps is needed: a file with a step per line")
    if isinstance(steps, (str, Path)):
        names = load_names(steps)
    clip, clip_weights = clip_of(model, clip, clip_weights)
    teacher = open_teacher(clip, clip_weights, model.phrases.device)
    return names, texts_of(model, teacher, names)


def joined_names(names, pairs):
    """{name: "a or b"} of the two names of each of `pairs`, if both are among the names."""
    joined = {}
    for a, b in pairs:
        if a in names and b in names:
            joined[a] = joined[b] = f"{a} or {b}"
    return joined


def count_as_one(names, joined):
    """S names, of which those that are joined count as one -> the S' names that remain, in their
    order; where each of the S is among them, (S,) int64, for model.merge."""
    merged, places = [], []
    for name in names:
        called = joined.get(name, name)
        if name not in joined or called not in merged:
            merged.append(called)
            places.append(len(merged) - 1)
        else:
            places.append(merged.index(called))
    return merged, torch.tensor(places)


# --- What comes next ---
def require_finite(p, checkpoint):
    """FloatingPointError if one of the probabilities p (..., S) is not finite."""
    if not p.isfinite().all():
        raise FloatingPointError(f"{checkpoint}: its forecast is not finite; its weights are too "
                                 "large, or damaged")


def rank_steps(names, **columns):
    """[{"step": name, column: number, ...}, ...] of columns (S,), sorted by the first column,
    largest first; ties by the second, then as listed."""
    numbers = {column: p.tolist() for column, p in columns.items()}
    rows = []
    for i, name in enumerate(names):
        row = {"step": name}
        for column in columns:
            row[column] = numbers[column][i]
        rows.append(row)
    ranked_by = list(columns)[:2]
    return sorted(rows, key=itemgetter(*ranked_by), reverse=True)  # equals stay in their order


def count_futures(picks, names):
    """[{"steps", "share"}, ...] of futures (Q, H): each with its share of the Q, largest first."""
    futures = []
    for future, count in Counter(map(tuple, picks.tolist())).most_common():
        steps = [names[step] for step in future]
        futures.append({"steps": steps, "share": count / len(picks)})
    return futures


def forecast(model, x, texts, as_one, names, noise):
    """What may follow the clips x (N, D): the rows of the next steps, without key frames, and the
    futures, as in the JSON.

    Args:   texts (S, D); as_one (S,), names (S',): as `count_as_one` gives them; noise (H, Q, D):
            of Q samples, each a future of H steps.
    Raises: FloatingPointError if p is not finite.
    """
    count = len(names)
    log_p = sample_in_turn(model, x, texts, noise)                                 # (Q, H, S)
    picks = merge(log_p.exp(), as_one, count).argmax(-1)                            # (Q, H)
    chosen = torch.bincount(picks[:, 0].cpu(), minlength=count)                    # (S',)
    mean = expectation(log_p[None, :, 0].cpu())[0]                                 # (S,)   Eq. 11
    mean = merge(mean, as_one, count)                                               # (S',)
    x_hat = model.forecast_next(x[None], x.new_zeros(1, 1, model.dim))             # x_j^T = 0
    zero_noise = match_labels(model, x_hat[0, 0], texts).exp().cpu()               # (S,)
    zero_noise = merge(zero_noise, as_one, count)                                   # (S',)
    require_finite(mean, model.path)
    require_finite(zero_noise, model.path)
    following = rank_steps(names, share=chosen.double() / len(picks), p=mean,
                           zero_noise=zero_noise)
    return following, count_futures(picks, names)


def describe_clips(windows, p, names):
    """[{"start", "end", "steps": the PRINTED likeliest}, ...] of windows (N, 2) s, by p (N, S)."""
    clips = []
    for (start, end), row in zip(windows.tolist(), p):
        clips.append({"start": start, "end": end, "steps": rank_steps(names, p=row)[:PRINTED]})
    return clips


# --- Key frames ---
def open_pipeline(folder, name, model, device):
    """The image model `name`, to draw what `model` forecasts; the folder is made. InputError or
    OSError if one cannot be used."""
    require(model.denoiser is not None, f"--key-frames: {model.path} was trained without h; it "
            "forecasts no step to draw")
    pipeline = keyframes.open_pipeline(name, device)
    Path(folder).mkdir(parents=True, exist_ok=True)
    return pipeline


def add_key_frames(following, pipeline, source, model, windows, folder, strength, seed):
    """Draw a key frame of each of the next steps that are printed, from the last frame that f was
    shown, and write into each row where it is: "key_frame", None without one."""
    for row in following:
        row["key_frame"] = None
    if pipeline is None:
        return
    _, F, seconds = Pictures.of(model.encoder)
    picture = source.picture(0, frame_times(windows[-1:], F, seconds)[0, -1])      # (3, H, W)
    likeliest = following[:PRINTED]
    steps = [row["step"] for row in likeliest]
    paths = keyframes.draw_key_frames(pipeline, folder, picture, steps, strength, seed)
    for row, path in zip(likeliest, paths):
        row["key_frame"] = str(path)


# --- The command ---
def predict(video=None, steps=None, checkpoint=None, at=None, samples=50, horizon=3, seed=0,
            device="auto", clip=None, clip_weights=None, name=None, figure=None,
            key_frames=None, image_model=None, strength=None, micro_batch=None):
    """The JSON's content.

    Args: those not listed here are the flags; None means that a flag is not given.
        video:      path; None: test video number `seed` of the toy world.
        steps:      list of texts, or the path of a file with one per line; None: the classes that
                    the checkpoint is fine-tuned to, or the steps of the toy world.
        at:         s, where the observed part ends.
        name:       id of a video, if `video` is a file of features.
    A model that is fine-tuned for forecasts names the windows by Eq. 6, and what comes next by its
    classifier.
    Raises:  InputError, OSError or FloatingPointError, where the command would end with an error.
    """
    # 1. The checkpoint, the video, the steps to choose among.
    require(not (name and figure), "features have no pictures")
    if figure:                                             # first, what may not be installed
        figures.open_matplotlib(figure)
    keyframes.check_flags(key_frames, image_model, strength, features=name is not None)
    device = pick_device(device)
    checkpoint = checkpoint or default_checkpoint()
    model = weights.load(checkpoint).to(device)
    config = model.config
    require_world(model)
    require(config.task in (None, "forecast"), f"{checkpoint}: is fine-tuned for {config.task}; "
            "give the checkpoint it was made from, or one that is fine-tuned for forecast")
    require(config.text_space, f"{checkpoint}: its f has no text space, in which the steps of a "
            "window could be named; evaluate.py measures it")
    source = open_one(video, name, model, seed)
    names, texts = open_steps(steps, model, clip, clip_weights)                # (S, D)
    joined = joined_names(names, look_alikes_of(model))
    merged, as_one = count_as_one(names, joined)                                # (S',), (S,)
    pipeline = None
    if key_frames:
        pipeline = open_pipeline(key_frames, image_model, model, device)
    windows, clips = observe(source, model, at, horizon)

    # 2. The step of each window, and what may come next.
    following, futures, warnings = [], [], [warn_of_data(model, source)]
    with torch.no_grad():
        with mixed_precision(device):
            x = encode_parts(model, clips, micro_batch)                        # x_i = f(v_i) (N, D)
        p = merge(model.match(x, texts).exp().cpu(), as_one, len(merged))      # Eq. 6      (N, S')
        require_finite(p, checkpoint)
        if model.denoiser is None:
            warnings.append("trained without h: it recognizes steps but cannot forecast")
        else:
            generator = torch.Generator().manual_seed(seed)
            noise = torch.randn(horizon, samples, model.dim, generator=generator)  # (H, Q, D)
            following, futures = forecast(model, x, texts, as_one, merged, noise)

    # 3. The result.
    add_key_frames(following, pipeline, source, model, windows, key_frames, strength, seed)
    title = name or str(video)
    truth = None
    if video is None:
        title = source.videos[0].name
    if source.truth:
        truth = source.truth.of_forecast(windows, futures, joined)
    content = {"video": title, "clips": describe_clips(windows, p, merged), "next": following,
               "futures": futures, "warning": "; ".join(filter(None, warnings)) or None,
               "truth": truth}
    if figure:
        pictures = clips[:, clips.shape[1] // 2].numpy()                   # the middle of each
        figures.save_figure(figure, figures.plot_forecast, content, pictures)
    return content


def print_forecast(content):
    """Print the windows, the PRINTED next steps and futures, and the truth if it is known."""
    truth = content["truth"]
    print(f"{content['video']}: the likeliest steps of each window")
    for i, clip in enumerate(content["clips"]):
        shown = ", ".join(f"{row['step']} {row['p']:.0%}" for row in clip["steps"][:2])
        true = f"  (true: {truth['clips'][i] or 'no step'})" if truth else ""
        print(f"  {clip['start']:6.1f} - {clip['end']:6.1f} s  {shown}{true}")
    print("next steps: share of the samples in which each is the likeliest, mean p of the samples, "
          "p from zero noise")
    for row in content["next"][:PRINTED]:
        drawn = ""
        if row["key_frame"]:
            drawn = f"  ({row['key_frame']})"
        print(f"  {row['share']:5.0%} {row['p']:4.0%} {row['zero_noise']:4.0%}  "
              f"{row['step']}{drawn}")
    print("futures: share of the samples")
    for future in content["futures"][:PRINTED]:
        print(f"  {future['share']:4.0%}  {' > '.join(future['steps'])}")
    if truth:
        print("exact distribution of the next step:",
              ", ".join(f"{row['step']} {row['p']:.0%}" for row in truth["next"]))
        print("what follows in the video:", ", ".join(truth["follows"]) or "nothing")
    if content["warning"]:
        print(f"warning: {content['warning']}")


def main(args):
    """Forecast, print, and write what was asked for."""
    flags = {name: value for name, value in vars(args).items() if name != "json"}
    content = predict(**flags)
    print_forecast(content)
    if args.json:
        write_json(args.json, content)


def parse(argv=None):
    """The command line."""
    parser = Parser("Show the steps of one video, and several possible futures.")
    add = parser.add_argument_group("video").add_argument
    add("video", nargs="?", help="the video; without one, test video number --seed of the toy "
        "world, and the truth is printed with the forecast")
    add("--video", dest="name", metavar="ID", help="which video, if VIDEO is a file of features")
    add("--steps", type=existing, help="the steps to choose among, one per line (default: those "
        "the checkpoint is fine-tuned to, or the toy world's)")
    add("--at", type=clock, help="forecast from here: s, MM:SS or HH:MM:SS (default: the end of "
        "the video; without VIDEO, of a random step)")

    add = parser.add_argument_group("model").add_argument
    add_checkpoint_flag(add)
    add_teacher_flags(add)

    add = parser.add_argument_group("forecast").add_argument
    add("--samples", type=positive(int, most=100_000), default=50, help="Monte Carlo samples "
        "(Eq. 11), one future each")
    add("--horizon", type=positive(int, most=1000), default=3, help="steps of a future; the paper "
        "forecasts one")
    add("--json", type=Path, help="also write the forecast here")
    add("--figure", type=Path, help="also draw it: FILE.png, .pdf or .svg (needs matplotlib)")

    add = parser.add_argument_group("key frames").add_argument
    add("--key-frames", type=Path, metavar="DIR", help="draw the printed next steps, a picture "
        "each, from the last observed frame (Fig. 3); needs --image-model and diffusers")
    add("--image-model", metavar="M", help="a Stable Diffusion: a folder as diffusers saves it, or "
        "a name that it can fetch; only safetensors are loaded, and no code")
    add("--strength", type=share_number, help="share of the image model's noise that is added to "
        f"the frame; 1: nothing of it stays (default: {keyframes.STRENGTH})")

    add = parser.add_argument_group("run").add_argument
    add("--seed", type=seed_number, default=0, help="of the noise; without VIDEO, which test video")
    add_device_flags(add)
    return parser.parse_args(argv)


if __name__ == "__main__":
    run_command(main, parse)
