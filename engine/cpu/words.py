"""Words: blocks of 64-bit words and the arrays that they name, as numba sees them.

A block is an address; its fields are the names of its words, loaded when asked for.  Compared with named tuples of arrays that
numba unpacks at every call, the interpreter compiles in a third of the time and is called in microseconds.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.datamodel import PrimitiveModel
from numba.core.imputils import lower_getattr_generic
from numba.core.typing.templates import AttributeTemplate, infer_getattr
from numba.extending import intrinsic, register_model
from numba.np.arrayobj import populate_array

_I64 = ir.IntType(64)
_LLVM = {types.uint16: ir.IntType(16), types.int32: ir.IntType(32), types.uint32: ir.IntType(32), types.int64: _I64,
         types.uint64: _I64, types.float32: ir.FloatType(), types.float64: ir.DoubleType()}  # fmt: skip


class Words(types.Type):
    """The type of a block with these fields, i64 each."""

    def __init__(self, fields: tuple[str, ...]):
        self.fields = fields
        super().__init__(f"Words{fields}")


@register_model(Words)
class _WordsModel(PrimitiveModel):
    def __init__(self, manager, kind):
        super().__init__(manager, kind, _I64)


@infer_getattr
class _WordsAttribute(AttributeTemplate):
    key = Words

    def generic_resolve(self, block, name):
        return types.int64 if name in block.fields else None


@lower_getattr_generic(Words)
def _load_word(context, builder, block, address, name):
    place = builder.gep(builder.inttoptr(address, _I64.as_pointer()), [ir.Constant(_I64, block.fields.index(name))])
    word = builder.load(place)
    word.set_metadata("invariant.load", builder.module.add_metadata([]))  # nobody writes a block that is in use
    return word


def words(kind: type):
    """A function (address) -> block whose fields are those of the named tuple ``kind``, for compiled code."""
    block = Words(kind._fields)

    def function(typingctx, address):
        def codegen(context, builder, sig, args):
            return args[0]

        return block(types.int64), codegen

    return intrinsic(function)


def pack(kind: type, /, **values: int | np.ndarray) -> np.ndarray:
    """i64[words]: a block of the named tuple ``kind``, from numbers and from arrays, which the caller keeps alive."""
    numbers = {name: v.ctypes.data if isinstance(v, np.ndarray) else v for name, v in values.items()}
    return np.array(kind(**numbers), np.int64)


def _pointer(element):
    def function(typingctx, address):
        def codegen(context, builder, sig, args):
            return builder.inttoptr(args[0], _LLVM[element].as_pointer())

        return types.CPointer(element)(types.int64), codegen

    return intrinsic(function)


def _view(element):
    def function(typingctx, address, shape):
        array, size = types.Array(element, len(shape), "C"), element.bitwidth // 8

        def codegen(context, builder, sig, args):
            extents = zip(cgutils.unpack_tuple(builder, args[1]), sig.args[1], strict=True)
            extents = [context.cast(builder, value, kind, types.intp) for value, kind in extents]
            strides = [context.get_constant(types.intp, size)]
            for extent in reversed(extents):
                strides.insert(0, builder.mul(strides[0], extent))
            view = context.make_array(array)(context, builder)
            populate_array(view, data=builder.inttoptr(args[0], _LLVM[element].as_pointer()), shape=extents,
                           strides=strides[1:], itemsize=size, meminfo=None)  # fmt: skip
            return view._getvalue()

        return array(types.int64, shape), codegen

    return intrinsic(function)


# (address) -> pointer, indexed like an array
pointer_u16, pointer_i32, pointer_u32, pointer_i64, pointer_u64, pointer_f32 = (
    _pointer(t) for t in (types.uint16, types.int32, types.uint32, types.int64, types.uint64, types.float32)
)
# (address, shape) -> C-contiguous array
i32, u32, i64, u64, f32, f64 = (
    _view(t) for t in (types.int32, types.uint32, types.int64, types.uint64, types.float32, types.float64)
)
