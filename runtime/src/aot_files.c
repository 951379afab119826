/* The functions of aot/detail/files.h and aot/detail/sha256.h, once for the entry library. */
#include <aot/detail/files.h>
