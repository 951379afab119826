/* Opening a bundle: its manifest, who signed it, its entry library. Included by aot.h, after what it declares. */
#ifndef AOT_DETAIL_OPENING_H_
#define AOT_DETAIL_OPENING_H_

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ed25519.h"
#include "errors.h"
#include "files.h"
#include "linkage.h"

#ifdef __cplusplus
extern "C" {
#endif

AOT_SHARED int aot_get_version(uint32_t* major, uint32_t* minor) {
  if (major != NULL) *major = AOT_PROTOCOL_MAJOR;
  if (minor != NULL) *minor = AOT_PROTOCOL_MINOR;
  return AOT_OK;
}

AOT_SHARED int aot_attach(const aot_interface* library, aot_bundle* bundle) {
  if (library == NULL || bundle == NULL) {
    return aot_fail_(AOT_ERROR_USAGE, "aot_attach: a null pointer was given", NULL, NULL, NULL);
  }
  bundle->library = NULL;
  if (library->major != AOT_PROTOCOL_MAJOR) return aot_refuse_version_("the bundle", library->major, library->minor);
  bundle->library = library;
  return AOT_OK;
}

#if defined(__x86_64__)
#define AOT_HOST "x86_64-linux-gnu"
#elif defined(__aarch64__)
#define AOT_HOST "aarch64-linux-gnu"
#else
#define AOT_HOST "this-cpu-is-not-supported"
#endif

/* The entry library: its file name, and what the file must be. */
typedef struct aot_entry_record {
  char name[256];
  char sha256[65];
  unsigned long long size;
} aot_entry_record;

int aot_refuse_path_(const char* path);
int aot_read_file_(const char* path, size_t limit, char** text, size_t* size);
int aot_read_manifest_(const char* path, const aot_options* options, aot_entry_record* record);
int aot_find_entry_(const char* manifest, aot_entry_record* record);
int aot_check_entry_(int fd, const char* path, const aot_entry_record* record);
int aot_need_tvm_ffi_(const char* path);
int aot_map_entry_(int fd, const char* path, const aot_interface** library);
int aot_open_entry_(const char* path, const aot_entry_record* record, const aot_options* options,
                    const aot_interface** library);
void aot_hex_(const uint8_t digest[32], char hex[65]);

AOT_SHARED void aot_hex_(const uint8_t digest[32], char hex[65]) {
  for (int i = 0; i < 32; ++i) snprintf(hex + 2 * i, 3, "%02x", (unsigned)digest[i]);
}

/* Says what is wrong with a directory that holds no code for this host. */
AOT_SHARED int aot_refuse_path_(const char* path) {
  char place[4096], hosts[512] = "";
  size_t at = 0;
  int fd = -1;
  snprintf(place, sizeof place, "%s/manifest.json", path);
  if (aot_file_open(place, &fd) != 0) {
    return aot_fail_(AOT_ERROR_BUNDLE, "`%s` is not a bundle: it holds no manifest.json\nhint: give the directory that "
                     "`python -m aot build` printed", path, NULL, NULL);
  }
  close(fd);
  snprintf(place, sizeof place, "%s/lib", path);
  DIR* directory = opendir(place);
  for (struct dirent* entry; directory != NULL && (entry = readdir(directory)) != NULL;) {
    if (entry->d_name[0] == '.' || at + strlen(entry->d_name) + 3 > sizeof hosts) continue;
    at += (size_t)snprintf(hosts + at, sizeof hosts - at, "%s%s", at == 0 ? "" : ", ", entry->d_name);
  }
  if (directory != NULL) closedir(directory);
  return aot_fail_(AOT_ERROR_HOST, "`%s` holds no code for this host, " AOT_HOST "; it has: %s\nhint: build it with "
                   "`--host`, for this CPU too", path, at == 0 ? "none" : hosts, NULL);
}

/* The text of a file, with a final zero, to be freed; 0 or an errno value. */
AOT_SHARED int aot_read_file_(const char* path, size_t limit, char** text, size_t* size) {
  int fd = -1;
  uint64_t length = 0;
  *text = NULL;
  int error = aot_file_open(path, &fd);
  if (error != 0) return error;
  error = aot_file_size(fd, &length);
  if (error == 0 && length > limit) error = EFBIG;
  if (error == 0 && (*text = (char*)malloc((size_t)length + 1)) == NULL) error = ENOMEM;
  if (error == 0) error = aot_file_read(fd, *text, (size_t)length, size);
  close(fd);
  if (error == 0) (*text)[*size] = '\0';
  else free(*text);
  return error;
}

static inline int aot_refuse_file_(const char* path, int error) {
  return aot_fail_(AOT_ERROR_BUNDLE, "cannot read `%s`: %s", path, strerror(error), NULL);
}

/* ---- the entry library in a manifest ----
 *
 * This is no reader of JSON, and needs to be none. If the caller trusts a digest or a key, the text is the author's. If
 * not, anybody who writes it may name any library, however it is read. */

static inline const char* aot_skip_spaces_(const char* at) { return at + strspn(at, " \t\r\n"); }

/* Past the colon of the next member of that name, or NULL. Within a string a quote would have a backslash before it. */
static inline const char* aot_next_member_(const char* at, const char* name) {
  const size_t size = strlen(name);
  for (; (at = strchr(at, '"')) != NULL; ++at) {
    if (strncmp(at + 1, name, size) != 0 || at[1 + size] != '"') continue;
    const char* colon = aot_skip_spaces_(at + 2 + size);
    if (*colon == ':') return aot_skip_spaces_(colon + 1);
  }
  return NULL;
}

/* The record in one member `"entry": {"path": ..., "sha256": ..., "size": ...}`; 1 if it is one for this host. */
static inline int aot_entry_member_(const char* at, aot_entry_record* record) {
  static const char folder[] = "\"lib/" AOT_HOST "/";
  char member[1024];
  const char* end = *at == '{' ? strchr(at, '}') : NULL;
  if (end == NULL || (size_t)(end - at) >= sizeof member) return 0;
  memcpy(member, at, (size_t)(end - at));
  member[end - at] = '\0';
  const char* path = aot_next_member_(member, "path");
  const char* sha256 = aot_next_member_(member, "sha256");
  const char* size = aot_next_member_(member, "size");
  if (path == NULL || sha256 == NULL || size == NULL || strncmp(path, folder, sizeof folder - 1) != 0) return 0;
  memset(record, 0, sizeof *record);
  return sscanf(path + sizeof folder - 1, "%255[^/\\\"\n]", record->name) == 1 && record->name[0] != '.' &&
         sscanf(sha256, "\"%64[0-9a-f]\"", record->sha256) == 1 && strlen(record->sha256) == 64 &&
         sscanf(size, "%llu", &record->size) == 1;
}

AOT_SHARED int aot_find_entry_(const char* manifest, aot_entry_record* record) {
  aot_entry_record found;
  int count = 0;
  for (const char* at = manifest; (at = aot_next_member_(at, "entry")) != NULL;) {
    if (!aot_entry_member_(at, &found)) continue;
    *record = found;
    ++count;
  }
  return count == 1 ? 0 : -1;
}

/* ---- which manifests are trusted ---- */

static inline int aot_hex_digit_(char c) { return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1; }

static inline int aot_from_hex_(const char* text, uint8_t bytes[32]) {
  for (int i = 0; i < 32; ++i) {
    const int high = aot_hex_digit_(text[2 * i]), low = high < 0 ? -1 : aot_hex_digit_(text[2 * i + 1]);
    if (low < 0) return 0;
    bytes[i] = (uint8_t)(16 * high + low);
  }
  return 1;
}

static inline int aot_check_pin_(const char* place, const char* text, size_t size, const char* pin) {
  uint8_t digest[32], expected[32];
  char seen[65];
  aot_sha256_state hash;
  if (!aot_from_hex_(pin, expected) || pin[64] != '\0') {
    return aot_fail_(AOT_ERROR_USAGE, "manifest_sha256 must be 64 hex digits in lower case, not `%s`", pin, NULL, NULL);
  }
  aot_sha256_begin(&hash, aot_sha256_blocks_portable);
  aot_sha256_update(&hash, text, size);
  aot_sha256_final(&hash, digest);
  if (memcmp(digest, expected, 32) == 0) return AOT_OK;
  aot_hex_(digest, seen);
  return aot_fail_(AOT_ERROR_DIGEST, "`%s` is not the manifest that this program was built for: sha256 %s, expected "
                   "%s\nhint: install the bundle that belongs to the program, or build the program with the new one",
                   place, seen, pin);
}

static inline int aot_check_signature_(const char* path, const char* text, size_t size, const char* keys) {
  char place[4096 + 64], *signature = NULL;
  size_t signature_size = 0;
  uint8_t key[32];
  int signed_by = 0, known = 0;
  snprintf(place, sizeof place, "%s/manifest.sig", path);
  int error = aot_read_file_(place, 4096, &signature, &signature_size);
  if (error == ENOENT) {
    return aot_fail_(AOT_ERROR_SIGNATURE, "`%s` is not signed: it has no manifest.sig\nhint: sign it with `python -m aot "
                     "sign`, or open it without a key if you trust its source", path, NULL, NULL);
  }
  if (error != 0) return aot_refuse_file_(place, error);
  const char* at = keys + strspn(keys, " ");
  for (; *at != '\0'; at += strspn(at, " "), ++known) {
    if (!aot_from_hex_(at, key) || (at[64] != ' ' && at[64] != '\0')) break;
    signed_by |= signature_size == AOT_ED25519_SIGNATURE_SIZE &&
                 aot_ed25519_verify(key, (const uint8_t*)signature, text, size);
    at += 64;
  }
  free(signature);
  if (*at != '\0' || known == 0) {
    return aot_fail_(AOT_ERROR_USAGE, "key must be 64 hex digits in lower case, or several separated by spaces, not `%s`",
                     keys, NULL, NULL);
  }
  if (signed_by) return AOT_OK;
  return aot_fail_(AOT_ERROR_SIGNATURE, "the signature of `%s` is not by a trusted key (%s), or its manifest was "
                   "altered\nhint: get the bundle from its signer again, or give the public key that signed it", path, keys,
                   NULL);
}

/* The entry library of a bundle is called after it. */
static inline int aot_check_name_(const char* path, const aot_entry_record* record, const char* name) {
  const size_t size = strlen(name);
  if (strncmp(record->name, "lib", 3) == 0 && strncmp(record->name + 3, name, size) == 0 &&
      strcmp(record->name + 3 + size, ".so") == 0) {
    return AOT_OK;
  }
  return aot_fail_(AOT_ERROR_SIGNATURE, "`%s` is not the bundle `%s`: its library is %s\nhint: install the bundle that was "
                   "meant", path, name, record->name);
}

/* Reads the manifest, checks it as the caller asked, then takes the entry library's record from it. */
AOT_SHARED int aot_read_manifest_(const char* path, const aot_options* options, aot_entry_record* record) {
  char place[4096 + 64], *text = NULL;
  size_t size = 0;
  int code = AOT_OK;
  snprintf(place, sizeof place, "%s/manifest.json", path);
  int error = aot_read_file_(place, (size_t)4 << 20, &text, &size);
  if (error == ENOENT || error == ENOTDIR) return aot_refuse_path_(path);
  if (error != 0) return aot_refuse_file_(place, error);
  if (options->manifest_sha256 != NULL) code = aot_check_pin_(place, text, size, options->manifest_sha256);
  if (code == AOT_OK && options->key != NULL) code = aot_check_signature_(path, text, size, options->key);
  if (code == AOT_OK && (strlen(text) != size || aot_find_entry_(text, record) != 0)) {
    code = aot_fail_(AOT_ERROR_HOST, "`%s` names no entry library for this host, " AOT_HOST "\nhint: build the bundle with "
                     "`--host`, for this CPU too; if it was, `python -m aot verify` lists what is damaged", place, NULL, NULL);
  }
  free(text);
  if (code == AOT_OK && options->name != NULL) code = aot_check_name_(path, record, options->name);
  return code;
}

/* ---- opening the entry library ---- */

AOT_SHARED int aot_check_entry_(int fd, const char* path, const aot_entry_record* record) {
  uint8_t digest[32];
  char hex[65];
  uint64_t size = 0;
  int error = aot_file_hash(fd, record->size, aot_sha256_blocks_portable, digest, &size);
  if (error != 0) return aot_refuse_file_(path, error);
  aot_hex_(digest, hex);
  if (size == record->size && strcmp(hex, record->sha256) == 0) return AOT_OK;
  const char* seen = size == record->size ? hex : "not computed, since the size differs";
  return aot_fail_(AOT_ERROR_DIGEST, "`%s` is not the file this bundle was built with: sha256 %s, expected %s\nhint: the bundle "
                   "was altered or copied incompletely; `python -m aot verify` lists what differs", path, seen, record->sha256);
}

/* Makes TVM-FFI's functions available to libraries that are opened from now on. */
AOT_SHARED int aot_need_tvm_ffi_(const char* path) {
  void* self = dlopen(NULL, RTLD_NOW);
  int there = self != NULL && dlsym(self, "TVMFFIErrorMoveFromRaised") != NULL;
  if (self != NULL) dlclose(self);
  if (there) return AOT_OK;
  /* Python's extension modules load it for themselves alone: this makes it everybody's. */
  if (dlopen("libtvm_ffi.so", RTLD_NOW | RTLD_GLOBAL | RTLD_NOLOAD) != NULL) return AOT_OK;
  if (path != NULL && dlopen(path, RTLD_NOW | RTLD_GLOBAL) != NULL) return AOT_OK;
  if (path == NULL && dlopen("libtvm_ffi.so", RTLD_NOW | RTLD_GLOBAL) != NULL) return AOT_OK;
  return aot_fail_(AOT_ERROR_TVM_FFI, "libtvm_ffi.so, which bundles need, cannot be opened: %s\nhint: `pip install "
                   "apache-tvm-ffi`, then give the path that `tvm-ffi-config --libfiles` prints, link it, or put its "
                   "directory on the search path", dlerror(), NULL, NULL);
}

/* `fd` -1: the path is opened. */
AOT_SHARED int aot_map_entry_(int fd, const char* path, const aot_interface** library) {
  typedef int (*version_function)(uint32_t*, uint32_t*);
  typedef const aot_interface* (*interface_function)(void);
  version_function version;
  interface_function get;
  uint32_t major = 0, minor = 0;
  char quoted[4096 + 512];
  const char* error = "";
  void* opened = aot_file_map(fd, path, &error);
  if (opened == NULL) return aot_fail_(AOT_ERROR_BUNDLE, "cannot open `%s`: %s", path, error, NULL);
  void* version_address = dlsym(opened, "aot_abi_version");
  void* get_address = dlsym(opened, "aot_abi_interface");
  memcpy(&version, &version_address, sizeof version);
  memcpy(&get, &get_address, sizeof get);
  if (version == NULL || get == NULL) {
    return aot_fail_(AOT_ERROR_VERSION, "`%s` was built by a cute-aot without a C interface\nhint: rebuild the bundle", path,
                     NULL, NULL);
  }
  version(&major, &minor);
  if (major == AOT_PROTOCOL_MAJOR) {
    *library = get();
    return AOT_OK;
  }
  snprintf(quoted, sizeof quoted, "`%s`", path);
  return aot_refuse_version_(quoted, major, minor);
}

AOT_SHARED int aot_open_entry_(const char* path, const aot_entry_record* record, const aot_options* options,
                               const aot_interface** library) {
  int fd = -1, verify = !options->skip_verification;
  uint64_t size = 0;
  int error = aot_file_open(path, &fd);
  if (error != 0) return aot_refuse_file_(path, error);
  error = aot_file_size(fd, &size); /* the dynamic linker would wait for a writer to a FIFO */
  int code = error != 0 ? aot_refuse_file_(path, error) : AOT_OK;
  if (code == AOT_OK && verify) code = aot_check_entry_(fd, path, record);
  if (code == AOT_OK) code = aot_need_tvm_ffi_(options->tvm_ffi);
  if (code == AOT_OK) code = aot_map_entry_(verify ? fd : -1, path, library);
  close(fd);
  return code;
}

/* The absolute path of the folder that holds the entry library. */
static inline int aot_entry_directory_(const char* path, char directory[4096]) {
  char here[4096] = "";
  if (path[0] != '/' && getcwd(here, sizeof here) == NULL) here[0] = '\0';
  int size = snprintf(directory, 4096, "%s%s%s/lib/" AOT_HOST, here, path[0] == '/' ? "" : "/", path);
  if (size > 0 && size < 4096) return AOT_OK;
  return aot_fail_(AOT_ERROR_BUNDLE, "the path of the bundle is too long: `%s`", path, NULL, NULL);
}

AOT_SHARED int aot_open(const char* path, const aot_options* options, aot_bundle* bundle) {
  char directory[4096], entry[4096 + 256];
  aot_entry_record record;
  aot_options asked;
  const aot_interface* library = NULL;
  if (path == NULL || bundle == NULL) {
    return aot_fail_(AOT_ERROR_USAGE, "aot_open: a null pointer was given", NULL, NULL, NULL);
  }
  bundle->library = NULL;
  memset(&asked, 0, sizeof asked);
  if (options != NULL) asked = *options;
  if ((asked.manifest_sha256 != NULL || asked.key != NULL) && asked.skip_verification) {
    return aot_fail_(AOT_ERROR_USAGE, "aot_open: manifest_sha256 or key was given, and skip_verification too", NULL,
                     NULL, NULL);
  }
  int code = aot_entry_directory_(path, directory);
  if (code != AOT_OK) return code;
  if ((code = aot_read_manifest_(path, &asked, &record)) != AOT_OK) return code;
  snprintf(entry, sizeof entry, "%s/%s", directory, record.name);
  if ((code = aot_open_entry_(entry, &record, &asked, &library)) != AOT_OK) return code;
  if (library->configure(!asked.skip_verification, directory) != 0) return aot_raised_(library->core);
  return aot_attach(library, bundle);
}

#ifdef __cplusplus
}
#endif

#endif /* AOT_DETAIL_OPENING_H_ */
