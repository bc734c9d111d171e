// What the machine is: memory, CPUs, instruction sets.
#pragma once

#include <cstdint>

namespace ruda::native {

// Bytes a process may still take: /proc/meminfo's MemAvailable plus free swap, or what the control
// group of the process leaves where that is less. Negative when nothing can be read.
int64_t system_memory_free();
int64_t system_memory_total();

// CPUs this process may run on (the affinity mask), at least 1.
int32_t cpu_count();

// 1 when the CPU and the system have x86-64-v3, else 0; RUDA_CPU=baseline is applied by cpu_level().
int32_t detected_cpu_level();
int32_t cpu_level();

}  // namespace ruda::native
