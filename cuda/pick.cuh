// PICK, where rows may be drawn: the second half of sampling.cuh.
#pragma once
#include "sampling.cuh"

// A row's candidates as (key, weight), each 32nd a lane's own: its L1 cache holds what it writes down, as registers do not.  Keys
// are in the rule's order: by logit, then by id.

__device__ __forceinline__ u32 id_of(u64 key) { return ~(u32)key; }

__device__ __forceinline__ void weigh_candidates(ulonglong2* own, const uint2* from, u32 count, float top, float temperature, u32 lane) {
#pragma unroll 2
  for (u32 i = lane; i < count; i += 32) {
    uint2 v = __ldcg(from + i);
    float logit = __uint_as_float(v.y);
    ulonglong2 of;
    of.x = (u64)ordered(logit) << 32 | (u32)~v.x, of.y = weigh(logit, top, temperature);
    own[i] = of;
  }
}

// Sum of the weights of `least` or more, by key, `floor` or more, by weight, and `last` or less, by id; or how many they are.
__device__ __noinline__ u64 sum(const ulonglong2* own, u32 count, u64 least, u64 floor, u32 last, bool counted, u32 lane) {
  u64 all = 0;
#pragma unroll 2
  for (u32 i = lane; i < count; i += 32) {
    ulonglong2 of = own[i];
    if (of.x >= least && of.y >= floor && id_of(of.x) <= last) all += counted ? 1 : of.y;
  }
  return warp_sum(all);
}

__device__ __forceinline__ u64 largest(const ulonglong2* own, u32 count, u32 lane) {
  u64 some = 0;
#pragma unroll 2
  for (u32 i = lane; i < count; i += 32) some = max(some, (u64)own[i].x);
  return warp_max(some);
}

// The key of the last one of the shortest beginning, in the rule's order, whose weights (or numbers, where `counted`, of those that
// have weight) sum up to `need`.
__device__ __noinline__ u64 cut(const ulonglong2* own, u32 count, u64 need, bool counted, u32 lane) {
  u64 some = largest(own, count, lane);
  u32 high = 0, low = 0;  // bits in which keys differ
#pragma unroll 1
  for (u32 i = lane; i < count; i += 32) high |= (u32)((own[i].x ^ some) >> 32), low |= (u32)(own[i].x ^ some);
  u64 differ = (u64)__reduce_or_sync(~0u, high) << 32 | __reduce_or_sync(~0u, low), least = some & ~differ;
#pragma unroll 1
  for (u32 bit = 64; bit--;) {
    u64 probe = least | 1ull << bit;
    if ((differ >> bit & 1) && sum(own, count, probe, 1, ~0u, counted, lane) >= need) least = probe;
  }
  return least;
}

// Tells the `n` largest, whose keys are gone then.
__device__ __forceinline__ void tell(Told& to, u32 n, ulonglong2* own, u32 count, u32 lane) {
#pragma unroll 1
  for (u32 k = 0; k < n; ++k) {
    u64 best = largest(own, count, lane);
#pragma unroll 1
    for (u32 i = lane; i < count; i += 32)
      if (own[i].x == best) own[i].x = 0;
    if (lane == 0) to.token[k] = id_of(best), to.logits[k] = of_ordered((u32)(best >> 32));
  }
}

__device__ __noinline__ u64 sum_of_tiles(const Model& p, u32 row, u32 lane) {
  const u64* sums = (const u64*)p.tile_sums + (u64)row * p.head_tiles;
  u64 all = 0;
#pragma unroll 4
  for (u32 i = lane; i < p.head_tiles; i += 32) all += __ldcg(sums + i);
  return warp_sum(all);
}

// Nothing is cut off: by the tiles' weights, then by those inside a tile.
__device__ __noinline__ u32 draw_from_all(const Model& p, u32 row, const Sampling& how, u64 random, float top, u32 lane) {
  const u64* sums = (const u64*)p.tile_sums + (u64)row * p.head_tiles;
  u64 r = __umul64hi(random, sum_of_tiles(p, row, lane)), floor = how.min_weight;
  float temperature = how.temperature;
  u32 tile = find(p.head_tiles, r, lane, [&](u32 i) { return __ldcg(sums + i); });
  u32 first = tile * p.head_tile;
  const float* logits = (const float*)p.logits + (u64)row * p.vocab + first;
  return first + find(min(p.head_tile, p.vocab - first), r, lane, [&](u32 i) {
    u64 w = weigh(__ldcg(logits + i), top, temperature);
    return w < floor ? 0 : w;
  });
}

// By top_k, top_p and min_p from the candidates; LEFT_TO_HOST where there may be tokens beyond them that count.
__device__ __noinline__ u32 draw_from_cut(const Model& p, u32 row, const Sampling& how, u64 random, const ulonglong2* own,
                                             u32 count, u32 lane) {
  u64 least = 0, weighty = sum(own, count, 0, 1, ~0u, true, lane);
  bool complete = weighty < count || count == p.vocab;  // a token of no weight is there, so all that have some are
  if (how.top_k && weighty >= how.top_k) least = cut(own, count, how.top_k, true, lane);
  else if (how.top_k && !complete) return LEFT_TO_HOST;
  if (how.top_p < 1) {
    u64 there = sum(own, count, least, 1, ~0u, false, lane);
    u64 all = how.top_k ? there : sum_of_tiles(p, row, lane);
    u64 need = __double2ull_rz(ceil(__dmul_rn(how.top_p, __ull2double_rn(all))));
    need = min(max(need, (u64)1), all);
    if (there < need) return LEFT_TO_HOST;
    least = max(least, cut(own, count, need, false, lane));
  }
  u64 r = __umul64hi(random, sum(own, count, least, how.min_weight, ~0u, false, lane));
  u32 token = 0;  // the largest id such that what stays before it weighs no more than r
#pragma unroll 1
  for (u32 bit = 32 - __clz(p.vocab); bit--;) {
    u32 probe = token | 1u << bit;
    if (sum(own, count, least, how.min_weight, probe - 1, false, lane) <= r) token = probe;
  }
  return token;
}

// The token of a row whose largest logit is `top` and greedy token `greedy`; what else is asked for is told.
__device__ __noinline__ u32 pick_row(const Model& p, u32 row, u32 position, u32 parts, float top, u32 greedy, Told& to, u32 lane) {
  const Sampling& how = ((const Sampling*)p.sampling)[row];
  if (how.mode == 0) return greedy;
  u32* cursor = (u32*)p.cursor + row;
  u32 found = __ldcg(cursor), count = found & (BAD_LOGIT - 1);
  __syncwarp();
  if (lane == 0) *cursor = 0;  // for the next step
  bool drawn = how.mode & DRAWN, cuts = drawn && (how.top_k || how.top_p < 1), some = cuts || how.tops;
  if (found >= BAD_LOGIT || (some && count > CANDIDATES) || (how.tops > count && count < p.vocab)) return LEFT_TO_HOST;
  u32 token = greedy;
  u64 random = drawn ? draw(how.seed, position, how.choice) : 0;
  if (drawn && !cuts) token = draw_from_all(p, row, how, random, top, lane);
  u32 told = min(how.tops, count);
  if (some) {
    ulonglong2* own = (ulonglong2*)p.weighed + (u64)row * CANDIDATES;
    weigh_candidates(own, (const uint2*)p.candidates + (u64)row * CANDIDATES, count, top, how.temperature, lane);
    if (cuts) token = draw_from_cut(p, row, how, random, own, count, lane);
    if (token == LEFT_TO_HOST) return token;
    tell(to, told, own, count, lane);
  }
  if (how.mode & TOLD) {
    u64 part = 0;
#pragma unroll 1
    for (u32 i = lane; i < parts; i += 32) part += __ldcg((const u64*)p.model_sums + (u64)row * parts + i);
    part = warp_sum(part);
    float logit = __ldcg((const float*)p.logits + (u64)row * p.vocab + token);
    if (lane == 0) to.top = top, to.logit = logit, to.weight = part, to.count = told;
  }
  return token;
}
