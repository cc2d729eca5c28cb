"""docs/tour.ipynb: the sections of docs/tour.md as cells that run, and cells to change.

A notebook is a JSON file (nbformat 4.5). It is written and run here without a notebook package.
"""
import ast
import base64
import inspect
import io
import json
import re
import sys
from contextlib import redirect_stdout
from pathlib import Path

from experiments.charts import Picture
from experiments.pictures import PICTURES

ROOT = Path(__file__).resolve().parents[1]
FORMAT = {"nbformat": 4, "nbformat_minor": 5, "metadata": {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"}}}

START = """# The method in eight pictures, to run and to change

This is [tour.md](tour.md) as a notebook, made by the same command. The cell below a text draws its
picture. All cells take less than a minute on two CPU cores. Those after **Try it** are meant to be
changed.

This notebook needs the project's code. Clone the project, and in its folder run

    pip install -r requirements.txt matplotlib

and start a notebook program there, in that folder or in one below. The first cell finds the root.
""", """import os
import sys
from pathlib import Path

places = [Path.cwd(), *Path.cwd().parents]
root = next((path for path in places if (path / "toy/default.safetensors").is_file()), None)
if root is None:
    sys.exit("The project is not here: clone it, and start the notebook in its folder.")
os.chdir(root)
sys.path.insert(0, str(root))"""

VIDEO = """## The video, the model, and noise

**Try it:** take another video or observe fewer steps, run all cells again, and look at how near the
forecasts of pictures 6 and 7 come to the exact distribution.
""", """import torch

from diffusion import add_noise, expectation, sample
from evaluation.inference import draw_noise
from experiments import charts, pictures
from experiments.charts import Picture
from pseudo_labels import soft_targets
from toy.grammar import STEPS
from toy.source import load_teacher

video = {video}        # number of the test video, from 0; all before it are rendered, too
after = {after}        # how many of its steps are observed, from 1
torch.set_grad_enabled(False)                      # nothing is trained here
forecast = pictures.Forecast(Path({checkpoint}), video, after, seed={seed})
run, model, h, log_p = forecast.run, forecast.model, forecast.h, forecast.log_p
features, x = forecast.features, forecast.x        # (9, D): teacher(v_i), and x_i = f(v_i)
z0, noise = forecast.z0, forecast.noise            # (Q, 1, D): the ninth clip Q times, and noise
print("observed:", ", ".join(STEPS[step] for step in forecast.shown[0]))
print("next:", STEPS[forecast.sample.label])"""

PHRASES = """**Try it:** write your own phrases, with objects and tools of `toy/render.py`, and
see whether f can tell apart phrases that differ by one word.
""", """phrases = ["pour milk", "pour oil", "crack egg", "a photo of an egg", "how to stir dough"]
texts = load_teacher("cpu").encode_phrases(phrases)  # (K, D)
p = model.match(x[:8], texts).exp()                  # (8, K)       Eq. 6: sums to 1 over this list
Picture(pictures.draw_matching, forecast, p, phrases)
"""

LEVEL = """**Try it:** set t from 1 to 4, and look at how the bars move from the step that the
hidden clip shows to all steps that may come next (hatched: their exact distribution).
""", """t = 2                         # noise level, from 1, the least noise, to 4
zt = add_noise(z0, noise, model.alpha_bar[t - 1])    # (Q, 1, D)    Eq. 2
z_hat = h(zt, torch.full((len(zt),), t - 1))         # (Q, 1, D)    Eq. 5
p = expectation(log_p(z_hat.transpose(0, 1)))[0]     # (S,)         Eq. 11
Picture(pictures.draw_next, forecast, p)
"""

SAMPLES = """**Try it:** draw 1, 5 or 200 samples, each with several seeds, and look at how much the
bars of two seeds differ.
""", """samples, seed = 5, 1
few = draw_noise(samples, (1, model.dim), seed)      # (Q, 1, D)
p = expectation_beside_truth(model, h, few, log_p)   # (S,)         Eq. 11
Picture(pictures.draw_next, forecast, p)
"""

TRY = {2: PHRASES, 4: LEVEL, 7: SAMPLES}           # after which picture


def make_cells(page, settings):
    """The cells, texts and code by turns, of the text of tour.md and the command's flags."""
    path = settings.checkpoint.resolve()
    path = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
    opening = VIDEO[1].format(**{**vars(settings), "checkpoint": json.dumps(path.as_posix())})
    parts = {"start": START, "video": (VIDEO[0], opening)}
    sections = re.findall(r"(?s)(## \d.*?)!\[.*?```python\n(.*?)```", page)
    for number, ((text, code), (compute, draw)) in enumerate(zip(sections, PICTURES.items()), 1):
        computed = f"{compute.__name__}({', '.join(inspect.signature(compute).parameters)})"
        parts[f"tour-{number}"] = (
            text, f"{code}\n\nPicture(pictures.{draw.__name__}, forecast, {computed})")
        if number in TRY:
            parts[f"try-{number}"] = TRY[number]
    return [{"cell_type": kind, "id": name + end, "metadata": {},
             "source": source.strip().splitlines(keepends=True)}
            for name, both in parts.items()
            for kind, end, source in zip(("markdown", "code"), ("-text", ""), both)]


def run_cells(cells):
    """Run the code from top to bottom in the project's folder, and put the outputs into the cells.
    Returns: the names that the cells define."""
    names, values, before = {}, [], sys.displayhook
    try:
        sys.displayhook = values.append                # the value of an expression, as in a shell
        for number, cell in enumerate(cells[1::2], start=1):
            values.clear()
            with redirect_stdout(io.StringIO()) as printed:
                body = ast.parse("".join(cell["source"])).body
                exec(compile(ast.Interactive(body), cell["id"], "single"), names)
            texts = [printed.getvalue()] if printed.getvalue() else []
            pictures = [value._repr_png_() for value in values if isinstance(value, Picture)]
            cell["execution_count"], cell["outputs"] = number, [
                *({"output_type": "stream", "name": "stdout", "text": text} for text in texts),
                *({"output_type": "display_data", "metadata": {}, "data": {
                    "image/png": base64.b64encode(png).decode()}} for png in pictures)]
    finally:
        sys.displayhook = before
    return names
