// Sets of rows, a bit each.
#pragma once
#include "block.cuh"

__device__ __forceinline__ u64 every_row(u32 rows) { return ~0ull >> (64 - rows); }

// Place of the n-th set bit, which there must be.
__device__ __forceinline__ u32 nth_row(u64 mask, u32 n) {
  u32 at = 0;
#pragma unroll
  for (u32 width = 32; width; width >>= 1) {
    u32 below = __popcll(mask >> at & ((1ull << width) - 1));
    if (n >= below) n -= below, at += width;
  }
  return at;
}
