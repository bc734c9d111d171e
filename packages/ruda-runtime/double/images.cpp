#include "images.hpp"

#include "reports.hpp"
#include "settings.hpp"
#include "sha256.hpp"

#include <elf.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace driver_double {
namespace {

constexpr unsigned char old_cubin_abi = 0x33;  // of EI_OSABI: where e_flags keeps the architecture
constexpr uint32_t parameter_attribute = 0x1704;  // format 4 (sized value), attribute 0x17

// Calls `each(name, section)` for the sections; false where the table does not fit the format.
template <class Function>
void for_sections(const char* base, size_t size, const Function& each) {
  const auto& header = *reinterpret_cast<const Elf64_Ehdr*>(base);
  if (header.e_shnum == 0 || header.e_shstrndx >= header.e_shnum) return;
  if (header.e_shoff + uint64_t{header.e_shnum} * sizeof(Elf64_Shdr) > size) return;
  const auto* sections = reinterpret_cast<const Elf64_Shdr*>(base + header.e_shoff);
  const Elf64_Shdr& names = sections[header.e_shstrndx];
  for (int i = 0; i < header.e_shnum; ++i) {
    if (sections[i].sh_name >= names.sh_size) continue;
    each(std::string_view(base + names.sh_offset + sections[i].sh_name), sections[i]);
  }
}

// The largest extent that the header, the section table or a section has.
size_t elf_size(const char* base) {
  const auto& header = *reinterpret_cast<const Elf64_Ehdr*>(base);
  uint64_t size = std::max<uint64_t>(sizeof header, header.e_ehsize);
  size = std::max(size, header.e_phoff + uint64_t{header.e_phnum} * header.e_phentsize);
  size = std::max(size, header.e_shoff + uint64_t{header.e_shnum} * header.e_shentsize);
  const auto* sections = reinterpret_cast<const Elf64_Shdr*>(base + header.e_shoff);
  for (int i = 0; i < header.e_shnum; ++i) {
    if (sections[i].sh_type != SHT_NOBITS) {
      size = std::max(size, sections[i].sh_offset + sections[i].sh_size);
    }
  }
  return size;
}

// The section .nv.info.NAME is a list of attributes; each parameter has one.
int count_parameters(const char* at, size_t size) {
  int count = 0;
  for (size_t i = 0; i + 4 <= size;) {
    uint16_t key, value;
    std::memcpy(&key, at + i, 2);
    std::memcpy(&value, at + i + 2, 2);
    count += key == parameter_attribute;
    i += 4 + ((key & 0xff) == 4 ? value : 0u);
  }
  return count;
}

void read_cubin(const char* base, size_t size, image& out) {
  constexpr std::string_view code = ".text.", information = ".nv.info.";
  for_sections(base, size, [&](std::string_view name, const Elf64_Shdr&) {
    if (name.starts_with(code)) out.entries.emplace(name.substr(code.size()), -1);
  });
  for_sections(base, size, [&](std::string_view name, const Elf64_Shdr& section) {
    if (!name.starts_with(information)) return;
    auto found = out.entries.find(std::string(name.substr(information.size())));
    if (found != out.entries.end() && section.sh_offset + section.sh_size <= size) {
      found->second = count_parameters(base + section.sh_offset, section.sh_size);
    }
  });
}

void read_ptx(std::string_view text, image& out) {
  constexpr std::string_view entry = ".entry";
  for (size_t at = text.find(entry); at != text.npos; at = text.find(entry, at + 1)) {
    size_t begin = text.find_first_not_of(" \t", at + entry.size());
    if (begin == text.npos) return;
    size_t end = text.find_first_of(" \t\r\n({", begin);
    if (end == text.npos) return;
    int count = 0;
    if (size_t open = text.find_first_not_of(" \t\r\n", end); text[open] == '(') {
      std::string_view list = text.substr(open, text.find(')', open) - open);
      for (size_t next = list.find(".param"); next != list.npos;
           next = list.find(".param", next + 1)) {
        ++count;
      }
    }
    out.entries.emplace(text.substr(begin, end - begin), count);
  }
}

CUresult check_cubin(const char* call, const char* base) {
  const settings& device = settings::get();
  const auto& header = *reinterpret_cast<const Elf64_Ehdr*>(base);
  unsigned built = header.e_ident[EI_OSABI] == old_cubin_abi ? header.e_flags & 0xff
                                                             : header.e_flags >> 8 & 0xff;
  if (built == 0) return CUDA_SUCCESS;  // a test's header without an architecture
  if (static_cast<int>(built) / 10 == device.major &&
      static_cast<int>(built) % 10 <= device.minor) {
    return CUDA_SUCCESS;
  }
  return report(CUDA_ERROR_NO_BINARY_FOR_GPU,
                "[%s] the cubin is for sm_%u, the device is sm_%d%d: a cubin runs on its own major "
                "version, at its minor version or above",
                call, built, device.major, device.minor);
}

// The PTX version that came with a driver: 8.0 to 8.8 with 12.0 to 12.9, 9.x with 13.x.
int newest_ptx(int driver) {
  int major = driver / 1000, minor = driver % 1000 / 10;
  if (major == 12 && minor >= 6) minor -= 1;
  return 10 * (major - 4) + minor;
}

CUresult check_ptx(const char* call, const char* text) {
  const settings& device = settings::get();
  const char* version = std::strstr(text, ".version");
  const char* target = std::strstr(text, ".target");
  int major = 0, minor = 0, built = 0;
  char specific = 0;
  if (version == nullptr || target == nullptr ||
      std::sscanf(version, ".version %d.%d", &major, &minor) != 2 ||
      std::sscanf(target, ".target sm_%d%c", &built, &specific) < 1) {
    return report(CUDA_ERROR_INVALID_PTX, "[%s] PTX without .version and .target", call);
  }
  int newest = newest_ptx(device.driver_version);
  if (10 * major + minor > newest) {
    return report(CUDA_ERROR_UNSUPPORTED_PTX_VERSION,
                  "[%s] PTX %d.%d is newer than %d.%d, the newest of driver version %d", call,
                  major, minor, newest / 10, newest % 10, device.driver_version);
  }
  int capability = 10 * device.major + device.minor;
  bool fits = specific == 'a'   ? built == capability
              : specific == 'f' ? built / 10 == device.major && built <= capability
                                : built <= capability;
  if (fits) return CUDA_SUCCESS;
  return report(CUDA_ERROR_INVALID_PTX, "[%s] PTX for sm_%d%s does not fit sm_%d", call, built,
                specific == 'a' || specific == 'f' ? std::string(1, specific).c_str() : "",
                capability);
}

}  // namespace

CUresult read_image(const char* call, const void* address, image* out) {
  const char* base = static_cast<const char*>(address);
  if (base == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (std::memcmp(base, ELFMAG, SELFMAG) == 0) {
    if (CUresult code = check_cubin(call, base); code != CUDA_SUCCESS) return code;
    size_t size = elf_size(base);
    out->is = image::format::cubin;
    out->digest = sha256({base, size});
    read_cubin(base, size, *out);
    return CUDA_SUCCESS;
  }
  // PTX is text up to a NUL.
  if (*base != '.' && *base != '/' && *base != '\n' && *base != ' ') {
    return report(CUDA_ERROR_INVALID_IMAGE, "[%s] the image is neither an ELF file nor PTX text",
                  call);
  }
  if (CUresult code = check_ptx(call, base); code != CUDA_SUCCESS) return code;
  out->is = image::format::ptx;
  out->digest = sha256(base);
  read_ptx(base, *out);
  return CUDA_SUCCESS;
}

}  // namespace driver_double
