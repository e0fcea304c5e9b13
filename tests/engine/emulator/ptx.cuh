// cuda/ptx.cuh for the emulator: each instruction by what it does.  An mbarrier is (arrivals missing, arrivals of a phase, parity).
#pragma once
#include <cuda_bf16.h>

#include "abi.h"

#define MK_BULK 1

namespace ptx {

inline u32 shared_address(const void* p) { return (u32)((const char*)p - emu::shared_memory()); }

inline u32 load_acquire(const u32* p) {
  emu::yield();
  return *p;
}
inline void fence() {}
inline void add_relaxed(u32* p) { ++*p; }
inline void store_relaxed(u64* p, u64 v) { *p = v; }
inline void store_release(u64* p, u64 v) { *p = v; }
inline void store_tagged(u64* p, u32 data, u32 tag) { *p = (u64)tag << 32 | data; }
inline void store_tagged2(u64* p, u32 first, u32 second, u32 tag) {
  if ((u64)p % 16) fprintf(stderr, "two words that are not aligned\n"), abort();
  store_tagged(p, first, tag), store_tagged(p + 1, second, tag);
}
inline uint2 load_tagged(const u64* p) {
  emu::yield();
  return {(u32)*p, (u32)(*p >> 32)};
}
inline uint4 load_tagged2(const u64* p) {
  if ((u64)p % 16) fprintf(stderr, "two words that are not aligned\n"), abort();
  uint2 v = load_tagged(p), w = load_tagged(p + 1);
  return {v.x, v.y, w.x, w.y};
}
inline void store_stream(void* p, uint4 v) { *(uint4*)p = v; }

inline u64 ticks() {
  static u64 now = 0;
  return ++now;
}
inline u64 global_ns() { return ticks(); }
inline u64 cycles64() { return ticks(); }
inline u32 cycles() { return (u32)ticks(); }

struct Barrier { u16 missing, arrivals; u32 parity; };
inline Barrier& barrier(u32 at) { return *(Barrier*)(emu::shared_memory() + at); }
inline void mbarrier_init(u32 bar, u32 arrivals) { barrier(bar) = {(u16)arrivals, (u16)arrivals, 0}; }
inline void mbarrier_init_fence() {}
inline void arrive(u32 bar) {
  Barrier& b = barrier(bar);
  if (b.missing == 0 || b.missing > b.arrivals) fprintf(stderr, "an arrival too many\n"), abort();
  if (--b.missing == 0) b.missing = b.arrivals, b.parity ^= 1;
}
inline u32 peek(const u32& count) {
  emu::yield();
  return *(const volatile u32*)&count;
}
inline void bump(u32& count) { ++count; }
inline bool phase_over_now(u32 bar, u32 parity) { return barrier(bar).parity != parity; }
inline bool phase_over(u32 bar, u32 parity) {
  if (phase_over_now(bar, parity)) return true;
  emu::yield();
  return phase_over_now(bar, parity);
}

static constexpr u32 LOAD_ARRIVALS = 1;
inline void load_chunk(u32 to, const void* from, u32 bytes, u32 bar, u32 lane) {
  if (bytes % 512 || bytes > CHUNK) fprintf(stderr, "a chunk of %u bytes\n", bytes), abort();
  if (lane) return;
  memset(emu::shared_memory() + to, 0xff, bytes);  // NaNs for who reads too early
  emu::later([=] { memcpy(emu::shared_memory() + to, from, bytes), arrive(bar); });
}
inline void fetch_word(u32 to, const u32* from) { *(u32*)(emu::shared_memory() + to) = *from; }
template <u32 N>
inline void await_words() {}
inline void prefetch(const void*) {}
inline void fence_copy_engine() {}

inline float from_bits(u32 v) { return __uint_as_float(v << 16); }

inline void mma(float (&d)[4], uint4 a, u32 b0, u32 b1) {
  struct alignas(32) Operands { uint4 a; u32 b0, b1; };
  Operands* all = emu::gather(emu::MMA, Operands{a, b0, b1});
  u32 g = emu::lane() >> 2, t = emu::lane() & 3;
  for (u32 j = 0; j < 4; ++j) {
    u32 high = j >> 1, column = 2 * t + (j & 1);  // row g, or g + 8
    float sum = d[j];
    for (u32 k = 0; k < 16; ++k) {
      u32 part = (k & 7) >> 1, odd = k & 1;
      const uint4& x = all[g * 4 + part].a;
      u32 w = k < 8 ? (high ? x.y : x.x) : (high ? x.w : x.z);
      u32 v = k < 8 ? all[column * 4 + part].b0 : all[column * 4 + part].b1;
      sum += from_bits(odd ? w >> 16 : w & 0xffff) * from_bits(odd ? v >> 16 : v & 0xffff);
    }
    d[j] = sum;
  }
}

inline u32 transpose(u32 v) {  // lane 4 r + t holds (r, 2 t), (r, 2 t + 1)
  auto all = emu::gather(emu::TRANSPOSE, emu::Slot<u32>{v, {}});
  u32 r = emu::lane() >> 2, t = emu::lane() & 3;
  auto at = [&](u32 row, u32 column) { return all[row * 4 + column / 2].v >> 16 * (column & 1) & 0xffff; };
  return at(2 * t, r) | at(2 * t + 1, r) << 16;
}

}  // namespace ptx
