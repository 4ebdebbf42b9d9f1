"""Single pictures as a camera's packets: JPEG and PNG as they are, pixels as PNG, which loses nothing."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import av
import numpy as np
from numpy.typing import NDArray

from mainspring.data.episode import VideoFile
from mainspring.data.video.packet import IMAGE_PIXELS_MAX, decoder_of, packet_of
from mainspring.data.video.packets import PACKETS_MAX, PacketIndex
from mainspring.domain.errors import DamagedData, InvalidInput
from mainspring.objects.files import reported

JPEG, PNG = b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n"


def picture_codec(data: bytes) -> str | None:
    """Returns FFmpeg's name of what a picture's bytes show: "mjpeg", "png", or None for anything else.

    Args:
        data: Its first bytes at least.
    """
    return "mjpeg" if data[:3] == JPEG else "png" if data[:8] == PNG else None


class PngEncoder:
    """Turns pixels into PNG; one encoder for pictures of one size."""

    def __init__(self) -> None:
        self._context: Any = None
        self._shape: tuple[str, int, int] = ("", 0, 0)

    def encode(self, image: NDArray[Any]) -> bytes:
        """Returns a picture as PNG.

        Args:
            image: [H, W] or [H, W, 1] of uint8 or uint16, [H, W, 3] or [H, W, 4] of uint8, red first.

        Raises:
            InvalidInput: It is of another shape or type, or too large.
        """
        image = image[:, :, 0] if image.ndim == 3 and image.shape[2] == 1 else image
        kinds = {(2, 1, 1): "gray", (2, 1, 2): "gray16be", (3, 3, 1): "rgb24", (3, 4, 1): "rgba"}
        shape = (image.ndim, image.shape[2] if image.ndim == 3 else 1, image.dtype.itemsize)
        name = kinds.get(shape) if image.dtype.kind == "u" else None
        if name is None or not 0 < image.shape[0] * image.shape[1] <= IMAGE_PIXELS_MAX:
            raise InvalidInput(
                "keep a picture",
                got=f"{image.dtype} of shape {image.shape}",
                wanted="height x width, x 3 or x 4 of 8 bits, or one channel of 8 or 16 bits",
            )
        if name == "gray16be":
            image = image.astype(np.uint16)  # In this machine's order of bytes; PyAV turns it.
        frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(image), format=name)
        if self._shape != (name, *image.shape[:2]):
            self._shape = (name, image.shape[0], image.shape[1])
            self._context = _png_context(*self._shape)
        return b"".join(bytes(packet) for packet in self._context.encode(frame))


class PictureFile:
    """Writes a camera's pictures, one for each step of an episode, into a file of packets; a context manager.

    Args:
        path: The file, which is the caller's to remove.
        camera: The camera's name, for messages too.
    """

    def __init__(self, path: Path, camera: str) -> None:
        self._path, self._camera = path, camera
        self._sizes: list[int] = []
        self._codec, self._size = "", (0, 0)
        self._encoder = PngEncoder()
        with reported("write a camera's pictures", str(path.parent)):
            self._file: IO[bytes] = open(path, "xb")  # noqa: SIM115 - closed when the context ends.

    def __enter__(self) -> PictureFile:
        """Returns itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes the file."""
        with reported("write a camera's pictures", str(self._path.parent)):
            self._file.close()

    def add_coded(self, data: bytes) -> None:
        """Adds a JPEG or PNG picture as it is.

        Args:
            data: Its bytes.

        Raises:
            DamagedData: It is neither, of another kind than those before it, or has no size.
        """
        codec = picture_codec(data)
        if codec is None or codec != (self._codec or codec):
            raise DamagedData(
                "read a picture",
                on=self._name(),
                got=f"{len(data)} bytes that begin {data[:4].hex()}",
                wanted=self._codec or "JPEG or PNG",
            )
        self._write(codec, data)

    def add_pixels(self, image: NDArray[Any]) -> None:
        """Adds a picture's pixels, as PNG.

        Args:
            image: See `PngEncoder.encode`.

        Raises:
            InvalidInput: It is of a shape or type that cannot be kept.
            DamagedData: The pictures before it are of another kind.
        """
        if self._codec not in ("", "png"):
            raise DamagedData("read a picture", on=self._name(), got="pixels", wanted=self._codec)
        self._write("png", self._encoder.encode(image))

    def finish(self) -> VideoFile:
        """Returns the camera's frames; pictures are looked into when they are decoded.

        Raises:
            DamagedData: There is none, or the first cannot be decoded.
        """
        with reported("write a camera's pictures", str(self._path.parent)):
            self._file.close()
            with open(self._path, "rb") as file:
                first = file.read(self._sizes[0] if self._sizes else 0)
        height, width = picture_size(self._codec, first, on=self._name())
        count = len(self._sizes)
        index = PacketIndex(
            codec=self._codec,
            extradata=b"",
            height=height,
            width=width,
            frame=np.arange(count, dtype=np.int32),
            offset=np.cumsum(self._sizes, dtype=np.int64) - np.array(self._sizes, np.int64),
            size_bytes=np.array(self._sizes, np.int32),
            key=np.ones(count, np.bool_),
        )
        return VideoFile(camera=self._camera, path=self._path, index=index)

    def _name(self) -> str:
        return f"{self._camera}, picture {len(self._sizes)}"

    def _write(self, codec: str, data: bytes) -> None:
        if len(self._sizes) >= PACKETS_MAX:
            raise InvalidInput("read pictures", on=self._name(), wanted=f"at most {PACKETS_MAX}")
        self._codec = codec
        with reported("write a camera's pictures", str(self._path.parent)):
            self._file.write(data)
        self._sizes.append(len(data))


def _png_context(pixels: str, height: int, width: int) -> Any:
    context: Any = av.CodecContext.create("png", "w")
    context.height, context.width, context.pix_fmt = height, width, pixels
    context.time_base, context.thread_count = Fraction(1, 30), 1
    context.options = {"compression_level": "1", "pred": "up"}  # A third of the time of the default for 5 % more bytes.
    return context


def picture_size(codec: str, data: bytes, *, on: str) -> tuple[int, int]:
    """Returns height and width of a packet's picture, which is decoded for it.

    Args:
        codec: FFmpeg's name.
        data: A packet that decoding can begin at.
        on: What it is, for messages.

    Raises:
        DamagedData: It cannot be decoded.
    """
    context = decoder_of(codec)
    try:
        for packet in (packet_of(data), None):
            for frame in context.decode(packet):
                return frame.height, frame.width
    except (av.FFmpegError, ValueError, OSError) as error:
        raise DamagedData("read a camera", on=on, got=f"no {codec} image: {str(error)[:200]}") from error
    raise DamagedData("read a camera", on=on, got=f"a first packet of {codec} without an image")
