/* The C interface between RUDA's native modules.
 *
 * ruda-runtime hands out one `ruda_api` in a PyCapsule named RUDA_CAPSULE_NAME (attribute
 * `ruda_runtime._native.api`). A module checks `abi_version` and `struct_size` before it uses any
 * other field. The struct grows only at its end. Nothing here throws; nothing here needs Python.
 */
#ifndef RUDA_ABI_H
#define RUDA_ABI_H

#include <stddef.h>
#include <stdint.h>

#define RUDA_ABI_VERSION 10
#define RUDA_CAPSULE_NAME "ruda_runtime._native.api"

#ifdef __cplusplus
extern "C" {
#endif

/* Element types. The values are part of the ABI. */
enum ruda_dtype {
  RUDA_FLOAT32 = 0,
  RUDA_FLOAT16 = 1,
  RUDA_BFLOAT16 = 2,
  RUDA_FLOAT64 = 3,
  RUDA_INT8 = 4,
  RUDA_INT16 = 5,
  RUDA_INT32 = 6,
  RUDA_INT64 = 7,
  RUDA_UINT8 = 8,
  RUDA_UINT32 = 9,
  RUDA_BOOL = 10
};

enum ruda_target { RUDA_HOST = 0, RUDA_CUDA = 1 };

/* Status codes of kernels and of the runtime's own functions. */
enum ruda_status {
  RUDA_OK = 0,
  RUDA_ERROR_VALUE = 1,       /* a shape or a value is wrong: ValueError */
  RUDA_ERROR_TYPE = 2,        /* a dtype or a device is wrong: TypeError */
  RUDA_ERROR_UNSUPPORTED = 3, /* no kernel for this target and dtype: NotImplementedError */
  RUDA_ERROR_MEMORY = 4,      /* out of memory: ruda_runtime.OutOfMemoryError (MemoryError) */
  RUDA_ERROR_RUNTIME = 5      /* anything else: RuntimeError */
};

typedef struct ruda_error {
  int32_t code;
  char message[1020]; /* "[operator] what is wrong: got ..., wanted ..." */
} ruda_error;

/* A plain tensor view. Strides count elements and may be 0 or negative only where an entry says so.
 * An optional argument that is absent is a null pointer to the view. */
typedef struct ruda_view {
  void* data;
  const int64_t* sizes;
  const int64_t* strides;
  int32_t ndim;
  int32_t dtype;  /* enum ruda_dtype */
  int32_t target; /* enum ruda_target */
  int32_t device; /* index */
} ruda_view;

typedef struct ruda_memory_stats {
  int64_t allocated;      /* bytes handed out now, as asked for */
  int64_t reserved;       /* bytes held from the system now */
  int64_t peak_allocated; /* maxima since the last reset */
  int64_t peak_reserved;
  int64_t count;          /* live blocks */
  int64_t allocations;    /* allocations since the process started */
  int64_t system_allocations;
  int64_t out_of_memory;  /* refused requests */
} ruda_memory_stats;

/* A registered host operation: one entry (checks, choice of kernel, launch). `args` points to the
 * operation's own argument struct; `layout` is the hash of that struct (RUDA_LAYOUT). */
typedef int32_t (*ruda_kernel_fn)(const void* args, ruda_error* error);

typedef struct ruda_kernel {
  const char* name;    /* "family.operation", for example "rms_norm.forward" */
  const char* package; /* "ruda-dnn" */
  uint64_t layout;
  ruda_kernel_fn run;
} ruda_kernel;

/* `begin..end` is one part of the range; `worker` is below num_threads(). */
typedef void (*ruda_range_fn)(void* context, int64_t begin, int64_t end, int32_t worker);

/* Another library's team of threads: calls body(state, member) for members 0, 1, ... below `members`,
 * each at most once, at least member 0, and returns when all have returned. */
typedef void (*ruda_team_fn)(int32_t members, void (*body)(void* state, int32_t member),
                             void* state);

typedef void* ruda_stream; /* null: the current stream of the calling thread */

typedef struct ruda_api {
  uint32_t abi_version;
  uint32_t struct_size;

  /* Memory: 64-byte aligned blocks of a caching pool. 0 bytes give null without an error. */
  void* (*allocate)(size_t nbytes, ruda_error* error);
  void (*release)(void* pointer);
  size_t (*usable_size)(const void* pointer); /* 0 when the pool does not own `pointer` */
  void (*memory_stats)(ruda_memory_stats* stats);
  void (*reset_peak_memory_stats)(void);
  void (*empty_cache)(void);

  /* Threads: one pool, callable from any thread; nested or busy calls run serially. Parts depend on
   * the range and the grain only, never on the thread count. */
  int32_t (*num_threads)(void);
  int32_t (*set_num_threads)(int32_t count, ruda_error* error);
  void (*parallel_for)(int64_t begin, int64_t end, int64_t grain, ruda_range_fn fn, void* context);
  int32_t (*in_parallel)(void);

  /* Kernels. */
  int32_t (*register_kernel)(const ruda_kernel* kernel, ruda_error* error);
  const ruda_kernel* (*find_kernel)(const char* name);
  int32_t (*launch)(const ruda_kernel* kernel, const void* args, ruda_stream stream,
                    ruda_error* error);
  int64_t (*launch_count)(void);

  /* 0: baseline, 1: x86-64-v3 (AVX2, FMA, F16C). RUDA_CPU=baseline forces 0. */
  int32_t (*cpu_level)(void);

  /* From now on parallel loops run on `team` instead of the pool's own threads (null: on its own
   * again). For a process in which another library's threads do work between ours: two pools whose
   * idle threads spin take each other's processors. Parts stay the same. */
  int32_t (*set_team)(ruda_team_fn team, ruda_error* error);
} ruda_api;

#ifdef __cplusplus
} /* extern "C" */

/* FNV-1a of a struct's spelled-out fields and size: both sides of a launch compute it from the same
 * header, and a header that changed on one side only is refused before the first call. */
constexpr uint64_t ruda_fnv1a(const char* text) {
  uint64_t hash = 14695981039346656037ull;
  for (; *text != 0; ++text) hash = (hash ^ static_cast<uint8_t>(*text)) * 1099511628211ull;
  return hash;
}
/* Defines `struct NAME { FIELDS };` and NAME##_layout. */
#define RUDA_ARGUMENTS(NAME, ...)                                              \
  struct NAME {                                                                \
    __VA_ARGS__                                                                \
  };                                                                           \
  constexpr uint64_t NAME##_layout = ruda_fnv1a(#__VA_ARGS__) ^ sizeof(NAME);
#endif

#endif /* RUDA_ABI_H */
