# A CMake toolchain: Debian's mingw-w64 compiles llama.cpp for Windows on x64.
set(CMAKE_SYSTEM_NAME Windows)
set(CMAKE_SYSTEM_PROCESSOR x86_64)
# llama.cpp uses std::thread, which only the variant with POSIX threads has.
set(CMAKE_C_COMPILER x86_64-w64-mingw32-gcc-posix)
set(CMAKE_CXX_COMPILER x86_64-w64-mingw32-g++-posix)
set(CMAKE_RC_COMPILER x86_64-w64-mingw32-windres)
set(CMAKE_FIND_ROOT_PATH /usr/x86_64-w64-mingw32)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
# cpp-httplib refuses versions before Windows 10 (0x0A00).
set(flags "-D_WIN32_WINNT=0x0A00 -include ${CMAKE_CURRENT_LIST_DIR}/mingw-compat.h")
set(CMAKE_C_FLAGS_INIT "${flags}")
set(CMAKE_CXX_FLAGS_INIT "${flags}")
# Without libraries of mingw, which are not on Windows' PATH.
set(CMAKE_EXE_LINKER_FLAGS_INIT "-static -static-libgcc -static-libstdc++")

# One static build for every processor of the last ten years, without the parts that corral does not start.
set(CMAKE_BUILD_TYPE Release CACHE STRING "")
foreach(wanted GGML_AVX GGML_AVX2 GGML_FMA GGML_F16C GGML_BMI2)
  set(${wanted} ON CACHE BOOL "")
endforeach()
foreach(unwanted BUILD_SHARED_LIBS GGML_NATIVE GGML_OPENMP GGML_RPC LLAMA_BUILD_TESTS LLAMA_BUILD_EXAMPLES LLAMA_BUILD_APP
        LLAMA_BUILD_UI LLAMA_USE_PREBUILT_UI LLAMA_OPENSSL LLAMA_LLGUIDANCE)
  set(${unwanted} OFF CACHE BOOL "")
endforeach()
