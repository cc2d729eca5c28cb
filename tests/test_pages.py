"""Every command in README.md and docs/ runs, as it stands there, at the smallest size."""
import importlib.util
import re
import shlex
import shutil
import textwrap
from pathlib import Path

import pytest

import train
from commands import EPOCHS, SCRIPTS, call
from predict import predict
from support.command import parse

ROOT = Path(__file__).parent.parent
PAGES = ["README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]
# Commands that are not run here: what they contain, and the reason.
NOT_RUN = {"pip install": "an environment of its own: .ci/run", "pytest": "this is it",
           "torchrun": "tests/test_parallel.py runs two processes", "--init timm": "a download",
           "procedurevrl.pyth": "published weights: tests/test_weights.py runs random ones",
           "--keyframes": "published weights: tests/test_keyframes.py paints with random ones",
           "EPIC_100": "EPIC-Kitchens' videos: tests/test_actions.py runs made-up ones",
           "experiments.benchmark": "minutes: tests/test_benchmark.py runs its parts",
           "experiments.reproduce": "hours: tests/test_reproduce.py runs it without training"}
PACKAGES = {"matplotlib": ("--figure", "experiments.charts", "experiments.tour"),
            "spacy": ("phrases --captions",)}                  # what needs an optional package
TOY = {"train.py": ("--toy-videos", "16", "--batch", "4"), "evaluate.py": ("--toy-videos", "2"),
       "tour.py": ("--lead", "2")}
SMALL = "--size", "small", "--clip", "local-dir:clip", "--batch", "4"


def commands_of(page):
    """The command lines of a page's indented blocks; a backslash joins two lines."""
    text = (ROOT / page).read_text(encoding="utf-8").replace("\\\n", " ")
    return [shlex.split(line, comments=True)
            for line in re.findall(r"^    ((?:python|torchrun|pip) .*)$", text, re.M)]


def snippets_of(page):
    """The Python of a page's indented blocks, those that begin with an import."""
    text = (ROOT / page).read_text(encoding="utf-8")
    blocks = map(textwrap.dedent, re.findall(r"(?:^(?: {4}.*)?\n)+", text, re.M))
    return [block for block in blocks if re.match(r"\s*(import|from) ", block)
            and not any(part in block for part in NOT_RUN)]


def is_run(line):
    """Whether a command is run here and its packages are installed."""
    text = " ".join(line)
    return not any(part in text for part in NOT_RUN) and not any(
        part in text for package, parts in PACKAGES.items() for part in parts
        if importlib.util.find_spec(package) is None)


def at_smallest_size(script, *flags):
    """The same command with few videos and epochs: of a flag given twice the last value counts."""
    more = () if {"--data", "--videos"} & {*flags} else TOY.get(script, ())
    if script == "train.py":
        more += ("--epochs", "1") if "finetune" in flags else (
            *EPOCHS, *(SMALL if "howto100m" in flags else ()))
    if (script, *flags[:1]) == ("toy", "export"):
        more = "--train", "6", "--test", "2"
    return script, *flags, *more, *(("--workers", "0") if "--workers" in flags else ())


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """The embedded world as files, under the names that the pages use, with trained models."""
    folder = tmp_path_factory.mktemp("exported")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        call("toy", "export", "--out", "world", "--train", "6", "--test", "2")
        names = {"VIDEOS": "videos", "CAPTIONS": "captions", "clip": "clip",
                 "COIN.json": "COIN.json", "phrases.txt": "phrases.txt", "steps.txt": "steps.txt",
                 "VIDEO.mp4": next(Path("world/videos").iterdir()).relative_to("world")}
        Path("toy").symlink_to(ROOT / "toy")
        for name, target in names.items():
            Path(name).symlink_to(Path("world") / target)
        for line in ("train.py", "train.py --missing 3 --out runs/several",
                     "train.py --data howto100m --videos VIDEOS --captions CAPTIONS --phrases "
                     "phrases.txt --out runs/mine", "files embed --phrases steps.txt --clip "
                     "local-dir:clip --out T.npz",
                     "evaluate.py --task features --videos VIDEOS --checkpoint runs/mine --out "
                     "F.npz", "files teach --videos VIDEOS --out TEACHER --clip local-dir:clip"):
            call(*at_smallest_size(*line.split()))
    return folder


@pytest.mark.parametrize("page", [page for page in PAGES if any(map(is_run, commands_of(page)))])
def test_every_command_of_a_page_runs(page, exported, tmp_path, monkeypatch):
    """Catches: a flag that is gone, a file that another command no longer writes."""
    shutil.copytree(exported, tmp_path / "copy", symlinks=True)
    monkeypatch.chdir(tmp_path / "copy")
    for python, *line in filter(is_run, commands_of(page)):
        if line[0] == "-m":
            *package, name = line[1].split(".")
            line = [f"{name}.py" if package else name, *line[2:]]
        if line[:2] in (["files", "embed"], ["files", "teach"]):
            line += ["--clip", "local-dir:clip"]
        if line[0] == "train.py":                              # it refuses a folder with a run
            given = parse(train.command_of(line[1:])[1], line[1:])
            shutil.rmtree(given.out, ignore_errors=True)
        Path("docs/figures").mkdir(parents=True, exist_ok=True)
        call(*at_smallest_size(*line))


def test_the_commands_for_a_gpu_parse():
    """Catches: a flag that is gone from a command of speed.md that nobody has run yet."""
    text = (ROOT / "docs/speed.md").read_text(encoding="utf-8")
    world, = re.findall('WORLD="(.*)"', text)
    rows = re.findall(r"\| `(?:python|torchrun .*?\d) (?:-m experiments\.)?(.*?)` \|", text)
    for name, *argv in (shlex.split(row.replace("$WORLD", world)) for row in rows):
        if name != "-m":                                       # pytest
            name = name.removesuffix(".py") + ".py"
            parse((SCRIPTS.get(name) or train.command_of(argv))[1], argv)
    assert len(rows) > 9


@pytest.mark.parametrize("page", [*filter(snippets_of, PAGES)])
def test_the_python_of_a_page_runs(page, exported, monkeypatch):
    """Catches: a name that moved, axes that no longer fit."""
    monkeypatch.chdir(exported)
    for snippet in snippets_of(page):
        exec(compile(snippet, page, "exec"), {})


def test_f_and_h_in_ten_lines(exported, monkeypatch):
    """Catches: more lines than README says; answers that are no probabilities; other pixels."""
    monkeypatch.chdir(exported)
    snippet, = (block for block in snippets_of("README.md") if "forecast_next" in block)
    assert len(list(filter(str.strip, snippet.splitlines()))) <= 14
    exec(compile(snippet, "README.md", "exec"), found := {})
    phrases = ["crack egg", "melt butter", "pour oil"]
    clips = predict("VIDEO.mp4", steps=phrases, checkpoint="toy/default.safetensors",
                    device="cpu")["clips"]
    model, x, x_hat, texts = (found[name] for name in ("model", "x", "x_hat", "texts"))
    for row, clip in zip(model.match(x, texts).exp().tolist(), clips, strict=True):
        assert dict(zip(phrases, row)) == pytest.approx(
            {step["step"]: step["p"] for step in clip["steps"]})
    assert x_hat.shape == (1, 5, model.dim) and len(x_hat[0].unique(dim=0)) == 5
