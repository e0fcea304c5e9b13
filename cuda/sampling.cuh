// SAMPLE and PICK: a row of logits becomes a token by the rule of docs/sampling.md, with the bits of engine/pick.py.
//
// Weights are whole numbers, so sums may be taken in any order.  SAMPLE tasks go over the logits once: the weight of every LM-head
// tile, and candidates, which are all tokens above a threshold.  The maxima of groups of tiles give it: as many groups have a
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

// floor(exp((logit - top) / temperature) * 2^40), every operation rounded by itself.
__device__ __noinline__ u64 weigh(float logit, float top, float temperature) {
  float x = __fdiv_rn(__fsub_rn(logit, top), temperature);
  if (!(x >= -28.f)) return 0;
  float n = floorf(__fadd_rn(__fmul_rn(x, 1.4426950408889634f), 0.5f));
  float r = __fsub_rn(__fsub_rn(x, __fmul_rn(n, 0.693359375f)), __fmul_rn(n, -2.12194440054690583e-4f));
  constexpr float series[] = {(float)(1. / 720), (float)(1. / 120), (float)(1. / 24), (float)(1. / 6), .5f};
  float e = (float)(1. / 5040);
#pragma unroll
  for (u32 i = 0; i < 5; ++i) e = __fadd_rn(__fmul_rn(e, r), series[i]);
  e = __fadd_rn(__fadd_rn(__fmul_rn(__fmul_rn(e, r), r), r), 1.f);
  return __float2ull_rz(__fmul_rn(e, __uint_as_float((u32)((int)n + 127 + 40) << 23)));
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

__device__ __forceinline__ u64 warp_sum(u64 v) {
  for (u32 o = 16; o; o >>= 1) v += __shfl_xor_sync(~0u, v, o);
  return v;
}

__device__ __forceinline__ u64 warp_max(u64 v) {
  u32 high = __reduce_max_sync(~0u, (u32)(v >> 32));
  return (u64)high << 32 | __reduce_max_sync(~0u, (u32)(v >> 32) == high ? (u32)v : 0u);
}

__device__ __forceinline__ bool finite(float v) { return (__float_as_uint(v) & 0x7f800000u) != 0x7f800000u; }

__device__ __forceinline__ u64 upto_lane(u64 v, u32 lane) {
  for (u32 o = 1; o < 32; o <<= 1) {
    u64 before = __shfl_up_sync(~0u, v, o);
    if (lane >= o) v += before;
  }
  return v;
}

// The first of n places at which the running sum of `weight(i)` exceeds r, which is less than the sum of all; r becomes what of
// it lies in that place.  First by lanes, a 32nd of the places each, then place by place.
template <typename Weight>
__device__ __forceinline__ u32 find(u32 n, u64& r, u32 lane, Weight weight) {
  u32 share = (n + 31) / 32, first = lane * share, end = min(first + share, n);
  u64 mine = 0;
#pragma unroll 2
  for (u32 i = first; i < end; ++i) mine += weight(i);
  u64 upto = upto_lane(mine, lane);
  u32 at = __ffs(__ballot_sync(~0u, upto > r)) - 1;
  r -= __shfl_sync(~0u, upto - mine, at);
  first = at * share, end = min(first + share, n);
#pragma unroll 1
  for (;; first += 32) {
    mine = first + lane < end ? weight(first + lane) : 0;
    upto = upto_lane(mine, lane);
    u32 over = __ballot_sync(~0u, upto > r);
    at = over ? __ffs(over) - 1 : 31;
    r -= __shfl_sync(~0u, over ? upto - mine : upto, at);
    if (over || first + 32 >= end) return first + at;
  }
}

// -- SAMPLE

// Keys of the row's largest logit (high word) and of the least candidate: at least `want` tokens have one as large, or all are
// candidates, where there are not so many groups or there is room for all.
__device__ __noinline__ u64 threshold(const Model& p, u32 row, const Sampling& how, u32 lane) {
  const float* tops = (const float*)p.tile_max + (u64)row * p.head_tiles;
  u32 key[GROUP_LANES] = {}, top = 0;
#pragma unroll 1
  for (u32 first = 0; first < p.head_tiles; first += GROUPS_OF_TILES) {
    float v[GROUP_LANES];
#pragma unroll
    for (u32 j = 0; j < GROUP_LANES; ++j) v[j] = first + j * 32 + lane < p.head_tiles ? __ldcg(tops + first + j * 32 + lane) : NEG_INF;
#pragma unroll
    for (u32 j = 0; j < GROUP_LANES; ++j)
      if (first + j * 32 + lane < p.head_tiles) key[j] = max(key[j], ordered(v[j]));
  }
#pragma unroll
  for (u32 j = 0; j < GROUP_LANES; ++j) top = max(top, key[j]);
  top = __reduce_max_sync(~0u, top);
  u32 groups = min(p.head_tiles, GROUPS_OF_TILES), want = how.tops;
  if (how.mode & DRAWN && how.top_k) want = max(want, how.top_k);
  else if (how.mode & DRAWN && how.top_p < 1) want = max(want, min(NUCLEUS, (groups + 1) / 2));
  u32 least = want ? 0 : ~0u;
  if (want && want <= groups && p.vocab > CANDIDATES) {
#pragma unroll 1
    for (u32 bit = 0x80000000u; bit; bit >>= 1) {
      u32 above = 0;
#pragma unroll
      for (u32 j = 0; j < GROUP_LANES; ++j) above += key[j] >= (least | bit);
      if (__reduce_add_sync(~0u, above) >= want) least |= bit;
    }
  }
  return (u64)top << 32 | least;
}

static constexpr u32 AHEAD = 6;  // reads under way

// One part of a row's vocabulary: every `parts`-th tile of the LM head.  False: the row asks for nothing but the greedy token.
__device__ __noinline__ bool sample(const Model& p, u32 row, u32 part, u32 parts, u32 lane) {
  const Sampling& how = ((const Sampling*)p.sampling)[row];
  if (how.mode == 0) return false;
  u64 keys = threshold(p, row, how, lane);
  u32 least = (u32)keys;
  float top = of_ordered((u32)(keys >> 32)), temperature = how.temperature;
  bool drawn = how.mode & DRAWN, told = how.mode & TOLD, bad = !finite(top);
  u64 floor = how.top_k == 0 && how.top_p >= 1 ? how.min_weight : 0, model = 0, sum = 0;  // where nothing is cut off, min_p is
  const float* logits = (const float*)p.logits + (u64)row * p.vocab;
  u32* cursor = (u32*)p.cursor + row;
  u32 per = (p.head_tile + 31) / 32, left = part < p.head_tiles ? ((p.head_tiles - part - 1) / parts + 1) * per : 0;  // 32 tokens each
  struct { u32 tile, piece; } to_load = {part, 0}, here = {part, 0};
  auto advance = [&](auto& place) {
    if (++place.piece == per) place.piece = 0, place.tile += parts;
  };
  auto load = [&] {
    u32 in = to_load.piece * 32 + lane, token = to_load.tile * p.head_tile + in;
    bool there = in < p.head_tile && token < p.vocab && to_load.tile < p.head_tiles;
    advance(to_load);
    return there ? __ldcg(logits + token) : NEG_INF;
  };
  float v[AHEAD];
#pragma unroll
  for (u32 i = 0; i < AHEAD; ++i) v[i] = load();
#pragma unroll 1
  for (; left; --left) {
    float logit = v[0];
#pragma unroll
    for (u32 i = 0; i + 1 < AHEAD; ++i) v[i] = v[i + 1];
    v[AHEAD - 1] = load();
    bad = bad || logit != logit;
    if (drawn) {
      u64 w = weigh(logit, top, temperature);
      sum += w < floor ? 0 : w;
    }
    if (told) model += weigh(logit, top, 1.f);
    u32 in = here.piece * 32 + lane, token = here.tile * p.head_tile + in, tile = here.tile;
    bool taken = in < p.head_tile && token < p.vocab && least != ~0u && ordered(logit) >= least;
    u32 mask = __ballot_sync(~0u, taken);
    if (mask) {
      u32 place = lane == 0 ? atomicAdd(cursor, (u32)__popc(mask)) : 0;
      place = (__shfl_sync(~0u, place, 0) & (BAD_LOGIT - 1)) + __popc(mask & ((1u << lane) - 1));
      if (taken && place < CANDIDATES)
        ((uint2*)p.candidates)[(u64)row * CANDIDATES + place] = make_uint2(token, __float_as_uint(logit));
    }
    advance(here);
    if (here.piece == 0 && drawn) {
      sum = warp_sum(sum);
      if (lane == 0) ((u64*)p.tile_sums)[(u64)row * p.head_tiles + tile] = sum;
      sum = 0;
    }
  }
  if (told) model = warp_sum(model);
  if (told && lane == 0) ((u64*)p.model_sums)[(u64)row * parts + part] = model;
  if (__ballot_sync(~0u, bad) && lane == 0) atomicAdd(cursor, BAD_LOGIT);
  return true;
}
