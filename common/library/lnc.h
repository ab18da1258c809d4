/* The kernels as a library: layer norm and RMS norm, forward and backward, from plain C.
 *
 * Every function may be called from several threads at once. None throws or ends the program; an
 * error is returned as a status, with a sentence in lnc_last_error. A call enqueues kernels on the
 * stream and returns. It allocates no device memory, waits for nothing and never copies to the
 * host, so that a CUDA graph can capture it; call it once before a capture, so that its kernels are
 * loaded. A kernel that fails while it runs (a host pointer, a tensor that is too short) is
 * reported by the next CUDA call that synchronises, not here.
 *
 * Tensors are row-major and contiguous, except that the rows of x and dy may be strided (lnc_rows).
 * They are in the memory of the current device, to which the stream belongs; on the CPU backend
 * (lnc_backend) they are in host memory, the stream is ignored, and a call returns when it is done.
 * Rows may start at any element; 16-byte boundaries are faster. An output may not overlap an input
 * or another output, except that a fused forward pass over rows of up to 16376 columns may have x
 * itself as y, and its residual as sum. Outputs are overwritten.
 *
 * The choice of a kernel and its checks are cached: a call like an earlier one repeats neither.
 *
 * All arithmetic is in float. The same call gives the same bits in every run, except with kernels
 * that lnc_list says are not deterministic, which run only if asked for by name.
 *
 * Batch invariance. Which kernel runs, and how it divides a row, may depend on the number of rows
 * and on where tensors start, and so may the last bits of a row. With lnc_problem.batch_invariant
 * they do not: a row's y, mean, rstd and dx then depend only on that row of every input, on weight,
 * bias, eps and the options of the pass, on cols, the types, the kernel if one is asked for, and
 * the GPU. Tensors whose rows are whole 16-byte vectors but do not start on a 16-byte boundary, and
 * strided rows that the kernel cannot take, are first copied into the workspace. dweight and dbias
 * are sums over all rows. The order in which these are added depends on rows, cols, the types and
 * the GPU's multiprocessors; with batch_invariant, on nothing else.
 */
#ifndef LNC_H
#define LNC_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Changes whenever a struct or a function below does. */
#define LNC_ABI 4

typedef enum lnc_status {
  LNC_OK = 0,
  LNC_BAD_ARGUMENT = 1,    /* a null or misaligned pointer, a size, a dtype, eps */
  LNC_UNKNOWN_CHAPTER = 2, /* no kernel of that name and direction */
  LNC_REFUSED = 3,         /* the kernel does not take this problem, or not on this GPU */
  LNC_SMALL_WORKSPACE = 4, /* workspace_bytes is less than the plan says */
  LNC_FAILED = 5           /* a launch failed, no GPU, or no host memory */
} lnc_status;

typedef enum lnc_kind { LNC_LAYER = 0, LNC_RMS = 1 } lnc_kind;
typedef enum lnc_dtype { LNC_F32 = 0, LNC_F16 = 1, LNC_BF16 = 2 } lnc_dtype;

typedef struct lnc_problem {
  int32_t kind;            /* lnc_kind */
  int32_t dtype;           /* lnc_dtype of x, y, dy, dx */
  int32_t parameter_dtype; /* of weight, bias, dweight, dbias: dtype, or LNC_F32 */
  float eps;               /* >= 0 */
  int64_t rows;            /* >= 0; without rows, dweight and dbias are 0 */
  int64_t cols;            /* >= 1; normalised over */
  int32_t batch_invariant; /* 1: a row's bits depend on that row alone, see above; else 0 */
} lnc_problem;

/* Where the rows of x or dy start if they are part of a wider tensor: row r at element
 * r / group_rows * group_stride + r % group_rows * row_stride. The q that a fused projection wrote,
 * [tokens, 3, heads, cols], has a row stride of cols, and groups of `heads` rows that start
 * 3 * heads * cols elements apart. There may be up to 2^31 - 1 such rows. They are for
 * passes without `fused` and without y only, and not every kernel takes them. */
typedef struct lnc_rows {
  int64_t row_stride;   /* elements from the start of a row to that of the next; >= 0 */
  int64_t group_rows;   /* rows in a group, or 0 if all are one group */
  int64_t group_stride; /* elements from the start of a group to that of the next; >= 0 */
} lnc_rows;

/* What a fused forward pass does before the norm, in this order: x * rowscale, dropout, + x1 (with
 * its own rowscale1 and seeds1), + residual. That sum is normalised as it is stored, rounded to its
 * type, even if `sum` is null: so y is that of an addition and then a norm, and the backward
 * pass is its gradient. A null part is left out; at least one must be given. */
typedef struct lnc_fused_forward {
  const float* rowscale;  /* [rows] */
  const uint32_t* seeds;  /* [rows], of the dropout; null if there is none */
  const void* x1;         /* [rows, cols], a second input, of x's type */
  const float* rowscale1; /* [rows], of x1; given if rowscale and x1 are */
  const uint32_t* seeds1; /* [rows], of x1; given if seeds and x1 are */
  const void* residual;   /* [rows, cols] */
  void* sum;              /* out [rows, cols]; a backward pass needs it */
  const void* weight1;    /* [cols], a second weight, or null for 1 */
  const void* bias1;      /* [cols], or null for 0 */
  void* y1;               /* out [rows, cols], by weight1 and bias1; null for none */
  float dropout;          /* the probability of dropping an element, 0 <= dropout < 1 */
  int32_t float_residual; /* residual and sum are float; else they have x's type */
} lnc_fused_forward;

/* The same for a backward pass. The rowscales have no gradient. */
typedef struct lnc_fused_backward {
  const float* rowscale;
  const uint32_t* seeds;
  const float* rowscale1;
  const uint32_t* seeds1;
  const void* sum;     /* [rows, cols], as the forward pass wrote it; never null */
  const void* dsum;    /* [rows, cols], its gradient that bypasses the norm; null for 0 */
  const void* dy1;     /* [rows, cols], of y1; null if there was none */
  const void* weight1; /* [cols], or null for 1 */
  void* dx1;           /* out [rows, cols]; null if there was no x1, or if it would equal dx:
                          without rowscale and dropout */
  void* dresidual;     /* out [rows, cols], of sum's type; null if there was no residual, or
                          if it would equal dx: without rowscale and dropout, of x's type */
  void* dweight1;      /* out [cols]; null without y1, and if no parameter gradient is requested */
  void* dbias1;        /* out [cols]; the same, and null for LNC_RMS */
  float dropout;
  int32_t float_residual; /* sum, dsum and dresidual are float; else they have x's type */
  int32_t has_residual;   /* the forward pass added one */
} lnc_fused_backward;

typedef struct lnc_forward_args {
  const char* chapter; /* "lib_fwd_ring", "fwd06"; null for the dispatch's choice. A retired
                          chapter's id, "fwd13", is that of the kernel that took its place */
  lnc_problem problem;
  const void* x;      /* [rows, cols] */
  const void* weight; /* [cols], or null for 1 */
  const void* bias;   /* [cols], or null for 0; null for LNC_RMS */
  void* y;            /* out [rows, cols] */
  float* mean;        /* out [rows]; unused for LNC_RMS */
  float* rstd; /* out [rows]: 1 / sqrt(variance + eps), of LNC_RMS 1 / sqrt(mean of x^2 + eps) */
  void* workspace; /* at a 16-byte boundary; uninitialised; reusable later in the stream */
  size_t workspace_bytes;
  void* stream;                   /* a cudaStream_t; null for the default stream */
  const lnc_fused_forward* fused; /* null for a plain pass */
  const lnc_rows* x_rows;         /* null if they are contiguous */
} lnc_forward_args;

typedef struct lnc_backward_args {
  const char* chapter; /* the same: "lib_bwd_ring", "bwd09" */
  lnc_problem problem; /* the forward pass's */
  const void* dy;      /* [rows, cols] */
  const void* x;       /* [rows, cols]; null if y is given */
  const void* y;       /* [rows, cols], to start from the forward pass's output; else null */
  const void* weight;  /* [cols], or null for 1 */
  const void* bias;    /* [cols], or null for 0; read only with y; null for LNC_RMS */
  const float* mean;   /* [rows], of the forward pass; unused with y and for LNC_RMS */
  const float* rstd;   /* [rows], of the forward pass */
  void* dx;            /* out [rows, cols] */
  void* dweight;       /* out [cols]; null if not requested. If neither is, as for frozen
                          parameters, the dispatch's choice keeps no sums over rows in memory */
  void* dbias;         /* out [cols]; null if not requested, and for LNC_RMS */
  void* workspace;     /* as in the forward pass */
  size_t workspace_bytes;
  void* stream;
  const lnc_fused_backward* fused; /* null for a plain pass; else x and y are null */
  const lnc_rows* x_rows;          /* null if they are contiguous */
  const lnc_rows* dy_rows;         /* the same */
} lnc_backward_args;

typedef struct lnc_plan {
  const char* chapter;     /* the kernel that would run */
  size_t workspace_bytes;  /* that it needs; may be 0 */
  const char* because;     /* the measurement or reason for the dispatch's rule; empty if the
                              kernel was asked for */
  const char* measured_on; /* the GPU that the rule was tuned on, as CUDA names it; empty
                              if the kernel was asked for */
  int32_t measured_here;   /* 1: this GPU is one that the dispatch was tuned on, an H100 SXM or an
                              H200 SXM. 0: it is another, and gets only the dispatch's defaults */
} lnc_plan;

/* Enqueues a pass on args->stream. */
lnc_status lnc_forward(const lnc_forward_args* args);
lnc_status lnc_backward(const lnc_backward_args* args);

/* Says which kernel would run with these arguments, by which rule, and what workspace it needs,
 * and launches nothing. It depends on which pointers are null and on their alignment; `workspace`
 * and `workspace_bytes` are ignored. The strings live as long as the library. */
lnc_status lnc_forward_plan(const lnc_forward_args* args, lnc_plan* plan);
lnc_status lnc_backward_plan(const lnc_backward_args* args, lnc_plan* plan);

typedef struct lnc_chapter {
  const char* id;    /* "fwd06"; of the library's own kernels "lib_fwd_ring" */
  const char* title; /* "128-bit access, the row in registers" */
  int backward;      /* 0: a forward pass */
  int from_y;        /* 1: a backward pass that is given y in place of x and mean */
  int deterministic; /* 1: the same bits from run to run */
} lnc_chapter;

/* Writes up to `capacity` kernels to `chapters`, the chapters' and then the library's, in each
 * forward before backward, and returns how many exist; `chapters` may be null. Chapters that are
 * not norms, the copies, are omitted. The strings live as long as the library. */
size_t lnc_list(lnc_chapter* chapters, size_t capacity);

/* Why this thread's last call that returns a status failed, in one sentence; empty if it
 * succeeded. Valid until the thread's next call. */
const char* lnc_last_error(void);

/* "cuda" or "cpu". */
const char* lnc_backend(void);

/* The project's version, "1.0.0". */
const char* lnc_version(void);

/* LNC_ABI as the library was built. */
int lnc_abi(void);

#ifdef __cplusplus
}
#endif

#endif
