// bf16 for the emulated kernel: rounding to nearest, ties to even, as the conversion of the GPU does it.
#pragma once
#include "emulator.h"

struct __nv_bfloat16 { unsigned short bits; };
struct __nv_bfloat162 { __nv_bfloat16 x, y; };

inline __nv_bfloat16 __float2bfloat16_rn(float v) {
  unsigned bits = __float_as_uint(v);
  if (v != v) return {0x7fff};
  return {(unsigned short)((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}
inline __nv_bfloat162 __floats2bfloat162_rn(float low, float high) { return {__float2bfloat16_rn(low), __float2bfloat16_rn(high)}; }
