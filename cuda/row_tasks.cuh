// NORM and TOP_K: what every SM does for itself in narrower steps, as tasks of a row.
#pragma once
#include "norm.cuh"
#include "routing.cuh"

__device__ __noinline__ void top_k_row(const Model& p, u32 row, u32 lane) {
  u32 used[MAX_EXPERTS / 32] = {};
  float logits[MAX_EXPERTS / 32];
  load_logits(p, row, lane, logits);
  route_row(p, logits, lane, used, [&](u32 k, u32 expert, float weight) {
    ((u32*)p.chosen)[row * MAX_TOP_K + k] = expert, ((float*)p.chosen_weight)[row * MAX_TOP_K + k] = weight;
  });
}
