/*
 * Test-only door to the hidden functions of aot_sha256.c and aot/detail/files.h, which it includes.
 *
 * It also stands between that file and read(2), so that short reads, EINTR and a file that changes
 * while it is read happen every time and not by luck.
 */
#define _POSIX_C_SOURCE 200809L

#include <errno.h>
#include <stdint.h>
#include <sys/types.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

enum { READ_PLAIN, READ_SHORT_AND_INTERRUPTED, READ_THEN_RESIZE, READ_FAILS };

static int read_mode;
static int read_calls;
static const char* resize_path;
static int64_t resize_size;

static ssize_t shim_read(int fd, void* buffer, size_t size) {
  if (size == 0) return read(fd, buffer, 0); /* how a directory is told from a file */
  read_calls++;
  if (read_mode == READ_FAILS) {
    errno = EIO;
    return -1;
  }
  if (read_mode == READ_SHORT_AND_INTERRUPTED) {
    if (read_calls % 2 == 1) {
      errno = EINTR;
      return -1;
    }
    if (size > 777) size = 777;
  }
  ssize_t got = read(fd, buffer, size);
  if (read_mode == READ_THEN_RESIZE && read_calls == 1) {
    if (truncate(resize_path, (off_t)resize_size) != 0) return -1;
  }
  return got;
}

#define read shim_read
#include <aot/detail/files.h>
#undef read
#include "aot_sha256.c"

EXPORT int shim_has_cpu_instructions(void) { return aot_sha256_has_cpu_instructions(); }

/* 1 if aot_sha256_blocks chooses the version with CPU instructions. */
EXPORT int shim_init_chooses_cpu(void) { return aot_sha256_blocks() != aot_sha256_blocks_portable; }

/* Hashes `data` in `chunk_count` consecutive pieces, with the version asked for. */
EXPORT void shim_hash(int use_cpu, const uint8_t* data, const size_t* chunks, size_t chunk_count,
                      uint8_t digest[32]) {
  aot_sha256_state hash;
  aot_sha256_begin(&hash, use_cpu ? CPU_BLOCKS : aot_sha256_blocks_portable);
  for (size_t i = 0; i < chunk_count; i++) {
    aot_sha256_update(&hash, chunks[i] > 0 ? data : NULL, chunks[i]);
    data += chunks[i];
  }
  aot_sha256_final(&hash, digest);
}

/* `size_after` is used by READ_THEN_RESIZE: the size of the file after the first read. */
EXPORT int shim_file(int mode, int64_t size_after, const char* path, uint64_t expected_size,
                     uint8_t digest[32], uint64_t* seen_size, int* reads) {
  read_mode = mode;
  read_calls = 0;
  resize_path = path;
  resize_size = size_after;
  int fd = -1;
  memset(digest, 0, 32);
  *seen_size = 0;
  int error = aot_file_open(path, &fd);
  if (error == 0) {
    error = aot_file_hash(fd, expected_size, aot_sha256_blocks(), digest, seen_size);
    close(fd);
  }
  *reads = read_calls;
  return error;
}
