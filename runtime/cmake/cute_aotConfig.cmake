# find_package(cute_aot CONFIG) : C and C++ programs that use bundles.
#
# Targets:
#   cute_aot::headers   <aot/aot.h>, <aot/aot.hpp>: all that a program needs which opens bundles at run time
#   cute_aot::tvm_ffi   libtvm_ffi, which programs that link a bundle link too; where it was found
#
# Functions:
#   cute_aot_import_bundle(<target> <directory> ...)   link a bundle that was built before
#   cute_aot_add_bundle(<target> KERNELS ... ARCHS ...) build a bundle as part of this build, and link it
#   cute_aot_install_bundle(<directory> DESTINATION ...) install one beside the programs that use it
#   cute_aot_install_runtime(<target>... ...)           install libtvm_ffi.so where those programs find it
#
# Variables to set if the defaults do not fit:
#   CUTE_AOT_TVM_FFI_LIBRARY   path of libtvm_ffi.so
#   CUTE_AOT_PYTHON            the Python that has cute-aot[build] installed, for cute_aot_add_bundle and KEY, and to find
#                              libtvm_ffi.so
cmake_minimum_required(VERSION 3.20)

# An installed wheel and a checkout have the headers beside this directory, a CMake install below its prefix.
foreach(_cute_aot_candidate "../include" "../../../include" "../../../../include")
  get_filename_component(_cute_aot_candidate "${CMAKE_CURRENT_LIST_DIR}/${_cute_aot_candidate}" ABSOLUTE)
  if(EXISTS "${_cute_aot_candidate}/aot/aot.h")
    set(cute_aot_INCLUDE_DIR "${_cute_aot_candidate}")
    break()
  endif()
endforeach()
unset(_cute_aot_candidate)
if(NOT cute_aot_INCLUDE_DIR)
  set(cute_aot_FOUND FALSE)
  set(cute_aot_NOT_FOUND_MESSAGE "aot/aot.h is not where this package was installed (${CMAKE_CURRENT_LIST_DIR})")
  return()
endif()

include(CMakeFindDependencyMacro)
set(THREADS_PREFER_PTHREAD_FLAG ON)
find_dependency(Threads)

if(NOT TARGET cute_aot::headers)
  add_library(cute_aot::headers INTERFACE IMPORTED)
  set_target_properties(cute_aot::headers PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${cute_aot_INCLUDE_DIR}"
                                                     INTERFACE_LINK_LIBRARIES "Threads::Threads;${CMAKE_DL_LIBS}")
endif()

# Where pip put both, they are neighbours.
get_filename_component(_cute_aot_neighbour "${CMAKE_CURRENT_LIST_DIR}/../../tvm_ffi/lib" ABSOLUTE)
find_library(CUTE_AOT_TVM_FFI_LIBRARY tvm_ffi HINTS "${_cute_aot_neighbour}"
             DOC "libtvm_ffi.so of the apache-tvm-ffi package")
unset(_cute_aot_neighbour)
if(NOT CUTE_AOT_TVM_FFI_LIBRARY)
  find_program(_cute_aot_tvm_ffi_config NAMES tvm-ffi-config)
  if(_cute_aot_tvm_ffi_config)
    execute_process(COMMAND "${_cute_aot_tvm_ffi_config}" --libfiles OUTPUT_VARIABLE _cute_aot_library
                    OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    if(EXISTS "${_cute_aot_library}")
      set(CUTE_AOT_TVM_FFI_LIBRARY "${_cute_aot_library}" CACHE FILEPATH "libtvm_ffi.so" FORCE)
    endif()
  endif()
  unset(_cute_aot_tvm_ffi_config CACHE)
endif()
if(NOT CUTE_AOT_TVM_FFI_LIBRARY)
  # An editable install is no neighbour of tvm_ffi, and an environment that is not activated has no tvm-ffi-config on PATH.
  find_program(_cute_aot_interpreter NAMES "${CUTE_AOT_PYTHON}" python python3)
  if(_cute_aot_interpreter)
    execute_process(
      COMMAND "${_cute_aot_interpreter}" -c
              "import importlib.util as u, os\nspec = u.find_spec('tvm_ffi')\nprint(os.path.join(os.path.dirname(spec.origin), 'lib', 'libtvm_ffi.so') if spec else '')"
      OUTPUT_VARIABLE _cute_aot_library OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    if(_cute_aot_library AND EXISTS "${_cute_aot_library}")
      set(CUTE_AOT_TVM_FFI_LIBRARY "${_cute_aot_library}" CACHE FILEPATH "libtvm_ffi.so" FORCE)
    endif()
  endif()
  unset(_cute_aot_interpreter CACHE)
endif()
if(CUTE_AOT_TVM_FFI_LIBRARY AND NOT TARGET cute_aot::tvm_ffi)
  add_library(cute_aot::tvm_ffi SHARED IMPORTED)
  set_target_properties(cute_aot::tvm_ffi PROPERTIES IMPORTED_LOCATION "${CUTE_AOT_TVM_FFI_LIBRARY}")
endif()

include("${CMAKE_CURRENT_LIST_DIR}/cute_aot_bundle.cmake")
