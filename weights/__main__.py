"""`python -m weights IN OUT`: write a published checkpoint as a checkpoint of ours."""
from dataclasses import dataclass
from pathlib import Path

from support.command import Settings, opt, require, run


@dataclass(frozen=True)
class ConvertSettings(Settings):
    """Write a checkpoint of TimeSformer, DistantSup or ProcedureVRL as a file of ours."""
    source: Path = opt("the file: .pyth, .pth, .safetensors")
    target: Path = opt("the file to write, for --checkpoint and --init", file=())
    heads: int = opt("attention heads of TimeSformer, which its weights do not give; default what "
                     "the file gives, else 64 wide each (12 at 768)", None, low=1)


def main(settings):
    """Read a published checkpoint and write it as a file of ours: tensors and plain types."""
    from weights.checkpoint import OURS, load_model, save_checkpoint
    require(settings.target.resolve() != settings.source.resolve(),
            f"{settings.target}: is the input file; name another for the result")
    model, arguments, content = load_model(settings.source, settings.heads)
    require(not OURS <= content.keys(), f"{settings.source}: is a checkpoint of ours already")
    save_checkpoint(settings.target, model, arguments)
    print(f"{settings.target}: {sum(p.numel() for p in model.parameters()):,} parameters, "
          f"{arguments}")


if __name__ == "__main__":
    run(main, ConvertSettings)
