/* The chapters as a library: layer norm and RMS norm, forward and backward, from plain C.
 *
 * Every function may be called from several threads at once. None throws or ends the program; what
 * goes wrong comes back as a status, with a sentence in lnc_last_error. A call puts kernels on the
 * stream and returns. It allocates no device memory, waits for nothing and never copies to the
 * host, so that a CUDA graph can capture it; call it once before a capture, so that its kernels are
 * loaded. A kernel that fails while it runs (a host pointer, a tensor that is too short) is
 * reported by the next CUDA call that synchronises, not here.
 *
 * Tensors are row-major and contiguous, in the memory of the current device, to which the stream
 * belongs; on the CPU backend (lnc_backend) they are in host memory, the stream is ignored, and a
 * call returns when it is done. Rows start wherever elements may: 16-byte boundaries are faster. An
 * output may not overlap an input or another output. Outputs are overwritten.
 *
 * All arithmetic is in float. What is left out are the chapters' fused parts (residual, dropout).
 */
#ifndef LNC_H
#define LNC_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Changes whenever a struct or a function below does. */
#define LNC_ABI 1

typedef enum lnc_status {
  LNC_OK = 0,
  LNC_BAD_ARGUMENT = 1,    /* a null or misaligned pointer, a size, a dtype, eps */
  LNC_UNKNOWN_CHAPTER = 2, /* no chapter of that name and direction */
  LNC_REFUSED = 3,         /* the chapter does not take this problem, or not on this GPU */
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
} lnc_problem;

typedef struct lnc_forward_args {
  const char* chapter; /* "fwd06"; null for the dispatch's choice */
  lnc_problem problem;
  const void* x;      /* [rows, cols] */
  const void* weight; /* [cols], or null for 1 */
  const void* bias;   /* [cols], or null for 0; null for LNC_RMS */
  void* y;            /* out [rows, cols] */
  float* mean;        /* out [rows]; unused for LNC_RMS */
  float* rstd; /* out [rows]: 1 / sqrt(variance + eps), of LNC_RMS 1 / sqrt(mean of x^2 + eps) */
  void* workspace; /* at a 16-byte boundary; uninitialised, free again when the stream is here */
  size_t workspace_bytes;
  void* stream; /* a cudaStream_t; null for the default stream */
} lnc_forward_args;

typedef struct lnc_backward_args {
  const char* chapter; /* "bwd09"; null for the dispatch's choice */
  lnc_problem problem; /* the forward pass's */
  const void* dy;      /* [rows, cols] */
  const void* x;       /* [rows, cols]; null where y is given */
  const void* y;       /* [rows, cols], to start from the forward pass's output; else null */
  const void* weight;  /* [cols], or null for 1 */
  const void* bias;    /* [cols], or null for 0; read only with y; null for LNC_RMS */
  const float* mean;   /* [rows], of the forward pass; unused with y and for LNC_RMS */
  const float* rstd;   /* [rows], of the forward pass */
  void* dx;            /* out [rows, cols] */
  void* dweight;       /* out [cols]; null where it is not wanted */
  void* dbias;         /* out [cols]; null where it is not wanted, and for LNC_RMS */
  void* workspace;     /* as in the forward pass */
  size_t workspace_bytes;
  void* stream;
} lnc_backward_args;

typedef struct lnc_plan {
  const char* chapter;    /* the one that would run */
  size_t workspace_bytes; /* that it needs; may be 0 */
} lnc_plan;

/* Puts a pass on args->stream. */
lnc_status lnc_forward(const lnc_forward_args* args);
lnc_status lnc_backward(const lnc_backward_args* args);

/* Says which chapter would run with these arguments and what workspace it needs, and launches
 * nothing. The choice depends on which pointers are null and on their alignment; `workspace` and
 * `workspace_bytes` are not looked at. */
lnc_status lnc_forward_plan(const lnc_forward_args* args, lnc_plan* plan);
lnc_status lnc_backward_plan(const lnc_backward_args* args, lnc_plan* plan);

typedef struct lnc_chapter {
  const char* id;    /* "fwd06" */
  const char* title; /* "128-bit access, the row in registers" */
  int backward;      /* 0: a forward pass */
  int from_y;        /* 1: a backward pass that is given y in place of x and mean */
  int deterministic; /* 1: the same bits from run to run */
} lnc_chapter;

/* Writes up to `capacity` chapters to `chapters`, forward before backward, and returns how many
 * there are; `chapters` may be null. A chapter that is no norm, the copy, is not among them. The
 * strings live as long as the library. */
size_t lnc_list(lnc_chapter* chapters, size_t capacity);

/* What went wrong in this thread's last call that returns a status, in one sentence; empty where
 * nothing did. Valid until the thread's next call. */
const char* lnc_last_error(void);

/* "cuda" or "cpu". */
const char* lnc_backend(void);

/* The project's version, "0.1.0". */
const char* lnc_version(void);

/* LNC_ABI as the library was built. */
int lnc_abi(void);

#ifdef __cplusplus
}
#endif

#endif
