"""The container format GGUF, versions 2 and 3: metadata and tensors of a single file.

Layout after ggml's ``docs/gguf.md``: magic, version, counts, metadata, tensor table, padding, tensor data. The file is
mapped into memory, so only what is used is read. The ``gguf`` package has the tables of types and the dequantisation;
its reader keeps several NumPy arrays for every string, and is some twenty times as slow on a vocabulary.
"""

import mmap
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFValueType
from numpy.typing import NDArray
from torch import Tensor

from minillm.model.checkpoint import ModelError, Settings

_NUMBERS: dict[GGUFValueType, np.dtype[Any]] = {
    GGUFValueType.UINT8: np.dtype("u1"),
    GGUFValueType.INT8: np.dtype("i1"),
    GGUFValueType.UINT16: np.dtype("<u2"),
    GGUFValueType.INT16: np.dtype("<i2"),
    GGUFValueType.UINT32: np.dtype("<u4"),
    GGUFValueType.INT32: np.dtype("<i4"),
    GGUFValueType.UINT64: np.dtype("<u8"),
    GGUFValueType.INT64: np.dtype("<i8"),
    GGUFValueType.FLOAT32: np.dtype("<f4"),
    GGUFValueType.FLOAT64: np.dtype("<f8"),
    GGUFValueType.BOOL: np.dtype("?"),
}


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """One tensor as it lies in the file: data ``[..., outputs, bytes per row]`` (uint8, a view of the mapped file)."""

    name: str
    type: GGMLQuantizationType
    shape: tuple[int, ...]
    data: NDArray[np.uint8]

    def dequantised(self) -> Tensor:
        """The numbers, in ``shape`` ``[..., outputs, inputs]``: float64 where the file holds float64, else float32.

        Raises ModelError for a type that the ``gguf`` package cannot dequantise.
        """
        if self.type is GGMLQuantizationType.F64:
            return torch.from_numpy(self.data.view(np.float64))
        try:
            return torch.from_numpy(gguf.dequantize(self.data, self.type))
        except NotImplementedError:
            raise ModelError(
                f"tensor {self.name} is of type {self.type.name}, which the gguf package cannot dequantise: "
                "convert the model to another type, such as Q8_0 or F16"
            ) from None


@dataclass(frozen=True, slots=True)
class GGUFFile:
    """A GGUF file: metadata as plain Python values (lists for arrays), and tensors by name in the file's order."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, GGUFTensor]


def read_gguf(path: Path) -> GGUFFile:
    """Read the header of a GGUF file and map its tensors.

    Raises ModelError for a file that is not GGUF, is of another version or byte order, or ends too early.
    """
    with path.open("rb") as file:
        magic = file.read(4)
        if magic != b"GGUF":
            raise ModelError(
                f"{path} starts with {magic!r}, not with b'GGUF', so it is no GGUF file: "
                "give a .gguf file or a Hugging Face model folder"
            )
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    return _Header(path, mapped).read()


class _Header:
    """Walks through the bytes of a GGUF header from front to back."""

    def __init__(self, path: Path, mapped: mmap.mmap) -> None:
        self.path = path
        self.bytes = memoryview(mapped)
        self.offset = len(b"GGUF")

    def read(self) -> GGUFFile:
        """All of it, after the magic."""
        version = self.number(GGUFValueType.UINT32)
        if version not in (2, 3):
            raise ModelError(
                f"{self.path} is GGUF version {version} (as a little-endian number), but only 2 and 3 are supported: "
                "convert the model again with a current llama.cpp"
            )
        num_tensors, num_entries = self.numbers(GGUFValueType.UINT64, 2)
        metadata = {self.string(): self.value(self.value_type()) for _ in range(num_entries)}
        table = [self.table_row() for _ in range(num_tensors)]
        alignment = Settings(self.path, metadata).integer("general.alignment", gguf.GGUF_DEFAULT_ALIGNMENT)
        start = -(-self.offset // alignment) * alignment
        tensors = {name: self.tensor(name, shape, kind, start + offset) for name, shape, kind, offset in table}
        if len(tensors) < num_tensors:
            raise self.damaged("holds two tensors of the same name")
        return GGUFFile(self.path, metadata, tensors)

    def damaged(self, what: str) -> ModelError:
        """The complaint that the file ``what``."""
        return ModelError(f"{self.path} {what}: download it again")

    def take(self, count: int) -> memoryview:
        """The next ``count`` bytes."""
        end = self.offset + count
        if end > len(self.bytes):
            raise self.damaged(f"is truncated: its header goes on to byte {end}, the file to {len(self.bytes)}")
        taken = self.bytes[self.offset : end]
        self.offset = end
        return taken

    def numbers(self, kind: GGUFValueType, count: int) -> list[Any]:
        """The next ``count`` numbers of one type."""
        dtype = _NUMBERS[kind]
        numbers: list[Any] = np.frombuffer(self.take(count * dtype.itemsize), dtype).tolist()
        return numbers

    def number(self, kind: GGUFValueType) -> Any:
        """The next number."""
        return self.numbers(kind, 1)[0]

    def string(self) -> str:
        """Length in bytes, then UTF-8."""
        content = self.take(int.from_bytes(self.take(8), "little"))
        try:
            return str(content, "utf-8")
        except UnicodeDecodeError:
            raise self.damaged(f"holds the string {bytes(content[:40])!r}, which is not UTF-8") from None

    def value_type(self) -> GGUFValueType:
        """The type of the metadata value, or of an array's items, that follows."""
        number = self.number(GGUFValueType.UINT32)
        if number not in GGUFValueType.__members__.values():
            raise self.damaged(f"holds metadata of unknown type {number}")
        return GGUFValueType(number)

    def value(self, kind: GGUFValueType) -> Any:
        """The next metadata value; an array is its item type, its length, then its items."""
        if kind is GGUFValueType.STRING:
            return self.string()
        if kind is not GGUFValueType.ARRAY:
            return self.number(kind)
        item, count = self.value_type(), self.number(GGUFValueType.UINT64)
        return self.numbers(item, count) if item in _NUMBERS else [self.value(item) for _ in range(count)]

    def table_row(self) -> tuple[str, tuple[int, ...], int, int]:
        """Name, shape (outermost dimension first), type number, and offset in the tensor data."""
        name = self.string()
        shape = tuple(reversed(self.numbers(GGUFValueType.UINT64, self.number(GGUFValueType.UINT32))))
        return name, shape, self.number(GGUFValueType.UINT32), self.number(GGUFValueType.UINT64)

    def tensor(self, name: str, shape: tuple[int, ...], type_number: int, start: int) -> GGUFTensor:
        """The tensor whose data begins at byte ``start`` of the file."""
        if type_number not in GGMLQuantizationType.__members__.values():
            raise ModelError(
                f"{self.path}: tensor {name} is of type number {type_number}, which the gguf package does not know: "
                "install a newer gguf, or convert the model to another type, such as Q8_0 or F16"
            )
        kind = GGMLQuantizationType(type_number)
        if not shape or shape[-1] % gguf.GGML_QUANT_SIZES[kind][0]:
            raise self.damaged(f"gives tensor {name} the shape {shape}, which type {kind.name} cannot have")
        shape_in_bytes = gguf.quant_shape_to_byte_shape(shape, kind)
        end = start + prod(shape_in_bytes)
        if end > len(self.bytes):
            raise self.damaged(f"is truncated: tensor {name} goes on to byte {end}, the file to {len(self.bytes)}")
        return GGUFTensor(name, kind, shape, np.frombuffer(self.bytes[start:end], np.uint8).reshape(shape_in_bytes))
