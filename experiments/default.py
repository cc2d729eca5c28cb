"""The checkpoint that comes with the code, of the default run: `python -m experiments.default`."""
from dataclasses import dataclass
from pathlib import Path

from support.command import WHAT, Settings, opt, run
from support.flags import DEFAULT, OWN


@dataclass(frozen=True)
class DefaultSettings(Settings):
    """Write the checkpoint that comes with the code; the run has the default settings, seed 0."""
    run: Path = opt("the run folder", OWN, WHAT)
    out: Path = opt("file to write", DEFAULT, file=())


def main(settings):
    """Write the weights, float32; in the metadata how f and h are built, were trained, a digest."""
    import json

    from experiments.runs import require_settings
    from files.text import read_json
    from support.tensors import digest_of, write_tensors
    from train import TrainSettings
    from training.run import MAY_CHANGE
    from weights.checkpoint import load_model
    require_settings(TrainSettings(out=settings.run))
    config = read_json(settings.run / "config.json", "that of train.py")
    kept = {name: value for name, value in config["settings"].items() if name not in MAY_CHANGE}
    model, arguments, _ = load_model(settings.run)
    metrics = (settings.run / "metrics.jsonl").read_text()
    said = {"arguments": json.dumps(arguments), "settings": json.dumps(kept),
            "world": config["versions"]["world"], "metrics": metrics}
    weights = model.state_dict()
    write_tensors(settings.out, weights, said | {"digest": digest_of(weights, said)})
    print(f"{settings.out}: {settings.out.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    run(main, DefaultSettings)
