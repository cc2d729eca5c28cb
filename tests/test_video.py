"""files/video.py on real files that are written here, of which each picture is different."""
from fractions import Fraction

import av
import numpy as np
import pytest
import torch
from torchvision.transforms import v2

from data import Unreadable
from files import video
from files.video import read_frames
from support.errors import InputError

FPS, SIZE, BLOCK, BITS = 25, (48, 64), 8, 18           # frames/s; H, W; pixels of a gray square
H264 = {"options": {"preset": "ultrafast", "x264-params": "bframes=3:keyint=50:scenecut=0"}}
MPEG4 = {"codec": "mpeg4", "options": {"sc_threshold": "1000000000", "g": "12"}}
VP9 = {"codec": "libvpx-vp9", "options": {"deadline": "realtime", "cpu-used": "8", "g": "20"}}
VARIABLE = {"ticks": (np.cumsum([30, 40, 40, 500, 33, 33, 1700, 20, 20, 25] * 6) - 30).tolist(),
            "base": Fraction(1, 1000)}                 # ms


def write(path, codec="libx264", ticks=range(100), base=Fraction(1, FPS), options=None,
          container=None, size=SIZE, sound=0.0):
    """A video whose picture i is taken at ticks[i] * base s; its first squares are the bits of
    ticks[i]. sound: s of silence, from 0."""
    rng = np.random.default_rng(0)
    with av.open(str(path), "w", options=container or {}) as file:
        stream = file.add_stream(codec, rate=FPS, options=options or H264["options"])
        stream.height, stream.width, stream.pix_fmt = *size, "yuv420p"
        stream.codec_context.time_base, stream.codec_context.thread_count = base, 1
        if sound:
            write_silence(file, sound)
        for tick in ticks:
            squares = rng.integers(0, 256, (size[0] // BLOCK, size[1] // BLOCK), np.uint8)
            squares.flat[:BITS] = 255 * (tick >> np.arange(BITS) & 1)
            gray = squares.repeat(BLOCK, 0).repeat(BLOCK, 1)
            frame = av.VideoFrame.from_ndarray(gray[..., None].repeat(3, 2), "rgb24")
            frame.pts, frame.time_base = tick, base
            file.mux(stream.encode(frame))
        file.mux(stream.encode())
    return path


def write_silence(file, seconds):
    stream = file.add_stream("pcm_s16le", rate=8000)
    for i in range(round(seconds * 10)):
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 800), np.int16), "s16", "mono")
        frame.sample_rate, frame.pts, frame.time_base = 8000, i * 800, Fraction(1, 8000)
        file.mux(stream.encode(frame))
    file.mux(stream.encode())


def turn(path):
    """Write into an mp4 that its pictures lie on their side, as those of a phone."""
    data = bytearray(path.read_bytes())
    at = data.index(b"tkhd") + 4 + 40                  # ISO 14496-12, 8.3.2: the matrix of a track
    matrix = np.array([0, 1 << 16, 0, -1 << 16, 0, 0, 0, 0, 1 << 30], ">i4").tobytes()
    data[at:at + 36] = matrix
    path.write_bytes(data)


def ticks_of(pictures):
    """The ticks that pictures of `write` encode: (n, 3, H, W) -> (n,)."""
    squares = pictures[:, 0, BLOCK // 2::BLOCK, BLOCK // 2::BLOCK].flatten(1)
    return (squares[:, :BITS] > 127).numpy() @ (1 << np.arange(BITS))


FILES = {                                              # {file: how it is written, its start in s}
    "b_frames.mov": ({}, 0),
    "open_gop.mkv": ({"options": {"x264-params": "open-gop=1:bframes=3:keyint=20:scenecut=0"}}, 0),
    "recorded.mkv": ({"container": {"live": "1"}}, 0), "mpeg4.avi": (MPEG4, 0),
    "vp9.webm": ({**VP9, "base": Fraction(1, 30)}, 0), "variable.mp4": (VARIABLE, 0),
    "late.mp4": ({"ticks": range(70, 170)}, 2.8),
    "sound.mkv": ({"ticks": range(20, 120), "sound": 4.0}, 0)}


@pytest.mark.parametrize("name", FILES)
def test_no_picture_is_of_later(tmp_path, name, monkeypatch):
    """Catches: the nearest or the next picture for the last one at or before a time; pts for dts; a
    seek behind the target; a wrong length. (mkv rounds a time to 1 ms.)"""
    options, start = FILES[name]
    path, base = write(tmp_path / name, **options), float(options.get("base", Fraction(1, FPS)))
    taken = np.array(options.get("ticks", range(100))) * base - start        # (n,) s

    def check(times):
        pictures = read_frames(path, times)
        assert pictures.is_contiguous() and pictures.dtype == torch.uint8
        last = np.maximum(np.searchsorted(taken, times, "right") - 1, 0)     # before the first: it
        assert ticks_of(pictures) * base - start == pytest.approx(taken[last])
    rng = np.random.default_rng(0)
    times = np.concatenate([[0.0], taken + 0.001, taken - 0.001, rng.uniform(0, taken[-1], 50)])
    times = times[(np.abs(times[:, None] - taken).min(1) > 0.0006) & (times >= 0)]
    for ahead in 10.0, 0.1:                            # one walk; many seeks
        monkeypatch.setattr(video, "AHEAD", ahead)
        check(rng.permutation(times))
    if "base" not in options:
        assert video.duration(path) == pytest.approx(taken[-1] + 1 / FPS, abs=0.09)
        check([video.duration(path)])


def test_a_phone_video_is_upright(tmp_path):
    """Catches: the rotation ignored or inverted, (0 1 -1 0) takes right to down; no reduction."""
    path = write(tmp_path / "phone.mp4", ticks=range(5))
    whole, flat = read_frames(path, [0.1], short_side=100), read_frames(path, [0.1], short_side=24)
    usual = v2.functional.resize(whole, (24, 32), antialias=True)
    assert whole.shape == (1, 3, 48, 64) and (flat.float() - usual).abs().mean() < 4
    turn(path)
    assert torch.equal(read_frames(path, [0.1], short_side=24), flat.rot90(-1, (2, 3)))


def test_the_first_and_the_last_picture_hold_for_a_second(tmp_path):
    """Catches: annotations that end a little late refused; a picture from long before or after."""
    path = write(tmp_path / "a.mkv", ticks=range(50, 150), sound=4.0)        # from 2 s to 6 s
    assert ticks_of(read_frames(path, [1.01, 2.0, 5.99, 6.9])).tolist() == [50, 50, 149, 149]
    for time, words in (0.5, "begins after 0.5 s"), (7.2, "ends before 7.2 s; times must be s"):
        with pytest.raises(Unreadable, match=f"a.mkv: {words}"):
            read_frames(path, [time, 3.0])


@pytest.mark.parametrize("name, options", [
    ("a.mkv", {}), ("a.mp4", {"container": {"movflags": "faststart"}})])
def test_a_file_cut_off_gives_what_it_has_and_no_more(tmp_path, name, options):
    """Catches: the last frame of a truncated file for every later time, which mkv gives."""
    whole = write(tmp_path / name, ticks=range(250), **options)              # 10 s
    part = whole.with_stem("cut")
    part.write_bytes(whole.read_bytes()[:whole.stat().st_size // 2])
    assert ticks_of(read_frames(part, [0.5, 1.5, 3.0])).tolist() == [12, 37, 75]
    with pytest.raises(Unreadable, match="cut.*(ends before|cannot be read|damaged)"):
        read_frames(part, [3.0, 9.0])


def test_a_bad_file_is_named_with_its_reason(tmp_path):
    """Catches: FFmpeg's exception, or a traceback, in place of one line."""
    whole = write(tmp_path / "whole.mp4").read_bytes()
    with av.open(str(tmp_path / "sound.mp4"), "w") as file:
        write_silence(file, 1.0)
    (tmp_path / "no_index.mp4").write_bytes(whole[:-4000])                   # it is at the end
    (tmp_path / "text.mp4").write_text("<html>video unavailable</html>")
    for name, reason in (("absent", "cannot be read"), ("no_index", "cannot be read"),
                         ("text", "cannot be read"), ("sound", "no video stream")):
        for read in (lambda path: read_frames(path, [0.0])), video.duration:
            with pytest.raises(Unreadable, match=f"{name}.mp4: {reason}"):
                read(tmp_path / f"{name}.mp4")


def test_a_damaged_picture_is_not_returned(tmp_path):
    """Catches: what a decoder makes up taken for a picture."""
    path = write(tmp_path / "a.mp4", **MPEG4)
    with av.open(str(path)) as file:
        key = [packet for packet in file.demux(video=0) if packet.is_keyframe][4]
        middle = key.pos + key.size // 2               # shown at 1.92 s
    data = bytearray(path.read_bytes())
    data[middle] ^= 0xff
    path.write_bytes(data)
    read_frames(path, [1.9])
    with pytest.raises(Unreadable, match=r"damaged at 1\.9 s$"):
        read_frames(path, [1.9, 1.93])


def test_the_videos_of_a_folder(tmp_path):
    """Catches: other files taken, links or capitals missed; one of two files of an id taken."""
    folder, elsewhere = tmp_path / "videos", tmp_path / "disk"
    for file in (folder / "a/x.mkv", elsewhere / "P01.v1.MP4", folder / "y.mp4.part",
                 folder / "cre\u0300me.avi"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    for name, target in ("P01", elsewhere), ("b", folder), ("c", folder):      # circles never end
        (folder / name).symlink_to(target, target_is_directory=True)
    assert video.find_videos(folder) == {
        "x": folder / "a/x.mkv", "P01.v1": folder / "P01/P01.v1.MP4",
        "cr\u00e8me": folder / "cre\u0300me.avi"}
    (folder / "x.mp4").touch()
    with pytest.raises(InputError, match=r"x\.mkv and .*x\.mp4: two files of one id"):
        video.find_videos(folder)


def test_a_training_crop_is_one_square_for_the_whole_clip():
    """Catches: a crop or flip per frame, a squeezed rectangle, no flips, other sides."""
    parts = torch.arange(3)[:, None, None], torch.arange(160)[:, None], torch.arange(240)
    number, row, column = torch.broadcast_tensors(*parts)
    clip, sides, flips, lefts = torch.stack([column, row, number], 1).to(torch.uint8), [], [], []
    for seed in range(60):
        crop = video.training_crop(clip, 112, np.random.default_rng(seed)).float()
        assert (crop[:, :2] == crop[:1, :2]).all() and crop[:, 2, 5, 5].tolist() == [0, 1, 2]
        columns, rows = crop[0, 0, 50], crop[0, 1, :, 50]
        sides.append(float(rows[-6] - rows[5]) * 112 / 101)
        assert abs(float(columns[-6] - columns[5])) * 112 / 101 == pytest.approx(sides[-1], abs=4)
        flips.append(bool(columns[-1] < columns[0]))
        lefts.append(float(columns.min()))
    assert 109 < min(sides) < 116 and 136 < max(sides) < 143       # 112 to 140 of the short side
    assert 18 <= sum(flips) <= 42 and min(lefts) < 15 and max(lefts) > 85
