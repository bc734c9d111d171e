// The structures of the DLPack exchange protocol (versions 0 and 1), as far as tensors need them. Names follow the protocol.
#pragma once

#include <cstdint>

namespace ruda::native::dlpack {

enum device_type : int32_t { cpu = 1, cuda = 2, cuda_host = 3 };
enum type_code : uint8_t { code_int = 0, code_uint = 1, code_float = 2, code_bfloat = 4, code_bool = 6 };

struct device {
  int32_t type;
  int32_t index;
};

struct data_type {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
};

struct tensor {
  void* data;
  device place;
  int32_t ndim;
  data_type dtype;
  int64_t* shape;
  int64_t* strides;  // in elements; null: row-major
  uint64_t byte_offset;
};

struct managed_tensor {
  tensor content;
  void* context;
  void (*deleter)(managed_tensor*);
};

struct version {
  uint32_t major;
  uint32_t minor;
};

constexpr uint64_t flag_read_only = 1;
constexpr uint64_t flag_copied = 2;

struct managed_tensor_versioned {
  dlpack::version version;
  void* context;
  void (*deleter)(managed_tensor_versioned*);
  uint64_t flags;
  tensor content;
};

constexpr const char* capsule_name = "dltensor";
constexpr const char* capsule_name_used = "used_dltensor";
constexpr const char* capsule_name_versioned = "dltensor_versioned";
constexpr const char* capsule_name_versioned_used = "used_dltensor_versioned";

}  // namespace ruda::native::dlpack
