"""What is printed: evaluate.py's table, and that a run is too small to mean anything."""
from evaluation.table import print_table
from train import TrainSettings
from training.run import Run

HEAD = {"task": "forecast", "listed": 41, "evaluated": 40, "missing": 3, "unreadable": 0,
        "samples": 5}


def test_the_printed_table(capsys):
    """Catches: a row that does not apply, printed; an interval with all its digits; samples that
    may be videos; a ceiling that reads like a result; a list of 778 classes."""
    print_table({**HEAD, "top1": {"zero_noise": 1 / 3, "oracle_softmax": None}, "truth": None,
                 "ours_minus_teacher": [1.23456, -2.0, 3.0], "by_class": [1.0] * 778,
                 "baselines": {"bigram": 2.0}})
    assert [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()] == [
        "test samples", "listed 41", "evaluated 40", "videos", "missing 3", "unreadable 0",
        "task forecast", "samples 5 Monte Carlo samples of each forecast", "top1 % right",
        "zero_noise 0.33 the model, one forecast",
        "ours_minus_teacher 1.23, -2.00, 3.00 % more than the teacher, and the 95 % interval",
        "baselines % right", "bigram 2.00 baseline"]
    print_table({**HEAD, "evaluated": 3})
    assert "note: fewer than 30 samples" in capsys.readouterr().out


def test_a_run_that_is_too_small_says_so(tmp_path, capsys):
    """Catches: a model of three steps, or of five videos, without a word."""
    for total, count, notes in ((9, 100, 1), (50, 15, 1), (50, 16, 0)):
        Run(TrainSettings(out=tmp_path, batch=16), None, {}, 0, total, count)
        assert capsys.readouterr().out.count("note: ") == notes
