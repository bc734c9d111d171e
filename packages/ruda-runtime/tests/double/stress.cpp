// Threads with streams of their own: random allocations, fills, copies, events between neighbours,
// graph replays and frees, with every result checked. Linked with the double's sources and built
// with a sanitizer. Arguments: threads, rounds. RUDA_DOUBLE_SEED decides what happens.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

extern "C" {
int cuInit(unsigned);
int cuDevicePrimaryCtxRetain(void**, int);
int cuDevicePrimaryCtxRelease_v2(int);
int cuCtxSetCurrent(void*);
int cuCtxSynchronize();
int cuStreamCreate(void**, unsigned);
int cuStreamDestroy_v2(void*);
int cuStreamSynchronize(void*);
int cuStreamQuery(void*);
int cuStreamWaitEvent(void*, void*, unsigned);
int cuEventCreate(void**, unsigned);
int cuEventDestroy_v2(void*);
int cuEventRecord(void*, void*);
int cuEventSynchronize(void*);
int cuMemAllocAsync(uint64_t*, size_t, void*);
int cuMemFreeAsync(uint64_t, void*);
int cuMemHostAlloc(void**, size_t, unsigned);
int cuMemFreeHost(void*);
int cuMemsetD32Async(uint64_t, unsigned, size_t, void*);
int cuMemcpyDtoDAsync_v2(uint64_t, uint64_t, size_t, void*);
int cuMemcpyDtoHAsync_v2(void*, uint64_t, size_t, void*);
int cuStreamBeginCapture_v2(void*, int);
int cuStreamEndCapture(void*, void**);
int cuGraphInstantiateWithFlags(void**, void*, uint64_t);
int cuGraphLaunch(void*, void*);
int cuGraphDestroy(void*);
int cuGraphExecDestroy(void*);
const char* ruda_double_last_report();
int64_t ruda_double_report_count();
int64_t ruda_double_counter(const char*);
}

namespace {

[[noreturn]] void fail(const char* what, long got, long wanted) {
  std::fprintf(stderr, "%s: got %ld, wanted %ld; %s\n", what, got, wanted,
               ruda_double_last_report());
  std::exit(1);
}

#define OK(call) \
  if (int code = (call); code != 0) fail(#call, code, 0)

constexpr size_t words = 256;

struct worker {
  void* context;
  unsigned seed;
  int rounds;

  void check(void* stream, uint64_t block, uint32_t* host, uint32_t wanted) {
    OK(cuMemcpyDtoHAsync_v2(host, block, 4 * words, stream));
    OK(cuStreamSynchronize(stream));
    for (size_t i = 0; i < words; ++i) {
      if (host[i] != wanted) fail("a value", host[i], wanted);
    }
  }

  void replay(void* stream, uint64_t block, uint64_t other, uint32_t value) {
    void *graph = nullptr, *executable = nullptr;
    OK(cuStreamBeginCapture_v2(stream, 2));
    OK(cuMemsetD32Async(other, value, words, stream));
    OK(cuMemcpyDtoDAsync_v2(block, other, 4 * words, stream));
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuGraphInstantiateWithFlags(&executable, graph, 0));
    OK(cuGraphDestroy(graph));
    OK(cuGraphLaunch(executable, stream));
    OK(cuGraphExecDestroy(executable));
  }

  void operator()() {
    std::mt19937 random(seed);
    OK(cuCtxSetCurrent(context));
    void *streams[2], *events[2], *pinned = nullptr;
    for (int i = 0; i < 2; ++i) {
      OK(cuStreamCreate(&streams[i], 1));
      OK(cuEventCreate(&events[i], 2 * (seed & 1)));
    }
    OK(cuMemHostAlloc(&pinned, 4 * words, 0));
    auto* host = static_cast<uint32_t*>(pinned);
    for (int round = 0; round < rounds; ++round) {
      int first = static_cast<int>(random() & 1);
      void *from = streams[first], *to = streams[1 - first];
      uint32_t value = random();
      uint64_t block = 0, other = 0;
      OK(cuMemAllocAsync(&block, 4 * words, from));
      OK(cuMemAllocAsync(&other, 4 * words, from));
      if (random() % 4 == 0) {
        replay(from, block, other, value);
      } else {
        OK(cuMemsetD32Async(block, value, words, from));
      }
      OK(cuEventRecord(events[first], from));
      OK(cuStreamWaitEvent(to, events[first], 0));
      OK(cuMemcpyDtoDAsync_v2(other, block, 4 * words, to));
      if (random() % 3 == 0) check(to, other, host, value);
      if (random() % 8 == 0) OK(cuEventSynchronize(events[first]));
      cuStreamQuery(from);
      OK(cuMemFreeAsync(block, to));
      OK(cuMemFreeAsync(other, to));
    }
    for (int i = 0; i < 2; ++i) {
      OK(cuStreamSynchronize(streams[i]));
      OK(cuStreamDestroy_v2(streams[i]));
      OK(cuEventDestroy_v2(events[i]));
    }
    OK(cuMemFreeHost(pinned));
  }
};

}  // namespace

int main(int, char** arguments) {
  int threads = std::atoi(arguments[1]), rounds = std::atoi(arguments[2]);
  void* context = nullptr;
  OK(cuInit(0));
  OK(cuDevicePrimaryCtxRetain(&context, 0));
  OK(cuCtxSetCurrent(context));
  std::vector<std::thread> running;
  for (int i = 0; i < threads; ++i) {
    running.emplace_back(worker{context, static_cast<unsigned>(i), rounds});
  }
  for (std::thread& each : running) each.join();
  OK(cuCtxSynchronize());
  OK(cuDevicePrimaryCtxRelease_v2(0));
  for (const char* name : {"live_allocations", "live_host_allocations", "live_streams",
                           "live_events", "live_graphs", "live_graph_execs"}) {
    if (ruda_double_counter(name) != 0) fail(name, ruda_double_counter(name), 0);
  }
  if (ruda_double_report_count() != 0) fail("reports", ruda_double_report_count(), 0);
  std::printf("%ld copies\n", static_cast<long>(ruda_double_counter("copies")));
  return 0;
}
