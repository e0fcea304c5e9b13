// The ring writer: 32 bytes a task, one writing warp a ring.  Any kernel can include this; it knows nothing of an engine.
//
//   mkviz::Ring ring(records, live, limit, capacity, index);   // one lane of the writing warp
//   ring.anchor(step);                                          // before the first record, then at least every 2 s
//   u32 t0 = (u32)ptx::global_ns(), c0 = ptx::cycles();         // claim
//   ...                                                         // more cycle stamps as the task goes on
//   ptx::fence();                                               // the task's own release fence ...
//   ptx::add_relaxed(counter);
//   ring.publish();                                             // ... serves the records written before it too
//   ring.write(task, step, t0, ready - c0, begin - c0, end - c0, publish - c0, last_wait, fill, flags);
//   ring.step(step + 1);                                        // after the last record of a step: releases them all
//
// A release costs the wait for all stores before it, so a record does not get one of its own: the head that covers it goes out
// behind the next task's fence, or at the end of the step.
#pragma once
#include "ptx.cuh"

namespace mkviz {

enum Kind : u32 { TASK = 0, SKIPPED = 1, PHASES = 2 };
enum Flag : u32 { SATURATED = 0x10, COVERED = 0x20, BYTES_LAST = 0x40 };
enum State : u32 { IDLE, CLAIMED, WAITING, RUNNING, STORING };
static constexpr u32 NO_WAIT = 0xfff, NO_TASK = 0xffffffffu;
static constexpr u32 TASK_BITS = 22;

struct Ring {
  Record* records;
  Live* live;
  const u64* limit;  // records the ring may hold in its life: the host moves it on in capture mode
  u32 mask, shift;
  u64 head, room;      // records written; what the limit was when it was read last

  Ring() = default;

  __device__ __forceinline__ Ring(Record* all_records, Live* all_live, const u64* limits, u32 capacity, u32 ring)
      : records(all_records + (u64)ring * capacity), live(all_live + ring), limit(limits + ring), mask(capacity - 1),
        shift(31 - __clz(capacity)), head(all_live[ring].head), room(*(const volatile u64*)limit) {}

  __device__ __forceinline__ void anchor(u64 step_number) {
    u64 ns = ptx::global_ns(), now;
    do now = ptx::global_ns(); while (now == ns);  // a tick's edge: the pair is then good to a few cycles, not to a tick
    live->anchor_cycles = ptx::cycles64();
    live->anchor_ns = now;
    live->anchor_step = step_number;
  }

  // After a fence: what was written before it may be read.
  __device__ __forceinline__ void publish() { ptx::store_relaxed(&live->head, head); }

  __device__ __forceinline__ void step(u64 number) {
    ptx::fence();
    publish();
    ptx::store_release(&live->step, number);
  }

  __device__ __forceinline__ void write(u32 task, u32 step_number, u32 claim, u32 ready, u32 begin, u32 end, u32 publish, u32 last_wait, u32 fill,
                        u32 flags) {
    if (head >= room) room = *(const volatile u64*)limit;
    if (head < room) {
      u32 lap = (u32)(head >> shift) + 1;
      Record* r = records + ((u32)head & mask);
      ptx::store_stream(r, make_uint4(claim, ready, begin, (u32)head + 1));
      ptx::store_stream((char*)r + 16, make_uint4(end, publish, task | step_number << TASK_BITS,
                                                  (last_wait & 0xfff) | (fill & 15) << 12 | flags << 16 | lap << 24));
    }
    ++head;  // written or not, so that lost = head - received stays exact
  }
};

}  // namespace mkviz
