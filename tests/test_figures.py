"""The figure of predict.py, and what is said without matplotlib."""
import sys

import numpy as np
import pytest

from support import figures
from support.errors import InputError


def test_a_forecast_is_drawn(drawn, tmp_path):
    """Catches: a wrong frame above a caption, forecast and truth exchanged, a true step left
    out."""
    shares = {"a": .6, "b": .3, "c": .1}
    futures = {("a", "c"): .4, ("b", "b"): .3}
    content = {"video": "a $x.mp4", "clips": [
        {"start": i, "end": i + 1, "steps": [{"step": f"step {i}", "p": 0.5}]} for i in range(3)],
        "next": [{"step": step, "share": share} for step, share in shares.items()],
        "futures": [{"steps": [*steps], "share": share} for steps, share in futures.items()],
        "truth": {"clips": [None, "a", None],
                  "next": [{"step": "f", "p": .9}, {"step": "a", "p": .1}],
                  "futures": [{"steps": ["a", "c"], "share": .25}]}}
    pictures = np.random.default_rng(0).integers(0, 256, (3, 3, 6, 8), dtype=np.uint8)
    figures.save(tmp_path / "a.png", figures.plot_forecast, content, pictures)
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    *strip, bars, tree = drawn[0].axes
    assert all(np.array_equal(axes.images[0].get_array(), picture.transpose(1, 2, 0))
               for axes, picture in zip(strip, pictures, strict=True))
    assert strip[1].get_xlabel() == "step 1\n50%\ntrue: a"
    assert [label.get_text() for label in bars.get_yticklabels()] == [*"abcf"]
    assert [bar.get_width() for bar in bars.patches] == [.6, .3, .1, 0, .1, 0, 0, .9]
    assert [bar.get_width() for bar in tree.patches] == [.4, .3, .25, 0]


def test_matplotlib_that_is_absent_is_one_line(tmp_path, monkeypatch):
    """Catches: a traceback in place of the pip line."""
    for name in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(InputError, match="pip install matplotlib$"):
        figures.save(tmp_path / "a.png", None)
