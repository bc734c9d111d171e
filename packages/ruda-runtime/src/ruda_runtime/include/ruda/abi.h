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

/* What an argument struct holds besides plain values, so that a queued launch can copy it deeply.
 * RUDA_ARGUMENTS derives it from the struct's fields. */
enum ruda_field_kind {
  RUDA_FIELD_VIEW = 0,   /* const ruda_view*, or null */
  RUDA_FIELD_VIEWS = 1,  /* const ruda_view* const*: a list of views, entries may be null */
  RUDA_FIELD_VALUES = 2, /* const T*: a list of plain values */
  RUDA_FIELD_RESULT = 3  /* T*: one plain value that the kernel writes. In a block of the pool it is
                            device memory; anywhere else the launch returns when it is written */
};

#define RUDA_MAX_FIELDS 48

typedef struct ruda_field {
  uint16_t kind; /* enum ruda_field_kind */
  uint16_t offset;
  uint16_t length; /* lists: the offset of the int64_t that is their length */
  uint16_t item;   /* values and results: bytes of one */
} ruda_field;

typedef struct ruda_layout {
  uint64_t hash; /* of the fields' text and the struct's size */
  uint32_t size; /* of the struct */
  uint32_t count;
  ruda_field fields[RUDA_MAX_FIELDS];
#ifdef __cplusplus
  constexpr operator uint64_t() const { return hash; }
#endif
} ruda_layout;

/* A registered host operation: one entry (checks, choice of kernel, launch). `args` points to the
 * operation's own argument struct; `layout` is the hash of that struct, `arguments` its description. */
typedef int32_t (*ruda_kernel_fn)(const void* args, ruda_error* error);

typedef struct ruda_kernel {
  const char* name;    /* "family.operation", for example "rms_norm.forward" */
  const char* package; /* "ruda-dnn" */
  uint64_t layout;
  ruda_kernel_fn run;
  const ruda_layout* arguments; /* copied when the kernel is registered */
} ruda_kernel;

/* `begin..end` is one part of the range; `worker` is below num_threads(). */
typedef void (*ruda_range_fn)(void* context, int64_t begin, int64_t end, int32_t worker);

/* Another library's setting of how many threads loops may have. */
typedef struct ruda_thread_setting {
  int32_t (*count)(void);     /* for a loop of the calling thread */
  void (*set)(int32_t count); /* from now on so many */
} ruda_thread_setting;

/* Streams are numbered; 0 is the default stream, which always exists. A handle is the stream as
 * `launch` takes it; null is the current stream of the calling thread. */
typedef void* ruda_stream;

/* A point in the work of a stream. */
typedef void* ruda_event;

/* Kernels of the cuda target. One is defined in Python (ruda_runtime.kernel.Kernel) and found by name; a
 * launch needs no Python once the specialisation of its arguments has been compiled. */
typedef struct ruda_device_kernel ruda_device_kernel;
/* A kernel's code for one specialisation. Lives as long as the process. */
typedef struct ruda_plan ruda_plan;

enum ruda_argument_kind {
  RUDA_ARGUMENT_NONE = 0, /* an absent tensor, or the constant None */
  RUDA_ARGUMENT_POINTER = 1,
  RUDA_ARGUMENT_INTEGER = 2,
  RUDA_ARGUMENT_REAL = 3,
  RUDA_ARGUMENT_BOOLEAN = 4,
  RUDA_ARGUMENT_TEXT = 5 /* a constant */
};

/* One argument, in the order of the kernel's parameters, constants included. */
typedef struct ruda_argument {
  union {
    const void* pointer;
    int64_t integer; /* booleans: 0 or 1 */
    double real;
    const char* text;
  } value;
  int32_t kind;  /* enum ruda_argument_kind */
  int32_t dtype; /* of a pointer's elements: enum ruda_dtype */
} ruda_argument;

/* How a kernel is compiled; 0 is the default. */
typedef struct ruda_launch_options {
  int32_t num_warps;  /* 4 */
  int32_t num_stages; /* 2 */
} ruda_launch_options;

typedef struct ruda_api {
  uint32_t abi_version;
  uint32_t struct_size;

  /* Memory: 64-byte aligned blocks of a caching pool. 0 bytes give null without an error. A block
   * that is released while queued work may use it serves later work of the same stream, allocated by
   * the thread that released it, and others when that work is done: whoever reads or writes memory
   * on the host synchronises the stream first. */
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

  /* From now on num_threads and set_num_threads are those of `setting` (null: the pool's own again).
   * Loops run on the pool's threads either way. `setting` is kept, not copied. */
  int32_t (*follow_threads)(const ruda_thread_setting* setting, ruda_error* error);

  /* Whether launches are queued (RUDA_ASYNC=1): a launch then copies its arguments and returns, and
   * the stream's worker runs it. Otherwise work is done when the call that submits it returns, and
   * everything below succeeds at once. It is settled by the first submission; before, set_asynchronous
   * overrides RUDA_ASYNC. */
  int32_t (*asynchronous)(void);
  int32_t (*set_asynchronous)(int32_t on, ruda_error* error);

  /* Streams of a bounded pool (RUDA_MAX_STREAMS). A closed stream finishes its work. */
  int32_t (*open_stream)(int32_t* stream, ruda_error* error);
  int32_t (*close_stream)(int32_t stream, ruda_error* error);
  ruda_stream (*stream_handle)(int32_t stream); /* null when there is no such stream */
  int32_t (*current_stream)(void);              /* of the calling thread */
  int32_t (*set_current_stream)(int32_t stream, ruda_error* error);
  int32_t (*query_stream)(int32_t stream); /* 1 when all its work is done; never waits */

  /* Waits until the work submitted to `stream` (-1: to any) before the call is done, and hands over
   * the error of queued work that nobody was told of yet. */
  int32_t (*synchronize)(int32_t stream, ruda_error* error);
  /* Later work of `stream` begins after the work submitted to `other` so far. The caller goes on. */
  int32_t (*wait_stream)(int32_t stream, int32_t other, ruda_error* error);

  /* Events. Null when memory for bookkeeping runs out. An event that was never recorded is done. */
  ruda_event (*create_event)(int32_t timing);
  void (*destroy_event)(ruda_event event);
  int32_t (*record_event)(ruda_event event, int32_t stream, ruda_error* error);
  int32_t (*wait_event)(int32_t stream, ruda_event event, ruda_error* error);
  int32_t (*query_event)(ruda_event event);
  int32_t (*synchronize_event)(ruda_event event, ruda_error* error);
  int32_t (*elapsed_time)(ruda_event begin, ruda_event end, double* milliseconds,
                          ruda_error* error);

  /* The block that starts at `pointer` is also used by work of `stream`: once released it is handed
   * out again after that work. (A block's own stream, the current one of the thread that allocated it,
   * needs no word.) Addresses that the pool does not own are ignored. */
  int32_t (*record_stream)(const void* pointer, int32_t stream, ruda_error* error);

  /* Where `allocate` and tensors have their memory: enum ruda_target. It is settled by the first tensor;
   * before, it is RUDA_HOST. */
  int32_t (*target)(void);

  /* Target cuda; elsewhere these fail with RUDA_ERROR_UNSUPPORTED (find_device_kernel: give null). */

  /* The driver's CUstream of a stream. */
  int32_t (*driver_stream)(int32_t stream, void** handle, ruda_error* error);

  /* Page-locked host memory. Copies are in the order of `stream`; ordinary host memory may be used again
   * when a call returns, page-locked memory when the copy is done. Without RUDA_ASYNC=1 all are done. */
  void* (*allocate_pinned)(size_t nbytes, ruda_error* error);
  void (*release_pinned)(void* pointer);
  int32_t (*copy_to_device)(void* to, const void* from, size_t nbytes, int32_t stream,
                            ruda_error* error);
  int32_t (*copy_to_host)(void* to, const void* from, size_t nbytes, int32_t stream,
                          ruda_error* error);
  int32_t (*copy_on_device)(void* to, const void* from, size_t nbytes, int32_t stream,
                            ruda_error* error);
  int32_t (*fill)(void* to, uint8_t value, size_t nbytes, int32_t stream, ruda_error* error);

  /* Null with `error` filled when no package defines it. Keep the pointer. */
  const ruda_device_kernel* (*find_device_kernel)(const char* name, ruda_error* error);
  /* The plan for these arguments; compiles it, or loads it from a cache or a bundle, at the first call. */
  int32_t (*find_plan)(const ruda_device_kernel* kernel, const ruda_argument* arguments,
                       int32_t count, const ruda_launch_options* options, const ruda_plan** plan,
                       ruda_error* error);
  /* Checks that the arguments keep what the plan's code was promised (dtypes, constants, alignment). */
  int32_t (*launch_plan)(const ruda_plan* plan, const ruda_argument* arguments, int32_t count,
                         const uint32_t grid[3], ruda_stream stream, ruda_error* error);
  /* find_plan, then the launch. A grid without programs launches nothing. */
  int32_t (*launch_device)(const ruda_device_kernel* kernel, const ruda_argument* arguments,
                           int32_t count, const ruda_launch_options* options,
                           const uint32_t grid[3], ruda_stream stream, ruda_error* error);

  /* 1 while a graph captures `stream`: work submitted to it is noted, not done. Never waits. */
  int32_t (*is_capturing)(int32_t stream);
} ruda_api;

#ifdef __cplusplus
} /* extern "C" */

#include <ruda/layout.hpp>
#endif

#endif /* RUDA_ABI_H */
