/* Files whose digest is compared before they are mapped: aot/detail/files.h, which aot_files.c compiles. */
#ifndef AOT_FILES_DECLARED_H_
#define AOT_FILES_DECLARED_H_

#define AOT_DECLARATIONS_ONLY
#include <aot/detail/files.h>

#endif /* AOT_FILES_DECLARED_H_ */
