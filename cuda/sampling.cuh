// SAMPLE and PICK: a row of logits becomes a token by the rule of docs/sampling.md, with the bits of engine/pick.py.
//
// Weights are whole numbers, so sums may be taken in any order.  SAMPLE tasks go over the logits once: the weights of each LM-head
// tile and of each part, and candidates, which are all tokens above a threshold.  The maxima of groups of tiles give it: as many groups have a
// maximum above the n-th largest as n says, so at least n tokens lie there.  PICK then needs nothing but the tiles' weights, where
// nothing is cut off, or the candidates.  Where these do not reach, the row is left to the host.
//
// One warp each; nothing here knows of the block, so that a test runs it on a CPU.
#pragma once
#include "block.cuh"

static constexpr u32 LEFT_TO_HOST = ~0u;
static constexpr u32 GROUP_LANES = 16;                // groups of tiles that a lane keeps the maximum of
static constexpr u32 GROUPS_OF_TILES = GROUP_LANES * 32;
static constexpr u32 NUCLEUS = 96;                    // candidates aimed at where only top_p says how many are needed
static constexpr u32 BAD_LOGIT = 1u << 24;            // in a row's cursor, above any number of tokens

// Floats in their order, as whole numbers; -0 equals 0.
__device__ __forceinline__ u32 ordered(float v) {
  u32 bits = __float_as_uint(__fadd_rn(v, 0.f));
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

__device__ __forceinline__ float of_ordered(u32 key) { return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key); }

// What a row's logits are divided by.  The division is the IEEE one, by its reciprocal: no branch parts the work on several tokens.
// Of a quotient whose second to last place may be wrong the first correction leaves the last one, and Markstein's theorem says
// that the second rounds it rightly.  It may fail only where a remainder is below what floats hold: then the quotient is so small
// that the weight is 2^40 all the same, unless the divisor is as small; and where something overflows, which weighs nothing.
struct Divisor {
  float by, inverse;
  __device__ __forceinline__ explicit Divisor(float temperature) : by(temperature), inverse(__fdiv_rn(1.f, temperature)) {}

  __device__ __forceinline__ bool quick() const { return by > 1e-18f; }

  __device__ __forceinline__ float quotient(float v) const {
    float q = __fmul_rn(v, inverse);
    q = fmaf(fmaf(-by, q, v), inverse, q);
    return fmaf(fmaf(-by, q, v), inverse, q);
  }
};

// floor(exp(x) * 2^40), every operation rounded by itself; no branch, so that several are under way at a time.
__device__ __forceinline__ u64 weight_of(float x) {
  bool weighty = x >= -28.f;
  x = weighty ? x : 0.f;
  float n = floorf(__fadd_rn(__fmul_rn(x, 1.4426950408889634f), 0.5f));
  float r = __fsub_rn(__fsub_rn(x, __fmul_rn(n, 0.693359375f)), __fmul_rn(n, -2.12194440054690583e-4f));
  constexpr float series[] = {(float)(1. / 720), (float)(1. / 120), (float)(1. / 24), (float)(1. / 6), .5f};
  float e = (float)(1. / 5040);
#pragma unroll
  for (u32 i = 0; i < 5; ++i) e = __fadd_rn(__fmul_rn(e, r), series[i]);
  e = __fadd_rn(__fadd_rn(__fmul_rn(__fmul_rn(e, r), r), r), 1.f);
  u64 w = __float2ull_rz(__fmul_rn(e, __uint_as_float((u32)((int)n + 127 + 40) << 23)));
  return weighty ? w : 0;
}

__device__ __noinline__ u64 weigh(float logit, float top, float temperature) {
  return weight_of(__fdiv_rn(__fsub_rn(logit, top), temperature));
}

// 64 random bits: Philox4x32-10.
__device__ __forceinline__ u64 draw(u64 seed, u32 position, u32 choice) {
  u32 c0 = position, c1 = choice, c2 = 0, c3 = 0, k0 = (u32)seed, k1 = (u32)(seed >> 32);
#pragma unroll 1
  for (u32 i = 0; i < 10; ++i) {
    u32 high0 = __umulhi(0xD2511F53u, c0), low0 = 0xD2511F53u * c0, high1 = __umulhi(0xCD9E8D57u, c2), low1 = 0xCD9E8D57u * c2;
    c0 = high1 ^ c1 ^ k0, c1 = low1, c2 = high0 ^ c3 ^ k1, c3 = low0;
    k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
  }
  return (u64)c1 << 32 | c0;
}

// By three sums of the warp's own instruction, of 26 bits each, which 32 lanes cannot overflow.
__device__ __forceinline__ u64 warp_sum(u64 v) {
  constexpr u32 low = (1u << 26) - 1;
  u64 sum = __reduce_add_sync(~0u, (u32)v & low);
  sum += (u64)__reduce_add_sync(~0u, (u32)(v >> 26) & low) << 26;
  return sum + ((u64)__reduce_add_sync(~0u, (u32)(v >> 52)) << 52);
}

__device__ __forceinline__ u64 warp_max(u64 v) {
  u32 high = __reduce_max_sync(~0u, (u32)(v >> 32));
  return (u64)high << 32 | __reduce_max_sync(~0u, (u32)(v >> 32) == high ? (u32)v : 0u);
}

__device__ __forceinline__ bool finite(float v) { return (__float_as_uint(v) & 0x7f800000u) != 0x7f800000u; }

// The largest value that at least `n` of the warp's N * 32 keys reach; or one below it, where no more than `n` reach that either.
// A key of 0 is none; there are n at least.
template <u32 N>
__device__ __forceinline__ u32 nth_largest(const u32 (&key)[N], u32 n) {
  u32 top = 0, differ = 0;
#pragma unroll
  for (u32 j = 0; j < N; ++j) top = max(top, key[j]);
  top = __reduce_max_sync(~0u, top);
#pragma unroll
  for (u32 j = 0; j < N; ++j) differ |= key[j] ? key[j] ^ top : 0;
  u32 bits = 32 - __clz(__reduce_or_sync(~0u, differ)), least = bits < 32 ? top >> bits << bits : 0;
#pragma unroll 1
  while (bits--) {
    u32 probe = least | 1u << bits, above = 0;
#pragma unroll
    for (u32 j = 0; j < N; ++j) above += key[j] >= probe;
    above = __reduce_add_sync(~0u, above);
    if (above >= n) least = probe;
    if (above == n) break;
  }
  return least;
}

// -- SAMPLE

// Keys of the row's largest logit (high word) and of the least candidate: at least `want` tokens have one as large, or all are
// candidates, where there are not so many groups or there is room for all.
__device__ __noinline__ u64 threshold(const Model& p, u32 row, const Sampling& how, u32 lane) {
  const float* tops = (const float*)p.tile_max + (u64)row * p.head_tiles;
  u32 key[GROUP_LANES], top = 0;
  float v[GROUP_LANES], ahead[GROUP_LANES];  // two rounds under way, then one, as registers allow
  auto load = [&](float (&to)[GROUP_LANES], u32 first) {
#pragma unroll
    for (u32 j = 0; j < GROUP_LANES; ++j) to[j] = first + j * 32 + lane < p.head_tiles ? __ldcg(tops + first + j * 32 + lane) : NEG_INF;
  };
  load(v, 0), load(ahead, GROUPS_OF_TILES);
#pragma unroll
  for (u32 j = 0; j < GROUP_LANES; ++j) key[j] = j * 32 + lane < p.head_tiles ? ordered(v[j]) : 0;
#pragma unroll 1
  for (u32 first = GROUPS_OF_TILES; first < p.head_tiles; first += GROUPS_OF_TILES) {
#pragma unroll
    for (u32 j = 0; j < GROUP_LANES; ++j) key[j] = max(key[j], ordered(ahead[j]));
    load(ahead, first + GROUPS_OF_TILES);
  }
#pragma unroll
  for (u32 j = 0; j < GROUP_LANES; ++j) top = max(top, key[j]);
  top = __reduce_max_sync(~0u, top);
  u32 groups = min(p.head_tiles, GROUPS_OF_TILES), want = how.tops;
  if (how.mode & DRAWN && how.top_k) want = max(want, how.top_k);
  else if (how.mode & DRAWN && how.top_p < 1) want = max(want, min(NUCLEUS, (groups + 1) / 2));
  u32 least = want ? 0 : ~0u;
  if (want && want <= groups && p.vocab > CANDIDATES) least = nth_largest(key, want);
  return (u64)top << 32 | least;
}

// Tiles of a part, but of the last ones, which may have less or none.
__device__ __forceinline__ u32 tiles_of_part(const Model& p, u32 parts) { return (p.head_tiles + parts - 1) / parts; }

// What a row's parts weigh, at its temperature or at 1.
__device__ __forceinline__ u64* part_sums(const Model& p, u32 row, u32 parts, bool at_one) {
  return (u64*)p.part_sums + ((u64)row * 2 + at_one) * parts;
}

static constexpr u32 TILE_LOADS = 4;   // of 32 tokens each: an LM-head tile has at most 128 (Tiling.for_tensor_cores)
static constexpr u32 TILES_AHEAD = 3;  // whose logits are under way together

// Those of a tile that are `least` or more, which lane holds, by 32 tokens, become candidates.
__device__ __forceinline__ void nominate(const Model& p, u32 row, u32 tile, const float* logit, u32 least, u32 lane) {
  u32 end = min(p.head_tile, p.vocab - tile * p.head_tile), mask[TILE_LOADS], found = 0;
#pragma unroll
  for (u32 i = 0; i < TILE_LOADS; ++i) {
    mask[i] = __ballot_sync(~0u, ordered(logit[i]) >= least && i * 32 + lane < end);
    found += __popc(mask[i]);
  }
  if (found == 0) return;
  u32 place = lane == 0 ? atomicAdd((u32*)p.cursor + row, found) : 0;
  place = __shfl_sync(~0u, place, 0) & (BAD_LOGIT - 1);
  uint2* to = (uint2*)p.candidates + (u64)row * CANDIDATES;
#pragma unroll
  for (u32 i = 0; i < TILE_LOADS; ++i) {
    u32 at = place + __popc(mask[i] & ((1u << lane) - 1));
    if (mask[i] >> lane & 1 && at < CANDIDATES) to[at] = make_uint2(tile * p.head_tile + i * 32 + lane, __float_as_uint(logit[i]));
    place += __popc(mask[i]);
  }
}

// One part of a row's vocabulary: some tiles of the LM head that follow each other.  False: the row asks for nothing but the greedy token.
__device__ __noinline__ bool sample(const Model& p, u32 row, u32 part, u32 parts, u32 lane) {
  const Sampling& how = ((const Sampling*)p.sampling)[row];
  if (how.mode == 0) return false;
  u64 keys = threshold(p, row, how, lane);
  u32 least = (u32)keys;
  float top = of_ordered((u32)(keys >> 32));
  // with top_k, what candidates weigh is enough
  bool weighed = how.mode & DRAWN && how.top_k == 0, told = how.mode & TOLD, bad = !finite(top);
  u64 floor = how.top_p >= 1 ? how.min_weight : 0, all[2] = {};  // where nothing is cut off, min_p is
  Divisor temperature(how.temperature);
  const float* logits = (const float*)p.logits + (u64)row * p.vocab;
  u32 tile = part * tiles_of_part(p, parts), last = min(tile + tiles_of_part(p, parts), p.head_tiles);
  float v[TILES_AHEAD * TILE_LOADS], next[TILES_AHEAD * TILE_LOADS];
  auto load = [&](u32 tile) {
#pragma unroll
    for (u32 k = 0; k < TILES_AHEAD; ++k, ++tile) {
      u32 first = tile * p.head_tile, end = tile < last ? min(p.head_tile, p.vocab - first) : 0;
#pragma unroll
      for (u32 i = 0; i < TILE_LOADS; ++i)
        next[k * TILE_LOADS + i] = i * 32 + lane < end ? __ldcg(logits + first + i * 32 + lane) : NEG_INF;
    }
  };
  load(tile);
#pragma unroll 1
  while (tile < last) {
#pragma unroll
    for (u32 i = 0; i < TILES_AHEAD * TILE_LOADS; ++i) v[i] = next[i];
    load(tile + TILES_AHEAD);
#pragma unroll 1
    for (u32 k = 0; k < TILES_AHEAD && tile < last; ++k, ++tile) {
      if (least != ~0u) nominate(p, row, tile, v, least, lane);
#pragma unroll
      for (u32 i = 0; i < TILE_LOADS; ++i) bad = bad || v[i] != v[i];
#pragma unroll 1
      for (u32 at_one = weighed ? 0 : 1; at_one < (told ? 2 : 1); ++at_one) {  // at the row's temperature, and at 1
        float x[TILE_LOADS];
        u64 sum = 0;
#pragma unroll
        for (u32 i = 0; i < TILE_LOADS; ++i) x[i] = __fsub_rn(v[i], top);
        if (!at_one) {
          if (temperature.quick()) {
#pragma unroll
            for (u32 i = 0; i < TILE_LOADS; ++i) x[i] = temperature.quotient(x[i]);
          } else {
#pragma unroll
            for (u32 i = 0; i < TILE_LOADS; ++i) x[i] = __fdiv_rn(x[i], temperature.by);
          }
        }
#pragma unroll
        for (u32 i = 0; i < TILE_LOADS; ++i) {
          u64 w = weight_of(x[i]);
          sum += at_one || w >= floor ? w : 0;
        }
        if (at_one) {
          all[1] += sum;
        } else {
          sum = warp_sum(sum), all[0] += sum;
          if (lane == 0) ((u64*)p.tile_sums)[(u64)row * p.head_tiles + tile] = sum;
        }
      }
#pragma unroll
      for (u32 i = 0; i + TILE_LOADS < TILES_AHEAD * TILE_LOADS; ++i) v[i] = v[i + TILE_LOADS];
    }
  }
  all[1] = warp_sum(all[1]);
  if (lane == 0 && weighed) part_sums(p, row, parts, false)[part] = all[0];
  if (lane == 0 && told) part_sums(p, row, parts, true)[part] = all[1];
  if (__ballot_sync(~0u, bad) && lane == 0) atomicAdd((u32*)p.cursor + row, BAD_LOGIT);
  return true;
}
