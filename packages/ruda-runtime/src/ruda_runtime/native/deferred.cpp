#include "deferred.hpp"

#include <algorithm>

#include "kernels.hpp"
#include "streams.hpp"
#include "thread_pool.hpp"

namespace ruda::native {
namespace {

thread_local char this_thread;

bool inside_kernel() { return running_kernel() != nullptr || in_parallel() != 0; }

}  // namespace

// The releasing thread is part of the key. Another one that starts later at the same address has seen
// that release.
size_t deferred_blocks::key_of(size_t bytes, int32_t stream) {
  size_t key = reinterpret_cast<uintptr_t>(&this_thread);
  for (const size_t part : {bytes, static_cast<size_t>(stream)})
    key = (key ^ part) * 0x9e3779b97f4a7c15ull + (key >> 29);
  return key | 1;
}

void deferred_blocks::note_allocation(void* block) {
  const int32_t stream = inside_kernel() ? scratch : current_stream();
  if (stream != 0) owners_.insert_or_assign(block, owner{stream, {}});
}

void deferred_blocks::note_use(void* block, int32_t stream) {
  const auto found = owners_.find(block);
  if (found == owners_.end()) {
    if (stream != 0) owners_.emplace(block, owner{0, {stream}});
    return;
  }
  owner& known = found->second;
  if (known.stream == stream || known.stream == scratch) return;
  if (std::find(known.others.begin(), known.others.end(), stream) == known.others.end())
    known.others.push_back(stream);
}

bool deferred_blocks::keep(void* block, size_t usable_bytes) {
  std::vector<point> until;
  int32_t own = 0;
  bool alone = true;
  const auto add = [&](int32_t stream) {
    const uint64_t number = submitted_work(stream);
    if (completed_work(stream) < number) until.push_back({stream, number});
  };
  if (const auto found = owners_.find(block); found != owners_.end()) {
    own = found->second.stream;
    alone = found->second.others.empty();
    if (own != scratch) {
      add(own);
      for (const int32_t other : found->second.others) add(other);
    }
    owners_.erase(found);
  } else {
    add(0);
  }
  if (until.empty()) return false;
  auto added = std::make_unique<entry>();
  added->block = block;
  added->bytes = usable_bytes;
  added->until = std::move(until);
  added->thread = &this_thread;
  kept_.emplace(block, added.get());
  if (!alone) {
    shared_.push_back(std::move(added));
    return true;
  }
  if (!inside_kernel()) {
    added->key = key_of(usable_bytes, own);
    by_key_[added->key].push_back(added.get());
  }
  by_stream_[own].push_back(std::move(added));
  return true;
}

void deferred_blocks::forget_key(entry& each) {
  if (each.key == 0) return;
  const auto found = by_key_.find(each.key);
  auto& list = found->second;
  list.erase(std::find(list.begin(), list.end(), &each));
  if (list.empty()) by_key_.erase(found);
  each.key = 0;
}

void* deferred_blocks::take(size_t usable_bytes) {
  if (kept_.empty() || inside_kernel()) return nullptr;
  const int32_t stream = current_stream();
  const auto found = by_key_.find(key_of(usable_bytes, stream));
  if (found == by_key_.end()) return nullptr;
  entry& chosen = *found->second.back();
  if (chosen.bytes != usable_bytes || chosen.until[0].stream != stream ||
      chosen.thread != &this_thread)
    return nullptr;  // another with the same key
  void* block = chosen.block;
  forget_key(chosen);
  kept_.erase(block);
  chosen.block = nullptr;  // its place in the order is dropped when its turn comes
  return block;
}

bool deferred_blocks::is_done(const entry& each) const {
  return std::all_of(each.until.begin(), each.until.end(), [](const point& work) {
    return completed_work(work.stream) >= work.number;
  });
}

void deferred_blocks::collect(const std::function<void(void*)>& release) {
  if (by_stream_.empty() && shared_.empty()) return;
  const auto end = [&](entry& each) {
    if (each.block == nullptr) return;
    forget_key(each);
    kept_.erase(each.block);
    release(each.block);
  };
  for (auto each = by_stream_.begin(); each != by_stream_.end();) {
    auto& order = each->second;
    while (!order.empty() && is_done(*order.front())) {
      end(*order.front());
      order.pop_front();
    }
    each = order.empty() ? by_stream_.erase(each) : std::next(each);
  }
  std::erase_if(shared_, [&](const std::unique_ptr<entry>& each) {
    if (!is_done(*each)) return false;
    end(*each);
    return true;
  });
}

}  // namespace ruda::native
