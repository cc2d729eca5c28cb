"""video.py on files written here, of which each frame is different; damage, copies, views."""
import io
import math
import os
import struct
from fractions import Fraction
from functools import partial
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import av
import numpy as np
import pytest
import torch
from av.bitstream import BitStreamFilterContext
from torchvision.transforms import v2

from commands import flip
from files import video
from files.video import Unreadable, read_frames
from support.command import BadInput

REAL = Path(__file__).resolve().parents[2] / "shared" / "videos"
FPS, SIZE = 25, (48, 64)                               # frames/s; H, W
BLOCK = 8                                              # pixels; a picture is gray squares
H264 = {"preset": "ultrafast", "x264-params": "bframes=3:keyint=50:scenecut=0"}
PLAIN = {"preset": "ultrafast", "x264-params": "bframes=0:keyint=1000:scenecut=0"}
MPEG4 = {"codec": "mpeg4", "options": {"sc_threshold": "1000000000", "g": "12"}}   # no other keys
VP8 = {"codec": "libvpx", "options": {"deadline": "realtime", "cpu-used": "8", "g": "20"}}


def pictures(count, size=SIZE, seed=0):
    """`count` different pictures (H, W, 3) uint8: random gray squares, which encode well."""
    rng = np.random.default_rng(seed)
    squares = rng.integers(0, 256, (count, math.ceil(size[0] / BLOCK), math.ceil(size[1] / BLOCK)))
    gray = squares.repeat(BLOCK, 1).repeat(BLOCK, 2)[:, :size[0], :size[1]]
    return np.repeat(gray[..., None], 3, axis=-1).astype(np.uint8)


def write(path, codec="libx264", count=100, ticks=None, base=Fraction(1, FPS), size=SIZE,
          pixels="yuv420p", options=H264, container=None, sound=0.0, format=None):
    """A video of `count` pictures, number i at ticks[i] * base s; `sound`: s of silence, from 0."""
    ticks = range(count) if ticks is None else ticks
    with av.open(str(path), "w", format=format, options=container or {}) as file:
        stream = file.add_stream(codec, rate=FPS, options=options)
        stream.height, stream.width, stream.pix_fmt = *size, pixels
        stream.codec_context.time_base, stream.codec_context.thread_count = base, 1
        if sound:
            write_silence(file, sound)
        for tick, picture in zip(ticks, pictures(len(ticks), size)):
            frame = av.VideoFrame.from_ndarray(picture, "rgb24")
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


def decode_all(path, limit=None):
    """The slow, obvious version: times (s from the start) and pictures (H, W, 3) of all frames."""
    with av.open(str(path)) as file:
        frames = [(frame.time - (file.start_time or 0) / 1e6, frame.to_ndarray(format="rgb24"))
                  for frame in islice(file.decode(video=0), limit)]
    return [t for t, _ in frames], [picture for _, picture in frames]


def look_up(frames, wanted):
    """The picture of the last frame that is not later than `wanted`; of the first, if all are."""
    earlier = [picture for t, picture in zip(*frames) if t <= wanted + 1e-6]
    return (earlier or frames[1][:1])[-1].transpose(2, 0, 1)


def assert_shows(path, times, frames):
    got = read_frames(path, times)
    assert got.dtype == torch.uint8 and got.shape == (len(times), 3, *frames[1][0].shape[:2])
    wrong = [t for t, shown in zip(times, got) if not np.array_equal(shown, look_up(frames, t))]
    assert not wrong, f"{path.name}: wrong picture at {wrong}"


class Counting:
    """Watches av.open and video.decode: files opened, seeks (one per decode), frames decoded."""

    def __init__(self, monkeypatch):
        self.opened, self.seeks, self.decoded = [], 0, 0
        monkeypatch.setattr(av, "open", partial(self.open, av.open))
        monkeypatch.setattr(video, "decode", partial(self.decode, video.decode))

    def open(self, real, *arguments, **options):
        self.opened.append(real(*arguments, **options))
        return self.opened[-1]

    def decode(self, real, *arguments):
        self.seeks += 1
        for frame in real(*arguments):
            self.decoded += 1
            yield frame

    def all_closed(self):
        return all(len(file.streams) == 0 for file in self.opened)          # close() empties them


VARIABLE = (np.cumsum([30, 40, 40, 500, 33, 33, 1700, 20, 20, 25] * 6) - 30).tolist()      # ms
X265 = {"preset": "ultrafast", "x265-params": "log-level=none:keyint=25:bframes=3:open-gop=1"}
FILES = {
    "b_frames.mp4": {},
    "one_long_gop.mp4": {"options": {**H264, "x264-params": "bframes=3:keyint=250:scenecut=0"}},
    "all_key_frames.mp4": {"options": {"g": "1"}},
    "open_gop.mkv": {"options": {"x264-params": "open-gop=1:bframes=3:keyint=20:scenecut=0"}},
    "hevc_open_gop.mp4": {"codec": "libx265", "options": X265},
    "ten_bit.mkv": {"pixels": "yuv420p10le"},
    "mpeg4.avi": MPEG4 | {"options": MPEG4["options"] | {"bf": "2"}},
    "mjpeg.mov": {"codec": "mjpeg", "options": {}, "pixels": "yuvj420p"},
    "vp8.webm": VP8, "vp9.webm": VP8 | {"codec": "libvpx-vp9"},
    "fragments.mp4": {"container": {"movflags": "frag_keyframe+empty_moov"}},
    "fragments_listed.mp4": {"container": {
        "movflags": "frag_keyframe+empty_moov+default_base_moof+global_sidx"}},
    "recorded.mkv": {"container": {"live": "1"}},
    "recorded_late.mkv": {"container": {"live": "1"}, "ticks": range(1000, 1100)},
    "h264.avi": {}, "variable.mkv": {"ticks": VARIABLE, "base": Fraction(1, 1000)},
    "variable.mp4": {"ticks": VARIABLE, "base": Fraction(1, 1000)},
    "starts_late.mp4": {"ticks": range(70, 170)}, "starts_late.mkv": {"ticks": range(1000, 1100)},
    "sound_first.mkv": {"ticks": range(20, 120), "sound": 4.0}}


@pytest.mark.parametrize("name", FILES)
def test_frames_at_times_equal_decoding_everything(tmp_path, name):
    """Catches: a frame before or after; pts for dts; a seek behind the target; a wrong length."""
    options = {"ticks": range(100), "base": Fraction(1, FPS)} | FILES[name]
    path, ticks = write(tmp_path / name, **options), np.array(options["ticks"])
    begins = {"sound_first.mkv": 0.8, "mpeg4.avi": 1 / FPS}.get(name, 0.0)
    shown = begins + (ticks - ticks[0]) * float(options["base"])
    frames = shown, decode_all(path)[1]
    assert len({picture.tobytes() for picture in frames[1]}) == len(ticks)
    rng = np.random.default_rng(0)
    between = rng.uniform(0, shown[-1], 30)
    times = np.concatenate([between, rng.choice(shown, 15), between[:5], [0.0]])
    assert_shows(path, times, frames)                  # unsorted, repeated
    for t in times[:45:3]:                             # one alone: each is its own seek
        assert_shows(path, [t], frames)
    assert_shows(path, shown, frames)                  # every frame, one walk
    if "variable" not in name:                         # whose last frame's length a file may lack
        assert video.duration(path) == pytest.approx(shown[-1] + 1 / FPS, abs=0.09)
        assert_shows(path, [video.duration(path)], frames)


def test_rotation_is_applied(tmp_path):
    """Catches: phones' rotation ignored or inverted; (0 1 -1 0) takes right to down."""
    path = write(tmp_path / "phone.mp4", count=5)
    upright = read_frames(path, [0.1], short_side=24)
    data = bytearray(path.read_bytes())
    at = data.index(b"tkhd") + 4 + 40                  # ISO 14496-12, 8.3.2: the matrix of a track
    matrix = np.array([0, 1 << 16, 0, -1 << 16, 0, 0, 0, 0, 1 << 30], ">i4").tobytes()
    data[at:at + 36] = matrix
    path.write_bytes(data)
    turned = read_frames(path, [0.1], short_side=24)
    assert upright.shape == (1, 3, 24, 32) and turned.shape == (1, 3, 32, 24)
    assert torch.equal(turned, upright.rot90(-1, (2, 3)))
    video.shrink(path, tmp_path / "copy.mp4", fps=5, short_side=24)
    copy = read_frames(tmp_path / "copy.mp4", [0.0])
    assert (copy - read_frames(path, [0.0], 24).float()).abs().mean() < 6


def test_a_video_that_turns_on_its_side_is_unreadable(tmp_path):
    """Catches: a traceback, which ends the command, for one of its videos."""
    path, turn = write(tmp_path / "a.mp4"), "h264_metadata=display_orientation=insert:rotate=90"
    with av.open(str(path)) as file, av.open(str(tmp_path / "b.mp4"), "w") as out:
        stream = out.add_stream_from_template(file.streams.video[0])
        turned = BitStreamFilterContext(turn, stream)          # until the next key frame
        for packet in file.demux(video=0):
            for part in turned.filter(packet) if packet.size else ():
                part.stream = stream
                out.mux(part)
    assert read_frames(tmp_path / "b.mp4", [0.0]).shape == (1, 3, *SIZE[::-1])
    with pytest.raises(Unreadable, match="b.mp4: is turned on its side at 3.5 s"):
        read_frames(tmp_path / "b.mp4", [0.0, 3.5])


@pytest.mark.parametrize("size, short, expected", [
    ((64, 48), 24, (32, 24)), ((48, 64), 33, (33, 44)), ((48, 64), 100, (48, 64)),
    ((16, 320), 2, (2, 40))])
def test_short_side(tmp_path, size, short, expected):
    """Catches: width and height exchanged, small pictures enlarged, the wrong side made short."""
    path = write(tmp_path / "a.mp4", count=3, size=size)
    got = read_frames(path, [0.0, 0.05], short)
    assert got.shape == (2, 3, *expected) and got.is_contiguous()
    usual = v2.functional.resize(read_frames(path, [0.0, 0.05]), expected, antialias=True)
    assert (got.float() - usual.float()).abs().mean() < 4


def test_pictures_that_change_size_get_the_size_of_the_first(tmp_path):
    """Catches: a stream that changes size ending in a traceback."""
    path, stream = tmp_path / "sizes.mkv", None
    with av.open(str(path), "w") as out:
        for i, size in enumerate([(48, 64), (96, 64)]):
            part = write(tmp_path / f"{i}.mkv", ticks=range(3 * i, 3 * i + 3), size=size,
                         **FILES["mjpeg.mov"])
            with av.open(str(part)) as file:
                stream = stream or out.add_stream_from_template(file.streams.video[0])
                for packet in file.demux(video=0):
                    packet.stream = stream
                    out.mux([packet] if packet.size else [])
    assert [picture.shape[0] for picture in decode_all(path)[1]] == [48, 48, 48, 96, 96, 96]
    assert read_frames(path, [0.0, 0.2]).shape == (2, 3, 48, 64)


@pytest.mark.skipif(not REAL.is_dir(), reason="no shared/videos")
@pytest.mark.parametrize("name", ["flipping_a_pancake.mkv", "cockatoo.mp4"])
def test_real_videos(name):
    """Catches: what files written here do not have (sound, edit lists, other encoders)."""
    frames = decode_all(REAL / name, limit=90)
    times = np.random.default_rng(1).uniform(0, frames[0][-1] - 0.1, 6)
    assert_shows(REAL / name, np.append(times, frames[0][80]), frames)
    assert 10 < video.duration(REAL / name) <= 14
    with av.open(str(REAL / name)) as container:       # the first picture read lies far inside
        late = next(frame for frame in container.decode(video=0) if frame.time >= 9)
        time = late.time - (container.start_time or 0) / av.time_base
        picture = late.to_ndarray(format="rgb24").astype(int)
    assert abs(read_frames(REAL / name, [time])[0].permute(1, 2, 0).numpy() - picture).mean() < 1


NEAR, FAR = [10.1, 10.7, 10.3, 11.9, 11.1], [0.1, 15.1, 10.1, 18.1]
AVI = MPEG4 | {"options": MPEG4["options"] | {"g": "50"}}


@pytest.mark.parametrize("name, options, times, seeks, decoded", [
    ("a.mp4", {}, NEAR, 1, range(25, 40)),             # within one group of 50 frames
    ("a.mkv", {}, NEAR, 1, range(25, 40)),
    ("a.avi", AVI, NEAR, 1, range(48, 54)),            # not H.264: B-frames are decoded
    ("a.mp4", {}, FAR, 4, range(4 * 33)), ("a.mkv", {}, FAR, 4, range(4 * 33)),
    ("a.avi", AVI, FAR, 4, range(4 * 33)),
    ("a.mp4", {}, [1.8, 1.95, 1.99], 1, range(51)),    # a key frame shown at 2 s, listed at 1.92 s
    ("a.mp4", {}, [1.8, 2.01], 2, range(101)),
    ("a.mp4", {"options": PLAIN}, [0.1, 11.0, 22.0, 29.0], 1, range(29 * FPS + 3)),  # one group
    ("a.mp4", FILES["fragments_listed.mp4"], [0.1, 25.1], 2, range(70))])    # lists parts only
def test_seeks_and_frames_decoded(tmp_path, monkeypatch, name, options, times, seeks, decoded):
    """Catches: an opening per clip; seeks that save nothing, or none; needless decoding."""
    path = write(tmp_path / name, count=750, **options)                      # a key every 2 s
    count = Counting(monkeypatch)
    read_frames(path, times)
    assert (len(count.opened), count.seeks) == (1, seeks) and count.all_closed()
    assert count.decoded in decoded


def test_only_what_is_neither_shown_nor_referred_to_is_skipped():
    """Catches: the frame that is shown skipped; HEVC, whose rules differ; no timestamp."""
    def decoded(order, wanted, codec="h264"):
        context, every = SimpleNamespace(name=codec, skip_frame="DEFAULT"), []

        def packet(pts):
            def decode():
                every.extend([pts] if context.skip_frame == "DEFAULT" else [])
                return [SimpleNamespace(pts=pts)]
            return SimpleNamespace(pts=pts, dts=pts, decode=decode)
        container = SimpleNamespace(demux=lambda stream: map(packet, order),
                                    format=SimpleNamespace(name="mov"))
        stream = SimpleNamespace(codec_context=context, time_base=Fraction(1, 10))
        frames = list(video.decode(container, stream, lambda: wanted))
        assert [frame.pts for frame in frames] == order[:-1]                 # all with a time
        return every
    order = [0, 4, 2, 1, 3, 8, 6, 5, 7, None]
    assert decoded(order, 1.0) == [0, 4, 8, None]
    assert decoded(order, 0.41) == [0, 4, 8, 6, 5, 7, None]
    assert decoded(order, 0.3) == decoded(order, 1.0, "hevc") == order


def test_the_first_and_last_frame_hold_for_a_second(tmp_path, monkeypatch):
    """Catches: annotations that end a little late refused; a video that ended long ago accepted."""
    path = write(tmp_path / "slide.mp4", ticks=[0, 1, 1000, 1030])           # the last: 1.2 s
    assert_shows(path, [39.99, 40.0, 41.19 + 1.1], decode_all(path))
    path = write(tmp_path / "a.mp4")                                         # 0 to 4 s
    assert_shows(path, [3.99, 4.9], decode_all(path))
    count = Counting(monkeypatch)
    late = r"ends 1\.2 s before the picture asked for, at 5\.2 s$"
    with pytest.raises(Unreadable, match=late) as error:
        read_frames(path, [5.2, 0.0])
    assert count.all_closed() and error                # held, and with it all that read_frames held
    monkeypatch.undo()
    path = write(tmp_path / "c.mkv", ticks=range(50, 150), sound=4.0)        # video from 2 s
    with pytest.raises(Unreadable, match=r"begins 1\.5 s after the picture asked for, at 0\.5 s$"):
        read_frames(path, [0.5, 3.0])


@pytest.mark.parametrize("name, options", [
    ("a.mkv", {}), ("a.mp4", {"container": {"movflags": "faststart"}}), ("a.avi", MPEG4)])
def test_a_file_cut_off_gives_what_it_has_and_no_more(tmp_path, name, options):
    """Catches: the last frame of a truncated file returned for every later time, or copied."""
    whole = write(tmp_path / name, count=250, **options)                     # 10 s
    part = whole.with_stem("cut")
    part.write_bytes(whole.read_bytes()[:whole.stat().st_size // 2])
    frames = decode_all(whole)
    assert_shows(part, [0.5, 1.5, 3.0], frames)
    with pytest.raises(Unreadable, match="ends .* s before|cannot be read|no frame"):
        read_frames(part, [3.0, 9.0])
    if name == "a.mkv":
        video.shrink(part, tmp_path / "copy.mp4", fps=2, short_side=24)
        end = decode_all(part)[0][-1]
        assert end < 9 and video.duration(tmp_path / "copy.mp4") == pytest.approx(end, abs=0.55)
    if name != "a.avi":                                # a header still tells the whole length
        assert video.duration(part) == pytest.approx(10, abs=0.1)


def make_bad(kind, folder):
    """A bad file of some kind, and what its error must say."""
    path = folder / f"{kind}.mp4"
    if kind == "absent":
        return path, "no such file"
    if kind == "no_index":                             # the index is at the end
        path.write_bytes(write(folder / "whole.mp4").read_bytes()[:-4000])
        return path, "cannot be read: Invalid data"
    if kind == "sound_and_cover":
        with av.open(str(path), "w", format="mp4") as file:
            cover = file.add_stream("mjpeg", rate=1)
            cover.height, cover.width, cover.pix_fmt = 48, 64, "yuvj420p"
            cover.disposition = av.stream.Disposition.attached_pic.value
            write_silence(file, 1.0)
            frame = av.VideoFrame.from_ndarray(pictures(1)[0], "rgb24")
            file.mux(cover.encode(frame) + cover.encode())
        return path, "no video stream that can be decoded"
    if kind == "no_frame":
        data = write(folder / "whole.mkv").read_bytes()
        path.write_bytes(data[:data.index(bytes.fromhex("1f43b675")) + 40])  # the first cluster
        return path, r"no frame found at 0\.0 s$"
    if kind == "no_key_frame":                         # in the list: no seek succeeds
        data = bytearray(write(path, format="avi", **MPEG4).read_bytes())
        index = data.index(b"idx1") + 8                # name, flags, offset, size: 4 bytes each
        for at in range(index, index + 16 * 96, 16):   # all but the last key frame
            data[at + 4:at + 8] = bytes(4)
        path.write_bytes(data)
        return path, r"no frame found at 0\.0 s$"
    path.write_bytes(write(path).read_bytes().replace(b"avc1", b"zzzz"))      # "unknown_codec"
    return path, "no video stream that can be decoded"


@pytest.mark.parametrize("kind", ["absent", "no_index", "sound_and_cover", "unknown_codec",
                                  "no_frame", "no_key_frame"])
def test_each_bad_file_is_named_with_its_reason_and_closed(tmp_path, monkeypatch, kind):
    """Catches: FFmpeg's exception in place of one line; a file left open after an error."""
    path, reason = make_bad(kind, tmp_path)
    count = Counting(monkeypatch)
    calls = [lambda: read_frames(path, np.arange(0, 4, 0.1)),
             lambda: video.shrink(path, tmp_path / "copy.mp4", fps=25)]
    if kind not in ("no_frame", "no_key_frame"):     # whose header is whole
        calls.append(lambda: video.duration(path))
    for call in calls:
        with pytest.raises(Unreadable, match=reason) as error:
            call()
        text = str(error.value)
        assert text.startswith(f"{path}: ") and "\n" not in text
    assert count.all_closed() and not (tmp_path / "copy.mp4").exists()


def test_a_damaged_picture_is_not_returned(tmp_path):
    """Catches: what a decoder makes up taken for a picture; half a copy taken for a whole one."""
    path = write(tmp_path / "a.mp4", ticks=range(50, 150), **MPEG4)
    with av.open(str(path)) as file:
        keys = [packet for packet in file.demux(video=0) if packet.is_keyframe]
        middle = keys[4].pos + keys[4].size // 2       # shown at 1.92 s
    flip(path, middle)
    read_frames(path, [1.9])
    for call in (lambda: read_frames(path, [1.9, 1.93]),
                 lambda: video.shrink(path, tmp_path / "copy.mp4", fps=25)):
        with pytest.raises(Unreadable, match=r"damaged at 1\.9 s$"):
            call()
    assert os.listdir(tmp_path) == ["a.mp4"]


def test_a_bug_is_not_the_files_fault(tmp_path, monkeypatch):
    """Catches: a bug of the caller counted as a bad video; `except Exception` around decoding."""
    path = write(tmp_path / "a.mp4", count=3)
    for times in [[], [-0.1], [math.nan], [[0.0]], [2e9], 1.0]:
        with pytest.raises(ValueError, match="times must be"):
            read_frames(path, times)
    assert not issubclass(Unreadable, ValueError) and not issubclass(Unreadable, BadInput)
    count = Counting(monkeypatch)
    monkeypatch.setattr(video, "key_frame_ahead", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        read_frames(path, [0.0, 0.1])
    assert count.all_closed()


def test_a_length_is_neither_negative_nor_absurd(tmp_path):
    """Catches: a damaged header's length: times before the start, or billions of windows."""
    path = write(tmp_path / "late.mkv", ticks=range(1000, 1100))
    data = bytearray(path.read_bytes())
    at = data.index(b"\x44\x89\x88") + 3               # Duration, 8 bytes, ms: now 0.1 s in all
    data[at:at + 8] = struct.pack(">d", 100.0)
    path.write_bytes(data)
    assert video.duration(path) == 0
    data[at:at + 8] = struct.pack(">d", 5e9)           # 58 days
    path.write_bytes(data)
    with pytest.raises(Unreadable, match="late.mkv: lasts"):
        video.duration(path)


def test_find_videos(tmp_path, monkeypatch, capsys):
    """Catches: other files taken, subfolders or capitals missed, an order that the disk decides;
    videos behind a link or in a closed folder left out; a link that never ends."""
    near, scan = tmp_path / "near", os.scandir
    for name in ["b/x.mp4", "a/x.mkv", "P01/videos/P01_101.MP4", "-id.webm", "y.part", "y.mp4.part",
                 "z.txt", "c.v1.MoV", "d.avi", "no_extension", ".mp4", "folder.mp4/z.txt",
                 "closed/e.mp4", "../far/f.mp4"]:
        (near / name).parent.mkdir(parents=True, exist_ok=True)
        (near / name).touch()
    for name, target in (("far", "../far"), ("up", "."), ("self", "self")):
        (near / name).symlink_to(target)

    def refuse(path):
        if Path(path).name == "closed":
            raise PermissionError(13, "Permission denied", path)
        return scan(path)
    monkeypatch.setattr(os, "scandir", refuse)
    found = {stem: Path(path).relative_to(near).as_posix()
             for stem, path in video.find_videos(near).items()}
    assert found == {"x": "a/x.mkv", "P01_101": "P01/videos/P01_101.MP4", "-id": "-id.webm",
                     "c.v1": "c.v1.MoV", "d": "d.avi", "f": "far/f.mp4"}
    out = capsys.readouterr().out
    assert "near: folders that cannot be entered: 1, the first " in out and out.count("\n") == 1
    with pytest.raises(BadInput, match="nowhere: no such folder"):
        video.find_videos(tmp_path / "nowhere")


def test_a_picture_one_pixel_wide_is_shrunk(tmp_path):
    """Catches: an exception that ends the command for all other videos."""
    with av.open(str(tmp_path / "thin.mov"), "w") as file:
        stream = file.add_stream("png", rate=5)
        stream.width, stream.height, stream.pix_fmt = 1, 40, "rgb24"
        frame = av.VideoFrame.from_ndarray(np.zeros((40, 1, 3), np.uint8), "rgb24")
        file.mux(stream.encode(frame))
        file.mux(stream.encode())
    video.shrink(tmp_path / "thin.mov", tmp_path / "copy.mp4", comment="é, 1")
    assert video.comment_of(tmp_path / "copy.mp4") == "é, 1"
    assert video.comment_of(tmp_path / "thin.mov") is None


def test_any_name_and_metadata_can_be_opened_on_one_thread(tmp_path, monkeypatch):
    """Catches: "a:" taken for a protocol, "-" for an option; a title that is no UTF-8; threads."""
    data = write(tmp_path / "a.mkv", count=3).read_bytes()
    assert b"Lavf" in data
    (tmp_path / "-a:b%d #?.mkv").write_bytes(data.replace(b"Lavf", b"L\xffv\xfe"))
    monkeypatch.chdir(tmp_path)
    assert len(read_frames("-a:b%d #?.mkv", [0.0])) == 1
    with video.open_video("-a:b%d #?.mkv") as (_, stream):
        assert stream.codec_context.thread_count == 1
        assert stream.codec_context.thread_type == av.codec.context.ThreadType.NONE


@pytest.mark.parametrize("name, options, size", [
    ("b_frames.mp4", {}, (24, 32)), ("late.mkv", {"ticks": range(1000, 1100)}, (24, 32)),
    ("variable.mp4", FILES["variable.mp4"], (24, 32)),
    ("sound_first.mkv", {"ticks": range(20, 120), "sound": 4.0}, (24, 32)),
    ("odd.mkv", VP8 | {"size": (41, 63)}, (24, 36))])
def test_a_small_copy_shows_the_same_at_the_same_time(tmp_path, name, options, size):
    """Catches: times shifted by the start or a frame, frames that need others, a wrong length."""
    source, copy = write(tmp_path / name, **options), tmp_path / "copy.mp4"
    video.shrink(source, copy, fps=2.5, short_side=24)
    with av.open(str(copy)) as file:
        frames = list(file.decode(video=0))
        assert not file.streams.audio
    assert all(frame.key_frame for frame in frames)
    assert [round(frame.time, 6) for frame in frames] == [round(k / 2.5, 6)
                                                          for k in range(len(frames))]
    length = video.duration(source)
    assert length <= video.duration(copy) < length + 0.4 and len(os.listdir(tmp_path)) == 2
    times = np.arange(len(frames)) / 2.5
    old, new = read_frames(source, times, 24).float(), read_frames(copy, times).float()
    assert new.shape[2:] == size
    old = old[..., :size[0], :size[1]]
    error = (old[:, None] - new[None]).abs().mean((2, 3, 4))                 # (n, n)
    same = (old[:, None] == old[None]).flatten(2).all(2)                     # slides
    assert error[same].max() < 12 and error[~same].min() > 25
    later = np.clip(times + 0.3, 0, length - 0.01)                           # shown until the next
    assert torch.equal(read_frames(copy, later), read_frames(copy, times))


def test_a_full_disk_is_an_oserror(tmp_path):
    """Catches: a full disk counted as an unreadable video."""
    class Full(io.BytesIO):
        def write(self, data):
            raise OSError(28, "No space left on device")
    with pytest.raises(OSError, match="No space left"):
        video.encode(Full(), ((picture, 0.0) for picture in pictures(30)), Fraction(1), "")
    with pytest.raises(OSError):
        video.shrink(write(tmp_path / "a.mp4", count=3), tmp_path / "no" / "copy.mp4")


def ramp(frames=3, height=160, width=240):
    """(F, 3, H, W) uint8 whose channels are the column, the row and the number of the frame."""
    clip = torch.zeros(frames, 3, height, width, dtype=torch.uint8)
    clip[:, 0] = torch.arange(width)
    clip[:, 1] = torch.arange(height)[:, None]
    clip[:, 2] = torch.arange(frames)[:, None, None]
    return clip


def test_a_training_view_is_one_square_for_the_whole_clip():
    """Catches: a crop or flip per frame, a squeezed rectangle, no flips; the input changed."""
    sides, flips, lefts, clip = [], [], [], ramp()
    for seed in range(60):
        view = video.training_view(clip, 112, np.random.default_rng(seed))
        assert view.shape == (3, 3, 112, 112) and view.dtype == torch.uint8
        assert torch.equal(view, video.training_view(clip, 112, np.random.default_rng(seed)))
        assert (view[:, :2] == view[:1, :2]).all() and view[:, 2, 5, 5].tolist() == [0, 1, 2]
        columns, rows = view[0, 0, 50].float(), view[0, 1, :, 50].float()
        assert (view[0, 0].float() - columns).abs().max() <= 1               # not sheared
        wide = (columns[-6] - columns[5]).abs() * 112 / 101
        high = (rows[-6] - rows[5]) * 112 / 101
        assert abs(wide - high) < 4
        sides.append(float(high))
        flips.append(bool(columns[-1] < columns[0]))
        lefts.append(float(columns.min()))
    low, top = 160 * 224 / 320, 160 * 224 / 256        # 112 to 140 pixels of the short side
    assert low - 3 < min(sides) < low + 4 and top - 4 < max(sides) < top + 3
    assert 18 <= sum(flips) <= 42 and min(lefts) < 15 and max(lefts) > 85
    assert torch.equal(clip, ramp())


def test_an_evaluation_view_is_the_usual_resize_and_center_crop():
    """Catches: a corner for the center, the whole short side, a second interpolation."""
    clip = ramp()                                      # a difference of 1 is one pixel of the clip
    for size, short in ((224, 256), (112, 128), (32, 37)):
        usual = v2.functional.center_crop(v2.functional.resize(clip, short, antialias=True), size)
        view = video.evaluation_view(clip, size)
        assert view.shape == usual.shape and view.dtype == torch.uint8
        assert (view.int() - usual.int()).abs().max() <= 1 + 160 / short     # a pixel of the view
    clip = torch.from_numpy(pictures(2, (256, 340))).permute(0, 3, 1, 2)
    assert torch.equal(video.evaluation_view(clip, 224), clip[..., 16:240, 58:282])
