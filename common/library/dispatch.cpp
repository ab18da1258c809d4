#include "common/library/dispatch.h"

#include <algorithm>
#include <cstdlib>

#include "common/harness/registry.h"

namespace lnc {
namespace {

// The first line that takes a request wins. common/bench/tests/dispatch_test.py compares the table
// with what was measured on an H100 and on an H200: at each shape its choice must be within 3 % of
// the fastest chapter. These shapes are the problem sets progression, sweep, large, wide, narrow,
// odd and small (h100.jsonl), and the widths that models have and some that none has, both kinds,
// bfloat16 and float, in tensors of 128 MiB, and eight of them in 64 and 8 MiB (peers_h100.jsonl);
// of an H200 peers_h200.jsonl and the sets progression and sweep of h200.jsonl. Mixed types and
// null parameters are not measured and get the same chapters. Other GPUs get the lines For::Any
// alone. Each chapter finds its launch shape itself; those that need Hopper refuse older GPUs, and
// the next line is asked.
constexpr std::int64_t kBlockColumns = 16384;  // of the widest row that a block holds
constexpr int kFirstWith227KB = 90;            // of shared memory a block
constexpr int kLastWith227KB = 119;            // from 12.0 on it has 99
constexpr Choice kChoices[] = {
    {.chapter = "fwd08",
     .because = "7.9 us against fwd06's 8.3 at bf16 128 x 8192, 8.5 against 8.7 at 64 x 16384, RMS "
                "norm 2 to 3 % less: each row has a multiprocessor, and its weight comes early",
     .direction = Direction::Forward,
     .needs_aligned = true,
     .needs_16_bit = true,
     .min_cols = 8192,
     .max_cols = kBlockColumns,
     .max_tensor_bytes = 2 << 20,
     .gpus = For::Measured},
    {.chapter = "fwd06",
     .because = "11.0 us against fwd13's 11.4 at bf16 256 x 16384; at 320 x 16384 fwd13 takes 12.4 "
                "against 13.7, and layer norm is as fast with fwd13",
     .direction = Direction::Forward,
     .needs_aligned = true,
     .needs_16_bit = true,
     .kind = Kind::Rms,
     .min_cols = 12801,
     .max_cols = kBlockColumns,
     .max_tensor_bytes = 8 << 20,
     .gpus = For::Measured},
    {.chapter = "fwd06",
     .because = "10.2 us against fwd13's 10.7 at bf16 192 x 12808; at 327 x 12808 fwd13 takes 12.1 "
                "against 14.0",
     .direction = Direction::Forward,
     .needs_aligned = true,
     .needs_16_bit = true,
     .min_cols = 12801,
     .max_cols = 14336,
     .max_tensor_bytes = 6 << 20,
     .gpus = For::Measured},
    {.chapter = "fwd06",
     .because =
         "65 us against fwd13's 74 at f16 4096 x 14336 on an H200; on an H100 they are level",
     .direction = Direction::Forward,
     .needs_aligned = true,
     .needs_16_bit = true,
     .min_cols = 14336,
     .max_cols = 14336,
     .gpus = For::H200},
    {.chapter = "fwd13",
     .because = "71 us against fwd06's 74 at bf16 5461 x 12288; 53 us against fwd06's 54 at f16 "
                "4096 x 11264, 56 against 58 at 12288; at 12800 it takes 64 against 60 (H200)",
     .direction = Direction::Forward,
     .needs_aligned = true,
     .needs_16_bit = true,
     .kind = Kind::Layer,
     .min_cols = 11264,
     .max_cols = 12288,
     .gpus = For::H200},
    {.chapter = "fwd08",
     .because = "70 us against fwd13's 74 and fwd06's 76 at f16 4096 x 14848, 72 against fwd13's "
                "75 at 15360 (H200)",
     .direction = Direction::Forward,
     .needs_aligned = true,
     .kind = Kind::Layer,
     .dtype = DType::F16,
     .min_cols = 14848,
     .max_cols = 15360,
     .gpus = For::H200},
    {.chapter = "fwd08",
     .because =
         "15.0 us against fwd06's 15.6 at f16 4096 x 2048, 12.7 against 13.1 at 4096 x 1536 (H200)",
     .direction = Direction::Forward,
     .needs_aligned = true,
     .kind = Kind::Layer,
     .dtype = DType::F16,
     .min_cols = 1536,
     .max_cols = 2048,
     .min_rows = 4096,
     .max_tensor_bytes = 16 << 20,
     .gpus = For::H200},
    {.chapter = "fwd13",
     .because = "80 us against fwd06's 83 at f16 4096 x 13312, 96 against 98 at bf16 3276 x 20480, "
                "96 against 107 and fwd09's 104 at 2048 x 32768, 99 against fwd09's 108 at 1024 x "
                "65536; at 12800 and 14336 columns fwd06 is as fast",
     .direction = Direction::Forward,
     .needs_aligned = true,
     .needs_16_bit = true,
     .min_cols = 12801,
     .gpus = For::Measured},
    {.chapter = "fwd13",
     .because = "95 us against fwd06's 97 at f32 2730 x 12288, 95 against 101 at 2048 x 16384, 96 "
                "against fwd09's 104 at 512 x 65536",
     .direction = Direction::Forward,
     .needs_aligned = true,
     .dtype = DType::F32,
     .min_cols = 12288,
     .gpus = For::Measured},
    {.chapter = "fwd13",
     .because = "11.1 us against fwd06's 11.4 at f32 256 x 8192, 14.4 against 15.6 at 384 x 8192",
     .direction = Direction::Forward,
     .needs_aligned = true,
     .kind = Kind::Layer,
     .dtype = DType::F32,
     .min_cols = 7169,
     .max_cols = 8192,
     .max_tensor_bytes = 12 << 20,
     .gpus = For::Measured},
    {.chapter = "fwd13",
     .because = "11.2 us against fwd06's 11.7 at f32 292 x 7168, 6.3 against 7.7 in one row; at "
                "384 x 7168 fwd06 takes 12.8 against 13.8",
     .direction = Direction::Forward,
     .needs_aligned = true,
     .kind = Kind::Layer,
     .dtype = DType::F32,
     .min_cols = 6656,
     .max_cols = 7168,
     .max_tensor_bytes = 9 << 20,
     .gpus = For::Measured},
    {.chapter = "fwd13",
     .because = "9.8 us against fwd06's 10.2 at f32 390 x 5376, 10.7 against 11.1 at 292 x 7168; "
                "at 409 x 5120 and 256 x 8192 fwd06 leads",
     .direction = Direction::Forward,
     .needs_aligned = true,
     .kind = Kind::Rms,
     .dtype = DType::F32,
     .min_cols = 5376,
     .max_cols = 7168,
     .max_tensor_bytes = 12 << 20,
     .gpus = For::Measured},
    {.chapter = "fwd09",
     .because = "wider than fwd13 takes: 374 us against fwd06's 761 at bf16 1024 x 262144, 390 "
                "against 718 at f32 512 x 262144",
     .direction = Direction::Forward,
     .min_cols = kBlockColumns + 1,
     .max_architecture = kLastWith227KB},
    {.chapter = "fwd15",
     .because = "99 us against fwd10's 145 at bf16 1032444 x 65, 98 against 133 at 528416 x 127; "
                "with 32768 rows of 65 9.8 against 11.4, with 16384 rows 8.8 against 8.3",
     .direction = Direction::Forward,
     .needs_alike = true,
     .needs_odd = true,
     .needs_16_bit = true,
     .max_cols = 127,
     .min_rows = 32768,
     .gpus = For::Measured},
    {.chapter = "fwd15",
     .because =
         "28.3 us against fwd10's 29.6 at bf16 65536 x 191, 31.7 against 50.3 at 131072 x 129",
     .direction = Direction::Forward,
     .needs_alike = true,
     .needs_odd = true,
     .needs_16_bit = true,
     .max_cols = 191,
     .min_rows = 65536,
     .gpus = For::Measured},
    {.chapter = "fwd15",
     .because = "108 us against fwd10's 111 at bf16 263172 x 255; at 131072 x 255 it takes 61.8 "
                "against 58.6, at 65536 x 255 42.5 against 33.4",
     .direction = Direction::Forward,
     .needs_alike = true,
     .needs_odd = true,
     .needs_16_bit = true,
     .min_rows = 262144,
     .gpus = For::Measured},
    {.chapter = "fwd15",
     .because = "98 us against fwd10's 105 at f32 516222 x 65, 100 against 102 at 264208 x 127; at "
                "16513 x 127 fwd10 takes 12.4 against 13.5",
     .direction = Direction::Forward,
     .needs_alike = true,
     .needs_odd = true,
     .dtype = DType::F32,
     .min_rows = 65536,
     .gpus = For::Measured},
    {.chapter = "fwd10",
     .because = "98 us against fwd06's 281 at bf16 1048576 x 64: a row of fwd06 has a warp, most "
                "of it idle",
     .direction = Direction::Forward,
     .max_cols = 255},
    {.chapter = "fwd10",
     .because =
         "72 us against fwd06's 78 at bf16 262144 x 256 on an H200; on an H100 they are level",
     .direction = Direction::Forward,
     .kind = Kind::Layer,
     .dtype = DType::BF16,
     .min_cols = 256,
     .max_cols = 256,
     .min_rows = 65536,
     .gpus = For::H200},
    {.chapter = "fwd06",
     .because = "the fastest, or within 3 % of it, at each other shape of rows that start at "
                "16-byte boundaries",
     .direction = Direction::Forward,
     .needs_aligned = true},
    {.chapter = "fwd16",
     .because = "97 us against fwd11's 106 and fwd06's 137 at bf16 16384 x 4097, 95 against 112 at "
                "65536 x 1001, 101 against fwd06's 206 at 130816 x 513",
     .direction = Direction::Forward,
     .max_cols = 9216},
    {.chapter = "fwd16",
     .because = "97 us against fwd14's 102 at bf16 5460 x 12289, 98 against 103 at 4095 x 16385",
     .direction = Direction::Forward,
     .needs_16_bit = true,
     .max_cols = 18432},
    {.chapter = "fwd14",
     .because =
         "100 us against fwd06's 134 at f32 2730 x 12289, 109 against 241 at bf16 1335 x 50257",
     .direction = Direction::Forward,
     .min_cols = 9217,
     .max_architecture = kLastWith227KB},
    {.chapter = "fwd06",
     .because = "it takes every width and alignment",
     .direction = Direction::Forward},
    {.chapter = "bwd19",
     .because = "160 us against bwd14's 197 at bf16 1032444 x 65, 158 against 187 at 528416 x 127, "
                "152 against 170 at f32 516222 x 65",
     .direction = Direction::Backward,
     .needs_alike = true,
     .needs_odd = true,
     .gpus = For::Measured},
    {.chapter = "bwd14",
     .because = "150 us against bwd12's 439 at bf16 1048576 x 64",
     .direction = Direction::Backward,
     .max_cols = 192},
    {.chapter = "bwd14",
     .because = "147 us against bwd12's 156 at bf16 262144 x 256, 28.5 against 29.5 at 32768 x "
                "256; at 16384 x 256 19.5 against 18.2, for its last sum does not start early",
     .direction = Direction::Backward,
     .needs_16_bit = true,
     .max_cols = 256,
     .min_rows = 32768,
     .gpus = For::Measured},
    {.chapter = "bwd14",
     .because = "as fast as bwd12 at f32 65535 x 256; at 16384 x 256 it takes 26.9 us against 26.3",
     .direction = Direction::Backward,
     .max_cols = 256,
     .min_rows = 65536,
     .gpus = For::Measured},
    {.chapter = "bwd17",
     .because = "35 us against bwd13's 36 at bf16 341 x 24576; RMS norm takes 34 against 32, and "
                "at 512 x 32768 bwd13 leads in both",
     .direction = Direction::Backward,
     .needs_aligned = true,
     .kind = Kind::Layer,
     .min_cols = kBlockColumns + 1,
     .max_tensor_bytes = 16 << 20,
     .gpus = For::Measured},
    {.chapter = "bwd17",
     .because =
         "22 us against bwd13's 28 at bf16 256 x 16384 and at 128 x 32768, 19 against 23 at f32 "
         "128 x 16384; at 12 MB RMS norm of bf16 614 x 10240 takes 28 against bwd11's 27",
     .direction = Direction::Backward,
     .needs_aligned = true,
     .min_cols = 8193,
     .max_tensor_bytes = 12 << 20,
     .gpus = For::Measured},
    {.chapter = "bwd17",
     .because = "22 us against bwd12's 25 at bf16 512 x 8192, 27 against 29 at 768 x 8192; RMS "
                "norm is 2 to 4 % faster with bwd12",
     .direction = Direction::Backward,
     .needs_aligned = true,
     .needs_16_bit = true,
     .kind = Kind::Layer,
     .min_cols = 5633,
     .max_cols = 8192,
     .max_tensor_bytes = 12 << 20,
     .gpus = For::Measured},
    {.chapter = "bwd17",
     .because = "19.1 us against bwd12's 20.6 at f32 256 x 8192, 24.4 against 25.0 at 384 x 8192; "
                "at 6144 columns they are equal",
     .direction = Direction::Backward,
     .needs_aligned = true,
     .kind = Kind::Layer,
     .dtype = DType::F32,
     .min_cols = 7169,
     .max_cols = 8192,
     .max_tensor_bytes = 12 << 20,
     .gpus = For::Measured},
    {.chapter = "bwd17",
     .because = "17.1 us against bwd12's 18.3 at f32 292 x 7168 (H200)",
     .direction = Direction::Backward,
     .needs_aligned = true,
     .kind = Kind::Layer,
     .dtype = DType::F32,
     .min_cols = 7168,
     .max_cols = 7168,
     .max_tensor_bytes = 12 << 20,
     .gpus = For::H200},
    {.chapter = "bwd17",
     .because = "20.5 us against bwd12's 21.2 and bwd15's 21.6 at bf16 819 x 5120 (H200)",
     .direction = Direction::Backward,
     .needs_aligned = true,
     .kind = Kind::Layer,
     .dtype = DType::BF16,
     .min_cols = 5120,
     .max_cols = 5632,
     .max_tensor_bytes = 12 << 20,
     .gpus = For::H200},
    {.chapter = "bwd17",
     .because = "14 us against bwd12's 18 and bwd13's 17 at bf16 128 x 8192, 13 against 15 at 204 "
                "x 5120; RMS norm of few rows takes 2 to 8 % more than with bwd12",
     .direction = Direction::Backward,
     .needs_aligned = true,
     .needs_16_bit = true,
     .min_cols = 4097,
     .max_cols = 8192,
     .max_tensor_bytes = 4 << 20,
     .gpus = For::Measured},
    {.chapter = "bwd17",
     .because = "12.0 us against bwd12's 12.6 at f32 64 x 6144, 12.5 against 13.6 at 64 x 7168; at "
                "5120 columns they are equal, and RMS norm is faster with bwd12",
     .direction = Direction::Backward,
     .needs_aligned = true,
     .kind = Kind::Layer,
     .dtype = DType::F32,
     .min_cols = 5121,
     .max_cols = 7168,
     .max_tensor_bytes = 4 << 20,
     .gpus = For::Measured},
    {.chapter = "bwd15",
     .because =
         "its teams have as many warps as a row needs: 116 us against bwd12's 152 at bf16 29127 x "
         "2304, 116 against 140 at 26214 x 2560, 122 against 127 at 23301 x 2880 (H200)",
     .direction = Direction::Backward,
     .dtype = DType::BF16,
     .min_cols = 2049,
     .max_cols = 2944,
     .gpus = For::H200},
    {.chapter = "bwd15",
     .because = "148 us against bwd12's 159 at bf16 29127 x 2304; RMS norm, or 2560 columns, is as "
                "fast with bwd12",
     .direction = Direction::Backward,
     .kind = Kind::Layer,
     .dtype = DType::BF16,
     .min_cols = 2049,
     .max_cols = 2432,
     .gpus = For::Measured},
    {.chapter = "bwd15",
     .because = "157 us against bwd12's 160 at bf16 14563 x 4608, and 156 in another run; at 13107 "
                "x 5120 they are within 2 %",
     .direction = Direction::Backward,
     .kind = Kind::Layer,
     .dtype = DType::BF16,
     .min_cols = 4097,
     .max_cols = 4864,
     .gpus = For::Measured},
    {.chapter = "bwd15",
     .because = "153 us against bwd12's 158 at bf16 16384 x 4104 in RMS norm; at 14563 x 4608 153 "
                "against 150",
     .direction = Direction::Backward,
     .dtype = DType::BF16,
     .min_cols = 4097,
     .max_cols = 4224,
     .gpus = For::Measured},
    {.chapter = "bwd15",
     .because = "118 us against bwd12's 152 at bf16 14563 x 4608, 122 against 140 at 13107 x 5120, "
                "128 against 135 at 12483 x 5376; 43 us against bwd12's 51 at f16 4096 x 4608, 50 "
                "against 52 at 5120 (H200)",
     .direction = Direction::Backward,
     .needs_16_bit = true,
     .min_cols = 4097,
     .max_cols = 5632,
     .gpus = For::H200},
    {.chapter = "bwd12",
     .because = "752 us against bwd11's 860 at bf16 131072 x 4096, 393 against 449 at 131072 x "
                "2048 (H200)",
     .direction = Direction::Backward,
     .needs_aligned = true,
     .kind = Kind::Layer,
     .dtype = DType::BF16,
     .min_cols = 2048,
     .max_cols = 8192,
     .min_rows = 65536,
     .gpus = For::H200},
    {.chapter = "bwd11",
     .because =
         "546 us against bwd12's 552 at bf16 65536 x 4096, 2146 against 2245 at 131072 x 8192",
     .direction = Direction::Backward,
     .needs_aligned = true,
     .kind = Kind::Layer,
     .dtype = DType::BF16,
     .min_cols = 2048,
     .max_cols = 8192,
     .min_rows = 65536,
     .gpus = For::Measured},
    {.chapter = "bwd12",
     .because = "the fastest, or within 3 % of it, at each other shape up to 8192 columns",
     .direction = Direction::Backward,
     .needs_aligned = true,
     .max_cols = 8192,
     .max_architecture = kLastWith227KB},
    {.chapter = "bwd11",
     .because = "113 us against bwd13's 144 at bf16 5461 x 12288, 115 against 127 at 4096 x 16384, "
                "119 against 121 at f32 2048 x 16384 (H200): one block holds the row, and no sums "
                "go from block to block",
     .direction = Direction::Backward,
     .needs_aligned = true,
     .min_cols = 8193,
     .max_cols = kBlockColumns,
     .gpus = For::H200},
    {.chapter = "bwd18",
     .because = "114 us against bwd13's 127 at f32 512 x 65536, 114 against 119 at 1820 x 18432; "
                "RMS norm at 18432 takes 115 against 114 (H200)",
     .direction = Direction::Backward,
     .needs_aligned = true,
     .dtype = DType::F32,
     .min_cols = kBlockColumns + 1,
     .max_cols = 131068,
     .gpus = For::H200},
    {.chapter = "bwd18",
     .because =
         "127 us against bwd13's 145 at bf16 512 x 131072; at 65536 columns 157 against 137 (H200)",
     .direction = Direction::Backward,
     .needs_aligned = true,
     .dtype = DType::BF16,
     .min_cols = 131072,
     .max_cols = 131072,
     .gpus = For::H200},
    {.chapter = "bwd13",
     .because = "538 us against bwd11's 582 at f32 8192 x 16384, 147 against 152 at 2730 x 12288",
     .direction = Direction::Backward,
     .needs_aligned = true,
     .dtype = DType::F32,
     .min_cols = 8193,
     .max_cols = 262144,
     .gpus = For::Measured},
    {.chapter = "bwd13",
     .because =
         "150 us against bwd11's 160 at bf16 4096 x 16384, 152 against 157 at 4681 x 14336, 544 "
         "against bwd09's 912 at 4096 x 65536; at 12288 columns bwd11 is as fast or faster",
     .direction = Direction::Backward,
     .needs_aligned = true,
     .min_cols = 12289,
     .max_cols = 262144,
     .max_architecture = kLastWith227KB},
    {.chapter = "bwd11",
     .because = "91 us against bwd13's 110 at f16 4096 x 8704, 120 against 125 at 4096 x 12288: "
                "one block holds the row, and no sums go from block to block",
     .direction = Direction::Backward,
     .needs_aligned = true,
     .min_cols = 8193,
     .max_cols = kBlockColumns,
     .min_architecture = kFirstWith227KB,
     .max_architecture = kLastWith227KB},
    {.chapter = "bwd15",
     .because = "156 us against bwd09's 378 at bf16 16384 x 4097, 148 against 215 at 65536 x 1001, "
                "149 against 283 at f32 8192 x 4097",
     .direction = Direction::Backward,
     .min_cols = 513,
     .max_architecture = kLastWith227KB},
    {.chapter = "bwd18",
     .because =
         "166 us against bwd09's 348 at bf16 5460 x 12289, 155 against 275 at f32 2730 x 12289, "
         "167 against 355 at bf16 1335 x 50257; slower where tensors start differently",
     .direction = Direction::Backward,
     .needs_alike = true,
     .min_cols = 8185,
     .max_architecture = kLastWith227KB},
    {.chapter = "bwd09",
     .because = "the fastest of those that take every width, alignment and GPU",
     .direction = Direction::Backward},
    {.chapter = "bwd07",
     .because = "the only chapter that starts from y",
     .direction = Direction::Backward,
     .from_y = true},
    {.chapter = "fwd12",
     .because = "184 us against fwd07's 186 at bf16 16384 x 4096 with a residual",
     .direction = Direction::Forward,
     .fused = true,
     .needs_aligned = true},
    {.chapter = "fwd07",
     .because = "the only chapter that has every fusion, width and alignment",
     .direction = Direction::Forward,
     .fused = true},
    {.chapter = "bwd16",
     .because = "191 us against bwd10's 218 at bf16 16384 x 4096 with a residual",
     .direction = Direction::Backward,
     .fused = true,
     .needs_aligned = true,
     .max_architecture = kLastWith227KB},
    {.chapter = "bwd10",
     .because = "the only chapter that has every fusion, width and alignment",
     .direction = Direction::Backward,
     .fused = true},
};

}  // namespace

std::span<const Choice> choices() { return kChoices; }

MeasuredGpu measured_gpu(const Gpu& gpu) {
  const auto is = [&](const Gpu& known) {
    const int difference = std::abs(gpu.memory_gb_s - known.memory_gb_s);
    return gpu.architecture == known.architecture && gpu.multiprocessors == known.multiprocessors &&
           difference <= known.memory_gb_s / 20;
  };
  if (is(kH100)) return MeasuredGpu::H100;
  if (is(kH200)) return MeasuredGpu::H200;
  return MeasuredGpu::None;
}

namespace {

bool is_for(const Choice& choice, const Gpu& gpu) {
  const MeasuredGpu measured = measured_gpu(gpu);
  if (choice.gpus == For::H200) return measured == MeasuredGpu::H200;
  return choice.gpus == For::Any || measured != MeasuredGpu::None;
}

/// The one problem by which every batch-invariant request of these columns and types is planned:
/// dense, aligned and of about 128 MiB.
Problem batch_invariant_problem(Problem problem) {
  constexpr std::int64_t kTensorBytes = 128 << 20;
  const std::int64_t row_bytes = problem.cols * problem.element_bytes();
  problem.rows = std::max<std::int64_t>(kTensorBytes / row_bytes, 1);
  problem.misalign = problem.stagger = 0;
  problem.row_gap = problem.heads = problem.heads_gap = 0;
  return problem;
}

}  // namespace

bool takes(const Choice& choice, const Request& request) {
  const auto within = [](auto least, auto value, auto most) {
    return least <= value && value <= most;
  };
  const Problem& problem = request.problem;
  return choice.direction == request.direction && choice.from_y == request.from_y &&
         choice.fused == (problem.fusion != Fusion{}) &&
         (problem.aligned() || !choice.needs_aligned) &&
         (problem.starts_alike() || !choice.needs_alike) &&
         (problem.cols * problem.element_bytes() % 16 != 0 || !choice.needs_odd) &&
         choice.kind.value_or(problem.kind) == problem.kind &&
         choice.dtype.value_or(problem.dtype) == problem.dtype &&
         (problem.element_bytes() == 2 || !choice.needs_16_bit) &&
         within(choice.min_cols, problem.cols, choice.max_cols) &&
         within(choice.min_rows, problem.rows, choice.max_rows) &&
         problem.tensor_bytes() <= choice.max_tensor_bytes &&
         within(choice.min_architecture, request.gpu.architecture, choice.max_architecture) &&
         is_for(choice, request.gpu);
}

Chosen choose(const Request& asked, std::span<const Choice> table) {
  Request request = asked;
  if (request.problem.batch_invariant) request.problem = batch_invariant_problem(request.problem);
  for (const Choice& choice : table) {
    const Chapter* chapter = takes(choice, request) ? find_chapter(choice.chapter) : nullptr;
    if (chapter == nullptr) continue;
    if (request.in_place && request.problem.cols > chapter->in_place_cols) continue;
    if (refusal(*chapter, request.problem, request.gpu).empty()) return {&choice, chapter};
  }
  return {};
}

}  // namespace lnc
