/* Native code out of a file whose digest was compared first: the file that was hashed is the file that is mapped.
 *
 * A path can name another file a moment later. So a library is opened once, the descriptor is hashed, and the dynamic
 * linker is given the descriptor: /proc/self/fd/N leads to the file itself, whatever its path means by then.
 *
 * Who rewrites the same file in place, while it is hashed or after it was mapped, is not stopped by this.
 *
 * For C99 without extensions of POSIX, since programs include aot.h that way.
 */
#ifndef AOT_FILES_H_
#define AOT_FILES_H_

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include "sha256.h"

#ifdef __cplusplus
extern "C" {
#endif

/* <fcntl.h> hides it from C99. The number is the same on x86_64 and aarch64. */
#ifdef O_CLOEXEC
#define AOT_O_CLOEXEC_ O_CLOEXEC
#else
#define AOT_O_CLOEXEC_ 02000000
#endif

/* Each returns 0 or an errno value. */
int aot_file_open(const char* path, int* fd);
int aot_file_size(int fd, uint64_t* size);
int aot_file_read(int fd, void* buffer, size_t size, size_t* got);

/* Hashes a file that should have `expected` bytes, from its start. `*seen` is the size found, and `digest` is valid
 * only if that equals `expected`. A file of another size is not read, one that changes its size meanwhile is given up.
 * In both cases, and after an error, the digest is all zero. */
int aot_file_hash(int fd, uint64_t expected, aot_sha256_blocks_fn blocks, uint8_t digest[AOT_SHA256_DIGEST_SIZE],
                  uint64_t* seen);

/* Maps a library for good: CUDA graphs and other threads keep using its code. NULL with `*error` set to the reason,
 * which is valid until the next use of the dynamic linker. `fd` is the descriptor that was hashed, or -1: then `path`
 * is opened, as it is if no check was asked for. */
void* aot_file_map(int fd, const char* path, const char** error);

/* Gives a library that was opened through a descriptor the name of its path. Debuggers, and everything that prints a backtrace,
 * open the files of all libraries by these names, and the number of the descriptor may stand for any file by then: an
 * empty one would end the process with SIGBUS. 0, or -1 if memory ran out. */
int aot_file_name(void* library, const char* path);

#ifndef AOT_DECLARATIONS_ONLY

#define AOT_SPELLED_ 512 /* two letters for each of 128 bits, and the rest of the path */

#if defined(__GLIBC__) && __GLIBC__ == 2 && __GLIBC_MINOR__ < 33
extern int __fxstat(int layout, int fd, struct stat* facts);
#endif

/* O_NONBLOCK: the open of a FIFO would wait for a writer; regular files ignore it. */
AOT_SHARED int aot_file_open(const char* path, int* fd) {
  do {
    *fd = open(path, O_RDONLY | O_NOCTTY | O_NONBLOCK | AOT_O_CLOEXEC_);
  } while (*fd < 0 && errno == EINTR);
  return *fd < 0 ? errno : 0;
}

/* Not by fstat: before glibc 2.33 that is a function of the linker's own, which would bring a piece of the toolchain
 * into the entry library, with paths of the build machine in it. */
AOT_SHARED int aot_file_size(int fd, uint64_t* size) {
  char nothing;
  if (read(fd, &nothing, 0) != 0) return errno; /* a directory: EISDIR */
  const off_t end = lseek(fd, 0, SEEK_END);
  if (end < 0) return errno == ESPIPE ? EINVAL : errno; /* a FIFO */
  if (lseek(fd, 0, SEEK_SET) != 0) return errno;
  *size = (uint64_t)end;
  return 0;
}

/* `*got` is less than `size` only if the file ended before. */
AOT_SHARED int aot_file_read(int fd, void* buffer, size_t size, size_t* got) {
  *got = 0;
  while (*got < size) {
    const ssize_t count = read(fd, (char*)buffer + *got, size - *got);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return errno;
    if (count == 0) break;
    *got += (size_t)count;
  }
  return 0;
}

/* Feeds `limit` bytes, or what there is, to `hash`. */
static inline int aot_file_feed_(int fd, uint64_t limit, aot_sha256_state* hash) {
  /* read, not mmap: a file cut short while it is mapped would end the process with SIGBUS. */
  uint8_t buffer[64 * 1024];
  while (hash->length < limit) {
    const uint64_t left = limit - hash->length;
    const size_t wanted = left < sizeof buffer ? (size_t)left : sizeof buffer;
    size_t got = 0;
    const int error = aot_file_read(fd, buffer, wanted, &got);
    if (error != 0) return error;
    aot_sha256_update(hash, buffer, got);
    if (got < wanted) break;
  }
  return 0;
}

AOT_SHARED int aot_file_hash(int fd, uint64_t expected, aot_sha256_blocks_fn blocks,
                             uint8_t digest[AOT_SHA256_DIGEST_SIZE], uint64_t* seen) {
  aot_sha256_state hash;
  memset(digest, 0, AOT_SHA256_DIGEST_SIZE);
  *seen = 0;
  int error = aot_file_size(fd, seen);
  if (error != 0 || *seen != expected) return error;
  aot_sha256_begin(&hash, blocks);
  error = aot_file_feed_(fd, expected, &hash);
  if (error != 0) return error;
  *seen = hash.length;
  if (hash.length < expected) return 0;
  /* Asked again: a file that grew while it was read is not the one expected either. */
  error = aot_file_size(fd, seen);
  if (error == 0 && *seen == expected) aot_sha256_final(&hash, digest);
  return error;
}

/* Which file a descriptor stands for. fstat is a function of the linker's own before glibc 2.33: see aot_file_size. */
static inline int aot_file_identity_(int fd, uint64_t identity[2]) {
  struct stat facts;
#if defined(__GLIBC__) && __GLIBC__ == 2 && __GLIBC_MINOR__ < 33
#ifdef __aarch64__
  const int layout = 0;
#else
  const int layout = 1;
#endif
  if (__fxstat(layout, fd, &facts) != 0) return errno;
#else
  if (fstat(fd, &facts) != 0) return errno;
#endif
  identity[0] = (uint64_t)facts.st_dev;
  identity[1] = (uint64_t)facts.st_ino;
  return 0;
}

/* The dynamic linker takes a name that it has seen for the library that it opened by it, without a look at the file, and
 * a closed descriptor's number is used again. So the path spells out the file's device and inode, bit by bit as
 * "/." or "/", which mean nothing in a path. While a library is mapped, no other file has its inode. */
static inline int aot_file_spell_(int fd, char path[AOT_SPELLED_]) {
  uint64_t identity[2] = {0, 0};
  const int error = aot_file_identity_(fd, identity);
  if (error != 0) return error;
  size_t at = (size_t)snprintf(path, 64, "/proc/self/fd");
  for (int bit = 0; bit < 128; ++bit) {
    path[at++] = '/';
    if (identity[bit / 64] >> bit % 64 & 1) path[at++] = '.';
  }
  snprintf(path + at, 32, "/%d", fd);
  return 0;
}

/* Several threads may open one file at the same time: the first one names it. Not for ThreadSanitizer, which does not see
 * that the dynamic linker has a lock. */
__attribute__((noinline, no_sanitize("thread"))) AOT_SHARED int aot_file_name(void* library, const char* path) {
  static const char by_descriptor[] = "/proc/self/fd/";
  struct link_map* map = (struct link_map*)library; /* what a handle of glibc is */
  char* current = __atomic_load_n(&map->l_name, __ATOMIC_ACQUIRE);
  for (size_t i = 0; i + 1 < sizeof by_descriptor; ++i) {
    if (current[i] != by_descriptor[i]) return 0;
  }
  const size_t size = strlen(path) + 1;
  char* name = (char*)malloc(size);
  if (name == NULL) return -1;
  memcpy(name, path, size);
  /* The old name stays: another thread may be reading it. */
  if (!__atomic_compare_exchange_n(&map->l_name, &current, name, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) free(name);
  return 0;
}

AOT_SHARED void* aot_file_map(int fd, const char* path, const char** error) {
  char spelled[AOT_SPELLED_];
  snprintf(spelled, sizeof spelled, "/proc/self/fd/%d", fd);
  /* Without /proc, as in a bare chroot, the path is opened a second time: a file that was replaced by another after it
   * was hashed is then mapped unnoticed. The NVIDIA driver itself needs /proc, so that no GPU is used in such a place. */
  const int by_descriptor = fd >= 0 && access(spelled, F_OK) == 0;
  const int unknown = by_descriptor ? aot_file_spell_(fd, spelled) : 0;
  if (unknown != 0) {
    *error = strerror(unknown);
    return NULL;
  }
  const char* name = by_descriptor ? spelled : path;
  void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library != NULL && aot_file_name(library, path) == 0) return library;
  *error = library != NULL ? "out of memory" : dlerror();
  if (*error == NULL) *error = "the dynamic linker gives no reason";
  /* What the dynamic linker says begins with the name, which would tell nobody anything. */
  const size_t size = strlen(name);
  if (by_descriptor && strncmp(*error, name, size) == 0 && strncmp(*error + size, ": ", 2) == 0) *error += size + 2;
  return NULL;
}

#endif /* AOT_DECLARATIONS_ONLY */

#ifdef __cplusplus
}
#endif

#endif /* AOT_FILES_H_ */
