#include "device_facts.hpp"
#include "entry.hpp"
#include "memory.hpp"
#include "reports.hpp"
#include "settings.hpp"

#include <cstdio>
#include <cstring>

namespace driver_double {

const device_facts& device_facts::get() {
  static const device_facts made = [] {
    device_facts facts;
    const settings& values = settings::get();
    int capability = 10 * values.major + values.minor;
    struct row {
      int capability, threads, blocks, shared_kib, optin_kib;
    };
    // The newest row that is not above the capability counts.
    constexpr row rows[] = {{50, 2048, 32, 64, 48},    {70, 2048, 32, 96, 96},
                            {75, 1024, 16, 64, 64},    {80, 2048, 32, 164, 163},
                            {86, 1536, 16, 100, 99},   {87, 1536, 16, 164, 163},
                            {89, 1536, 24, 100, 99},   {90, 2048, 32, 228, 227},
                            {100, 2048, 32, 228, 227}, {120, 1536, 24, 100, 99}};
    for (const row& each : rows) {
      if (capability < each.capability) break;
      facts.threads_per_multiprocessor = each.threads;
      facts.blocks_per_multiprocessor = each.blocks;
      facts.shared_per_multiprocessor = each.shared_kib << 10;
      facts.shared_per_block_optin = each.optin_kib << 10;
    }
    return facts;
  }();
  return made;
}

namespace {

CUresult need_device(CUdevice device) {
  if (CUresult code = enter(); code != CUDA_SUCCESS) return code;
  return device >= 0 && device < settings::get().devices ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

int attribute(int number, CUdevice device) {
  const device_facts& facts = device_facts::get();
  const settings& values = settings::get();
  switch (number) {
    case 1: return facts.threads_per_block;
    case 2:
    case 3:
    case 4: return static_cast<int>(facts.block[number - 2]);
    case 5:
    case 6:
    case 7: return static_cast<int>(facts.grid[number - 5]);
    case 8: return facts.shared_per_block;
    case 9: return 65536;  // constant memory
    case 10: return facts.warp;
    case 11: return 2147483647;  // pitch
    case 12: return facts.registers_per_block;
    case 13: return 1500000;  // clock, kHz
    case 14:
    case 30: return 512;  // texture and surface alignment
    case 15:
    case 31: return 1;  // overlap, concurrent kernels
    case 16: return facts.multiprocessors;
    case 19: return 1;           // can map host memory
    case 33: return device + 1;  // PCI bus
    case 36: return 2000000;     // memory clock, kHz
    case 37: return 384;         // bus width, bits
    case 38: return facts.l2_bytes;
    case 39: return facts.threads_per_multiprocessor;
    case 40: return 2;   // copy engines
    case 41: return 1;   // unified addressing
    case 51: return 32;  // pitch alignment
    case 75: return values.major;
    case 76: return values.minor;
    case 78:
    case 79:
    case 80: return 1;  // priorities, caching of global and local loads
    case 81: return facts.shared_per_multiprocessor;
    case 82: return facts.registers_per_block;
    case 83:
    case 89:
    case 90: return 1;   // managed, concurrent managed, preemption
    case 87: return 32;  // float32 to float64 rate
    case 95: return 1;   // cooperative launch
    case 97: return facts.shared_per_block_optin;
    case 99: return 1;  // host memory can be registered
    case 106: return facts.blocks_per_multiprocessor;
    case 111: return values.major >= 8 ? 1024 : 0;  // shared memory the system keeps of a block
    case 115: return 1;                             // memory pools
    case 120: return values.major >= 9 ? 1 : 0;     // clusters
    case 126: return 1;                             // memory synchronisation domains
    default: return 0;                              // not there: no such feature in the double
  }
}

}  // namespace
}  // namespace driver_double

using namespace driver_double;

DRIVER_API CUresult cuDeviceGetCount(int* count) {
  if (CUresult code = enter(); code != CUDA_SUCCESS) return code;
  *count = settings::get().devices;
  return CUDA_SUCCESS;
}

DRIVER_API CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  if (CUresult code = need_device(ordinal); code != CUDA_SUCCESS) return code;
  *device = ordinal;
  return CUDA_SUCCESS;
}

DRIVER_API CUresult cuDeviceGetName(char* name, int length, CUdevice device) {
  if (CUresult code = need_device(device); code != CUDA_SUCCESS) return code;
  if (name == nullptr || length <= 0) return CUDA_ERROR_INVALID_VALUE;
  const settings& values = settings::get();
  std::snprintf(name, static_cast<size_t>(length), "RUDA driver double (sm_%d%d, %s)", values.major,
                values.minor, values.record_only ? "launches recorded only" : "interpreted");
  return CUDA_SUCCESS;
}

DRIVER_API CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) {
  if (CUresult code = need_device(device); code != CUDA_SUCCESS) return code;
  std::memcpy(uuid->bytes, "RUDA-double-\0\0\0\0", 16);
  uuid->bytes[15] = static_cast<char>(device);
  return CUDA_SUCCESS;
}

DRIVER_API CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice device) {
  if (CUresult code = need_device(device); code != CUDA_SUCCESS) return code;
  *bytes = settings::get().memory;
  return CUDA_SUCCESS;
}

DRIVER_API CUresult cuDeviceGetAttribute(int* value, int number, CUdevice device) {
  if (CUresult code = need_device(device); code != CUDA_SUCCESS) return code;
  if (value == nullptr || number <= 0 || number > 200) return CUDA_ERROR_INVALID_VALUE;
  *value = attribute(number, device);
  return CUDA_SUCCESS;
}

DRIVER_API CUresult cuDeviceGetProperties(CUdevprop* out, CUdevice device) {
  if (CUresult code = need_device(device); code != CUDA_SUCCESS) return code;
  *out = {attribute(1, device),
          {attribute(2, device), attribute(3, device), attribute(4, device)},
          {attribute(5, device), attribute(6, device), attribute(7, device)},
          attribute(8, device),
          attribute(9, device),
          attribute(10, device),
          attribute(11, device),
          attribute(12, device),
          attribute(13, device),
          attribute(14, device)};
  return CUDA_SUCCESS;
}

DRIVER_API CUresult cuDeviceComputeCapability(int* major, int* minor, CUdevice device) {
  if (CUresult code = need_device(device); code != CUDA_SUCCESS) return code;
  *major = settings::get().major;
  *minor = settings::get().minor;
  return CUDA_SUCCESS;
}

DRIVER_API CUresult cuDeviceGetPCIBusId(char* text, int length, CUdevice device) {
  if (CUresult code = need_device(device); code != CUDA_SUCCESS) return code;
  std::snprintf(text, static_cast<size_t>(length), "0000:%02x:00.0", device + 1);
  return CUDA_SUCCESS;
}

DRIVER_API CUresult cuDeviceGetByPCIBusId(CUdevice* device, const char* text) {
  if (CUresult code = enter(); code != CUDA_SUCCESS) return code;
  unsigned bus = 0;
  if (std::sscanf(text, "%*x:%x:", &bus) != 1 || bus < 1 ||
      static_cast<int>(bus) > settings::get().devices) {
    return CUDA_ERROR_INVALID_DEVICE;
  }
  *device = static_cast<int>(bus) - 1;
  return CUDA_SUCCESS;
}

DRIVER_API CUresult cuDeviceCanAccessPeer(int* can, CUdevice device, CUdevice peer) {
  if (CUresult code = need_device(device); code != CUDA_SUCCESS) return code;
  if (CUresult code = need_device(peer); code != CUDA_SUCCESS) return code;
  *can = 0;
  return CUDA_SUCCESS;
}

DRIVER_API CUresult cuDeviceGetDefaultMemPool(CUmemoryPool* out, CUdevice device) {
  if (CUresult code = need_device(device); code != CUDA_SUCCESS) return code;
  *out = default_pool(device);
  return CUDA_SUCCESS;
}

DRIVER_API CUresult cuDeviceGetMemPool(CUmemoryPool* out, CUdevice device) {
  if (CUresult code = need_device(device); code != CUDA_SUCCESS) return code;
  *out = current_pool(device);
  return CUDA_SUCCESS;
}

DRIVER_API CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool chosen) {
  if (CUresult code = need_device(device); code != CUDA_SUCCESS) return code;
  if (!valid(chosen)) return CUDA_ERROR_INVALID_VALUE;
  set_current_pool(device, chosen);
  return CUDA_SUCCESS;
}

namespace {
const entry_table entries{
    entry<&cuDeviceGetCount>("cuDeviceGetCount", 2000),
    entry<&cuDeviceGet>("cuDeviceGet", 2000),
    entry<&cuDeviceGetName>("cuDeviceGetName", 2000),
    entry<&cuDeviceGetUuid_v2>("cuDeviceGetUuid", 9020),
    entry<&cuDeviceTotalMem_v2>("cuDeviceTotalMem", 3020),
    entry<&cuDeviceGetAttribute>("cuDeviceGetAttribute", 2000),
    entry<&cuDeviceGetProperties>("cuDeviceGetProperties", 2000),
    entry<&cuDeviceComputeCapability>("cuDeviceComputeCapability", 2000),
    entry<&cuDeviceGetPCIBusId>("cuDeviceGetPCIBusId", 4010),
    entry<&cuDeviceGetByPCIBusId>("cuDeviceGetByPCIBusId", 4010),
    entry<&cuDeviceCanAccessPeer>("cuDeviceCanAccessPeer", 4000),
    entry<&cuDeviceGetDefaultMemPool>("cuDeviceGetDefaultMemPool", 11020),
    entry<&cuDeviceGetMemPool>("cuDeviceGetMemPool", 11020),
    entry<&cuDeviceSetMemPool>("cuDeviceSetMemPool", 11020),
};
}
