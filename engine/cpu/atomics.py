"""LLVM atomics, clock, casts and calls for numba.

numba treats loads as ordinary memory and hoists them out of a spin loop, so waiting on a counter needs real atomic
loads with acquire, and publishing real read-modify-writes with release.
"""

from __future__ import annotations

import time

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

_I32, _I64 = ir.IntType(32), ir.IntType(64)
_CLOCK_MONOTONIC = time.CLOCK_MONOTONIC  # 1 on Linux, 6 on macOS; the clock of time.monotonic_ns()


def _index(builder, args, sig, position):
    value = args[position]
    return value if value.type == _I64 else builder.sext(value, _I64)


@intrinsic
def load_acquire(typingctx, pointer, index):
    """pointer[index] with acquire; a pointer of :mod:`engine.cpu.words` to 32- or 64-bit numbers."""

    def codegen(context, builder, sig, args):
        p = builder.gep(args[0], [_index(builder, args, sig, 1)])
        return builder.load_atomic(p, "acquire", sig.return_type.bitwidth // 8)

    return pointer.dtype(pointer, index), codegen


@intrinsic
def store_release(typingctx, pointer, index, value):
    """pointer[index] = value with release."""

    def codegen(context, builder, sig, args):
        p = builder.gep(args[0], [_index(builder, args, sig, 1)])
        builder.store_atomic(args[2], p, "release", sig.args[2].bitwidth // 8)
        return context.get_dummy_value()

    return types.void(pointer, index, pointer.dtype), codegen


def _read_modify_write(operation, ordering):
    """Atomic pointer[index] = operation(pointer[index], value) of this memory order; returns the old value."""

    def function(typingctx, pointer, index, value):
        def codegen(context, builder, sig, args):
            p = builder.gep(args[0], [_index(builder, args, sig, 1)])
            return builder.atomic_rmw(operation, p, args[2], ordering)

        return pointer.dtype(pointer, index, pointer.dtype), codegen

    return function


add_release = intrinsic(_read_modify_write("add", "acq_rel"))
max_release = intrinsic(_read_modify_write("max", "acq_rel"))  # signed
exchange_acquire = intrinsic(_read_modify_write("xchg", "acquire"))


@intrinsic
def now_ns(typingctx):
    """CLOCK_MONOTONIC in ns (i64), the CPU backend's global timer and its cycle counter in one."""

    def codegen(context, builder, sig, args):
        pair = ir.ArrayType(_I64, 2)
        spec = cgutils.alloca_once(builder, pair)
        fn = cgutils.get_or_insert_function(builder.module, ir.FunctionType(_I32, [_I32, pair.as_pointer()]), "clock_gettime")
        builder.call(fn, [ir.Constant(_I32, _CLOCK_MONOTONIC), spec])
        zero, one = ir.Constant(_I32, 0), ir.Constant(_I32, 1)
        seconds = builder.load(builder.gep(spec, [zero, zero]))
        nanos = builder.load(builder.gep(spec, [zero, one]))
        return builder.add(builder.mul(seconds, ir.Constant(_I64, 1_000_000_000)), nanos)

    return types.int64(), codegen


@intrinsic
def yield_cpu(typingctx):
    """Let another thread run (sched_yield)."""

    def codegen(context, builder, sig, args):
        fn = cgutils.get_or_insert_function(builder.module, ir.FunctionType(_I32, []), "sched_yield")
        builder.call(fn, [])
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def f32_from_bits(typingctx, bits):
    """The float whose IEEE bits are ``bits`` (u32)."""

    def codegen(context, builder, sig, args):
        return builder.bitcast(args[0], ir.FloatType())

    return types.float32(types.uint32), codegen


@intrinsic
def bits_from_f32(typingctx, value):
    def codegen(context, builder, sig, args):
        return builder.bitcast(args[0], _I32)

    return types.uint32(types.float32), codegen


@intrinsic
def call(typingctx, address, args):
    """Call the C function at ``address`` (i64) with a tuple of i64 arguments; returns its i64.

    A call through an address keeps numba from linking the callee into every caller and optimising it there again, which made
    the first start of the interpreter take minutes; and it guarantees that all callers run the same machine code.
    """

    def codegen(context, builder, sig, values):
        parts = cgutils.unpack_tuple(builder, values[1], len(args))
        parts = [context.cast(builder, v, t, types.int64) for v, t in zip(parts, args, strict=True)]
        fn = ir.FunctionType(_I64, [_I64] * len(parts)).as_pointer()
        return builder.call(builder.inttoptr(values[0], fn), parts)

    return types.int64(types.int64, args), codegen
