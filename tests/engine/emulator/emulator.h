// The kernel on a CPU: every CUDA thread is a fiber, a warp's collectives are meetings of its 32 fibers, blocks take turns in an
// order drawn from a seed.  Slow, exact about who waits for whom, and silent about memory order, which a CPU keeps too well.
#pragma once
#include <csetjmp>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>

namespace emu {

struct Index { unsigned x; };
enum Kind { SYNC, SHFL, BALLOT, REDUCE, MMA, TRANSPOSE, LOAD };

Index thread_index(), block_index();
char* shared_memory();
void yield();
void sync_block();
unsigned lane();
void later(std::function<void()> copy);  // done at some turn to come, in any order; at once where the seed is 0
// Leave `bytes` (at most 32) for the warp's others and see what they left: 32 slots of 32 bytes.  Dies when they are elsewhere.
char* meet(Kind kind, const void* mine, unsigned bytes);

template <typename T>
T* gather(Kind kind, T v) {
  static_assert(sizeof(T) == 32, "slots are 32 bytes");
  return (T*)meet(kind, &v, sizeof v);
}

template <typename T>
struct alignas(32) Slot { T v; char pad[32 - sizeof(T)]; };

template <typename T>
T exchange(Kind kind, T v, unsigned from) {
  return gather(kind, Slot<T>{v, {}})[from & 31].v;
}

}  // namespace emu

// -- the language

#define __device__
#define __global__
#define __shared__
#define __grid_constant__
#define __forceinline__ inline
#undef __noinline__
#define __noinline__
#define __launch_bounds__(...)
#define __align__(n) alignas(n)
#define threadIdx (emu::thread_index())
#define blockIdx (emu::block_index())

struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(16) ulonglong2 { unsigned long long x, y; };
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
template <typename T> constexpr T min(T a, T b) { return b < a ? b : a; }
template <typename T> constexpr T max(T a, T b) { return a < b ? b : a; }

template <typename To, typename From>
To bit_cast(From v) {
  To t;
  static_assert(sizeof t == sizeof v, "");
  memcpy(&t, &v, sizeof t);
  return t;
}
inline float __int_as_float(int v) { return bit_cast<float>(v); }
inline float __uint_as_float(unsigned v) { return bit_cast<float>(v); }
inline unsigned __float_as_uint(float v) { return bit_cast<unsigned>(v); }
inline int __popc(unsigned v) { return __builtin_popcount(v); }
inline int __popcll(unsigned long long v) { return __builtin_popcountll(v); }
inline int __clz(unsigned v) { return v ? __builtin_clz(v) : 32; }
inline int __ffs(unsigned v) { return __builtin_ffs(v); }
inline int __ffsll(unsigned long long v) { return __builtin_ffsll(v); }
inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((unsigned long long)a * b >> 32); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return (unsigned long long)((unsigned __int128)a * b >> 64);
}

// Compiled with -ffp-contract=off: what these say is what is done.
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fmaf_rn(float a, float b, float c) { return a * b + c; }  // not fused: nor is what the compiler would fuse
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __ull2double_rn(unsigned long long v) { return (double)v; }
inline unsigned long long __double2ull_rz(double v) { return (unsigned long long)v; }
inline unsigned long long __float2ull_rz(float v) { return (unsigned long long)v; }
inline float __expf(float v) { return expf(v); }
inline float __fdividef(float a, float b) { return a / b; }
inline float rsqrtf(float v) { return 1.f / sqrtf(v); }

template <typename T> T __ldg(const T* p) { return *p; }
template <typename T> T __ldcg(const T* p) { return *p; }
inline void __threadfence_system() {}
inline void __nanosleep(unsigned) { emu::yield(); }
inline unsigned atomicCAS(unsigned* p, unsigned was, unsigned v) {
  unsigned old = *p;
  if (old == was) *p = v;
  return old;
}
inline unsigned atomicExch(unsigned* p, unsigned v) {
  unsigned old = *p;
  *p = v;
  return old;
}
inline unsigned atomicAdd(unsigned* p, unsigned v) {
  unsigned old = *p;
  *p = old + v;
  return old;
}
inline unsigned atomicOr(unsigned* p, unsigned v) {
  unsigned old = *p;
  *p = old | v;
  return old;
}

// -- collectives: all of the warp take part, as the kernel's own mask says

inline void whole(unsigned mask) {
  if (mask != ~0u) abort();
}
inline void __syncwarp() { emu::meet(emu::SYNC, nullptr, 0); }
inline void __syncthreads() { emu::sync_block(); }
template <typename T> T __shfl_sync(unsigned mask, T v, unsigned from) {
  whole(mask);
  return emu::exchange(emu::SHFL, v, from);
}
template <typename T> T __shfl_xor_sync(unsigned mask, T v, unsigned by) {
  whole(mask);
  return emu::exchange(emu::SHFL, v, emu::lane() ^ by);
}
template <typename T> T __shfl_up_sync(unsigned mask, T v, unsigned by) {
  whole(mask);
  return emu::exchange(emu::SHFL, v, emu::lane() < by ? emu::lane() : emu::lane() - by);
}
inline unsigned __ballot_sync(unsigned mask, int v) {
  whole(mask);
  auto all = emu::gather(emu::BALLOT, emu::Slot<int>{v, {}});
  unsigned out = 0;
  for (unsigned i = 0; i < 32; ++i) out |= (unsigned)(all[i].v != 0) << i;
  return out;
}
inline int __any_sync(unsigned mask, int v) { return __ballot_sync(mask, v) != 0; }
template <typename F>
unsigned reduce(unsigned mask, unsigned v, F f) {
  whole(mask);
  auto all = emu::gather(emu::REDUCE, emu::Slot<unsigned>{v, {}});
  unsigned out = all[0].v;
  for (unsigned i = 1; i < 32; ++i) out = f(out, all[i].v);
  return out;
}
inline unsigned __reduce_max_sync(unsigned mask, unsigned v) { return reduce(mask, v, [](unsigned a, unsigned b) { return a < b ? b : a; }); }
inline unsigned __reduce_min_sync(unsigned mask, unsigned v) { return reduce(mask, v, [](unsigned a, unsigned b) { return a < b ? a : b; }); }
inline unsigned __reduce_add_sync(unsigned mask, unsigned v) { return reduce(mask, v, [](unsigned a, unsigned b) { return a + b; }); }
inline unsigned __reduce_or_sync(unsigned mask, unsigned v) { return reduce(mask, v, [](unsigned a, unsigned b) { return a | b; }); }
