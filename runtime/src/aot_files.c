/* The functions of aot/files.h and aot/sha256.h, once for the entry library. */
#include <aot/files.h>
