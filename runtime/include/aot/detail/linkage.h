/* Definitions that stand in headers. The linker keeps one of each per program or shared library, and exports none.
 * A unit that defines AOT_DECLARATIONS_ONLY takes the declarations of sha256.h and files.h alone. */
#ifndef AOT_LINKAGE_H_
#define AOT_LINKAGE_H_

#define AOT_SHARED_DATA __attribute__((weak, visibility("hidden")))
#ifdef __cplusplus
#define AOT_SHARED inline __attribute__((visibility("hidden")))
#else
#define AOT_SHARED __attribute__((weak, visibility("hidden")))
#endif

#endif /* AOT_LINKAGE_H_ */
