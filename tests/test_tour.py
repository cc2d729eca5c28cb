"""experiments/tour.py: the real command. Drawing needs matplotlib."""
import inspect
from pathlib import Path

import pytest

from commands import call
from experiments import pictures


def test_the_page_shows_each_picture_with_its_text_and_code(trained, here):
    """Catches: a picture that cannot be drawn, or stands by another's text; code left out."""
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    call("tour.py", "--checkpoint", str(trained / "diffusion"), "--video", "1", "--after", "2", "--out",
         "page")
    parts = Path("page/tour.md").read_text().split("\n## ")[1:]
    assert len(parts) == len(pictures.PICTURES) == 8
    for number, (part, draw) in enumerate(zip(parts, pictures.PICTURES), start=1):
        assert Path(f"page/figures/tour-{number}.png").read_bytes()[1:4] == b"PNG"
        text, code = part.split("```python\n")
        assert f"tour-{number}.png" in text and text.startswith(f"{number}. {draw.__doc__[:9]}")
        body = inspect.getsource(draw).split('"""\n')[1]
        assert [line.strip() for line in body.splitlines()] == [
            line.strip() for line in code.splitlines()[:-1]]
