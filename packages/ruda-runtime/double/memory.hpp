// Allocations: where they are, whose they are, and whether they are alive.
#pragma once

#include "contexts.hpp"
#include "streams.hpp"

#include <string>

namespace driver_double {

struct allocation {
  enum class kind { device, host, managed, registered };
  enum class state { pending, live, freed };  // as the device sees it, in its streams' order

  uint64_t start = 0, size = 0;
  kind is = kind::device;
  int device = 0;
  context* in = nullptr;
  pool* from = nullptr;
  uint64_t serial = 0;       // the serial-th allocation of the process
  std::string allocated_on;  // the stream's name, where it is stream-ordered
  std::atomic<state> now{state::live};
  // The host's view: true from the call that frees it. What is submitted later may not use it.
  std::atomic<bool> freed{false};
  std::string freed_by;
  std::mutex uses_mutex;
  std::vector<position> uses;  // the last work of each stream that names this allocation

  void note_use(position by);
  // A stream other than `except` whose work with this allocation is not done, or null.
  const stream* still_using(const stream* except);

  bool contains(uint64_t address) const { return address - start < size; }
  std::string describe() const;
};

using allocation_ref = std::shared_ptr<allocation>;

// Null where no allocation, alive or freed lately, has the address.
allocation_ref find_allocation(uint64_t address);

struct allocation_request {
  const char* call;
  uint64_t bytes;
  allocation::kind kind;
  context* in;
  pool* from = nullptr;
  stream* on = nullptr;  // stream-ordered: alive when that stream comes to it
};
CUresult allocate(const allocation_request& wanted, allocation_ref* out);

// Marks it freed for later submissions; `retire` then takes it out of use in device order.
CUresult begin_free(const char* call, uint64_t address, const char* by, allocation_ref* out);
void make_live(allocation& of);
void retire(allocation& of);

// Allocations that nobody freed, at most `count`.
std::vector<std::string> describe_live(size_t count);

// Host memory that cuMemHostRegister made known.
CUresult register_host(uint64_t address, uint64_t bytes, context* in);
CUresult unregister_host(uint64_t address);

// Is [address, address + bytes) inside one allocation that may be used? `moment` decides what is
// looked at: the host's view while submitting, the device's while running.
enum class moment { submitting, running };
CUresult check_range(moment when, const char* call, const char* role, uint64_t address,
                     uint64_t bytes);

// Device or host memory, as unified addressing sees it.
bool is_device_address(uint64_t address);
// Page-locked memory that the driver knows.
bool is_pinned(uint64_t address, uint64_t bytes);

// Pools.
struct pool : handle {
  static constexpr kind kind_of = kind::pool;
  explicit pool(int device_ordinal) : handle{kind_of}, device(device_ordinal) {}
  const int device;
  bool made = false;       // by cuMemPoolCreate
  uint64_t threshold = 0;  // reserved bytes kept at synchronisation
  uint64_t used = 0, used_high = 0, reserved = 0, reserved_high = 0;
  uint64_t limit = 0;  // 0: none
  int reuse[3] = {1, 1, 1};
};

pool* default_pool(int device);
pool* current_pool(int device);
void set_current_pool(int device, pool* chosen);
void release_pools(int device);  // what synchronisation gives back

uint64_t allocated_bytes(int device);  // by cuMemAlloc
uint64_t reserved_bytes(int device);   // by pools
CUresult take_from(pool& from, uint64_t bytes);
void give_back(pool& to, uint64_t bytes);

}  // namespace driver_double
