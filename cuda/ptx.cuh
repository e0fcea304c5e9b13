// The only inline PTX.  Each function is one instruction, or the shortest sequence that means something.
#pragma once
#include <cuda_bf16.h>

#include "abi.h"

#ifndef MK_BULK  // 1: bulk copies and try_wait; 0: cp.async and test_wait do the same job, below sm_90 and in a test
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define MK_BULK 1
#else
#define MK_BULK 0
#endif
#endif

namespace ptx {

__device__ __forceinline__ u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

// -- counters in global memory

__device__ __forceinline__ u32 load_acquire(const u32* p) {
  u32 v;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}

__device__ __forceinline__ void fence() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }

__device__ __forceinline__ void add_relaxed(u32* p) {
  asm volatile("red.relaxed.gpu.global.add.u32 [%0], 1;" ::"l"(p) : "memory");
}

__device__ __forceinline__ void store_relaxed(u64* p, u64 v) {
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}

__device__ __forceinline__ void store_release(u64* p, u64 v) {
  asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}

__device__ __forceinline__ void store_stream(void* p, uint4 v) {  // evict-first: written once, read by a copy
  asm volatile("st.global.cs.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}

// Tagged words: data low, tag high.  Each word of eight bytes is one access, whatever becomes of the pair.

__device__ __forceinline__ void store_tagged(u64* p, u32 data, u32 tag) {
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(p), "l"((u64)tag << 32 | data) : "memory");
}

__device__ __forceinline__ void store_tagged2(u64* p, u32 first, u32 second, u32 tag) {
  asm volatile("st.relaxed.gpu.global.v2.u64 [%0], {%1, %2};" ::"l"(p), "l"((u64)tag << 32 | first), "l"((u64)tag << 32 | second) : "memory");
}

__device__ __forceinline__ uint2 load_tagged(const u64* p) {
  u64 v;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
  return make_uint2((u32)v, (u32)(v >> 32));
}

__device__ __forceinline__ uint4 load_tagged2(const u64* p) {
  u64 v, w;
  asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];" : "=l"(v), "=l"(w) : "l"(p) : "memory");
  return make_uint4((u32)v, (u32)(v >> 32), (u32)w, (u32)(w >> 32));
}

// -- timers.  Volatile keeps them in order with the barriers, fences and products around them; a memory clobber would in addition
// make every read of a task's fields after them a load.

__device__ __forceinline__ u64 global_ns() {
  u64 t;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
  return t;
}

__device__ __forceinline__ u64 cycles64() {
  u64 t;
  asm volatile("mov.u64 %0, %clock64;" : "=l"(t));
  return t;
}

__device__ __forceinline__ u32 cycles() {
  u32 t;
  asm volatile("mov.u32 %0, %clock;" : "=r"(t));
  return t;
}

// -- mbarriers in shared memory

__device__ __forceinline__ void mbarrier_init(u32 bar, u32 arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(bar), "r"(arrivals) : "memory");
}

__device__ __forceinline__ void mbarrier_init_fence() {
#if MK_BULK
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

__device__ __forceinline__ void arrive(u32 bar) {
  asm volatile("{ .reg .b64 t; mbarrier.arrive.shared.b64 t, [%0]; }" ::"r"(bar) : "memory");
}

// A count in shared memory that others raise; whoever polls it learns nothing but the count.
__device__ __forceinline__ u32 peek(const u32& count) { return *(const volatile u32*)&count; }
__device__ __forceinline__ void bump(u32& count) { atomicAdd(&count, 1u); }

// Whether the phase of this parity is over.  On sm_90 the hardware may wait a little before it says no.
__device__ __forceinline__ bool phase_over(u32 bar, u32 parity) {
  u32 ok;
#if MK_BULK
  asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
               : "=r"(ok) : "r"(bar), "r"(parity) : "memory");
#else
  asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
               : "=r"(ok) : "r"(bar), "r"(parity) : "memory");
#endif
  return ok;
}

// The same without any waiting.
__device__ __forceinline__ bool phase_over_now(u32 bar, u32 parity) {
  u32 ok;
  asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
               : "=r"(ok) : "r"(bar), "r"(parity) : "memory");
  return ok;
}

// -- bytes into shared memory, counted on an mbarrier.  Called by a whole warp; `bytes` is a multiple of 512, the barrier expects
// LOAD_ARRIVALS arrivals.

#if MK_BULK
static constexpr u32 LOAD_ARRIVALS = 1;
static constexpr u64 READ_ONCE = 0x12f0000000000000;  // the cache policy of createpolicy.fractional.L2::evict_first
#else
static constexpr u32 LOAD_ARRIVALS = 32;
#endif

__device__ __forceinline__ void load_chunk(u32 to, const void* from, u32 bytes, u32 bar, u32 lane) {
#if MK_BULK
  if (lane == 0) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(bar), "l"(READ_ONCE) : "memory");
  }
#else
  for (u32 at = lane * 16; at < bytes; at += 512)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + at), "l"((const char*)from + at) : "memory");
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(bar) : "memory");
#endif
}

// Words of the lane's own into shared memory, each a group of copies; and until all but the last N groups are there.
__device__ __forceinline__ void fetch_word(u32 to, const u32* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
  asm volatile("cp.async.commit_group;" ::: "memory");
}

template <u32 N>
__device__ __forceinline__ void await_words() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

// Has the cache line fetched into L2, without waiting for it.
__device__ __forceinline__ void prefetch(const void* p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }

// Orders ordinary accesses against those of the bulk copy engine, for global memory that one writes and the other reads.
__device__ __forceinline__ void fence_copy_engine() {
#if MK_BULK
  asm volatile("fence.proxy.async.global;" ::: "memory");
#endif
}

// -- matrix instructions: d (16 x 8, f32) += a (16 x 16, bf16) * b (16 x 8, bf16)

__device__ __forceinline__ void mma(float (&d)[4], uint4 a, u32 b0, u32 b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

// An 8 x 8 matrix of 16-bit elements, spread over the warp as an accumulator's half, transposed.
__device__ __forceinline__ u32 transpose(u32 v) {
  u32 t;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(t) : "r"(v));
  return t;
}

}  // namespace ptx
