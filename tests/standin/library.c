/* Libraries and kernels: reads the fatbin it is given, so that wrong names and wrong architectures fail.
 *
 * Libraries are never freed: compiled launchers keep kernel handles for as long as the process lives, also across a
 * reset. What a real H200 (driver 580) does, and this does too: loading looks at nothing and always succeeds, the
 * first question about a kernel finds what is wrong with the data.
 */
#include "state.h"

#include <elf.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_IMAGES = 16, DEFAULT_DYNAMIC_SHARED = 48 * 1024 };
static const uint32_t fatbin_magic = 0xBA55ED50u, library_mark = 0x4c494252u, kernel_mark = 0x4b524e4cu;

typedef struct {
    uint32_t magic;
    uint16_t version, header_size;
    uint64_t size; /* of all that follows the header */
} fatbin_header;

typedef struct {
    uint16_t kind, version;
    uint32_t header_size;
    uint64_t size; /* of the payload that follows this header */
    uint32_t compressed_size, options_offset;
    uint16_t code_minor, code_major;
    uint32_t arch;
    uint32_t name_offset, name_size;
    uint64_t flags;
    uint64_t unused[2];
} fatbin_entry;

enum { ENTRY_IS_ELF = 2 };
enum { RESERVED_SHARED = 1024 };
enum { ENTRY_ARCH_SPECIFIC = 0x100000, ENTRY_FAMILY = 0x200000 };

/* e_ident[EI_OSABI] of a cubin tells where e_flags holds the architecture. CUDA 12 writes the old layout up to
 * sm_90 and the new one from sm_100 on, CUDA 13 the new one for all. */
enum { OSABI_OLD = 0x33, OSABI_NEW = 0x41 };

typedef struct {
    const unsigned char *elf;
    uint64_t size;
    int major, minor;
    int exact; /* sm_90a and its like: this capability only */
} image;

struct standin_kernel {
    uint32_t mark;
    char *name;
    standin_library *library;
    standin_kernel *next;
    int static_shared;
    int dynamic_shared[STANDIN_MAX_DEVICES];
    int big_clusters[STANDIN_MAX_DEVICES];
    int ready[STANDIN_MAX_DEVICES];
};

struct standin_library {
    uint32_t mark;
    int image_count;
    image images[MAX_IMAGES];
    standin_kernel *kernels;
    standin_library *next;
};

static standin_library *first_library;
static standin_load_record *loads;
static size_t load_count;

/* -- reading a fatbin -- */

static int elf_arch(const Elf64_Ehdr *elf) {
    int shift = elf->e_ident[EI_OSABI] == OSABI_NEW ? 8 : 0;
    return (int)(elf->e_flags >> shift & 0xff);
}

static int is_cubin(const unsigned char *data, uint64_t size) {
    if (size < sizeof(Elf64_Ehdr) || memcmp(data, ELFMAG, SELFMAG) != 0) return 0;
    Elf64_Ehdr elf;
    memcpy(&elf, data, sizeof elf);
    int known = elf.e_ident[EI_OSABI] == OSABI_OLD || elf.e_ident[EI_OSABI] == OSABI_NEW;
    return known && elf.e_shoff + (uint64_t)elf.e_shnum * sizeof(Elf64_Shdr) <= size && elf.e_shstrndx < elf.e_shnum;
}

static void add_image(standin_library *library, const unsigned char *data, const fatbin_entry *entry) {
    if (library->image_count == MAX_IMAGES || !is_cubin(data, entry->size)) return;
    Elf64_Ehdr elf;
    memcpy(&elf, data, sizeof elf);
    int arch = elf_arch(&elf);
    library->images[library->image_count++] = (image){
        .elf = data,
        .size = entry->size,
        .major = arch / 10,
        .minor = arch % 10,
        /* e_flags lost this bit in CUDA 13; the fatbin entry still says it */
        .exact = (entry->flags & ENTRY_ARCH_SPECIFIC) != 0,
    };
}

/* Returns the size of the data, 0 where it is no fatbin. */
static uint64_t read_images(standin_library *library, const unsigned char *data) {
    fatbin_header header;
    fatbin_entry entry;
    memcpy(&header, data, sizeof header);
    if (header.magic != fatbin_magic || header.header_size < sizeof header) return 0;
    uint64_t end = header.header_size + header.size;
    for (uint64_t at = header.header_size; at + sizeof entry <= end; at += entry.header_size + entry.size) {
        memcpy(&entry, data + at, sizeof entry);
        if (entry.header_size < sizeof entry || entry.size > end - at - entry.header_size) break;
        if (entry.kind == ENTRY_IS_ELF) add_image(library, data + at + entry.header_size, &entry);
    }
    return end;
}

static const char *section_name(const image *cubin, const Elf64_Ehdr *elf, const Elf64_Shdr *section) {
    Elf64_Shdr names;
    memcpy(&names, cubin->elf + elf->e_shoff + elf->e_shstrndx * sizeof names, sizeof names);
    uint64_t at = names.sh_offset + section->sh_name;
    return at < cubin->size ? (const char *)cubin->elf + at : "";
}

/* The next section called <prefix>..., from index `*next` on; its name without the prefix, or NULL. */
static const char *next_section(const image *cubin, const char *prefix, unsigned *next, Elf64_Shdr *section) {
    Elf64_Ehdr elf;
    memcpy(&elf, cubin->elf, sizeof elf);
    while (*next < elf.e_shnum) {
        memcpy(section, cubin->elf + elf.e_shoff + (*next)++ * sizeof *section, sizeof *section);
        const char *name = section_name(cubin, &elf, section);
        if (strncmp(name, prefix, strlen(prefix)) == 0) return name + strlen(prefix);
    }
    return NULL;
}

/* Size of section <prefix><name>; -1 where there is none. */
static int64_t section_size(const image *cubin, const char *prefix, const char *name) {
    Elf64_Shdr section;
    unsigned next = 0;
    for (const char *found; (found = next_section(cubin, prefix, &next, &section));)
        if (strcmp(found, name) == 0) return (int64_t)section.sh_size;
    return -1;
}

/* -- which image runs where -- */

static int image_runs_on(const image *cubin, const standin_device *device) {
    if (cubin->major != device->major) return 0;
    return cubin->exact ? cubin->minor == device->minor : cubin->minor <= device->minor;
}

static int library_runs_on(const standin_library *library, int device) {
    const standin_device *target = standin_device_at(device);
    for (int i = 0; target && i < library->image_count; i++)
        if (image_runs_on(&library->images[i], target)) return 1;
    return 0;
}

static int library_runs_somewhere(const standin_library *library) {
    for (int device = 0; device < standin_device_count(); device++)
        if (library_runs_on(library, device)) return 1;
    return 0;
}

int standin_kernel_runs_on(const standin_kernel *kernel, int device) {
    return library_runs_on(kernel->library, device);
}

/* -- libraries -- */

static void record_load(uint64_t size) {
    standin_load_record *larger = realloc(loads, sizeof *loads * (load_count + 1));
    if (!larger) abort();
    loads = larger;
    loads[load_count++] = (standin_load_record){standin_thread()->id, standin_current_device(), size};
}

int standin_load_library(standin_library **library, const void *code) {
    if (!library || !code) return STANDIN_INVALID_VALUE;
    standin_library *loaded = calloc(1, sizeof *loaded);
    if (!loaded) return STANDIN_OUT_OF_MEMORY;
    loaded->mark = library_mark;
    uint64_t size = read_images(loaded, code);
    standin_lock();
    loaded->next = first_library;
    first_library = loaded;
    if (standin_recording()) record_load(size);
    standin_unlock();
    *library = loaded;
    return STANDIN_OK;
}

int standin_is_library(const standin_library *library) { return library && library->mark == library_mark; }
int standin_is_kernel(const standin_kernel *kernel) { return kernel && kernel->mark == kernel_mark; }

int standin_kernel_count(unsigned *count, const standin_library *library) {
    if (!count || !standin_is_library(library)) return STANDIN_INVALID_VALUE;
    Elf64_Shdr section;
    unsigned next = 0;
    *count = 0;
    while (library->image_count && next_section(&library->images[0], ".text.", &next, &section)) ++*count;
    return STANDIN_OK;
}

/* -- kernels -- */

static standin_kernel *find_kernel(const standin_library *library, const char *name) {
    standin_kernel *kernel = library->kernels;
    while (kernel && strcmp(kernel->name, name) != 0) kernel = kernel->next;
    return kernel;
}

static int static_shared(const image *cubin, const char *name) {
    int64_t size = section_size(cubin, ".nv.shared.", name);
    /* From 9.0 on, the section begins with the KB that CUDA keeps for itself; the limit of a block does not count it. */
    if (cubin->major >= 9) size -= RESERVED_SHARED;
    return size < 0 ? 0 : (int)size;
}

static standin_kernel *add_kernel(standin_library *library, const char *name, const image *cubin) {
    standin_kernel *kernel = calloc(1, sizeof *kernel);
    if (!kernel || !(kernel->name = strdup(name))) abort();
    kernel->mark = kernel_mark;
    kernel->library = library;
    kernel->static_shared = static_shared(cubin, name);
    for (int i = 0; i < STANDIN_MAX_DEVICES; i++) kernel->dynamic_shared[i] = DEFAULT_DYNAMIC_SHARED;
    kernel->next = library->kernels;
    library->kernels = kernel;
    return kernel;
}

static standin_kernel *find_or_add_kernel(standin_library *library, const char *name) {
    standin_kernel *known = find_kernel(library, name);
    for (int i = 0; !known && i < library->image_count; i++)
        if (section_size(&library->images[i], ".text.", name) >= 0)
            known = add_kernel(library, name, &library->images[i]);
    return known;
}

int standin_get_kernel(standin_kernel **kernel, standin_library *library, const char *name) {
    if (!kernel || !name) return STANDIN_INVALID_VALUE;
    if (!standin_is_library(library)) return STANDIN_INVALID_HANDLE;
    if (library->image_count == 0) return STANDIN_INVALID_IMAGE;
    if (!library_runs_somewhere(library)) return STANDIN_NO_IMAGE_FOR_DEVICE;
    standin_lock();
    standin_kernel *found = find_or_add_kernel(library, name);
    standin_unlock();
    if (!found) return STANDIN_SYMBOL_NOT_FOUND;
    *kernel = found;
    return STANDIN_OK;
}

const char *standin_kernel_name(const standin_kernel *kernel) { return kernel->name; }

static int refusal(const standin_kernel *kernel, int device) {
    if (!standin_device_at(device)) return STANDIN_INVALID_DEVICE;
    if (!standin_is_kernel(kernel)) return STANDIN_INVALID_FUNCTION;
    return standin_kernel_runs_on(kernel, device) ? STANDIN_OK : STANDIN_NO_IMAGE_FOR_DEVICE;
}

int standin_get_kernel_attribute(int *value, int attribute, const standin_kernel *kernel, int device) {
    int code = refusal(kernel, device);
    if (code) return code;
    if (!value) return STANDIN_INVALID_VALUE;
    switch (attribute) {
    case STANDIN_KERNEL_MAX_THREADS: *value = 1024; break;
    case STANDIN_KERNEL_STATIC_SHARED: *value = kernel->static_shared; break;
    case STANDIN_KERNEL_REGISTERS: *value = 32; break;
    case STANDIN_KERNEL_DYNAMIC_SHARED: *value = kernel->dynamic_shared[device]; break;
    case STANDIN_KERNEL_BIG_CLUSTERS: *value = kernel->big_clusters[device]; break;
    default: *value = 0;
    }
    return STANDIN_OK;
}

static int set_dynamic_shared(standin_kernel *kernel, int value, int device) {
    int most = 0;
    standin_device_attribute(&most, 97, device);
    if (value < 0 || value + kernel->static_shared > most) return STANDIN_INVALID_VALUE;
    kernel->dynamic_shared[device] = value;
    return STANDIN_OK;
}

int standin_set_kernel_attribute(standin_kernel *kernel, int attribute, int value, int device) {
    int code = refusal(kernel, device);
    if (!code && attribute == STANDIN_KERNEL_DYNAMIC_SHARED) code = set_dynamic_shared(kernel, value, device);
    if (code) return code;
    if (attribute == STANDIN_KERNEL_BIG_CLUSTERS) kernel->big_clusters[device] = value;
    standin_mark_ready(kernel, device);
    return STANDIN_OK;
}

void standin_mark_ready(standin_kernel *kernel, int device) {
    /* read before write: threads that launch side by side then share the cache line */
    if (!__atomic_load_n(&kernel->ready[device], __ATOMIC_RELAXED))
        __atomic_store_n(&kernel->ready[device], 1, __ATOMIC_RELAXED);
}

/* -- what Python reads -- */

void standin_forget_loads(void) {
    load_count = 0;
    for (standin_library *library = first_library; library; library = library->next)
        for (standin_kernel *kernel = library->kernels; kernel; kernel = kernel->next)
            memset(kernel->ready, 0, sizeof kernel->ready);
}

size_t standin_load_count(void) {
    standin_lock();
    size_t count = load_count;
    standin_unlock();
    return count;
}

int standin_load_at(size_t index, standin_load_record *out) {
    standin_lock();
    int found = index < load_count;
    if (found) *out = loads[index];
    standin_unlock();
    return found;
}

static const char *ready_kernel(int device, size_t index) {
    for (standin_library *library = first_library; library; library = library->next)
        for (standin_kernel *kernel = library->kernels; kernel; kernel = kernel->next)
            if (kernel->ready[device] && index-- == 0) return kernel->name;
    return NULL;
}

const char *standin_ready_kernel(int device, size_t index) {
    if (device < 0 || device >= STANDIN_MAX_DEVICES) return NULL;
    standin_lock();
    const char *name = ready_kernel(device, index);
    standin_unlock();
    return name;
}
