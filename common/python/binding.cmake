# liblnc_torch.so: operators of PyTorch that load liblnc.so, from the same directory, and call it. It is
# no Python module, and one file does for every Python; it fits the version of PyTorch that TORCH is.
if(NOT EXISTS ${TORCH}/include/torch/library.h)
  message(FATAL_ERROR "TORCH is ${TORCH}, and there is no include/torch/library.h: it is the directory "
                      "that python3 -c 'import torch; print(torch.__path__[0])' prints")
endif()
add_library(lnc_torch MODULE common/python/csrc/arguments.cpp common/python/csrc/autograd.cpp
                             common/python/csrc/aten_override.cpp common/python/csrc/kernels.cpp
                             common/python/csrc/memory_overlap.cpp
                             common/python/csrc/operators.cpp)
target_include_directories(lnc_torch PRIVATE ${CMAKE_SOURCE_DIR})
target_include_directories(lnc_torch SYSTEM PRIVATE ${TORCH}/include ${TORCH}/include/torch/csrc/api/include)
target_compile_options(lnc_torch PRIVATE -std=c++20 ${warnings} -O2)
# By path, and without a run path: Python has loaded them when it loads this.
set(torch_libraries ${TORCH}/lib/libtorch_cpu.so ${TORCH}/lib/libc10.so)
if(BACKEND STREQUAL "cuda" AND EXISTS ${TORCH}/lib/libc10_cuda.so)
  target_compile_definitions(lnc_torch PRIVATE LNC_WITH_CUDA)
  target_include_directories(lnc_torch SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
  list(APPEND torch_libraries ${TORCH}/lib/libtorch_cuda.so ${TORCH}/lib/libc10_cuda.so)
endif()
# PyTorch and this library hand exceptions and strings to each other, so both must have the same C++ library, the shared
# one: named here it comes first, also where g++ is told, or made, to link a static one (-static-libstdc++).
find_library(SHARED_LIBSTDCXX NAMES libstdc++.so.6 libstdc++.so)
mark_as_advanced(SHARED_LIBSTDCXX)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND SHARED_LIBSTDCXX)
  list(APPEND torch_libraries ${SHARED_LIBSTDCXX})
endif()
target_link_libraries(lnc_torch PRIVATE ${torch_libraries} ${CMAKE_DL_LIBS})
target_link_options(lnc_torch PRIVATE -Wl,--allow-shlib-undefined)
set_target_properties(lnc_torch PROPERTIES SKIP_BUILD_RPATH ON)
add_dependencies(lnc lnc_torch)  # whoever asks for the library gets both
install(TARGETS lnc lnc_torch LIBRARY DESTINATION layernorm_chapters/lib COMPONENT python)
