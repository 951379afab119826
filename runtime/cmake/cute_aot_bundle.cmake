# Bundles as targets to link. Included by cute_aotConfig.cmake.
include_guard(GLOBAL)

# The host that this build compiles for, as bundles name it.
function(_cute_aot_host result)
  set(cpu "${CMAKE_SYSTEM_PROCESSOR}")
  if(cpu MATCHES "^(x86_64|amd64|AMD64)$")
    set(cpu x86_64)
  elseif(cpu MATCHES "^(aarch64|arm64)$")
    set(cpu aarch64)
  else()
    message(FATAL_ERROR "cute_aot: bundles run on x86_64 and aarch64, not on `${cpu}`")
  endif()
  set(${result} "${cpu}-linux-gnu" PARENT_SCOPE)
endfunction()

# Defines <target> for the bundle at `path`, whose files may be made later.
function(_cute_aot_define target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "NAME;PATH;TYPE;HOST;CUDART" "ARCHS;DECLINED")
  if(NOT TARGET cute_aot::tvm_ffi)
    message(FATAL_ERROR "cute_aot: libtvm_ffi.so was not found, and programs that link a bundle need it\n"
                        "hint: pass -DCUTE_AOT_PYTHON=... with the Python that cute-aot is installed for, or "
                        "-DCUTE_AOT_TVM_FFI_LIBRARY=... with what its `-m aot config --tvm-ffi` prints")
  endif()
  set(lib "${arg_PATH}/lib/${arg_HOST}")
  add_library(${target} INTERFACE)
  target_include_directories(${target} SYSTEM INTERFACE "${arg_PATH}/include")
  target_link_libraries(${target} INTERFACE cute_aot::headers)
  # Two versions of a bundle have the same symbols, of which a linker takes one without a word: CMake refuses a program
  # that would link both, naming the bundle.
  set_target_properties(${target} PROPERTIES INTERFACE_AOT_BUNDLE_${arg_NAME} "${arg_PATH}"
                                             COMPATIBLE_INTERFACE_STRING AOT_BUNDLE_${arg_NAME})
  if(arg_TYPE STREQUAL "SHARED")
    add_library(${target}_entry SHARED IMPORTED GLOBAL)
    set_target_properties(${target}_entry PROPERTIES IMPORTED_LOCATION "${lib}/lib${arg_NAME}.so"
                                                     IMPORTED_SONAME "lib${arg_NAME}.so")
    # The entry library needs libtvm_ffi and says so nowhere: it must be linked even if the program itself does not call it.
    # In one word, since CMake drops flags that repeat; the target after it is for the search path of the program.
    target_link_libraries(${target} INTERFACE ${target}_entry
                          "-Wl,--push-state,--no-as-needed,${CUTE_AOT_TVM_FFI_LIBRARY},--pop-state" cute_aot::tvm_ffi)
    return()
  endif()

  # Order: what refers to a symbol before what defines it.
  set(files "lib${arg_NAME}.a")
  foreach(arch IN LISTS arg_ARCHS)
    list(APPEND files "lib${arg_NAME}_${arch}.a")
  endforeach()
  list(APPEND files "lib${arg_NAME}_cuda.a")
  if(arg_CUDART STREQUAL "static")
    list(APPEND files "lib${arg_NAME}_cudart.a")
  endif()
  set(number 0)
  foreach(file IN LISTS files)
    add_library(${target}_archive${number} STATIC IMPORTED GLOBAL)
    set_target_properties(${target}_archive${number} PROPERTIES IMPORTED_LOCATION "${lib}/${file}")
    target_link_libraries(${target} INTERFACE ${target}_archive${number})
    math(EXPR number "${number} + 1")
  endforeach()
  # Whatever is not called is dropped. An architecture that is neither linked nor declined is an undefined symbol.
  target_link_options(${target} INTERFACE "LINKER:--gc-sections")
  foreach(arch IN LISTS arg_DECLINED)
    target_link_options(${target} INTERFACE "LINKER:--defsym=aot_${arg_NAME}_arch__${arch}=0")
  endforeach()
  if(NOT arg_CUDART STREQUAL "static" AND NOT arg_CUDART STREQUAL "none")
    find_package(CUDAToolkit QUIET)
    if(TARGET CUDA::cudart)
      target_link_libraries(${target} INTERFACE CUDA::cudart)
    endif()
  endif()
  target_link_libraries(${target} INTERFACE cute_aot::tvm_ffi Threads::Threads ${CMAKE_DL_LIBS} rt m)
endfunction()

# cute_aot_import_bundle(<target> <directory> [STATIC|SHARED|OPENED] [ARCHS <arch>...] [HOST <cpu or host>] [NO_CUDART]
#                        [KEY <public key>...] [MANIFEST_SHA256 <digest>])
#
# <target> links the bundle in that directory (what `python -m aot build` printed) and finds its headers, <name>.h and
# <name>.hpp. SHARED, the default: the directory must be there when the program runs. STATIC: the program holds the
# kernels of the architectures given (by default all of the bundle). OPENED: nothing of the bundle is linked, since the
# program opens it with aot_open. NO_CUDART: link a CUDA runtime to <target>, with INTERFACE. It then stands behind the
# archives; one that is linked to the program stands before them, and compilers such as Ubuntu's leave it out.
#
# KEY: configuring fails unless the bundle is sound and signed by one of these keys, PEM files; CUTE_AOT_PYTHON checks it.
# MANIFEST_SHA256: configuring fails unless manifest.json has this digest. With either, what uses <target> is compiled
# with AOT_<NAME>_MANIFEST_SHA256, a string, for aot_options.manifest_sha256: the program then opens no other bundle.
function(cute_aot_import_bundle target directory)
  cmake_parse_arguments(PARSE_ARGV 2 arg "STATIC;SHARED;OPENED;NO_CUDART" "HOST;MANIFEST_SHA256" "ARCHS;KEY")
  if(arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "cute_aot_import_bundle: not understood: ${arg_UNPARSED_ARGUMENTS}")
  endif()
  foreach(keyword IN ITEMS KEY MANIFEST_SHA256)
    if(keyword IN_LIST ARGN AND NOT arg_${keyword})  # a variable that is empty must not turn the check off
      message(FATAL_ERROR "cute_aot_import_bundle: ${keyword} is empty")
    endif()
  endforeach()
  if((arg_STATIC AND arg_SHARED) OR (arg_STATIC AND arg_OPENED) OR (arg_SHARED AND arg_OPENED))
    message(FATAL_ERROR "cute_aot_import_bundle: one of STATIC, SHARED and OPENED, not several")
  endif()
  get_filename_component(directory "${directory}" ABSOLUTE)
  if(NOT EXISTS "${directory}/manifest.json")
    message(FATAL_ERROR "cute_aot: `${directory}` is not a bundle: it holds no manifest.json\n"
                        "hint: give the directory that `python -m aot build` printed")
  endif()
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${directory}/manifest.json")
  _cute_aot_check_signature("${directory}" "${arg_KEY}")
  file(SHA256 "${directory}/manifest.json" digest)
  if(arg_MANIFEST_SHA256 AND NOT digest STREQUAL arg_MANIFEST_SHA256)
    message(FATAL_ERROR "cute_aot: `${directory}/manifest.json` has SHA-256 ${digest}, expected ${arg_MANIFEST_SHA256}\n"
                        "hint: get the bundle that was meant, or change MANIFEST_SHA256")
  endif()
  file(READ "${directory}/manifest.json" manifest)
  string(JSON name GET "${manifest}" name)
  set(host "${arg_HOST}")
  if(NOT host)
    _cute_aot_host(host)
  elseif(NOT host MATCHES "-")  # a CPU, as `--host` takes it
    string(APPEND host "-linux-gnu")
  endif()
  string(JSON cudart ERROR_VARIABLE error GET "${manifest}" hosts ${host} cudart)
  if(error)
    message(FATAL_ERROR "cute_aot: `${directory}` holds no code for ${host}\nhint: build it with `--host`, for this CPU too")
  endif()
  _cute_aot_manifest_archs("${manifest}" built)
  set(archs "${arg_ARCHS}")
  if(NOT archs)
    set(archs "${built}")
  endif()
  set(declined "${built}")
  _cute_aot_match_archs("${name}" "${archs}" "${built}" archs)
  if(archs)
    list(REMOVE_ITEM declined ${archs})
  endif()
  set(type SHARED)
  if(arg_STATIC)
    set(type STATIC)
    if(NOT EXISTS "${directory}/lib/${host}/lib${name}.a")
      message(FATAL_ERROR "cute_aot: bundle `${name}` holds no archives\nhint: build it without `--no-archives`")
    endif()
  endif()
  if(arg_NO_CUDART)
    set(cudart none)
  endif()
  if(arg_OPENED)
    add_library(${target} INTERFACE)
    target_link_libraries(${target} INTERFACE cute_aot::headers)
  else()
    _cute_aot_define(${target} NAME ${name} PATH "${directory}" TYPE ${type} HOST ${host} CUDART ${cudart}
                     ARCHS ${archs} DECLINED ${declined})
  endif()
  if(arg_KEY OR arg_MANIFEST_SHA256)
    string(TOUPPER "AOT_${name}_MANIFEST_SHA256" macro)
    target_compile_definitions(${target} INTERFACE "${macro}=\"${digest}\"")
  endif()
endfunction()

# Stops unless the bundle is sound and signed by one of the keys; without keys, does nothing.
function(_cute_aot_check_signature directory keys)
  if(NOT keys)
    return()
  endif()
  _cute_aot_python(python)
  set(options "")
  foreach(key IN LISTS keys)
    get_filename_component(key "${key}" ABSOLUTE)
    list(APPEND options --key "${key}")
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${key}")
  endforeach()
  execute_process(COMMAND "${python}" -m aot verify "${directory}" ${options} RESULT_VARIABLE code
                  OUTPUT_VARIABLE said ERROR_VARIABLE error)
  if(NOT code EQUAL 0)
    message(FATAL_ERROR "cute_aot: `${directory}` was not accepted\n${said}${error}")
  endif()
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${directory}/manifest.sig")
endfunction()

# The compute capability of a GPU by its name, or of this machine's first one for `native`; empty for other texts.
# A test compares the table with that of aot_runtime/gpus.py.
function(_cute_aot_gpu_capability text result)
  set(known
      V100=7.0
      T4=7.5
      A100=8.0
      A30=8.0
      A800=8.0
      A10=8.6
      A40=8.6
      A6000=8.6
      RTXA6000=8.6
      RTX3080=8.6
      RTX3090=8.6
      ORIN=8.7
      L4=8.9
      L40=8.9
      L40S=8.9
      RTX4080=8.9
      RTX4090=8.9
      RTX6000ADA=8.9
      H100=9.0
      H200=9.0
      H20=9.0
      H800=9.0
      GH200=9.0
      B200=10.0
      GB200=10.0
      B300=10.3
      GB300=10.3
      THOR=11.0
      RTX5080=12.0
      RTX5090=12.0
      RTXPRO6000=12.0
      GB10=12.1
  )
  set(found "")
  if(text STREQUAL "native")
    execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader OUTPUT_VARIABLE found ERROR_QUIET)
    string(REGEX MATCH "^[0-9]+\\.[0-9]" found "${found}")
    if(NOT found)
      message(FATAL_ERROR "cute_aot: `native` is the GPU of this machine, and nvidia-smi finds none")
    endif()
  else()
    string(TOUPPER "${text}" bare)
    string(REGEX REPLACE "NVIDIA|GEFORCE|TESLA|JETSON|QUADRO|[ _-]" "" bare "${bare}")
    list(FILTER known INCLUDE REGEX "^${bare}=")
    string(REGEX REPLACE "^.*=" "" found "${known}")
  endif()
  set(${result} "${found}" PARENT_SCOPE)
endfunction()

# What a bundle has of the architectures that are wanted: exact names (sm_90a), sm90, 90 and 9.0 for all that were built
# for this number, and GPUs (H100, native) for all that runs on them.
function(_cute_aot_match_archs name wanted built result)
  set(found "")
  foreach(arch IN LISTS wanted)
    set(own "")
    if(arch IN_LIST built)
      set(own "${arch}")
    elseif(arch MATCHES "^(sm)?([0-9]+)\\.?([0-9])$")
      set(own "${built}")
      list(FILTER own INCLUDE REGEX "^sm_${CMAKE_MATCH_2}${CMAKE_MATCH_3}[af]?$")
    else()
      _cute_aot_gpu_capability("${arch}" capability)
      foreach(candidate IN LISTS built)
        string(REGEX MATCH "^sm_([0-9]+)([0-9])([af]?)$" matched "${candidate}")
        set(code "${CMAKE_MATCH_1}.${CMAKE_MATCH_2}")
        set(suffix "${CMAKE_MATCH_3}")
        if(capability MATCHES "^${CMAKE_MATCH_1}\\." AND (code STREQUAL capability
           OR (NOT suffix STREQUAL "a" AND code VERSION_LESS capability AND NOT capability STREQUAL "8.7")))
          list(APPEND own "${candidate}")
        endif()
      endforeach()
    endif()
    if(NOT own)
      message(FATAL_ERROR "cute_aot: bundle `${name}` was not built for ${arch}; it was for: ${built}")
    endif()
    list(APPEND found ${own})
  endforeach()
  list(REMOVE_DUPLICATES found)
  set(${result} "${found}" PARENT_SCOPE)
endfunction()

function(_cute_aot_manifest_archs manifest result)
  set(archs "")
  string(JSON count LENGTH "${manifest}" archs)
  if(count GREATER 0)
    math(EXPR last "${count} - 1")
    foreach(i RANGE ${last})
      string(JSON arch GET "${manifest}" archs ${i})
      list(APPEND archs "${arch}")
    endforeach()
  endif()
  set(${result} "${archs}" PARENT_SCOPE)
endfunction()

# cute_aot_add_bundle(<target> KERNELS <folder or file> ARCHS <arch>... [HOSTS <cpu>...] [NAME <name>]
#                     [SELECT <glob>...] [STATIC|SHARED] [CUDART static|shared] [DEPENDS <file>...]
#                     [OUTPUT <directory>] [OPTIONS <option>...])
#
# Builds a bundle with `python -m aot build` when something it is made of is newer, and makes <target> link it. Every
# Python file below KERNELS counts; name in DEPENDS what they import from elsewhere. HOSTS adds other CPUs to the one
# this build compiles for.
function(cute_aot_add_bundle target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "STATIC;SHARED" "KERNELS;NAME;CUDART;OUTPUT" "ARCHS;HOSTS;SELECT;DEPENDS;OPTIONS")
  if(arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "cute_aot_add_bundle: not understood: ${arg_UNPARSED_ARGUMENTS}")
  endif()
  if(NOT arg_KERNELS OR NOT arg_ARCHS)
    message(FATAL_ERROR "cute_aot_add_bundle: KERNELS and ARCHS must be given")
  endif()
  if(NOT arg_NAME)
    set(arg_NAME ${target})
  endif()
  if(NOT arg_CUDART)
    set(arg_CUDART static)
  endif()
  if(NOT arg_OUTPUT)
    set(arg_OUTPUT "${CMAKE_CURRENT_BINARY_DIR}/${target}")
  endif()
  get_filename_component(output "${arg_OUTPUT}" ABSOLUTE BASE_DIR "${CMAKE_CURRENT_BINARY_DIR}")
  get_filename_component(kernels "${arg_KERNELS}" ABSOLUTE)
  if(NOT EXISTS "${kernels}")
    message(FATAL_ERROR "cute_aot_add_bundle: KERNELS `${kernels}` does not exist")
  endif()
  _cute_aot_python(python)
  execute_process(COMMAND "${python}" -m aot config --archs ${arg_ARCHS} OUTPUT_VARIABLE archs ERROR_VARIABLE error
                  RESULT_VARIABLE code OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(NOT code EQUAL 0)
    message(FATAL_ERROR "cute_aot_add_bundle: ${error}")
  endif()
  string(REPLACE " " ";" archs "${archs}")
  _cute_aot_host(host)

  set(sources "${kernels}")
  if(IS_DIRECTORY "${kernels}")
    file(GLOB_RECURSE sources CONFIGURE_DEPENDS "${kernels}/*.py")
  endif()
  set(command "${python}" -m aot build --source "${kernels}" --name ${arg_NAME} --out "${output}" --cudart ${arg_CUDART}
              --host ${host} --replace)
  foreach(arch IN LISTS archs)
    list(APPEND command --arch ${arch})
  endforeach()
  foreach(other IN LISTS arg_HOSTS)
    list(APPEND command --host ${other})
  endforeach()
  foreach(glob IN LISTS arg_SELECT)
    list(APPEND command --kernel ${glob})
  endforeach()

  set(type SHARED)
  set(made "${output}/lib/${host}/lib${arg_NAME}.so" "${output}/include/${arg_NAME}.h" "${output}/include/${arg_NAME}.hpp")
  if(arg_STATIC)
    set(type STATIC)
    foreach(part "" "_cuda" "_cudart")
      list(APPEND made "${output}/lib/${host}/lib${arg_NAME}${part}.a")
    endforeach()
    foreach(arch IN LISTS archs)
      list(APPEND made "${output}/lib/${host}/lib${arg_NAME}_${arch}.a")
    endforeach()
    if(NOT arg_CUDART STREQUAL "static")
      list(REMOVE_ITEM made "${output}/lib/${host}/lib${arg_NAME}_cudart.a")
    endif()
  endif()
  # A build may leave files that did not change as they were, older than what they are made of: the stamp tells.
  set(stamp "${CMAKE_CURRENT_BINARY_DIR}/${target}.stamp")
  add_custom_command(OUTPUT "${stamp}" BYPRODUCTS ${made}
                     COMMAND ${command} ${arg_OPTIONS}
                     COMMAND "${CMAKE_COMMAND}" -E touch "${stamp}"
                     DEPENDS ${sources} ${arg_DEPENDS}
                     COMMENT "Building bundle ${arg_NAME}" VERBATIM)
  add_custom_target(${target}_build DEPENDS "${stamp}")
  _cute_aot_define(${target} NAME ${arg_NAME} PATH "${output}" TYPE ${type} HOST ${host} CUDART ${arg_CUDART}
                   ARCHS ${archs} DECLINED)
  add_dependencies(${target} ${target}_build)
  # So that programs are linked again when the bundle was built again.
  set_property(TARGET ${target} APPEND PROPERTY INTERFACE_LINK_DEPENDS "${stamp}")
endfunction()

# cute_aot_install_bundle(<directory of the bundle> DESTINATION <directory>)
#
# Installs a bundle whole, for programs that link it SHARED or open it at run time. Bundles are relocatable:
# cute_aot_install_runtime tells a program where an installed bundle is.
function(cute_aot_install_bundle directory)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "DESTINATION" "")
  if(arg_UNPARSED_ARGUMENTS OR NOT arg_DESTINATION)
    message(FATAL_ERROR "cute_aot_install_bundle: give the bundle's directory and DESTINATION <directory>; "
                        "not understood: ${arg_UNPARSED_ARGUMENTS}")
  endif()
  get_filename_component(directory "${directory}" ABSOLUTE BASE_DIR "${CMAKE_CURRENT_BINARY_DIR}")
  install(DIRECTORY "${directory}/" DESTINATION "${arg_DESTINATION}" USE_SOURCE_PERMISSIONS)
endfunction()

# cute_aot_install_runtime(<program or library>... [FROM <directory>] [DESTINATION <directory>] [BUNDLES <directory>...])
#
# Installs libtvm_ffi.so, which everything that links a bundle needs, and lets the targets find it there when they are
# installed: their run path is relative to themselves and names nothing of this machine. FROM is where the targets are
# installed (default: bin), DESTINATION where libtvm_ffi.so goes (default: lib), BUNDLES where cute_aot_install_bundle
# puts the bundles that the targets link SHARED. All three are relative to the prefix.
function(cute_aot_install_runtime)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "FROM;DESTINATION" "BUNDLES")
  set(targets "${arg_UNPARSED_ARGUMENTS}")
  if(NOT targets)
    message(FATAL_ERROR "cute_aot_install_runtime: give the targets that link a bundle")
  endif()
  if(NOT arg_FROM)
    set(arg_FROM bin)
  endif()
  if(NOT arg_DESTINATION)
    set(arg_DESTINATION lib)
  endif()
  foreach(place IN ITEMS "${arg_FROM}" "${arg_DESTINATION}" ${arg_BUNDLES})
    if(IS_ABSOLUTE "${place}")
      message(FATAL_ERROR "cute_aot_install_runtime: `${place}` is not relative to the prefix")
    endif()
  endforeach()
  _cute_aot_host(host)
  set(path "")
  set(places "${arg_DESTINATION}")
  foreach(bundle IN LISTS arg_BUNDLES)
    list(APPEND places "${bundle}/lib/${host}")
  endforeach()
  foreach(place IN LISTS places)
    file(RELATIVE_PATH relative "/prefix/${arg_FROM}" "/prefix/${place}")
    string(REGEX REPLACE "/$" "" relative "$ORIGIN/${relative}")
    list(APPEND path "${relative}")
  endforeach()
  foreach(target IN LISTS targets)
    if(NOT TARGET ${target})
      message(FATAL_ERROR "cute_aot_install_runtime: there is no target `${target}`")
    endif()
    set_property(TARGET ${target} APPEND PROPERTY INSTALL_RPATH ${path})
    # What was linked for building lies in the builder's environment.
    set_target_properties(${target} PROPERTIES INSTALL_RPATH_USE_LINK_PATH OFF)
  endforeach()
  get_filename_component(library "${CUTE_AOT_TVM_FFI_LIBRARY}" REALPATH)
  install(FILES "${library}" DESTINATION "${arg_DESTINATION}" RENAME libtvm_ffi.so)
endfunction()

function(_cute_aot_python result)
  if(NOT CUTE_AOT_PYTHON)
    find_package(Python3 COMPONENTS Interpreter)
    set(CUTE_AOT_PYTHON "${Python3_EXECUTABLE}")
  endif()
  if(NOT CUTE_AOT_PYTHON)
    message(FATAL_ERROR "cute_aot: Python was not found\nhint: set CUTE_AOT_PYTHON to one that has cute-aot[build]")
  endif()
  set(${result} "${CUTE_AOT_PYTHON}" PARENT_SCOPE)
endfunction()
