// The loop of lib_bwd_cluster and lib_bwd_cluster_unaligned over wide rows: each block of a cluster
// has a slice of the columns, and the blocks exchange a row's sums while they add up the next row.
// bwd13 explains it.
#pragma once

#include "common/kernel/cluster_sums.h"
#include "common/kernel/column_gradients.h"
#include "common/kernel/contract.h"
#include "common/kernel/hopper.h"

namespace lnc {

/// Loads mean and rstd of a row in lane 0; from_lane_0 broadcasts them. If all lanes loaded the
/// same value, nvcc would move it to a uniform register and wait for it in every step.
template <bool kLayer, typename T, typename W>
__device__ float2 load_in_lane_0(const BackwardArgs<T, W>& a, std::int64_t row, bool there) {
  return statistics_of<kLayer>(a, row, there && threadIdx.x % kWarpSize == 0);
}
template <bool kLayer>
__device__ float2 from_lane_0(float2 statistics) {
  const float mean = kLayer ? __shfl_sync(kFullMask, statistics.x, 0) : 0.0f;
  return make_float2(mean, __shfl_sync(kFullMask, statistics.y, 0));
}

/// One thread's work in a backward pass over clusters. All threads of the cluster call it. It adds
/// dweight and dbias of the thread's columns to `gradients`.
///
/// `slices` holds the block's slices of the cluster's rows, in a ring in shared memory:
///
///   rows                     of this cluster, of type Count
///   row_of(nth)              the number of its nth row
///   ring                     whose slots hold a slice of x and one of dy
///   request(nth, stage)      one thread: requests the nth row's slices into a stage
///   keep_weights()           each thread puts its columns' weights where terms() reads them
///   slot(nth, stage)         where the nth row's slices are in shared memory
///   complete(nth, slot)      all threads: load what the copies left out
///   own                      the thread's vectors of the slice
///   terms(slot, i, …)        GradientTerms of its vector i
///   store(nth, i, dx)        stores dx of vector i
///
/// @param lag how many rows dx trails the sums: 1, or 0 if the ring has only one stage
/// @param requester the thread that makes all requests after those that fill the ring
template <bool kLayer, int kElements, int kVectors, typename Slices, typename T, typename W>
__device__ void walk_cluster(const BackwardArgs<T, W>& a, Slices& slices, Exchange& exchange,
                             int lag, unsigned requester,
                             ColumnGradients<kElements, kVectors, kLayer>& gradients) {
  using Count = typename Slices::Count;
  auto& ring = slices.ring;
  if (threadIdx.x == 0) {
    exchange.init();
    ring.fill([&](int stage) { slices.request(stage, stage); });
  }
  // No block may send before the others run and have initialised their mbarriers. No cluster
  // barrier at the end: a block that retires has received all pairs of its last row.
  cluster_arrive_relaxed();
  slices.keep_weights();
  cluster_wait();
  launch_dependents();  // of the kernel that adds up the partial sums

  const float inverse_cols = 1.0f / static_cast<float>(a.cols);
  const auto ask_for_statistics = [&](Count nth) {
    return load_in_lane_0<kLayer>(a, slices.row_of(nth), nth < slices.rows);
  };
  float2 of_row = {};                      // mean and rstd of the row that is added up
  float2 of_next = ask_for_statistics(0);  // of the row after that one, in lane 0
  int done_stage = 0;
  for (Count nth = 0; nth < slices.rows + lag; ++nth) {
    const Count done = nth - lag;
    const float2 of_last = of_row;
    of_row = from_lane_0<kLayer>(of_next);
    const float2 of_done = lag == 0 ? of_row : of_last;  // of the row whose dx is next
    of_next = ask_for_statistics(nth + 1);
    if (nth < slices.rows) {
      ring.wait();
      const auto slot = slices.slot(nth, ring.stage);
      slices.complete(nth, slot);
      float2 c = make_float2(0.0f, 0.0f);
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        if (!slices.own.has(i)) continue;
        const auto terms = slices.terms(slot, i, of_row);
        terms.add_to(c);
        gradients.add(i, terms);
      }
      ring.advance();
      send_sums(c, exchange, nth);
    }
    if (done >= 0) {
      // Every block adds in the same order and so gets the same bits.
      const float2 c = receive_sums(exchange, done);
      const auto slot = slices.slot(done, done_stage);
      const float2 scaled = scaled_means<kLayer>(c, inverse_cols, of_done.y);
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        if (!slices.own.has(i)) continue;
        float dx[kElements];
        dx_of(slices.terms(slot, i, of_done), of_done.y, scaled, dx);
        slices.store(done, i, dx);
      }
    }
    ring.release();
    __syncthreads();  // everyone has read the row that is done, and of_warp
    if (done < 0) continue;
    if (threadIdx.x == requester) slices.request(done + ring.stages, done_stage);
    done_stage = done_stage + 1 < ring.stages ? done_stage + 1 : 0;
  }
}

}  // namespace lnc
