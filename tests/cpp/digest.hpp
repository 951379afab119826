// The SHA-256 of a file, as programs pin a manifest by it. Include aot.hpp first.
#ifndef AOT_TESTS_DIGEST_HPP_
#define AOT_TESTS_DIGEST_HPP_

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

inline std::string sha256_of(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  const std::string content{std::istreambuf_iterator<char>(stream), {}};
  std::uint8_t digest[32];
  char hex[65];
  aot_sha256_state hash;
  aot_sha256_begin(&hash, aot_sha256_blocks_portable);
  aot_sha256_update(&hash, content.data(), content.size());
  aot_sha256_final(&hash, digest);
  aot_hex_(digest, hex);
  return hex;
}

#endif  // AOT_TESTS_DIGEST_HPP_
