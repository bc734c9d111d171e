/* Loading OpenBLAS and calling it.
 *
 * The library is opened by its full path with local, self-first symbol lookup: another OpenBLAS in the
 * process (NumPy's, SciPy's, a preloaded one) neither serves our calls nor is served by ours.
 *
 * OpenBLAS starts one thread a processor when it is loaded and cannot be told otherwise but by the
 * process environment. It counts the processors that the loading thread may run on, so a short-lived
 * thread that is bound to one processor loads it: no worker threads then exist, and our own pool is
 * the only one that runs. */
#include "openblas.hpp"

#include <cblas.h>
#include <dlfcn.h>
#include <sched.h>

#include <mutex>
#include <string>
#include <thread>

#include <ruda/entry.hpp>

namespace ruda::blas {
namespace {

struct functions {
  decltype(&scipy_cblas_sgemm) sgemm;
  decltype(&scipy_openblas_set_num_threads) set_num_threads;
  decltype(&scipy_openblas_get_num_threads) get_num_threads;
  decltype(&scipy_openblas_get_config) get_config;
  decltype(&scipy_openblas_get_corename) get_corename;
};

[[noreturn]] void raise(const std::string& text) {
  status_error caught;
  fail(&caught.error, RUDA_ERROR_RUNTIME, "[ruda_blas] %s", text.c_str());
  throw caught;
}

std::string library_path() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&library_path), &info) == 0 || info.dli_fname == nullptr)
    raise("cannot tell where this module lies, so the OpenBLAS beside it is not found");
  const std::string module = info.dli_fname;
  const size_t slash = module.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : module.substr(0, slash);
  return folder + "/libs/" RUDA_OPENBLAS_FILE;
}

void bind_to_one_processor() {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return;
  for (int processor = 0; processor < CPU_SETSIZE; ++processor) {
    if (!CPU_ISSET(processor, &allowed)) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(processor, &one);
    sched_setaffinity(0, sizeof(one), &one);  // where it is refused, threads start and stay idle
    return;
  }
}

template <class Function>
void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function == nullptr) raise(std::string("the vendored OpenBLAS lacks ") + name);
}

functions load() {
  const std::string path = library_path();
  int flags = RTLD_NOW | RTLD_LOCAL;
#if defined(RTLD_DEEPBIND)
  flags |= RTLD_DEEPBIND;
#endif
  void* library = nullptr;
  std::string reason;
  std::thread([&] {
    bind_to_one_processor();
    library = dlopen(path.c_str(), flags);
    if (library == nullptr) reason = dlerror();
  }).join();
  if (library == nullptr)
    raise("the vendored OpenBLAS cannot be loaded: " + reason + "; reinstall ruda-blas");
  functions found{};
  find(library, "scipy_cblas_sgemm", found.sgemm);
  find(library, "scipy_openblas_set_num_threads", found.set_num_threads);
  find(library, "scipy_openblas_get_num_threads", found.get_num_threads);
  find(library, "scipy_openblas_get_config", found.get_config);
  find(library, "scipy_openblas_get_corename", found.get_corename);
  found.set_num_threads(1);
  return found;
}

/* A failed load is tried again by the next call and raises again. */
const functions& library() {
  static const functions loaded = load();
  return loaded;
}

CBLAS_TRANSPOSE flag(layout operand) { return operand.transposed ? CblasTrans : CblasNoTrans; }

}  // namespace

void sgemm(layout a_layout, layout b_layout, int64_t m, int64_t n, int64_t k, float alpha,
           const float* a, const float* b, float beta, float* c, int64_t ldc) {
  const auto as_int = [](int64_t value) { return static_cast<blasint>(value); };
  library().sgemm(CblasRowMajor, flag(a_layout), flag(b_layout), as_int(m), as_int(n), as_int(k),
                  alpha, a, as_int(a_layout.ld), b, as_int(b_layout.ld), beta, c, as_int(ldc));
}

std::string describe_library() {
  const functions& loaded = library();
  return std::string(loaded.get_config()) + "; kernels " + loaded.get_corename() + "; threads " +
         std::to_string(loaded.get_num_threads());
}

}  // namespace ruda::blas
