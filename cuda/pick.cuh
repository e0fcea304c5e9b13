// PICK, where rows may be drawn: the second half of sampling.cuh.
#pragma once
#include "sampling.cuh"

// Every wait of another warp of the SM empties the L1 cache, so that a read is a trip to L2, most of a microsecond.  What is read
// is read with many reads under way, and stays in registers.

__device__ __forceinline__ u64 upto_lane(u64 v, u32 lane) {
  for (u32 o = 1; o < 32; o <<= 1) {
    u64 before = __shfl_up_sync(~0u, v, o);
    if (lane >= o) v += before;
  }
  return v;
}

// The first of n places at which the running sum of `weight(read(i))` exceeds r, which is less than the sum of all; r becomes what
// of it lies in that place.
template <typename Read, typename Weight>
__device__ __forceinline__ u32 find(u32 n, u64& r, u32 lane, Read read, Weight weight) {
  constexpr u32 AT_ONCE = 4;
#pragma unroll 1
  for (u32 first = 0;; first += AT_ONCE * 32) {
    decltype(read(0)) v[AT_ONCE];
#pragma unroll
    for (u32 j = 0; j < AT_ONCE; ++j) v[j] = first + j * 32 + lane < n ? read(first + j * 32 + lane) : 0;
#pragma unroll 1
    for (u32 at = first; at < first + AT_ONCE * 32; at += 32) {
      u64 mine = at + lane < n ? weight(v[0]) : 0, all = warp_sum(mine);
      if (all > r || at + 32 >= n) {
        u64 upto = upto_lane(mine, lane);
        u32 over = __ballot_sync(~0u, upto > r), here = over ? __ffs(over) - 1 : 0;
        r -= __shfl_sync(~0u, upto - mine, here);
        return at + here;
      }
      r -= all;
#pragma unroll
      for (u32 j = 0; j + 1 < AT_ONCE; ++j) v[j] = v[j + 1];
    }
  }
}

__device__ __forceinline__ const Sampling& asked(const Model& p, u32 row) { return ((const Sampling*)p.sampling)[row]; }

__device__ __forceinline__ bool cuts(const Sampling& how) { return how.mode & DRAWN && (how.top_k || how.top_p < 1); }

// A row's candidates as they were found, and where they are put down again.
__device__ __forceinline__ const uint2* found_of(const Model& p, u32 row) { return (const uint2*)p.candidates + (u64)row * CANDIDATES; }
__device__ __forceinline__ ulonglong2* own_of(const Model& p, u32 row) { return (ulonglong2*)p.weighed + (u64)row * CANDIDATES; }

__device__ __noinline__ u64 sum_of(const u64* sums, u32 n, u32 lane) {
  u64 all = 0;
#pragma unroll 2
  for (u32 i = lane; i < n; i += 32) all += __ldcg(sums + i);
  return warp_sum(all);
}

// Nothing is cut off: by the parts' weights, then by those of a part's tiles, then by those inside a tile.
__device__ __noinline__ u32 draw_from_all(const Model& p, u32 row, u32 position, u32 parts, float top, u32 lane) {
  const Sampling& how = asked(p, row);
  const u64* sums = part_sums(p, row, parts, false);
  u64 r = __umul64hi(draw(how.seed, position, how.choice), sum_of(sums, parts, lane)), floor = how.min_weight;
  u32 place = 0, n = parts;
#pragma unroll 1
  for (u32 level = 0; level < 2; ++level) {
    place += find(n, r, lane, [&](u32 i) { return __ldcg(sums + i); }, [](u64 w) { return w; });
    if (level) break;
    u32 per = tiles_of_part(p, parts);
    place *= per, n = min(per, p.head_tiles - place), sums = (const u64*)p.tile_sums + (u64)row * p.head_tiles + place;
  }
  place *= p.head_tile;
  const float* logits = (const float*)p.logits + (u64)row * p.vocab + place;
  float temperature = how.temperature;
  return place + find(min(p.head_tile, p.vocab - place), r, lane, [&](u32 i) { return __ldcg(logits + i); }, [&](float logit) {
    u64 w = weigh(logit, top, temperature);
    return w < floor ? 0 : w;
  });
}

// -- candidates as keys, which are in the rule's order, by logit, then by id, and weights, some of them each lane's

__device__ __forceinline__ u64 key_of(uint2 v) { return (u64)ordered(__uint_as_float(v.y)) << 32 | (u32)~v.x; }
__device__ __forceinline__ u32 id_of(u64 key) { return ~(u32)key; }
__device__ __forceinline__ float logit_of(u64 key) { return of_ordered((u32)(key >> 32)); }

static constexpr u32 FEW_LANES = 6, FEW = FEW_LANES * 32;

// No more than FEW: in registers.
struct Few {
  u64 key[FEW_LANES], w[FEW_LANES];  // a key of 0 is none

  __device__ __forceinline__ void read(const uint2* from, u32 count, u32 lane) {
#pragma unroll
    for (u32 j = 0; j < FEW_LANES; ++j) {
      key[j] = w[j] = 0;
      if (j * 32 + lane < count) key[j] = key_of(__ldcg(from + j * 32 + lane));
    }
  }

  __device__ __forceinline__ void weigh_all(float top, float temperature) {
#pragma unroll 1
    for (u32 q = 0; q < FEW_LANES; ++q) {  // in turn, as registers have no index
      u64 k = key[0], v = k ? weight_of(__fdiv_rn(__fsub_rn(logit_of(k), top), temperature)) : 0;
#pragma unroll
      for (u32 j = 0; j + 1 < FEW_LANES; ++j) key[j] = key[j + 1], w[j] = w[j + 1];
      key[FEW_LANES - 1] = k, w[FEW_LANES - 1] = v;
    }
  }

  template <typename Do>
  __device__ __forceinline__ void each(Do with) const {
#pragma unroll
    for (u32 j = 0; j < FEW_LANES; ++j) with(key[j], w[j]);
  }

  __device__ __forceinline__ void drop(u64 gone) {
#pragma unroll
    for (u32 j = 0; j < FEW_LANES; ++j)
      if (key[j] == gone) key[j] = 0;
  }
};

// All of them, in global memory: trips to L2 for every bit of what is looked for.
struct Many {
  ulonglong2* own;
  u32 count, lane;

  __device__ __forceinline__ void weigh_all(const uint2* from, float top, float temperature) {
#pragma unroll 2
    for (u32 i = lane; i < count; i += 32) {
      u64 key = key_of(__ldcg(from + i));
      ulonglong2 of;
      of.x = key, of.y = weigh(logit_of(key), top, temperature);
      own[i] = of;
    }
  }

  template <typename Do>
  __device__ __forceinline__ void each(Do with) const {
#pragma unroll 4
    for (u32 i = lane; i < count; i += 32) {
      ulonglong2 of = own[i];
      with(of.x, of.y);
    }
  }

  __device__ __forceinline__ void drop(u64 gone) {
#pragma unroll 1
    for (u32 i = lane; i < count; i += 32)
      if (own[i].x == gone) own[i].x = 0;
  }
};

// Sum of the weights of `least` or more, by key, and `floor` or more, by weight; or how many they are.
template <typename Of>
__device__ __forceinline__ u64 sum(const Of& of, u64 least, u64 floor, bool counted) {
  u64 all = 0;
  of.each([&](u64 key, u64 w) { all += key >= least && w >= floor ? (counted ? 1 : w) : 0; });
  return warp_sum(all);
}

template <typename Of>
__device__ __forceinline__ u64 largest(const Of& of) {
  u64 some = 0;
  of.each([&](u64 key, u64) { some = max(some, key); });
  return warp_max(some);
}

// The key of the last one of the shortest beginning, in the rule's order, whose weights (or numbers, where `counted`, of those that
// have weight) sum up to `need`; or one below it and above the next.
template <typename Of>
__device__ __forceinline__ u64 cut(const Of& of, u64 need, bool counted) {
  u64 some = largest(of), differ = 0;  // bits in which keys differ
  of.each([&](u64 key, u64) { differ |= key ? key ^ some : 0; });
  differ = (u64)__reduce_or_sync(~0u, (u32)(differ >> 32)) << 32 | __reduce_or_sync(~0u, (u32)differ);
  u64 least = some & ~differ;
#pragma unroll 1
  for (u64 bit = 1ull << 63; bit; bit >>= 1) {
    if (!(differ & bit)) continue;
    u64 there = sum(of, least | bit, 1, counted);
    if (there >= need) least |= bit;
    if (there == need) break;
  }
  return least;
}

// The token by top_k, top_p and min_p of n candidates; LEFT_TO_HOST where there may be tokens beyond them that count.  `all`: what the
// row weighs, where top_p is of that.
template <typename Of>
__device__ __forceinline__ u32 draw_from_cut(const Model& p, const Sampling& how, u32 position, u64 all, const Of& of, u32 n) {
  u64 least = 1;
  // first top_k, then top_p, by the same code: what is run once a step comes from far away
#pragma unroll 1
  for (u32 counted = how.top_k > 0 ? 1 : 0;; counted = 0) {
    if (!counted && how.top_p >= 1) break;
    u64 there = sum(of, least, 1, counted), need = how.top_k;
    if (!counted) {
      need = how.top_k ? there : all;
      need = min(max(__double2ull_rz(ceil(__dmul_rn(how.top_p, __ull2double_rn(need)))), (u64)1), need);
    }
    // where a token of no weight is there, all that have some are
    if (there < need && !(counted && (there < n || n == p.vocab))) return LEFT_TO_HOST;
    if (there >= need) least = max(least, cut(of, need, counted));
    if (!counted) break;
  }
  u64 floor = how.min_weight, r = __umul64hi(draw(how.seed, position, how.choice), sum(of, least, floor, false));
  u32 token = 0;  // the largest id such that what stays before it weighs no more than r
#pragma unroll 1
  for (u32 bit = 32 - __clz(p.vocab); bit--;) {
    u32 probe = token | 1u << bit;
    u64 before = 0;
    of.each([&](u64 key, u64 w) { before += key >= least && w >= floor && id_of(key) < probe ? w : 0; });
    if (warp_sum(before) <= r) token = probe;
  }
  return token;
}

// Tells the `n` largest, which are gone then.
template <typename Of>
__device__ __forceinline__ void tell(Told& to, u32 n, Of& of, u32 lane) {
#pragma unroll 1
  for (u32 k = 0; k < n; ++k) {
    u64 best = largest(of);
    of.drop(best);
    if (lane == 0) to.token[k] = id_of(best), to.logits[k] = logit_of(best);
  }
}

// The token, by what the row asks for (else `token`), of `count` candidates, which are the largest of all tokens; and what is told.
__device__ __noinline__ u32 pick_of_few(const Model& p, u32 row, u32 position, u32 parts, float top, u32 token, Told& to,
                                        const uint2* from, u32 count, u32 lane) {
  const Sampling& how = asked(p, row);
  u64 all = cuts(how) && how.top_k == 0 ? sum_of(part_sums(p, row, parts, false), parts, lane) : 0;
  Few few;
  few.read(from, count, lane);
  if (cuts(how)) {
    few.weigh_all(top, how.temperature);
    token = draw_from_cut(p, how, position, all, few, count);
    if (token == LEFT_TO_HOST) return token;
  }
  tell(to, min(how.tops, count), few, lane);
  return token;
}

__device__ __noinline__ u32 pick_of_many(const Model& p, u32 row, u32 position, u32 parts, float top, u32 token, Told& to, u32 count,
                                         u32 lane) {
  const Sampling& how = asked(p, row);
  u64 all = cuts(how) && how.top_k == 0 ? sum_of(part_sums(p, row, parts, false), parts, lane) : 0;
  Many many = {own_of(p, row), count, lane};
  many.weigh_all(found_of(p, row), top, how.temperature);
  if (cuts(how)) token = draw_from_cut(p, how, position, all, many, count);
  if (token != LEFT_TO_HOST) tell(to, min(how.tops, count), many, lane);
  return token;
}

// Leaves those of `count` candidates that are no less than the FEW-th largest logit in `to`, or above it where too many are equal
// to it; how many.
__device__ __noinline__ u32 leading(const uint2* from, u32 count, uint2* to, u32 lane) {
  u32 key[CANDIDATES / 32], kept = 0;
#pragma unroll
  for (u32 j = 0; j < CANDIDATES / 32; ++j) key[j] = j * 32 + lane < count ? __ldcg(&from[j * 32 + lane].y) : 0;
#pragma unroll
  for (u32 j = 0; j < CANDIDATES / 32; ++j)
    if (j * 32 + lane < count) key[j] = ordered(__uint_as_float(key[j]));
  u32 least = nth_largest(key, FEW);
#pragma unroll
  for (u32 j = 0; j < CANDIDATES / 32; ++j) kept += key[j] >= least;
  if (__reduce_add_sync(~0u, kept) > FEW) ++least;
  kept = 0;
#pragma unroll 1
  for (u32 i = lane; i - lane < count; i += 32) {
    uint2 v = i < count ? __ldcg(from + i) : make_uint2(0, 0);
    bool stays = i < count && ordered(__uint_as_float(v.y)) >= least;
    u32 mask = __ballot_sync(~0u, stays);
    if (stays) to[kept + __popc(mask & ((1u << lane) - 1))] = v;
    kept += __popc(mask);
  }
  __syncwarp();
  return kept;
}

// The token of a row whose largest logit is `top` and greedy token `token`; what else is asked for is told.
__device__ __noinline__ u32 pick_row(const Model& p, u32 row, u32 position, u32 parts, float top, u32 token, Told& to, u32 lane) {
  const Sampling& how = asked(p, row);
  if (how.mode == 0) return token;
  u32* cursor = (u32*)p.cursor + row;
  u32 found = __ldcg(cursor), count = found & (BAD_LOGIT - 1);
  __syncwarp();
  if (lane == 0) *cursor = 0;  // for the next step
  bool some = cuts(how) || how.tops;
  if (found >= BAD_LOGIT || (some && count > CANDIDATES) || (how.tops > count && count < p.vocab)) return LEFT_TO_HOST;
  if (how.mode & DRAWN && !cuts(how)) token = draw_from_all(p, row, position, parts, top, lane);
  if (some) {
    const uint2* from = found_of(p, row);
    u32 n = count, by_few = LEFT_TO_HOST;
    if (count > FEW) n = leading(from, count, (uint2*)own_of(p, row), lane), from = (const uint2*)own_of(p, row);
    if (n >= min(how.tops, count)) by_few = pick_of_few(p, row, position, parts, top, token, to, from, n, lane);
    if (by_few == LEFT_TO_HOST && n < count) by_few = pick_of_many(p, row, position, parts, top, token, to, count, lane);
    if (by_few == LEFT_TO_HOST) return by_few;
    token = by_few;
  }
  if (how.mode & TOLD) {
    u64 part = sum_of(part_sums(p, row, parts, true), parts, lane);
    float logit = __ldcg((const float*)p.logits + (u64)row * p.vocab + token);
    if (lane == 0) to.top = top, to.logit = logit, to.weight = part, to.count = min(how.tops, count);
  }
  return token;
}
