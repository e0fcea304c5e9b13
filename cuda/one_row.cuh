// The kernel for steps of one row: what SMs hand to each other goes as tagged words (tagged.cuh).  Each function here does what the one
// it is named after does for eight rows, with the same arithmetic in the same order; only column 0 of a tile counts.
#pragma once
#include "dense.cuh"

#if MK_ROWS == 1
namespace one {

// -- products

// What projections back into the residual read lies in shared memory behind the q buffers, eight words a fragment: all heads, which the
// feeders bring while math is at the experts, and later in their place a hidden layer, which math brings when it needs it.  Each warp of
// math reads and brings nothing but its own four fragments of a chunk of weights, so warps need not wait for each other.
__device__ __forceinline__ u32* held(const Block& b) { return b.q + 2 * TASK_ROWS * ROWS * b.q_stride; }
static constexpr u32 HELD_CHUNK = CHUNK_K16 * 8, HELD_WARP = HELD_CHUNK / MATH_WARPS;  // words

// Feeders: the heads.  They are awaited for long, so by one access a thread.
__device__ __forceinline__ bool gather_heads(Block& b, const Task& t, const Walker& walk, u32 thread, u32& polls) {
  constexpr u32 STRIDE = FEEDERS * 32;
  u32 n = b.p.heads * b.p.head_dim / 4;  // pairs of words
  auto some = [&](auto& words, u32 first) {
    constexpr u32 N = sizeof(words) / sizeof(words[0]);
    auto mine = [&](u32 i) { return first + thread + i * STRIDE < n; };
    auto at = [&](u32 i) { return (const u64*)b.p.attention + (first + thread + i * STRIDE) * 2; };
    if (!read_tagged(walk, t, 0, walk.tag(t.layer), words, polls, mine, at)) return false;
#pragma unroll
    for (u32 i = 0; i < N; ++i)
      if (mine(i)) *(uint2*)(held(b) + (first + thread + i * STRIDE) * 2) = make_uint2(words[i].x, words[i].z);
    return true;
  };
  if (n <= 2 * STRIDE) {  // so few that all may be polled
    uint4 all[2];
    return some(all, 0);
  }
  uint4 one[1], more[5];
  if (!some(one, 0)) return false;
#pragma unroll 1
  for (u32 first = STRIDE; first < n; first += 5 * STRIDE)
    if (!some(more, first)) return false;
  return true;
}

// Math: a hidden layer, two words a lane at a time.  `v` has the parts, `w` the tail.
__device__ __forceinline__ bool gather(Block& b, const Task& t, const Walker& walk, const u64* v, const u64* w, const Parts& parts, u32& polls) {
  u32 piece = b.lane & 15, chunks = (parts.k16 + CHUNK_K16 - 1) / CHUNK_K16, f0 = b.warp * 4;
  u32 n = parts.parts * chunks + (parts.tail + CHUNK_K16 - 1) / CHUNK_K16;  // chunks of weights
  u32 odd = b.lane >> 4;  // half of the warp takes even chunks, the other odd ones
  u32* to = held(b) + odd * HELD_CHUNK + b.warp * HELD_WARP + piece * 2;
  constexpr u32 N = 4;
  uint4 one[1];  // a little is polled until it is there, and then the rest is read
  auto mine = [&](u32) { return odd == 0 && f0 + (piece >> 2) < parts.k16; };
  if (!read_tagged(walk, t, 0, walk.tag(t.layer), one, polls, mine, [&](u32) { return v + f0 * 8 + piece * 2; })) return false;
#pragma unroll 1
  for (u32 first = 0; first < n; first += 2 * N) {
    uint4 words[N];
    const u64* from[N];
#pragma unroll
    for (u32 i = 0; i < N; ++i) {
      u32 chunk = first + i * 2 + odd, part = min(chunk / chunks, parts.parts), k = (chunk - part * chunks) * CHUNK_K16 + f0;
      bool mine = chunk < n && k + (piece >> 2) < (part < parts.parts ? parts.k16 : parts.tail);
      from[i] = mine ? (part < parts.parts ? v + part * parts.k16 * 8 : w) + k * 8 + piece * 2 : nullptr;
    }
    if (!read_tagged(walk, t, 0, walk.tag(t.layer), words, polls, [&](u32 i) { return from[i] != nullptr; }, [&](u32 i) { return from[i]; }))
      return false;
#pragma unroll
    for (u32 i = 0; i < N; ++i)
      if (from[i]) *(uint2*)(to + (first + i * 2) * HELD_CHUNK) = make_uint2(words[i].x, words[i].z);
  }
  __syncwarp();
  return true;
}

// Math: a row block by all eight warps (SUMS 1), four fragments of a chunk each; or by a team of four, eight fragments each, into the
// two sums that two of eight warps would have.
template <u32 SUMS, typename Next>
__device__ __forceinline__ void multiply_resident(Block& b, float (&c)[SUMS][4], u32 k16, Next next_chunk) {
  constexpr u32 N = SUMS * 4, AT_ONCE = MK_BULK ? N : 4;  // below sm_90 there are no registers to spare
  u32 lane = b.lane, f0 = (b.warp & (CHUNK_K16 / N - 1)) * N;
  const u32* x = b.x + (lane & 3) * 2 + f0 * 8;  // as B fragments; columns beyond the first compute what nobody reads
#pragma unroll 1
  for (u32 base = f0; base < k16 + f0; base += CHUNK_K16, x += CHUNK_K16 * 8) {
    const uint4* a = (const uint4*)next_chunk.wait() + f0 * 32 + lane;
#pragma unroll
    for (u32 half = 0; half < N; half += AT_ONCE) {
      uint4 w[AT_ONCE];
      uint2 v[AT_ONCE];
      if (base + N <= k16) {
#pragma unroll
        for (u32 i = 0; i < AT_ONCE; ++i) w[i] = a[(half + i) * 32], v[i] = *(const uint2*)(x + (half + i) * 8);
      } else {
#pragma unroll
        for (u32 i = 0; i < AT_ONCE; ++i) {
          bool mine = base + half + i < k16;
          w[i] = mine ? a[(half + i) * 32] : make_uint4(0, 0, 0, 0), v[i] = mine ? *(const uint2*)(x + (half + i) * 8) : make_uint2(0, 0);
        }
      }
#pragma unroll
      for (u32 i = 0; i < 4; ++i)
#pragma unroll
        for (u32 s = 0; s < AT_ONCE / 4; ++s) ptx::mma(c[half / 4 + s], w[s * 4 + i], v[s * 4 + i].x, v[s * 4 + i].y);
    }
    next_chunk.release();
  }
}

// Math: a row block times what is held of the heads or of a hidden layer, two chunks at a time: the second one is asked for before the
// first one's products, and the first is given back behind them.
template <typename Next>
__device__ __forceinline__ void multiply(Block& b, float (&c)[4], Parts parts, Next next_chunk) {
  u32 lane = b.lane, f0 = b.warp * 4;
  const u32* from = held(b) + b.warp * HELD_WARP + (lane & 3) * 2;
  struct Operands {
    uint4 w[4];
    uint2 x[4];
  };
  auto read = [&](Operands& o, u32 n) {
    const uint4* a = (const uint4*)next_chunk.wait() + f0 * 32 + lane;
#pragma unroll
    for (u32 i = 0; i < 4; ++i)
      o.w[i] = f0 + i < n ? a[i * 32] : make_uint4(0, 0, 0, 0), o.x[i] = f0 + i < n ? *(const uint2*)(from + i * 8) : make_uint2(0, 0);
    from += HELD_CHUNK;
  };
  auto take = [&](const Operands& o) {
#pragma unroll
    for (u32 i = 0; i < 4; ++i) ptx::mma(c, o.w[i], o.x[i].x, o.x[i].y);
  };
#pragma unroll 1
  for (u32 n = parts.next(); n; n = parts.next()) {
    Operands first;
    read(first, n);
    if (MK_BULK && (n = parts.next()) != 0) {
      Operands second;
      next_chunk.release_later();
      read(second, n);
      take(first);
      next_chunk.release_last();
      take(second);
    } else {
      take(first);
    }
    next_chunk.release();
    if (n == 0) return;
  }
}

// -- stores: lane 4 r has rows r and r + 8 of the block

__device__ __forceinline__ void put(u64* vector, u32 at, float v, u32 tag) { ptx::store_tagged(vector + at, __float_as_uint(v), tag); }

// What a tile's last step reads: see dense.cuh.
__device__ __forceinline__ bool beside(Block& b, const Task& t, u32 block, const Walker& walk, Beside& e) {
  const Model& p = b.p;
  e = {};
  u32 r = b.lane >> 2;
  if (t.op == QKV) {
    u32 kind = qkv_kind(p, t), at = walk.position(0);
    if (kind < 2 && b.layers[t.layer].rope) {
      float2 cs = __ldg((const float2*)p.rope_table + (u64)at * (p.head_dim / 2) + t.b + block * 8 + r);
      e.v[0] = cs.x, e.v[1] = cs.y;
    }
    if (kind) e.w[0] = __uint_as_float(page_id(b, 0, at / PAGE));
    return true;
  }
  if (!reads_residual(p, t.op)) return true;
  bool down = t.op != O_PROJ, x = down == (p.parallel != 0);
  uint2 words[4];  // of the O projection's rows, and of x
  u32 column = t.a + block * 16 + r, polls = 0;
  auto mine = [&](u32 i) { return (b.lane & 3) == 0 && column + (i & 1) * 8 < p.hidden && (i < 2 ? down : x); };
  auto at = [&](u32 i) { return (const u64*)(i < 2 ? p.mid : p.x) + column + (i & 1) * 8; };
  if (!read_tagged(walk, t, t.waits - 1, walk.tag(t.layer), words, polls, mine, at)) return false;
  e.v[0] = __uint_as_float(words[0].x), e.v[2] = __uint_as_float(words[1].x);
  e.w[0] = __uint_as_float(words[2].x), e.w[2] = __uint_as_float(words[3].x);
  return true;
}

// READY: bias and RoPE are already there.
template <bool READY = false>
__device__ __forceinline__ void qkv_store(Block& b, const Task& t, u32 block, const TileValues& y, const Walker& walk, const Beside& e) {
  const Model& p = b.p;
  const Layer& layer = b.layers[t.layer];
  u32 half = p.head_dim / 2, pair = t.b + block * 8 + y.r, kind = qkv_kind(p, t);
  u32 head = kind == 0 ? t.a : (t.a - p.heads) % p.kv_heads;
  u32 d0 = p.interleaved ? 2 * pair : pair, d1 = p.interleaved ? 2 * pair + 1 : pair + half;
  float first = y.v[0], second = y.v[2];
  if (!READY) {
    first += bias_of(layer.qkv_bias, t.a * p.head_dim + d0), second += bias_of(layer.qkv_bias, t.a * p.head_dim + d1);
    if (kind < 2 && layer.rope) rotate(first, second, e.v[0], e.v[1]);
  }
  u16 low = to_bf16(first), high = to_bf16(second);
  u64* vector = (u64*)p.q + (kind == 0 ? head : p.heads + (kind - 1) * p.kv_heads + head) * half;  // a word for two elements
  u32 tag = walk.tag(t.layer), lows = with_next_row(low), highs = with_next_row(high);
  if (p.interleaved) {
    if ((b.lane & 3) == 0) ptx::store_tagged(vector + pair, low | (u32)high << 16, tag);
  } else if ((b.lane & 7) == 0) {
    ptx::store_tagged(vector + d0 / 2, lows, tag), ptx::store_tagged(vector + d1 / 2, highs, tag);
  }
  if (kind == 0) return;
  if ((b.lane & 3) == 0) {
    u32 at = walk.position(0), number = READY ? page_id(b, 0, at / PAGE) : __float_as_uint(e.w[0]), token = at % PAGE;
    u16* page = (u16*)page_address(p, number, t.layer, head, kind - 1);
    page[kind == 1 ? key_index(token, d0, p.head_dim) : value_index(token, d0)] = low;
    page[kind == 1 ? key_index(token, d1, p.head_dim) : value_index(token, d1)] = high;
  }
  ptx::fence_copy_engine();
}

__device__ __forceinline__ void up_store(Block& b, const Task& t, u32 block, const TileValues& y, const Routing& routing, u32 tag) {
  const Model& p = b.p;
  const Layer& layer = b.layers[t.layer];
  u32 k = t.a + block * 8 + y.r;
  u64* out = (u64*)(t.op == EXPERT_UP ? p.expert_hidden : t.op == SHARED_UP ? p.shared_hidden : p.dense_hidden);
  if (t.op == EXPERT_UP) out += t.slot * p.expert_k16 * 8;
  float weight = t.op == EXPERT_UP ? routing.weight[0][t.slot] : 1;  // slots are the row's experts
  float gate = y.v[0], up = y.v[2];
  if (t.op == DENSE_UP) gate += bias_of(layer.gate_bias, k), up += bias_of(layer.up_bias, k);
  float h = __fdividef(gate, 1.f + __expf(-gate)) * up * weight;
  u32 word = with_next_row(weight != 0 ? to_bf16(h) : (u16)0);
  if ((b.lane & 7) == 0) ptx::store_tagged(out + tagged_word(k), word, tag);
}

// O_PROJ, *_DOWN and ROUTER: a float a row.
__device__ __forceinline__ void row_store(Block& b, const Task& t, u32 block, const TileValues& y, const Walker& walk, const Beside& e) {
  const Model& p = b.p;
  const Layer& layer = b.layers[t.layer];
  if (b.lane & 3) return;
#pragma unroll
  for (u32 j = 0; j < 4; j += 2) {
    u32 at = t.a + block * 16 + y.r + j * 4;
    float v = y.v[j];
    if (t.op == ROUTER) {
      if (at < p.experts) put((u64*)p.router_logits, at, v, walk.tag(t.layer));
    } else if (at >= p.hidden) {
      continue;
    } else if (t.op == O_PROJ) {
      v += bias_of(layer.o_bias, at);
      put((u64*)p.mid, at, p.parallel ? v : e.w[j] + v, walk.tag(t.layer));
    } else {
      if (p.shared_average && t.op == EXPERT_DOWN) v *= 0.5f;
      put((u64*)p.x, at, e.v[j] + e.w[j] + (v + bias_of(t.op == DENSE_DOWN ? layer.down_bias : 0, at)), walk.tag(t.layer + 1));
    }
  }
}

// -- attention

// Feeder: q of the heads of the KV head, and where the split has the step's own token, its key and value.
__device__ __forceinline__ bool attention_feed(Block& b, const Task& t, const Walker& walk, u32 buffer, u32 thread, u32& polls) {
  const Model& p = b.p;
  u32 group = p.heads / p.kv_heads, words = p.head_dim / 2, n = group * words / 2;
  u32* to = b.q + buffer * ROWS * b.q_stride;
  const u64* from = (const u64*)p.q + t.c * group * words;
  bool own = walk.keys(t, 0).hi > walk.position(0) && thread < words;
  u32 value = thread * 2 >= words, place = thread * 2 - value * words;  // two words of the token's key, or of its value
  const u64* own_from = (const u64*)p.q + (p.heads + value * p.kv_heads + t.c) * words + place;
  uint4 v[4];  // at most 8 heads x 64 words, and two of the token
  static_assert(3 * 2 * FEEDERS * 32 >= 8 * 64, "all of q at once");
  auto mine = [&](u32 i) { return i == 3 ? own : thread + i * FEEDERS * 32 < n; };
  if (!read_tagged(walk, t, 0, walk.tag(t.layer), v, polls, mine, [&](u32 i) { return i == 3 ? own_from : from + (thread + i * FEEDERS * 32) * 2; }))
    return false;
#pragma unroll
  for (u32 i = 0; i < 3; ++i) {
    u32 at = (thread + i * FEEDERS * 32) * 2, h = at / words;
    if (at < 2 * n) *(uint2*)(to + h * b.q_stride + at - h * words) = make_uint2(v[i].x, v[i].z);
  }
  if (own) *(uint2*)(b.s.fresh[buffer][value] + place) = make_uint2(v[3].x, v[3].z);
  return true;
}

// Math: as attention_store, but each warp stores its own rows of the output: a storer alone would take eight times as long, and
// everybody waits for it.
__device__ __forceinline__ void attention_store(Block& b, const Task& t, const Tile& tile, const float (&c)[4], u32 tag) {
  const Model& p = b.p;
  u32 lane = b.lane, group = p.heads / p.kv_heads, slots = b.layers[t.layer].splits, r = lane >> 2, h = (lane & 3) * 2;
  float2 sum = make_float2(0, 0);
#pragma unroll
  for (u32 w = 0; w < MATH_WARPS; ++w) {
    float2 v = *(const float2*)&tile.sum[w][h];
    sum.x += v.x, sum.y += v.y;
  }
  u32 head = t.c * group + h, d = b.warp * 16 + r;
  if (slots > 1) {
    u64 at[2] = {(u64)head * p.splits + t.d, (u64)(head + 1) * p.splits + t.d};
    const float* sums = (const float*)&sum;
#pragma unroll
    for (u32 j = 0; j < 2; ++j) {
      if (h + j >= group) continue;
      if (b.warp == 0 && lane < 4)
        ptx::store_tagged2((u64*)p.part_max + at[j] * 2, __float_as_uint(tile.top[h + j]), __float_as_uint(sums[j]), tag);
      if (d < p.head_dim) put((u64*)p.part_out, at[j] * p.head_dim + d, c[j], tag), put((u64*)p.part_out, at[j] * p.head_dim + d + 8, c[j + 2], tag);
    }
    return;
  }
  if (d >= p.head_dim) return;  // the whole warp
  float scale[2] = {1.f / sum.x, 1.f / sum.y};
  u32 low[2] = {with_next_row(to_bf16(c[0] * scale[0])), with_next_row(to_bf16(c[1] * scale[1]))};
  u32 high[2] = {with_next_row(to_bf16(c[2] * scale[0])), with_next_row(to_bf16(c[3] * scale[1]))};
#pragma unroll
  for (u32 j = 0; j < 2; ++j) {
    u64* out = (u64*)p.attention + (head + j) * (p.head_dim / 2) + b.warp * 8 + r;  // words r and r + 1: elements r, r + 1 and eight further on
    if (h + j < group && (r & 1) == 0) ptx::store_tagged2(out, low[j], high[j], tag);
  }
}

// Storer: as merge, of 32 elements of a head, one a lane.  A split's maximum and sum are read a batch ahead, so that weights are known
// while what they weigh is on its way: a trip to the L2 cache takes longer than either.  `ready()`: all is there.
template <typename Ready>
__device__ __forceinline__ bool merge(Block& b, const Task& t, const Walker& walk, u32& polls, Ready ready) {
  const Model& p = b.p;
  u32 lane = b.lane, position = walk.position(0), window = b.layers[t.layer].window, d = t.d * 32 + lane, tag = walk.tag(t.layer);
  u32 left = position / SPLIT - oldest_key(position, window) / SPLIT + 1;
  u64 first = (u64)t.c * p.splits;
  const u64 *out = (const u64*)p.part_out + first * p.head_dim + d, *ends_of = (const u64*)p.part_max + (first + lane) * 2;
  bool works = d < p.head_dim;
  float peak = NEG_INF, l = 0, y = 0;
  uint4 ends[1];
  auto has_end = [&](u32) { return lane < min(MERGE_BATCH, left); };
  auto end = [&](u32) { return ends_of; };
  ask_tagged(ends, has_end, end);
  while (left) {
    uint2 v[MERGE_BATCH];
    u32 n = min(MERGE_BATCH, left);
    auto mine = [&](u32 i) { return i < n && works; };
    auto at = [&](u32 i) { return out + i * p.head_dim; };
    ask_tagged(v, mine, at);
    if (!have_tagged(walk, t, 0, tag, ends, polls, has_end, end)) return false;
    float top = lane < n ? __uint_as_float(ends[0].x) : NEG_INF, sum = lane < n ? __uint_as_float(ends[0].z) : 0, last = peak;
    left -= n, ends_of += MERGE_BATCH * 2;
    ask_tagged(ends, has_end, end);
    peak = fmaxf(peak, top);
    for (u32 o = 16; o; o >>= 1) peak = fmaxf(peak, __shfl_xor_sync(~0u, peak, o));
    float scale = __expf(last - peak), weight = __expf(top - peak);
    l = __fmaf_rn(l, scale, __fmul_rn(weight, sum));
    y = __fmul_rn(y, scale);
    if (!have_tagged(walk, t, 0, tag, v, polls, mine, at)) return false;
#pragma unroll
    for (u32 i = 0; i < MERGE_BATCH; ++i) y = __fmaf_rn(__shfl_sync(~0u, weight, i), __uint_as_float(v[i].x), y);
    out += MERGE_BATCH * p.head_dim;
  }
  ready();
  for (u32 o = 16; o; o >>= 1) l += __shfl_xor_sync(~0u, l, o);
  l = 1.f / l;
  u32 half = to_bf16(y * l), word = half | __shfl_xor_sync(~0u, half, 1) << 16;
  if (works && (lane & 1) == 0) ptx::store_tagged((u64*)p.attention + tagged_word(t.c * p.head_dim + d), word, tag);
  return true;
}

}  // namespace one
#endif
